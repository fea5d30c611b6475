"""What does the training loop add to a step of a model that takes no time, beside a loop that is written by hand?

Method. A net of two layers (8, 16, 1) learns from batches of 16 with plain gradient descent, on the CPU, in one thread.
Every contender makes the same steps from the same weights; where the weights differ in the end, the measurement stops.
CPU time of the process is read at the first batch of each epoch, so the end of an epoch is in it, and what begins and
ends a training is not; an epoch is left out to warm up, and the fastest of five counts, because whatever else the
machine does can only add. Before each contender the loop by hand is measured in the same way: `over` is the difference
of such a pair, and the median is taken over rounds.

`ours` has a head that gives the loss and nothing else, as all others do. `monitor and log` has a `MonitorCallback`,
which measures a hundred steps, and a `CallbackTrainLog`; `every step` has one that measures all. The two with a
regression show what heads cost that keep losses for each sample, or also outputs, errors and the sums of R2.

Medians (least to greatest) of five rounds, while a run of tests kept the other core busy:

                                 by hand µs             µs           over µs
    ---------------------  ----------------  -------------  ----------------
    ours                   87.8 (86.4-88.7)  111 (111-114)  22.8 (22.1-27.4)
    ours, monitor and log  88.2 (86.7-90.2)  115 (115-117)  27.1 (26.1-30.1)
    ours, every step       87.5 (86.9-88.4)  148 (146-150)  60.9 (57.8-61.7)
    ours, regression       87.2 (86.8-90.8)  145 (143-145)  57.4 (53.9-58.1)
    ours, its metrics too  87.8 (86.7-88.1)  206 (205-208)     118 (117-120)
    ignite                 87.3 (86.7-89.2)  111 (110-112)  23.4 (22.1-24.1)
    lightning              87.5 (87.3-87.9)  306 (304-326)     219 (216-238)

Machine: 2 cores of an AMD EPYC (virtual), Linux 6.18, Python 3.11.7, torch 2.13.0+cpu. Goals: 15 for
`ours`, 40 with monitor and log.

    python -m benchmarks.bench_loop [--rounds 11]
"""

from __future__ import annotations

import importlib.util
import logging
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.comparison import Column, Comparison, Goal, run
from benchmarks.harness import Figures
from trw_pipeline.callbacks.monitor import MonitorCallback
from trw_pipeline.callbacks.train_log import CallbackTrainLog
from trw_pipeline.outputs.output import LossTerm, Output
from trw_pipeline.outputs.regression import OutputRegression
from trw_pipeline.trainer import Trainer
from trw_pipeline.training.callback import Callback
from trw_pipeline.training.options import create_default_options
from trw_pipeline.typing import Batch

NB_EPOCHS = 7
"""One to warm up, five that are measured, and one whose first batch ends the last of them."""

LEARNING_RATE = 0.01

Head: TypeAlias = Callable[[torch.Tensor], Output]


class Batches:
    """The same batch again and again, with the CPU time when an epoch asked for its first.

    Args:
        nb_steps: batches of an epoch.
    """

    def __init__(self, nb_steps: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self._batch = {name: torch.randn(16, size, generator=generator) for name, size in (("x", 8), ("y", 1))}
        self._nb_steps = nb_steps
        self._nb_asked = 0
        self._stamps: list[float] = []

    def __len__(self) -> int:
        return self._nb_steps

    def __iter__(self) -> Iterator[Batch]:
        for _ in range(self._nb_steps):
            if self._nb_asked % self._nb_steps == 0:
                self._stamps.append(time.process_time())
            self._nb_asked += 1
            yield self._batch

    def step_us(self) -> float:
        """Microseconds a step of the fastest epoch, behind the first.

        Raises:
            RuntimeError: there were not `NB_EPOCHS` epochs.
        """
        if self._nb_asked != NB_EPOCHS * self._nb_steps:
            raise RuntimeError(f"a training must take {NB_EPOCHS} epochs of {self._nb_steps} steps")
        spans = [end - start for start, end in zip(self._stamps[1:], self._stamps[2:], strict=False)]
        return 1e6 * min(spans) / self._nb_steps


def net() -> nn.Sequential:
    """Makes the net, always with the same weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    """Makes the optimizer."""
    return torch.optim.SGD(model.parameters(), LEARNING_RATE)


# The contenders: each trains a net for `NB_EPOCHS` and returns it


def by_hand(batches: Batches) -> nn.Module:
    """The loop that everybody writes first."""
    model = net()
    optimizer = optimizer_of(model)
    model.train()
    for _ in range(NB_EPOCHS):
        for batch in batches:
            optimizer.zero_grad()
            loss = F.mse_loss(model(batch["x"]), batch["y"])
            loss.backward()
            optimizer.step()
    return model


class JustLoss(Output):
    """A head that gives the mean squared error and nothing else."""

    def __init__(self, output: torch.Tensor) -> None:
        super().__init__(output, None)

    def evaluate_batch(self, batch: Batch, is_training: bool) -> LossTerm:
        """Gives the loss."""
        return self._term(batch, loss=F.mse_loss(self._unjudged(), batch["y"]))


def without_metrics(output: torch.Tensor) -> Output:
    """A regression that keeps a loss for each sample."""
    return OutputRegression(output, "y", metrics=[], collect_output=False)


def with_metrics(output: torch.Tensor) -> Output:
    """A regression that keeps outputs too, and adds up what its metrics need."""
    return OutputRegression(output, "y")


class NetWithHead(nn.Module):
    """The net with a head behind it."""

    def __init__(self, head: Head) -> None:
        super().__init__()
        self.net = net()
        self._head = head

    def forward(self, batch: Batch) -> dict[str, Output]:
        """Gives the head as `y`."""
        return {"y": self._head(self.net(batch["x"]))}


def ours(head: Head, callbacks: Callable[[], Sequence[Callback]], batches: Batches) -> nn.Module:
    """`Trainer.fit`."""
    trainer = Trainer(callbacks_per_epoch_fn=callbacks, callbacks_pre_training_fn=None, callbacks_post_training_fn=None)
    with tempfile.TemporaryDirectory() as folder:
        model, _ = trainer.fit(
            create_default_options(folder, NB_EPOCHS, "cpu"),
            lambda: {"d": {"train": batches}},
            lambda options: NetWithHead(head),
            lambda datasets, model: ({"d": optimizer_of(model)}, None),
            with_final_evaluation=False,
        )
    assert isinstance(model, NetWithHead), "that is what the function of models made"
    return model.net


def in_ignite(batches: Batches) -> nn.Module:
    """Ignite's engine without handlers."""
    from ignite.engine import Engine  # pyright: ignore

    model = net()
    optimizer = optimizer_of(model)

    def step(engine: Any, batch: Batch) -> None:
        model.train()
        optimizer.zero_grad()
        loss = F.mse_loss(model(batch["x"]), batch["y"])
        loss.backward()
        optimizer.step()

    Engine(step).run(batches, max_epochs=NB_EPOCHS)  # pyright: ignore
    return model


def in_lightning(batches: Batches) -> nn.Module:
    """Lightning's trainer with all that it logs and keeps switched off."""
    import lightning  # pyright: ignore

    class Module(lightning.LightningModule):  # pyright: ignore
        def __init__(self) -> None:
            super().__init__()  # pyright: ignore
            self.net = net()

        def training_step(self, batch: Batch, index: int) -> torch.Tensor:
            return F.mse_loss(self.net(batch["x"]), batch["y"])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return optimizer_of(self.net)

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    off = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    module: Any = Module()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of loaders without workers
        lightning.Trainer(accelerator="cpu", max_epochs=NB_EPOCHS, **off).fit(module, batches)  # pyright: ignore
    return module.net


OURS, WATCHED, ALL_WATCHED = "ours", "ours, monitor and log", "ours, every step"

CONTENDERS: dict[str, Callable[[Batches], nn.Module]] = {
    OURS: partial(ours, JustLoss, list),
    WATCHED: partial(ours, JustLoss, lambda: [MonitorCallback(), CallbackTrainLog()]),
    ALL_WATCHED: partial(ours, JustLoss, lambda: [MonitorCallback(num_measurements=0), CallbackTrainLog()]),
    "ours, regression": partial(ours, without_metrics, list),
    "ours, its metrics too": partial(ours, with_metrics, list),
    "ignite": in_ignite,
    "lightning": in_lightning,
}


def measure(train: Callable[[Batches], nn.Module], nb_steps: int) -> Figures:
    """Measures a contender, after the loop by hand.

    Raises:
        RuntimeError: it has not come to the same weights.
    """
    by_hand_batches, batches = Batches(nb_steps), Batches(nb_steps)
    expected, found = by_hand(by_hand_batches).state_dict(), train(batches).state_dict()
    if not all(torch.equal(weight, found[name]) for name, weight in expected.items()):
        raise RuntimeError(f"{train} has not made the same steps as the loop by hand")
    step_us, by_hand_us = batches.step_us(), by_hand_batches.step_us()
    return {"by_hand_us": by_hand_us, "us": step_us, "over_us": step_us - by_hand_us}


def step(quick: bool) -> Comparison:
    """Compares what a step costs."""
    torch.set_num_threads(1)  # several wait for each other longer than these tensors take
    left_out = {name for name in ("ignite", "lightning") if importlib.util.find_spec(name) is None}
    return Comparison(
        title="CPU time of a step, and what of it is over that of a loop by hand",
        contenders={
            name: partial(measure, train, 50 if quick else 1000)
            for name, train in CONTENDERS.items()
            if name not in left_out
        },
        columns=[Column("by hand µs", "by_hand_us"), Column("µs", "us"), Column("over µs", "over_us")],
        goals=[
            Goal(OURS, "over_us", at_most=15),
            *(Goal(name, "over_us", at_most=40) for name in (WATCHED, ALL_WATCHED)),
        ],
        left_out={name: f"{name} is not installed" for name in sorted(left_out)},
    )


if __name__ == "__main__":
    run("benchmarks.bench_loop", {"step": step})
