"""What do the default callbacks of each epoch add to an epoch of `train mnist`?

Method. The example trains as it does from the command line, with two workers: without callbacks, with the default ones
of each epoch, and with each of them alone. The wall time of an epoch is taken from its start to the start of the next
one, so what happens after the last batch is in it; the median of the epochs behind the first, which starts the workers,
is the figure of a training. `between` is the part of it from the last batch to the start of the next epoch: the
callbacks alone, however long the workers took. Contenders alternate over rounds; `x none` is the ratio to the training
without callbacks of the same round.

TABLE

    python -m benchmarks.bench_callbacks [--rounds 9]
"""

from __future__ import annotations

import logging
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from benchmarks.comparison import Column, Comparison, Goal, run
from benchmarks.harness import Figures
from trw_pipeline.callbacks.defaults import default_per_epoch_callbacks
from trw_pipeline.examples.mnist import DigitNet, MnistOptions, make_splits
from trw_pipeline.trainer import Trainer
from trw_pipeline.training.callback import Callback
from trw_pipeline.training.optimizers import create_adam_optimizers_fn
from trw_pipeline.training.options import create_default_options
from trw_pipeline.training.run import Run

NONE, ALL = "none", "all defaults"


class Stamps(Callback):
    """Notes when each epoch starts, and when its last batch is done: first in the list, so before all others."""

    def __init__(self) -> None:
        self.starts: list[float] = []
        self.ends: list[float] = []

    def on_epoch_start(self, run: Run) -> None:
        """Notes the start."""
        self.starts.append(time.perf_counter())

    def on_epoch_end(self, run: Run) -> None:
        """Notes that all splits are done."""
        self.ends.append(time.perf_counter())

    def figures(self) -> Figures:
        """Gives the medians of the epochs that another one follows, without the first.

        Raises:
            RuntimeError: there are none.
        """
        if len(self.starts) < 3:
            raise RuntimeError(f"at least 3 epochs are needed, got {len(self.starts)}")
        follows = self.starts[2:]
        epochs = [after - start for start, after in zip(self.starts[1:], follows, strict=False)]
        between = [after - end for end, after in zip(self.ends[1:], follows, strict=False)]
        return {"epoch_s": statistics.median(epochs), "between_ms": 1000 * statistics.median(between)}


def quiet(text: str) -> None:
    """Takes what callbacks tell."""


def one_of(kind: type[Any]) -> Sequence[Callback]:
    """Makes the default callback of this kind alone."""
    return [callback for callback in default_per_epoch_callbacks(quiet) if type(callback) is kind]


def measure(callbacks: Callable[[], Sequence[Callback]], nb_epochs: int) -> Figures:
    """Trains once."""
    stamps = Stamps()
    splits = make_splits(MnistOptions())
    trainer = Trainer(
        callbacks_per_epoch_fn=lambda: [stamps, *callbacks()],
        callbacks_pre_training_fn=None,
        callbacks_post_training_fn=None,
    )
    try:
        with tempfile.TemporaryDirectory() as folder:
            trainer.fit(
                create_default_options(folder, nb_epochs, "cpu"),
                lambda: {"mnist": splits},
                lambda options: DigitNet(),
                partial(create_adam_optimizers_fn, learning_rate=2e-3),
                with_final_evaluation=False,
                seed=0,
            )
    finally:
        for split in splits.values():
            split.close()
    return stamps.figures()


def epoch(quick: bool) -> Comparison:
    """Compares what an epoch takes."""
    torch.set_num_threads(1)  # as the example does: the workers need the other core
    logging.getLogger("trw_pipeline").setLevel(logging.WARNING)
    nb_epochs = 3 if quick else 5
    kinds = [type(callback) for callback in default_per_epoch_callbacks(quiet)]
    contenders: dict[str, Callable[[], Sequence[Callback]]] = {
        NONE: list,
        **{kind.__name__.removeprefix("Callback"): partial(one_of, kind) for kind in kinds},
        ALL: partial(default_per_epoch_callbacks, quiet),
    }
    return Comparison(
        title="an epoch of train mnist, with the default callbacks",
        contenders={name: partial(measure, make, nb_epochs) for name, make in contenders.items()},
        columns=[
            Column("epoch s", "epoch_s"),
            Column("x none", "epoch_s", base=NONE),
            Column("between ms", "between_ms"),
        ],
        goals=[Goal(ALL, "epoch_s", at_most=1.05, base=NONE)],
    )


if __name__ == "__main__":
    run("benchmarks.bench_callbacks", {"epoch": epoch})
