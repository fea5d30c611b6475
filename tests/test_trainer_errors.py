"""How a training ends that does not end well."""

import csv
import itertools

import pytest
import torch
from toy_trainer import Net, batches, broken, datasets, fitting_in, sgd, trainer

from trw_pipeline.callbacks.train_log import CallbackTrainLog
from trw_pipeline.trainer import Trainer
from trw_pipeline.training.callback import HOOKS, Callback
from trw_pipeline.training.options import create_default_options


@pytest.fixture
def fit(tmp_path):
    return fitting_in(tmp_path)


class Ended(Callback):
    """Notes how the training ended for it."""

    def __init__(self):
        self.ends = []

    def on_fit_end(self, run):
        self.ends.append("fit_end")

    def on_exception(self, run):
        self.ends.append(("exception", type(run.error)))


def test_a_callback_that_fails_is_named_the_rows_before_it_are_on_disk_and_all_others_are_told(fit, tmp_path):
    """LOG-4."""

    class FailsTwice(Callback):
        def on_epoch_end(self, run):
            if run.epoch == 2:
                raise OSError("disk full")

        def on_exception(self, run):
            raise ValueError("second error")

    before, after = Ended(), Ended()
    with pytest.raises(OSError, match="disk full") as caught:
        fit(trainer(CallbackTrainLog(), before, FailsTwice(), after), num_epochs=5)
    assert "FailsTwice at on_epoch_end, epoch 2" in caught.value.__notes__[0]
    assert before.ends == after.ends == [("exception", OSError)]
    with (tmp_path / "default_r0" / "trainlog.csv").open(newline="") as file:
        assert [row["epoch"] for row in csv.DictReader(file)] == ["0", "1", "2"]


@pytest.mark.parametrize("hook", [hook for hook in HOOKS if hook != "on_exception"])
def test_an_interrupt_anywhere_is_raised_again_after_all_are_told(fit, hook):
    """STOP-6."""
    ended = Ended()
    with pytest.raises(KeyboardInterrupt):
        fit(trainer(ended, broken(KeyboardInterrupt(), hook)), num_epochs=1)
    assert ended.ends[-1] == ("exception", KeyboardInterrupt)


def test_an_interrupt_in_the_model_is_raised_again_after_all_are_told(fit):
    """STOP-6."""

    class Interrupted(Net):
        def forward(self, batch):
            raise KeyboardInterrupt

    ended = Ended()
    with pytest.raises(KeyboardInterrupt):
        fit(trainer(ended), model_fn=lambda options: Interrupted())
    assert ended.ends == [("exception", KeyboardInterrupt)]


def test_iterators_are_closed_and_datasets_are_not_when_the_training_fails(fit):
    closed = []

    class Source:
        def __iter__(self):
            try:
                yield from batches(4)
            finally:
                closed.append("iterator")

        def close(self):
            closed.append("dataset")

    with pytest.raises(OSError, match="disk"):
        fit(trainer(broken(OSError("disk"), "on_loss")), inputs=lambda: {"d": {"train": Source()}})
    assert closed == ["iterator"]


def test_a_training_split_without_batches_is_an_error_that_names_it(fit):
    """LOOP-5."""
    with pytest.raises(ValueError, match="d/train"):
        fit(trainer(), inputs=lambda: {"d": {"train": [], "valid": batches(2)}})


@pytest.mark.parametrize(
    ("inputs", "error", "finding"),
    [
        ([], TypeError, "list"),
        ({}, ValueError, "got none"),
        ({"d": [1]}, TypeError, "dataset 'd'.*list"),
        (({"d": 3}, {}), TypeError, "dataset 'd'.*int"),
    ],
)
def test_inputs_of_another_kind_are_refused(fit, inputs, error, finding):
    with pytest.raises(error, match=finding):
        fit(trainer(), inputs=lambda: inputs)


@pytest.mark.parametrize(
    ("made", "error", "finding"),
    [
        (torch.optim.SGD([torch.zeros(1)], lr=1.0), TypeError, "SGD"),
        ((torch.optim.SGD([torch.zeros(1)], lr=1.0), None), TypeError, "optimizers.*SGD"),
        (({}, 3), TypeError, "schedulers.*int"),
        (({"other": None}, None), ValueError, r"\['d'\].*\['other'\]"),
    ],
)
def test_optimizers_of_another_kind_are_refused(fit, made, error, finding):
    with pytest.raises(error, match=finding):
        fit(trainer(), optimizers_fn=lambda datasets, model: made)


def test_a_model_of_another_kind_is_refused(fit):
    with pytest.raises(TypeError, match=r"model_fn.*int"):
        fit(trainer(), model_fn=lambda options: 3)


@pytest.mark.parametrize(
    ("given", "finding"),
    [
        ({"inputs": datasets()}, "inputs_fn must be a function, got dict"),
        ({"optimizers_fn": torch.optim.SGD([torch.zeros(1)], lr=1.0)}, "optimizers_fn must be a function, got SGD"),
        ({"losses_fn": 0.5}, "losses_fn must be a function, got float"),
        ({"loss_creator": {}}, "loss_creator must be a function, got dict"),
        ({"model_fn": Net()}, "model_fn must be a function .* got the model Net itself: write lambda options: model"),
    ],
)
def test_what_stands_where_a_function_should_is_named_before_work_starts(fit, tmp_path, given, finding):
    with pytest.raises(TypeError, match=finding):
        fit(trainer(), **given)
    assert list(tmp_path.iterdir()) == []


def test_callbacks_that_stand_where_a_function_should_are_refused():
    with pytest.raises(TypeError, match=r"callbacks_per_epoch_fn must be a function .* got list: write lambda"):
        Trainer(callbacks_per_epoch_fn=[CallbackTrainLog()])


def test_a_single_callback_where_a_list_should_be_is_refused(fit):
    with pytest.raises(TypeError, match="callbacks_per_epoch_fn must return a list of callbacks, got CallbackTrainLog"):
        fit(Trainer(callbacks_per_epoch_fn=CallbackTrainLog))


@pytest.mark.parametrize(
    ("inputs", "optimizers_fn"),
    [({"d": {"training": batches(4), "valid": batches(2)}}, sgd), (datasets(), lambda datasets, model: ({}, None))],
    ids=["another name", "no optimizer"],
)
def test_a_training_that_would_train_nothing_is_refused(fit, inputs, optimizers_fn):
    with pytest.raises(ValueError, match=r"must have the split 'train', which is trained on.*got the splits {'d'"):
        fit(trainer(), inputs=lambda: inputs, optimizers_fn=optimizers_fn)


def test_without_epochs_or_optimizers_no_split_needs_to_be_trained_on(fit):
    for given in ({"num_epochs": 0}, {"optimizers_fn": None}):
        _, result = fit(trainer(), inputs=lambda: {"d": {"test": batches(4)}}, **given)
        assert [list(epoch["d"]) for epoch in result["history"]] == [["test"]]


def test_a_dataset_without_a_loss_function_is_refused(fit):
    with pytest.raises(ValueError, match=r"\['d'\]"):
        fit(trainer(), loss_creator=lambda datasets, losses_fn: {})


@pytest.mark.parametrize(("value", "error"), [(0, ValueError), (1.0, TypeError), (True, TypeError)])
def test_a_bad_evaluation_period_is_refused_before_work_starts(fit, tmp_path, value, error):
    with pytest.raises(error, match=f"eval_every_X_epoch.*{value}"):
        fit(trainer(), eval_every_X_epoch=value)
    assert list(tmp_path.iterdir()) == []


def test_bad_options_are_refused_before_work_starts(tmp_path):
    options = create_default_options(tmp_path, 1, "cpu")
    options["training_parameters"]["num_epochs"] = -1
    with pytest.raises(ValueError, match="num_epochs must be at least 0, got -1"):
        trainer().fit(options, datasets, lambda options: Net(), sgd)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("bad", [None, 3, "a generator", map(dict, batches(4)), itertools.chain(batches(4))])
def test_a_split_that_can_not_be_iterated_in_each_epoch_is_refused_before_the_first(fit, bad):
    split = (batch for batch in batches(4)) if bad == "a generator" else bad
    with pytest.raises(TypeError, match="split d/valid must be an iterable of batches that can be iterated again"):
        fit(trainer(), inputs=lambda: {"d": {"train": batches(6), "valid": split}})
