"""Trains a small network on real digits that workers decode and augment: `python -m trw_pipeline train mnist`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from trw_pipeline.callbacks.epoch_summary import CallbackEpochSummary
from trw_pipeline.callbacks.progress_bar import CallbackProgressBar
from trw_pipeline.callbacks.train_log import CallbackTrainLog
from trw_pipeline.examples.mnist_files import load_and_augment_digit, load_digit, mnist_splits
from trw_pipeline.outputs.classification import OutputClassification
from trw_pipeline.sequences.samplers import SamplerRandom, SamplerSequential
from trw_pipeline.sequences.sequence import Sequence, SequenceArray
from trw_pipeline.trainer import Trainer
from trw_pipeline.training.callback import Callback
from trw_pipeline.training.optimizers import create_adam_optimizers_fn
from trw_pipeline.training.options import create_default_options
from trw_pipeline.training.run import Run
from trw_pipeline.typing import Backend, Function

RESERVOIR_SAMPLES = 2000
RESERVOIR_JOBS = 500
"""So many digits are replaced between two epochs: an eighth of the training samples."""


@dataclass(frozen=True)
class MnistOptions:
    """What the command takes.

    Attributes:
        epochs: passes over the training samples.
        batch_size: samples of an optimizer step.
        nb_workers: workers for training and as many for the test samples; 0 decodes in the main process.
        backend: "process", "thread" or "inline".
        reservoir: train from a reservoir, which serves samples again while fresh ones are made.
        seed: of weights, dropout, order and augmentation.
        device: of the model; None is CUDA where there is one.
        output: the run folder is made in here.
    """

    epochs: int = 5
    batch_size: int = 64
    nb_workers: int = 2
    backend: Backend = "process"
    reservoir: bool = False
    seed: int = 0
    device: str | None = None
    output: Path = Path("runs")


@dataclass(frozen=True)
class MnistResult:
    """What came out.

    Attributes:
        accuracy: share of the 1,000 test samples whose digit was found.
        run_folder: where the log, the plots and the model are.
    """

    accuracy: float
    run_folder: Path


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


def make_datasets(options: MnistOptions) -> dict[str, dict[str, Sequence]]:
    """Returns the chains: dataset "mnist" -> "train" and "test"."""
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
    return {
        "mnist": {name: chain.batch(options.batch_size).collate() for name, chain in (("train", train), ("test", test))}
    }


def _map(source: Sequence, function: Function, options: MnistOptions) -> Sequence:
    # Decoding a digit takes a tenth of a millisecond: enough of them under way to make two batches while a step runs.
    under_way = 2 * options.batch_size
    return source.map(function, nb_workers=options.nb_workers, max_jobs_at_once=under_way, backend=options.backend)


class _TellFolder(Callback):
    """Says where the run folder is as soon as there is one: what was logged there survives a Ctrl-C."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show

    def on_fit_start(self, run: Run) -> None:
        self._show(f"run folder: {run.log_dir}")


def check_options(options: MnistOptions) -> None:
    """Finds what would fail later.

    Raises:
        ValueError: there is no such device; the folder for the output can not be made; a reservoir without workers.
    """
    if options.reservoir and not options.nb_workers:
        raise ValueError("a reservoir is filled by workers: nb_workers must be at least 1, got 0")
    if options.device is not None:
        try:
            torch.empty(1, device=options.device)
        except (AssertionError, NotImplementedError, RuntimeError) as error:  # torch has all three for this
            first_line = str(error).partition("\n")[0]
            raise ValueError(
                f"device must be one that torch can use here, got {options.device!r}: {first_line}"
            ) from error
    try:
        options.output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"output must be a folder that can be made, got {options.output}: {error}") from error


def train(options: MnistOptions, show: Callable[[str], None]) -> MnistResult:
    """Trains, and evaluates on the test samples.

    Args:
        options: what to do.
        show: takes the path of the run folder, and the table of each epoch, as text.

    Raises:
        ValueError: see `check_options`.
    """
    check_options(options)
    torch.manual_seed(options.seed)
    # On a CPU the workers need the other cores, and torch's threads would spin while they wait for one (three times the
    # CPU seconds on two cores). The numbers do not depend on the number of cores this way, either.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    datasets = make_datasets(options)
    trainer = Trainer(
        callbacks_per_epoch_fn=lambda: [
            _TellFolder(show),
            CallbackProgressBar(),
            CallbackEpochSummary(show),
            CallbackTrainLog(),
        ]
    )
    try:
        _, result = trainer.fit(
            create_default_options(str(options.output), options.epochs, options.device),
            inputs_fn=lambda: datasets,
            model_fn=lambda _: DigitNet(),
            optimizers_fn=partial(create_adam_optimizers_fn, learning_rate=2e-3),
            run_prefix="mnist",
        )
    finally:
        torch.set_num_threads(threads)
        for split in datasets["mnist"].values():
            split.close()
    error = result["history"][-1]["mnist"]["test"]["digit"]["classification error"]
    return MnistResult(1 - error, Path(result["options"]["workflow_options"]["current_logging_directory"]))
