"""What do the default callbacks of each epoch add to an epoch of `train mnist`?

Method. The example trains as it does from the command line, with two workers: without callbacks, with the default ones
of each epoch, and with each of them alone. The wall time of an epoch is taken from its start to the start of the next
one, so what happens after the last batch is in it; the median of the epochs behind the first, which starts the workers,
is the figure of a training. `between` is the part of it from the last batch to the start of the next epoch: the
callbacks alone, however long the workers took. Contenders alternate over rounds; `x none` is the ratio to the training
without callbacks of the same round.

Medians (least to greatest) of five rounds, while other programs kept both cores busy (load 10): what an epoch takes
says more of them than of the callbacks, `between` does not.

                                       epoch s              x none              between ms
    ------------------------  ----------------  ------------------  ----------------------
    none                       2.24 (1.4-2.97)             1 (1-1)  0.0159 (0.0137-0.0201)
    EpochSummary              2.21 (1.63-3.19)   1.07 (0.861-1.28)  0.0886 (0.0804-0.0949)
    TrainLog                  2.29 (1.46-2.42)   1.04 (0.746-1.39)       0.706 (0.638-2.6)
    TensorboardRecordHistory  1.99 (1.62-2.43)   0.877 (0.82-1.52)       1.62 (0.815-5.61)
    LearningRateRecorder      2.15 (1.84-2.41)  0.986 (0.812-1.34)  0.0247 (0.0226-0.0287)
    Report                    2.13 (1.83-2.23)   0.949 (0.72-1.39)        20.1 (13.4-26.6)
    WorstSamplesByEpoch       1.96 (1.84-3.61)  0.851 (0.619-2.09)       0.81 (0.76-0.823)
    all defaults              2.07 (1.99-2.36)  0.923 (0.682-1.68)        26.7 (16.3-35.4)

Machine: 2 cores of an AMD EPYC (virtual), Linux 6.18, Python 3.11.7, torch 2.13.0+cpu.

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
    logging.getLogger("trw_pipeline").setLevel(logging.WARNING)
    run("benchmarks.bench_callbacks", {"epoch": epoch})
