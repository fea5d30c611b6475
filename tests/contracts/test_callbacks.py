"""What every callback of the package promises. A new callback is added to `CALLBACKS`."""

import functools

import pytest
import torch
from torch import nn

from trw_pipeline.callbacks.activation_statistics import CallbackActivationStatistics
from trw_pipeline.callbacks.adaptor_clinicadl import CallbackAdaptorClinicadl
from trw_pipeline.callbacks.checkpoint import CallbackCheckpoint
from trw_pipeline.callbacks.early_stopping import CallbackEarlyStopping
from trw_pipeline.callbacks.epoch_summary import CallbackEpochSummary
from trw_pipeline.callbacks.explain_decision import CallbackExplainDecision
from trw_pipeline.callbacks.export_best_history import CallbackExportBestHistory
from trw_pipeline.callbacks.export_classification_report import CallbackExportClassificationReport
from trw_pipeline.callbacks.export_convolution_kernel import CallbackExportConvolutionKernel
from trw_pipeline.callbacks.export_history import CallbackExportHistory
from trw_pipeline.callbacks.learning_rate_finder import CallbackLearningRateFinder
from trw_pipeline.callbacks.learning_rate_recorder import CallbackLearningRateRecorder
from trw_pipeline.callbacks.model_summary import CallbackModelSummary
from trw_pipeline.callbacks.monitor import MonitorCallback
from trw_pipeline.callbacks.progress_bar import CallbackProgressBar
from trw_pipeline.callbacks.resource_monitor import CallbackResourceMonitor
from trw_pipeline.callbacks.save_last_model import CallbackSaveLastModel
from trw_pipeline.callbacks.tensorboard import CallbackTensorboardRecordHistory
from trw_pipeline.callbacks.train_log import CallbackTrainLog
from trw_pipeline.outputs.classification import OutputClassification
from trw_pipeline.trainer import Trainer
from trw_pipeline.training.callback import Callback
from trw_pipeline.training.optimizers import create_sgd_optimizers_fn
from trw_pipeline.training.options import create_default_options


class OfClinicadl:
    def __init__(self):
        self.nb_epochs = 0

    def on_epoch_end(self, *, state, **keywords):
        self.nb_epochs += 1

    def state_dict(self):
        return {"nb_epochs": self.nb_epochs}

    def load_state_dict(self, state_dict):
        self.nb_epochs = state_dict["nb_epochs"]


CALLBACKS = {
    "activation_statistics": CallbackActivationStatistics,
    "adaptor_clinicadl": lambda: CallbackAdaptorClinicadl(OfClinicadl()),
    "checkpoint": CallbackCheckpoint,
    "early_stopping": functools.partial(CallbackEarlyStopping, ("d", "valid", "overall_loss", "loss"), patience=2),
    "epoch_summary": CallbackEpochSummary,
    "export_best_history": CallbackExportBestHistory,
    "export_classification_report": CallbackExportClassificationReport,
    "export_convolution_kernel": CallbackExportConvolutionKernel,
    "explain_decision": functools.partial(CallbackExplainDecision, max_samples=1),
    "export_history": functools.partial(CallbackExportHistory, metrics_to_report=["loss"]),
    "learning_rate_finder": functools.partial(CallbackLearningRateFinder, 3, 1e-3, 1e-1, 10.0),
    "learning_rate_recorder": CallbackLearningRateRecorder,
    "model_summary": CallbackModelSummary,
    "monitor": functools.partial(MonitorCallback, warmup_iterations=0),
    "progress_bar": CallbackProgressBar,
    "resource_monitor": CallbackResourceMonitor,
    "save_last_model": CallbackSaveLastModel,
    "tensorboard": CallbackTensorboardRecordHistory,
    "train_log": CallbackTrainLog,
    "train_log_jsonl": functools.partial(CallbackTrainLog, "trainlog.jsonl"),
}
SLOW = ("export_classification_report", "export_history", "learning_rate_finder", "learning_rate_recorder")  # they draw
SLOW = ("export_classification_report", "export_history")  # it draws
SLOW = (
    "explain_decision",
    "export_history",
)  # it draws
every_callback = pytest.mark.parametrize(
    "create",
    [pytest.param(kind, id=name, marks=[pytest.mark.slow] * (name in SLOW)) for name, kind in CALLBACKS.items()],
)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 2)

    def forward(self, batch):
        return {"y": OutputClassification(self.inner(batch["x"]), "truth")}


def fit(callbacks, folder, where="callbacks_per_epoch_fn", num_epochs=1):
    split = [{"x": torch.eye(3), "truth": torch.tensor([0, 1, 0])}]
    lists = dict.fromkeys(("callbacks_per_epoch_fn", "callbacks_pre_training_fn", "callbacks_post_training_fn"))
    trainer = Trainer(**lists | {where: lambda: callbacks})
    torch.manual_seed(0)
    return trainer.fit(
        create_default_options(folder, num_epochs, "cpu"),
        lambda: {"d": {"train": split, "valid": split}},
        lambda options: Net(),
        lambda datasets, model: create_sgd_optimizers_fn(datasets, model, 0.1),
    )


def files(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


@every_callback
def test_it_is_a_callback_and_can_be_built_without_arguments(create):
    assert isinstance(create(), Callback)
    if create is CALLBACKS["early_stopping"]:
        return  # nobody can guess which metric
    plain = create.func if isinstance(create, functools.partial) else create
    assert isinstance(plain(), Callback)


@every_callback
def test_it_does_something(create):
    kind = type(create())
    assert any(getattr(kind, name) is not getattr(Callback, name) for name in (*vars(Callback), "__call__"))


@every_callback
def test_it_serves_in_two_trainings_and_does_the_same_in_both(create, tmp_path):
    callback = create()
    for _ in range(2):
        fit([callback], tmp_path)
    assert files(tmp_path / "default_r0") == files(tmp_path / "default_r1")


@every_callback
def test_it_does_not_change_what_is_trained(create, tmp_path):
    with_it, result = fit([create()], tmp_path)
    without, expected = fit([], tmp_path)
    assert torch.equal(with_it.inner.weight, without.inner.weight)
    losses = [[epoch["d"]["valid"]["y"]["loss"] for epoch in each["history"]] for each in (result, expected)]
    assert losses[0] == losses[1]


@every_callback
def test_its_state_makes_the_round_trip(create, tmp_path):
    callback = create()
    fit([callback], tmp_path)
    state = callback.state_dict()
    fresh = create()
    fresh.load_state_dict(state)
    assert fresh.state_dict() == state


@every_callback
def test_it_survives_a_training_that_fails(create, tmp_path):
    class Fails(Callback):
        def on_loss(self, run):
            raise OSError("disk full")

    callback = create()
    with pytest.raises(OSError, match="disk full") as caught:
        fit([callback, Fails()], tmp_path)
    assert sum("raised by the callback" in note for note in caught.value.__notes__) == 1
    fit([callback], tmp_path)


@every_callback
def test_it_writes_to_its_run_folder_alone(create, tmp_path, monkeypatch):
    working = tmp_path / "working"
    working.mkdir()
    monkeypatch.chdir(working)
    fit([create()], tmp_path / "runs")
    assert files(working) == []
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["default_r0"]


@every_callback
def test_it_prints_nothing(create, tmp_path, capsys):
    fit([create()], tmp_path)
    assert capsys.readouterr() == ("", "")


def test_all_callbacks_of_the_package_are_here():
    import importlib
    import pkgutil

    import trw_pipeline.callbacks

    found = set()
    for module in pkgutil.iter_modules(trw_pipeline.callbacks.__path__):
        names = vars(importlib.import_module(f"trw_pipeline.callbacks.{module.name}"))
        found |= {name for name, thing in names.items() if isinstance(thing, type) and issubclass(thing, Callback)}
    bases = {"Callback", "RowLog"}
    assert found - bases == {type(create()).__name__ for create in CALLBACKS.values()}
