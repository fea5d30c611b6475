"""What every callback of the package promises. A new callback is added to `CALLBACKS`.

It can be built without arguments, unless it is in `NEED_ARGUMENTS`; it runs in each of the lists or is refused there by
name, in several trainings, on models with one head and with several, inside a `CallbackSkipEpoch`; its state is plain
data that makes the round trip; and whatever it does, the training does not notice: weights, modes, gradients, hooks,
optimizers, the position of the data and all random states are as they were before each of its hooks.
"""

import functools
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from trw_pipeline import trainer
from trw_pipeline.callbacks.activation_statistics import CallbackActivationStatistics
from trw_pipeline.callbacks.adaptor_clinicadl import CallbackAdaptorClinicadl
from trw_pipeline.callbacks.checkpoint import CallbackCheckpoint
from trw_pipeline.callbacks.data_summary import CallbackDataSummary
from trw_pipeline.callbacks.early_stopping import CallbackEarlyStopping
from trw_pipeline.callbacks.epoch_summary import CallbackEpochSummary
from trw_pipeline.callbacks.explain_decision import CallbackExplainDecision
from trw_pipeline.callbacks.export_augmentations import CallbackExportAugmentations
from trw_pipeline.callbacks.export_best_history import CallbackExportBestHistory
from trw_pipeline.callbacks.export_classification_errors import CallbackExportClassificationErrors
from trw_pipeline.callbacks.export_classification_report import CallbackExportClassificationReport
from trw_pipeline.callbacks.export_convolution_kernel import CallbackExportConvolutionKernel
from trw_pipeline.callbacks.export_history import CallbackExportHistory
from trw_pipeline.callbacks.export_samples import CallbackExportSamples
from trw_pipeline.callbacks.learning_rate_finder import CallbackLearningRateFinder
from trw_pipeline.callbacks.learning_rate_recorder import CallbackLearningRateRecorder
from trw_pipeline.callbacks.model_summary import CallbackModelSummary
from trw_pipeline.callbacks.monitor import MonitorCallback
from trw_pipeline.callbacks.progress_bar import CallbackProgressBar
from trw_pipeline.callbacks.report import CallbackReport
from trw_pipeline.callbacks.resource_monitor import CallbackResourceMonitor
from trw_pipeline.callbacks.save_last_model import CallbackSaveLastModel
from trw_pipeline.callbacks.skip_epoch import CallbackSkipEpoch
from trw_pipeline.callbacks.tensorboard import (
    CallbackClearTensorboardLog,
    CallbackTensorboardEmbedding,
    CallbackTensorboardRecordHistory,
    CallbackTensorboardRecordModel,
)
from trw_pipeline.callbacks.train_log import CallbackTrainLog
from trw_pipeline.callbacks.worst_samples_by_epoch import CallbackWorstSamplesByEpoch
from trw_pipeline.callbacks.zip_sources import CallbackZipSources
from trw_pipeline.explain.algorithms import ExplainableAlgorithm
from trw_pipeline.outputs.classification import OutputClassification
from trw_pipeline.outputs.embedding import OutputEmbedding
from trw_pipeline.outputs.regression import OutputRegression
from trw_pipeline.outputs.segmentation import OutputSegmentation
from trw_pipeline.sequences.sequence import SequenceArray
from trw_pipeline.trainer import Trainer
from trw_pipeline.training.callback import HOOKS, Callback, create_hook_table
from trw_pipeline.training.checkpoint import load_checkpoint, save_checkpoint
from trw_pipeline.training.optimizers import create_sgd_optimizers_fn
from trw_pipeline.training.options import create_default_options
from trw_pipeline.training.randomness import random_states


class OfClinicadl:
    def __init__(self):
        self.nb_epochs = 0

    def on_epoch_end(self, *, state, **keywords):
        self.nb_epochs += 1

    def state_dict(self):
        return {"nb_epochs": self.nb_epochs}

    def load_state_dict(self, state_dict):
        self.nb_epochs = state_dict["nb_epochs"]


FEW_STEPS = {
    ExplainableAlgorithm.MeaningfulPerturbations: {"iterations": 3},
    ExplainableAlgorithm.IntegratedGradients: {"steps": 3},
}

CALLBACKS = {
    "activation_statistics": CallbackActivationStatistics,
    "adaptor_clinicadl": lambda: CallbackAdaptorClinicadl(OfClinicadl()),
    "checkpoint": CallbackCheckpoint,
    "data_summary": CallbackDataSummary,
    "early_stopping": functools.partial(CallbackEarlyStopping, ("d", "valid", "overall_loss", "loss"), patience=2),
    "epoch_summary": CallbackEpochSummary,
    "explain_decision": functools.partial(CallbackExplainDecision, max_samples=1, algorithms_kwargs=FEW_STEPS),
    "export_augmentations": functools.partial(CallbackExportAugmentations, 2, 2),
    "export_best_history": CallbackExportBestHistory,
    "export_classification_errors": functools.partial(CallbackExportClassificationErrors, 2),
    "export_classification_report": CallbackExportClassificationReport,
    "export_convolution_kernel": CallbackExportConvolutionKernel,
    "export_history": functools.partial(CallbackExportHistory, metrics_to_report=["loss"]),
    "export_samples": functools.partial(CallbackExportSamples, 2),
    "learning_rate_finder": functools.partial(CallbackLearningRateFinder, 3, 1e-3, 1e-1, 10.0),
    "learning_rate_recorder": CallbackLearningRateRecorder,
    "model_summary": CallbackModelSummary,
    "monitor": functools.partial(MonitorCallback, warmup_iterations=0),
    "progress_bar": CallbackProgressBar,
    "report": CallbackReport,
    "resource_monitor": CallbackResourceMonitor,
    "save_last_model": CallbackSaveLastModel,
    "skip_epoch": lambda: CallbackSkipEpoch(2, [CallbackTrainLog()]),
    "tensorboard": CallbackTensorboardRecordHistory,
    "tensorboard_clear": CallbackClearTensorboardLog,
    "tensorboard_embedding": functools.partial(CallbackTensorboardEmbedding, "y"),
    "tensorboard_model": functools.partial(CallbackTensorboardRecordModel, onnx_folder=None),
    "train_log": CallbackTrainLog,
    "train_log_jsonl": functools.partial(CallbackTrainLog, "trainlog.jsonl"),
    "worst_samples_by_epoch": functools.partial(CallbackWorstSamplesByEpoch, export_top_k_samples=1),
    "zip_sources": lambda: CallbackZipSources(Path(__file__).parent),
}
NEED_ARGUMENTS = ("adaptor_clinicadl", "early_stopping", "skip_epoch", "tensorboard_embedding", "zip_sources")
"""Nobody can guess which callback, metric, output or folder."""

SLOW = (
    "explain_decision",
    "export_classification_report",
    "export_history",
    "learning_rate_finder",
    "learning_rate_recorder",
    "worst_samples_by_epoch",
    "tensorboard_model",
)
"""They draw, or trace a model."""


def with_marks():
    marks = {name: [pytest.mark.slow] * (name in SLOW) for name in CALLBACKS}
    return [pytest.param(kind, id=name, marks=marks[name]) for name, kind in CALLBACKS.items()]


every_callback = pytest.mark.parametrize("create", with_marks())

LISTS = ("callbacks_pre_training_fn", "callbacks_per_epoch_fn", "callbacks_post_training_fn")
MOMENTS = {LISTS[0]: "on_fit_start", LISTS[2]: "on_fit_end"}

# Several threads wait for each other longer than these tensors take.
torch.set_num_threads(1)


class Net(nn.Module):
    """Classes from small images, and more heads if there are to be several."""

    def __init__(self, several_heads=False):
        super().__init__()
        self.several_heads = several_heads
        self.convolution = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
        self.inner = nn.Sequential(nn.Dropout(0.2), nn.Linear(4 * 8 * 8, 2))
        self.nb_passes: torch.Tensor
        self.register_buffer("nb_passes", torch.zeros(()))  # counted in evaluation mode too

    def forward(self, batch):
        self.nb_passes += 1.0
        features = self.convolution(batch["image"])
        scores = self.inner(features.flatten(1))
        heads = {"y": OutputClassification(scores, "truth")}
        if self.several_heads:
            heads["size"] = OutputRegression(scores[:, :1], "size")
            heads["mask"] = OutputSegmentation(features[:, :2], "mask", collect_output=False)
            heads["features"] = OutputEmbedding(scores)
        return heads


def samples():
    truth = np.arange(6) % 2
    image = np.random.default_rng(0).random((6, 1, 8, 8)).astype(np.float32)
    size = truth[:, np.newaxis].astype(np.float32)
    return {"image": image, "truth": truth, "size": size, "mask": (image[:, 0] > 0.5).astype(np.int64)}


def datasets():
    """A chain that is trained on, with a uid for each sample, and a list that is evaluated, without."""
    train = SequenceArray(samples()).with_seed(0).batch(3).collate()
    valid = [
        {name: torch.from_numpy(value[start : start + 4]) for name, value in samples().items()} for start in (0, 4)
    ]
    return {"d": {"train": train, "valid": valid}}


def fit(callbacks, folder, where="callbacks_per_epoch_fn", num_epochs=1, several_heads=False, **keywords):
    torch.manual_seed(0)
    names = {"output_mappings": {"truth": {"mapping": {"cat": 0, "dog": 1}, "mappinginv": {0: "cat", 1: "dog"}}}}
    return Trainer(**dict.fromkeys(LISTS) | {where: lambda: callbacks}).fit(
        create_default_options(folder, num_epochs, "cpu"),
        lambda: (datasets(), {"d": {"train": names, "valid": names}}),
        lambda options: Net(several_heads),
        lambda datasets, model: create_sgd_optimizers_fn(datasets, model, 0.1),
        **keywords,
    )


def files(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def plain(value):
    """Tensors and arrays as lists, so that they can be compared with `==`."""
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    return value.tolist() if hasattr(value, "tolist") else value


HOOKS_OF_MODULES = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def snapshot(run):
    """Everything that a training must find as it was, by name."""
    modules, parameters = list(run.model.modules()), list(run.model.parameters())
    found = {
        "weights and statistics": run.model.state_dict(),
        "modes": [module.training for module in modules],
        "gradients": [parameter.grad for parameter in parameters],
        "what has gradients": [parameter.requires_grad for parameter in parameters] + [torch.is_grad_enabled()],
        "hooks": [len(getattr(module, name)) for module in modules for name in HOOKS_OF_MODULES],
        "hooks of all modules": [len(getattr(torch.nn.modules.module, f"_global{name}")) for name in HOOKS_OF_MODULES],
        "optimizers": [optimizer.state_dict() for optimizer in run.optimizers.values()],
        "data": run.datasets["d"]["train"].state_dict(),
        "random states": random_states(),
    }
    return plain(found)


@pytest.fixture
def watched(monkeypatch):
    """Looks around each hook of each callback; gives the names of the hooks that ran."""
    names = []

    def watch(name, hook):
        def watched_hook(run):
            before = snapshot(run)
            hook(run)
            after = snapshot(run)
            names.append(name)
            assert [what for what in before if before[what] != after[what]] == [], f"changed by {name}"

        return watched_hook

    def create(*lists):
        table = create_hook_table(*lists)
        return {name: tuple(watch(name, hook) for hook in hooks) for name, hooks in table.items()}

    monkeypatch.setattr(trainer, "create_hook_table", create)
    return names


@pytest.mark.parametrize("name", CALLBACKS)
def test_it_is_a_callback_and_can_be_built_without_arguments(name):
    create = CALLBACKS[name]
    assert isinstance(create(), Callback)
    if name in NEED_ARGUMENTS:
        return
    kind = create.func if isinstance(create, functools.partial) else create
    assert isinstance(kind(), Callback)


def does_something(callback, *moments):
    kind = type(callback)
    return any(getattr(kind, name) is not getattr(Callback, name) for name in (*moments, "__call__"))


@pytest.mark.parametrize("name", CALLBACKS)
def test_it_does_something(name):
    assert does_something(CALLBACKS[name](), *HOOKS)


@every_callback
@pytest.mark.parametrize(("where", "several_heads"), [*zip(LISTS, (False, True, True), strict=True)])
def test_it_runs_in_each_list_and_the_training_does_not_notice(
    create, where, several_heads, watched, tmp_path, monkeypatch, capsys
):
    working = tmp_path / "working"
    working.mkdir()
    monkeypatch.chdir(working)
    if where != "callbacks_per_epoch_fn" and not does_something(create(), MOMENTS[where]):
        with pytest.raises(ValueError, match=f"does nothing at {MOMENTS[where]}, the moment of the list it is in"):
            fit([create()], tmp_path / "runs", where)
        assert not watched
        return
    fit([create()], tmp_path / "runs", where, several_heads=several_heads)
    assert watched
    assert files(working) == [], "it writes to its run folder alone"
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["default_r0"]
    assert capsys.readouterr() == ("", ""), "it prints nothing"


@pytest.fixture(scope="module")
def without_any(tmp_path_factory):
    """A training of two epochs without callbacks: its model, and its result."""
    return fit([], tmp_path_factory.mktemp("without"), num_epochs=2)


@pytest.fixture(scope="module", params=with_marks())
def trainings(request, tmp_path_factory):
    """Three trainings of two epochs: two with the same callback, and one with another in a `CallbackSkipEpoch`.

    Gives what makes a callback, both callbacks, the run folders, and each model with its result.
    """
    create, folder = request.param, tmp_path_factory.mktemp("with")
    callback, skip = create(), CallbackSkipEpoch(1, [create()])
    results = [fit([one], folder, num_epochs=2) for one in (callback, callback, skip)]
    return create, (callback, skip), [folder / f"default_r{number}" for number in range(3)], results


def test_it_does_the_same_in_each_training_and_in_a_skip_epoch_of_every_epoch(trainings):
    first, second, skipped = (files(folder) for folder in trainings[2])
    assert first == second == skipped


def test_it_does_not_change_what_is_trained(trainings, without_any):
    model, expected = without_any
    for with_it, result in trainings[3]:
        assert plain(with_it.state_dict()) == plain(model.state_dict())
        losses = [[epoch["d"]["valid"]["y"]["loss"] for epoch in each["history"]] for each in (result, expected)]
        assert losses[0] == losses[1]


def test_its_state_is_plain_data_and_makes_the_round_trip(trainings, tmp_path):
    create, callbacks, _, _ = trainings
    for callback, fresh in zip(callbacks, (create(), CallbackSkipEpoch(1, [create()])), strict=True):
        state = callback.state_dict()
        save_checkpoint({"callback": state}, tmp_path / "state.pt")
        loaded = load_checkpoint(tmp_path / "state.pt")["callback"]
        assert plain(loaded) == plain(state)
        fresh.load_state_dict(loaded)
        assert plain(fresh.state_dict()) == plain(state)


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
