"""One epoch: every dataset, every split."""

import pytest
import torch
from toy_training import CPU, Net, batches, sgd

from trw_pipeline.training.loop import create_losses_fn, default_sum_all_losses, epoch_train_eval
from trw_pipeline.training.options import create_default_options
from trw_pipeline.training.run import Run


class Recorded(list):
    """A split that notes which epoch it is told, and when it is iterated."""

    def __init__(self, data, name, notes):
        super().__init__(data)
        self.name, self.notes = name, notes

    def set_epoch(self, epoch):
        self.notes.append((self.name, "epoch", epoch))

    def __iter__(self):
        self.notes.append((self.name, "iterated"))
        return super().__iter__()


def epoch(datasets, optimizers, run_eval=True, schedulers=None, model=None, **keywords):
    options = create_default_options(device="cpu")
    losses = create_losses_fn(datasets, default_sum_all_losses)
    model = Net() if model is None else model
    return epoch_train_eval(
        options, datasets, optimizers, model, losses, schedulers, [], None, None, run_eval, **keywords
    )


def datasets_of(notes=None):
    return {
        dataset: {
            split: Recorded(batches(4, 2), f"{dataset}/{split}", [] if notes is None else notes)
            for split in ("train", "valid", "test")
        }
        for dataset in ("a", "b")
    }


def test_an_epoch_trains_on_the_train_split_and_evaluates_the_others_in_order():
    model = Net()
    datasets = datasets_of()
    outputs, history = epoch(datasets, {name: sgd(model) for name in datasets}, model=model)
    assert model.seen == ([(True, True)] * 2 + [(False, False)] * 4) * 2
    expected = {name: ["train", "valid", "test"] for name in ("a", "b")}
    assert {name: list(splits) for name, splits in history.items()} == expected
    assert {name: list(splits) for name, splits in outputs.items()} == expected


def test_without_evaluation_only_the_train_splits_run():
    model = Net()
    datasets = datasets_of()
    _, history = epoch(datasets, {"a": sgd(model), "b": sgd(model)}, run_eval=False, model=model)
    assert {name: list(splits) for name, splits in history.items()} == {"a": ["train"], "b": ["train"]}


@pytest.mark.parametrize("optimizers", [None, {}])
def test_without_optimizers_every_split_is_evaluated(optimizers):
    model = Net()
    epoch(datasets_of(), optimizers, model=model)
    assert model.seen == [(False, False)] * 12


def test_the_scheduler_steps_once_for_a_dataset_that_was_trained_on():
    model = Net()
    optimizers = {name: sgd(model, rate=1.0) for name in ("a", "b", "c")}
    schedulers = {name: torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5) for name, optimizer in optimizers.items()}
    datasets = datasets_of() | {"c": {"valid": batches(4, 2)}}
    epoch(datasets, optimizers, schedulers=schedulers, model=model)
    assert [optimizer.param_groups[0]["lr"] for optimizer in optimizers.values()] == [0.5, 0.5, 1.0]


def test_a_split_is_told_its_epoch_before_it_is_iterated():
    notes = []
    model = Net()
    epoch({"a": datasets_of(notes)["a"]}, None, model=model, run=Run(model, CPU, epoch=7))
    names = ("a/train", "a/valid", "a/test")
    assert notes == [note for name in names for note in ((name, "epoch", 7), (name, "iterated"))]


def test_outside_a_training_a_split_counts_its_epochs_itself():
    notes = []
    epoch(datasets_of(notes), None)
    assert {note[1] for note in notes} == {"iterated"}


def test_loops_of_the_user_get_the_documented_arguments():
    calls = []

    def my_eval(device, dataset_name, split_name, split, model, loss_fn, history, per_batch, per_terms):
        calls.append(("eval", dataset_name, split_name))
        return {}, {"y": {"loss": 1.0}}

    def my_train(
        device, dataset_name, split_name, split, optimizer, model, loss_fn, history, per_batch, per_terms, **k
    ):
        calls.append(("train", dataset_name, split_name, type(optimizer).__name__, "run" in k))
        return {}, {"y": {"loss": 2.0}}

    model = Net()
    datasets = {"a": {"train": [], "valid": []}}
    _, history = epoch(
        datasets,
        {"a": sgd(model)},
        model=model,
        eval_loop_fn=my_eval,
        train_loop_fn=my_train,
        run=Run(model, CPU),
    )
    assert calls == [("train", "a", "train", "SGD", True), ("eval", "a", "valid")]
    assert history == {"a": {"train": {"y": {"loss": 2.0}}, "valid": {"y": {"loss": 1.0}}}}
