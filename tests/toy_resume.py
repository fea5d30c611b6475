"""Trainings in which much is random, that can be broken off at any batch and be compared with one that never was."""

import csv
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from toy_trainer import fitting_in, trainer

from trw_pipeline.callbacks.checkpoint import CallbackCheckpoint
from trw_pipeline.callbacks.train_log import CallbackTrainLog
from trw_pipeline.outputs.classification import OutputClassification
from trw_pipeline.sequences.samplers import SamplerSequential
from trw_pipeline.sequences.sequence import SequenceArray
from trw_pipeline.training.callback import Callback
from trw_pipeline.training.optimizers import Schedule, create_adam_optimizers_fn

EPOCHS = 3


class Net(nn.Module):
    """Dropout and batch normalisation: what they draw and gather has to go on too."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))

    def forward(self, batch):
        return {"y": OutputClassification(self.body(batch["x"]), "truth")}


def augment(batch, rng):
    return {**batch, "x": batch["x"] + rng.normal(size=batch["x"].shape).astype(np.float32)}


def numbers(nb_samples, seed=0):
    x = np.random.default_rng(seed).normal(size=(nb_samples, 3)).astype(np.float32)
    return {"x": x, "truth": (x[:, 0] > 0).astype(np.int64)}


def of_sequences(nb_workers=0, **options):
    def inputs():
        train = SequenceArray(numbers(14)).map(augment, nb_workers, **options).batch(3).collate()
        valid = SequenceArray(numbers(8, 1), SamplerSequential(batch_size=4)).collate()
        return {"d": {"train": train, "valid": valid}}

    return inputs


class Rows(Dataset):
    """Map-style, augmented by the global generator of torch."""

    def __init__(self, split):
        self.split = split

    def __len__(self):
        return len(self.split["x"])

    def __getitem__(self, i):
        return {
            "x": torch.from_numpy(self.split["x"][i]) + torch.randn(3),
            "truth": torch.tensor(self.split["truth"][i]),
        }


def of_loaders():
    return {"d": {"train": DataLoader(Rows(numbers(14)), 3, shuffle=True), "valid": DataLoader(Rows(numbers(8, 1)), 4)}}


def of_unknown_length():
    """Splits that know neither their length nor their position."""

    class Stream:
        def __init__(self, loader):
            self.loader = loader

        def __iter__(self):
            return iter(self.loader)

    return {"d": {name: Stream(loader) for name, loader in of_loaders()["d"].items()}}


def of_two_datasets():
    return {"a": of_sequences()()["d"], "b": {**of_loaders()["d"], "test": of_loaders()["d"]["valid"]}}


def optimizers_fn(datasets, model):
    optimizers, _ = create_adam_optimizers_fn(datasets, model, 0.05)
    schedulers = {
        name: [
            torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7),
            Schedule(torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99), every="step"),
        ]
        for name, optimizer in optimizers.items()
    }
    return optimizers, schedulers


class Breaks(Callback):
    """Ends the training with an error before the batch of this number, counted over all splits; None: never."""

    def __init__(self, at):
        self.at = at
        self.nb_batches = 0

    def on_batch_start(self, run):
        self.nb_batches += 1
        if self.nb_batches - 1 == self.at:
            raise Broken


class Broken(Exception):
    pass


def fit(folder, inputs, break_at=None, checkpoint=None, num_epochs=EPOCHS, extra=(), **arguments):
    """Returns the model and the result, and how many batches there were."""
    torch.manual_seed(1)
    np.random.seed(1)
    breaks = Breaks(break_at)
    checkpoint = CallbackCheckpoint(every_n_steps=1) if checkpoint is None else checkpoint
    fitted = fitting_in(folder)(
        trainer(breaks, CallbackTrainLog(), *extra, checkpoint),
        inputs=inputs,
        model_fn=lambda options: Net(),
        optimizers_fn=optimizers_fn,
        num_epochs=num_epochs,
        **arguments,
    )
    return *fitted, breaks.nb_batches


def resumed(folder, inputs, break_at, **arguments):
    """Breaks a training off, and goes on with it from the newest checkpoint."""
    try:
        fit(folder, inputs, break_at, **arguments)
    except Broken:
        pass
    else:
        raise AssertionError(f"there is no batch {break_at}")
    if not list((folder / "default_r0" / "checkpoints").iterdir()):
        return None
    return fit(folder, inputs, resume=folder / "default_r0", **arguments)


def log_of(folder: Path) -> list[dict[str, str]]:
    """The rows of the log, without what depends on the time."""
    with (folder / "default_r0" / "trainlog.csv").open(newline="") as file:
        return [{name: value for name, value in row.items() if not is_of_time(name)} for row in csv.DictReader(file)]


def is_of_time(column: str) -> bool:
    return column == "time_s" or column.rpartition("/")[2] in ("time_s", "samples_per_s", "wait_s", "wait_share")


def without_times(history):
    """A history as pairs of path and value."""
    return [
        (epoch, dataset, split, output, metric, value)
        for epoch, entry in enumerate(history)
        for dataset, splits in entry.items()
        for split, outputs in splits.items()
        for output, metrics in outputs.items()
        for metric, value in metrics.items()
        if not is_of_time(f"/{metric}")
    ]


def same_weights(one: nn.Module, other: nn.Module) -> bool:
    states = one.state_dict(), other.state_dict()
    return all(torch.equal(states[0][name], states[1][name]) for name in states[0])
