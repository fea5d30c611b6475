"""The numbers T.. are those of the project's list of checks."""

from pathlib import Path

import pytest
import torch
from toy_trainer import Net, batches, broken, fitting_in, trainer

from trw_pipeline.callbacks.adaptor_clinicadl import HOOKS, CallbackAdaptorClinicadl
from trw_pipeline.callbacks.checkpoint import CallbackCheckpoint
from trw_pipeline.training.optimization import Optimization

ALWAYS = ["maps", "model", "state"]


class Trace:
    """Notes each hook, and the keywords it is called with."""

    def __init__(self):
        self.calls = []

    def names(self):
        return [name for name, _ in self.calls]


def _note(name):
    def hook(self, **keywords):
        self.calls.append((name.removeprefix("on_"), keywords))

    return hook


for _name in HOOKS:
    setattr(Trace, _name, _note(_name))


def traced(folder, trace=None, *others, nb_train=4, nb_valid=2, with_final_evaluation=False, **arguments):
    trace = trace or Trace()
    fitting_in(folder)(
        trainer(CallbackAdaptorClinicadl(trace), *others),
        inputs=lambda: {"d": {"train": batches(nb_train), "test": batches(nb_valid)}},
        with_final_evaluation=with_final_evaluation,
        **{"num_epochs": 1, **arguments},
    )
    return trace


EVALUATED = [
    "batch_start",
    "evaluation_step_start",
    "metrics_computation_start",
    "metrics_computation_end",
    "batch_end",
]
TRAINED = ["batch_start", "forward_step_start", "backward_step_start", "backward_step_end"]
STEP = ["optimization_step_start", "optimization_step_end"]


def test_the_trace_of_one_epoch_is_that_of_the_reference(tmp_path):
    """T44: two batches that make one step, and one that is validated."""
    trace = traced(tmp_path, accumulate=2)
    assert trace.names() == [
        "trainer_init",
        "train_start",
        "epoch_start",
        *TRAINED,
        "batch_end",
        *TRAINED,
        *STEP,
        "batch_end",
        "validation_start",
        *EVALUATED,
        "validation_end",
        "epoch_end",
        "train_end",
    ]


def test_the_keywords_are_those_of_the_reference(tmp_path):
    """T44."""
    trace = traced(tmp_path, with_final_evaluation=True)
    keywords = {name: sorted(set(given) - set(ALWAYS)) for name, given in trace.calls}
    evaluation = ["callbacks", "computational", "dataloader", "metrics", "model_checkpoint"]
    assert keywords == {
        "trainer_init": ["callbacks", "metrics", "optimization"],
        "train_start": [
            "callbacks",
            "computational",
            "grad_scaler",
            "metrics",
            "optimization",
            "optimizers",
            "split",
        ],
        "epoch_start": [],
        "batch_start": ["batch"],
        "forward_step_start": ["batch"],
        "backward_step_start": ["grad_scaler", "loss"],
        "backward_step_end": [],
        "optimization_step_start": ["grad_scaler", "optimizers"],
        "optimization_step_end": ["grad_scaler", "optimizers"],
        "batch_end": [],
        "validation_start": ["dataloader", "metrics"],
        "evaluation_step_start": ["batch"],
        "metrics_computation_start": ["metrics", "output"],
        "metrics_computation_end": ["detailed_metrics_df"],
        "validation_end": ["metrics"],
        "epoch_end": [],
        "train_end": [],
        "validate_start": evaluation,
        "validate_end": ["metrics"],
        "test_start": sorted([*evaluation, "group_name"]),
        "test_end": ["metrics"],
    }
    assert all(set(ALWAYS) <= set(given) for _, given in trace.calls)


def test_the_final_evaluation_comes_after_the_training_as_validations_and_tests(tmp_path):
    trace = traced(tmp_path, with_final_evaluation=True)
    names = trace.names()
    assert names[names.index("epoch_end") + 1 :] == [
        "train_end",
        "validate_start",
        *EVALUATED * 2,
        "validate_end",
        "test_start",
        *EVALUATED,
        "test_end",
    ]


def test_the_values_are_those_of_the_run(tmp_path):
    trace = traced(tmp_path)
    calls = dict(reversed(trace.calls))  # the first of each
    start = calls["train_start"]
    assert isinstance(start["model"], Net)
    assert start["maps"] == Path(tmp_path / "default_r0")
    assert isinstance(start["optimization"], Optimization)
    assert isinstance(start["optimizers"]["d"], torch.optim.SGD)
    assert list(start["split"]["d"]) == ["train", "test"]
    assert len(calls["validation_start"]["dataloader"]) == 1
    assert calls["backward_step_start"]["loss"].requires_grad
    assert calls["batch_start"]["batch"]["x"].shape == (2, 3)
    assert calls["forward_step_start"]["batch"]["split_name"] == "train"
    assert "loss" in calls["metrics_computation_end"]["detailed_metrics_df"]["y"]
    assert calls["validation_end"]["metrics"]["info"]["nb_samples"] == 2.0


def test_the_state_says_where_the_training_stands(tmp_path):
    seen = []

    class Look:
        def on_batch_end(self, *, state, **keywords):
            train = state.current_train_batch, state.num_train_batches
            valid = state.current_val_batch, state.num_val_batches
            test = state.current_test_batch, state.num_test_batches
            seen.append((state.called, state.stage, state.current_epoch, state.optim_step, train, valid, test))

    traced(tmp_path, Look(), nb_train=4, nb_valid=4, with_final_evaluation=True)
    none = (0, 0)
    assert seen == [
        ("train", "training", 1, 1, (1, 2), none, none),
        ("train", "training", 1, 2, (2, 2), none, none),
        ("train", "evaluation", 1, 2, none, (1, 2), none),
        ("train", "evaluation", 1, 2, none, (2, 2), none),
        ("validate", "evaluation", 1, 2, none, (1, 2), none),
        ("validate", "evaluation", 1, 2, none, (2, 2), none),
        ("test", "evaluation", 1, 2, none, none, (1, 2)),
        ("test", "evaluation", 1, 2, none, none, (2, 2)),
    ]


@pytest.mark.parametrize("is_evaluated", [True, False])
def test_the_state_counts_from_1_and_says_0_before(tmp_path, is_evaluated):
    """As the trainer of clinicadl 2.0.0: its callbacks look whether `current_train_batch + 1 <= num_train_batches`."""
    seen = []

    def look(name):
        def hook(self, *, state, **keywords):
            seen.append((name, state.current_epoch, state.current_train_batch or state.current_val_batch))

        return hook

    names = ("train_start", "epoch_start", "batch_start", "validation_start", "validation_end", "train_end")
    looks = type("Looks", (), {f"on_{name}": look(name) for name in names})
    traced(tmp_path, looks(), nb_train=4, num_epochs=2, with_final_evaluation=is_evaluated)
    expected = [("train_start", 0, 0)]
    for epoch in (1, 2):
        expected += [("epoch_start", epoch, epoch - 1)]  # what was validated before
        expected += [("batch_start", epoch, 1), ("batch_start", epoch, 2)]
        expected += [("validation_start", epoch, 0), ("batch_start", epoch, 1), ("validation_end", epoch, 1)]
    assert seen[: len(expected)] == expected
    assert [epoch for name, epoch, _ in seen if name == "train_end"] == [2]


def test_a_callback_may_stop_the_training(tmp_path):
    class Stops(Trace):
        def on_epoch_end(self, *, state, **keywords):
            super().on_epoch_end(state=state)
            state.should_stop = state.current_epoch == 2
            assert (state.num_epochs, state.split_idx) == (9, 0)

    trace = traced(tmp_path, Stops(), num_epochs=9)
    assert trace.names().count("epoch_end") == 2


def test_an_exception_is_told_also_ctrl_c(tmp_path):
    trace = Trace()
    error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        traced(tmp_path, trace, broken(error, "on_loss"))
    name, keywords = trace.calls[-1]
    assert (name, keywords["exception"]) == ("exception", error)
    assert "train_end" not in trace.names()


def test_a_training_that_goes_on_tells_so_and_gives_the_state_back(tmp_path):
    class Counts(Trace):
        nb_epochs = 0

        def on_epoch_end(self, **keywords):
            super().on_epoch_end(**keywords)
            self.nb_epochs += 1

        def state_dict(self):
            return {"nb_epochs": self.nb_epochs}

        def load_state_dict(self, state_dict):
            self.nb_epochs = state_dict["nb_epochs"]

    traced(tmp_path, Counts(), CallbackCheckpoint(), num_epochs=2)
    again = traced(tmp_path, Counts(), CallbackCheckpoint(), num_epochs=3, resume=tmp_path / "default_r0")
    assert again.names()[:3] == ["trainer_init", "resume", "epoch_start"]
    assert again.nb_epochs == 3


def test_a_callback_without_state_has_none(tmp_path):
    adaptor = CallbackAdaptorClinicadl(Trace())
    assert adaptor.state_dict() == {}
    adaptor.load_state_dict({})


def test_an_object_without_hooks_is_refused():
    with pytest.raises(TypeError, match=r"must have a hook of clinicadl's, such as on_train_start, got <object"):
        CallbackAdaptorClinicadl(object())
