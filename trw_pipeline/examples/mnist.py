"""Trains a small network on real digits that workers decode and augment: `python -m trw_pipeline train mnist`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn

from trw_pipeline.examples import training
from trw_pipeline.examples.mnist_files import load_and_augment_digit, load_digit, mnist_splits
from trw_pipeline.examples.training import TrainOptions, TrainResult
from trw_pipeline.outputs.classification import OutputClassification
from trw_pipeline.sequences.samplers import SamplerRandom, SamplerSequential
from trw_pipeline.sequences.sequence import Sequence, SequenceArray
from trw_pipeline.typing import Function

RESERVOIR_SAMPLES = 2000
RESERVOIR_JOBS = 500
"""So many digits are replaced between two epochs: an eighth of the training samples."""


@dataclass(frozen=True, kw_only=True)
class MnistOptions(TrainOptions):
    """What the command takes.

    Attributes:
        reservoir: train from a reservoir, which serves samples again while fresh ones are made.
    """

    epochs: int = 5
    batch_size: int = 64
    reservoir: bool = False


class DigitNet(nn.Module):
    """Two convolutions and two linear layers, 206,922 weights."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(32 * 7 * 7, 128),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Linear(128, 10),
        )

    def forward(self, batch: Mapping[str, Any]) -> dict[str, OutputClassification]:
        """Maps `image`, float32 (N, 1, 28, 28), to the head "digit" over logits (N, 10)."""
        return {"digit": OutputClassification(self.layers(batch["image"]), "target")}


def make_splits(options: MnistOptions) -> dict[str, Sequence]:
    """Returns the chains "train" and "test"."""
    splits = mnist_splits()
    source = SequenceArray(splits["train"], SamplerRandom()).with_seed(options.seed)
    train: Sequence
    if options.reservoir:
        train = source.async_reservoir(
            RESERVOIR_SAMPLES,
            load_and_augment_digit,
            min_reservoir_samples=RESERVOIR_SAMPLES,
            max_jobs_at_once=RESERVOIR_JOBS,
            reservoir_sampler=SamplerRandom(),
            nb_workers=options.nb_workers,
            backend=options.backend,
        ).collate()
    else:
        train = _map(source, load_and_augment_digit, options)
    test = _map(SequenceArray(splits["test"], SamplerSequential()).with_seed(options.seed), load_digit, options)
    return {name: chain.batch(options.batch_size).collate() for name, chain in (("train", train), ("test", test))}


def _map(source: Sequence, function: Function, options: MnistOptions) -> Sequence:
    # Decoding a digit takes a tenth of a millisecond: enough of them under way to make two batches while a step runs.
    under_way = 2 * options.batch_size
    return source.map(function, nb_workers=options.nb_workers, max_jobs_at_once=under_way, backend=options.backend)


def check_options(options: MnistOptions) -> None:
    """Finds what would fail later.

    Raises:
        ValueError: a reservoir without workers, or see `training.check_options`.
    """
    if options.reservoir and not options.nb_workers:
        raise ValueError("a reservoir is filled by workers: nb_workers must be at least 1, got 0")
    training.check_options(options)


def train(options: MnistOptions, show: Callable[[str], None]) -> TrainResult:
    """Trains, and finds the share of the 1,000 test samples whose digit was found.

    Args:
        options: what to do.
        show: takes the path of the run folder, and the table of each epoch, as text.

    Raises:
        ValueError: see `check_options`.
    """
    check_options(options)
    measured, folder = training.train("mnist", options, partial(make_splits, options), DigitNet, 2e-3, show)
    return TrainResult({"test accuracy": 1 - measured["mnist"]["test"]["digit"]["classification error"]}, folder)
