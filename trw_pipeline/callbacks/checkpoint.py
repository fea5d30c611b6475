"""Keeps a training on disk, so that it can go on as if it had never stopped."""

from __future__ import annotations

import logging
import math
import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from trw_pipeline.files import open_atomic
from trw_pipeline.training.callback import Callback
from trw_pipeline.training.checkpoint import FOLDER, Checkpoint, remove_leftovers, save_checkpoint
from trw_pipeline.training.history import metric_at
from trw_pipeline.training.optimizers import MetricPath
from trw_pipeline.training.resume import capture
from trw_pipeline.training.signals import SignalWatch

if TYPE_CHECKING:
    from trw_pipeline.training.run import Run

_logger = logging.getLogger(__name__)


class CallbackCheckpoint(Callback):
    """Writes checkpoints to `<run folder>/checkpoints/`, from which `Trainer.fit(resume=...)` goes on.

    | file | when |
    |---|---|
    | `epoch-<epoch>.pt` | at the end of every `every_n_epochs`-th epoch; the newest `keep_n` stay |
    | `best-<epoch>.pt` | at the end of an epoch whose metric is the best so far; the newest `keep_n` stay |
    | `last.pt` | at the end of each epoch with a file, every `every_n_steps`, and where a signal ends the training |
    | `final.pt` | after the final evaluation |

    Each file is complete or absent, and is read without running code of its maker. It comes after all other callbacks,
    whose states are in it. Ctrl-C and SIGTERM end the training between two batches, with a `last.pt` of that moment
    where the splits can tell their position; a second one ends it at once. One that comes when the last batch is at
    work is raised when the training is finished.

    Args:
        every_n_epochs: at least 1.
        metric: (dataset, split, output, metric) for `best-<epoch>.pt`, or None. A metric that is NaN, or equal to the
            best, is not better.
        mode: whether the metric is better the lower ("min") or the higher ("max") it is.
        keep_n: at least 1.
        save_last: whether `last.pt` is written.
        every_n_steps: `last.pt` within an epoch too, after so many steps of the optimizer; None: not. A split without
            `state_dict` is read again from its start when the training goes on, without using what was seen.

    Raises:
        ValueError: an argument is out of range; or, at the end of the first epoch, the history has no such metric.
    """

    outer = True

    def __init__(
        self,
        every_n_epochs: int = 1,
        metric: MetricPath | None = None,
        mode: Literal["min", "max"] = "min",
        keep_n: int = 1,
        save_last: bool = True,
        *,
        every_n_steps: int | None = None,
    ) -> None:
        for name, value in (("every_n_epochs", every_n_epochs), ("keep_n", keep_n), ("every_n_steps", every_n_steps)):
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if mode not in ("min", "max"):
            raise ValueError(f"mode must be 'min' or 'max', got {mode!r}")
        if metric is not None and len(metric) != 4:
            raise ValueError(f"metric must be (dataset, split, output, metric), got {metric!r}")
        self.every_n_epochs = every_n_epochs
        self.metric = metric
        self.mode = mode
        self.keep_n = keep_n
        self.save_last = save_last
        self.every_n_steps = every_n_steps
        self._signals: SignalWatch | None = None
        self._folder = Path()
        self._steps_at_last: int | None = None  # of the newest checkpoint
        self._begin()

    def _begin(self) -> None:
        self._best: float | None = None
        self._kept: dict[str, list[int]] = {"epoch": [], "best": []}  # epochs with a file, oldest first
        self._is_told = False

    def on_fit_start(self, run: Run) -> None:
        """Make the folder, and be there between batches."""
        if not run.resumed:
            self._begin()
        self._make_folder(run)
        remove_leftovers(self._folder)
        self._steps_at_last = None  # until the first boundary: a resume has put the steps back then
        if self.on_exception not in run.hooks["on_exception"]:
            return  # in the pre-training list: it would not hear of the end, and signals would stay with it
        self._signals = SignalWatch(run)
        self._signals.start()
        run.keeps_place = True
        run.at_boundaries += [self._signals.check, self._between_batches]

    def _between_batches(self, run: Run) -> None:
        if self._steps_at_last is None:
            self._steps_at_last = run.nb_steps
        if self.every_n_steps is None or run.place is None or run.nb_steps - self._steps_at_last < self.every_n_steps:
            return
        self._steps_at_last = run.nb_steps
        self._save_last_within(run)

    def _save_last_within(self, run: Run) -> None:
        try:
            checkpoint = capture(run)
        except TypeError as error:
            if not self._is_told:
                _logger.warning("no checkpoint within the epoch: %s", error)
            self._is_told = True
            return
        save_checkpoint(checkpoint, self._folder / "last.pt")

    def on_epoch_end(self, run: Run) -> None:
        """Write what is due."""
        names: list[str] = []
        if run.nb_epochs_done % self.every_n_epochs == 0 or run.last_epoch:
            names.append(self._next("epoch", run.epoch))
        if self._is_best(run):
            names.append(self._next("best", run.epoch))
        if not names:
            return
        self._steps_at_last = run.nb_steps
        self._write(capture(run), [*names, *(["last.pt"] if self.save_last else [])])
        self._remove_old()

    def on_fit_end(self, run: Run) -> None:
        """Write the state after the final evaluation; a signal that came too late to end anything is raised now."""
        self._make_folder(run)  # in the post-training list nobody has
        save_checkpoint(capture(run, is_finished=True), self._folder / "final.pt")
        signals = self._stop_watching()
        if signals is not None:
            signals.check(run)

    def on_exception(self, run: Run) -> None:
        """Write where a signal ended the training, if it did so between two batches or two epochs."""
        signals = self._stop_watching()
        if signals is not None and signals.was_in_time and self.save_last:
            self._save_last_within(run)

    def state_dict(self) -> dict[str, Any]:
        """Give the best metric so far, and which epochs have a file."""
        return {"best": self._best, "kept": {kind: list(epochs) for kind, epochs in self._kept.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take them back; within a training, finish what a kill has left half-done when that epoch ended."""
        self._best = state["best"]
        self._kept = {kind: list(epochs) for kind, epochs in state["kept"].items()}
        if self._signals is not None:
            self._finish_writing()

    def _make_folder(self, run: Run) -> None:
        assert run.log_dir is not None, "a training in a folder"
        self._folder = run.log_dir / FOLDER
        self._folder.mkdir(exist_ok=True)

    def _stop_watching(self) -> SignalWatch | None:
        signals, self._signals = self._signals, None
        if signals is not None:
            signals.stop()
        return signals

    def _next(self, kind: str, epoch: int) -> str:
        self._kept[kind].append(epoch)
        return f"{kind}-{epoch}.pt"

    def _is_best(self, run: Run) -> bool:
        if self.metric is None:
            return False
        value = metric_at(run.history[-1], self.metric, has_all_splits=run.epoch == 0)
        if value is None or math.isnan(value):
            return False
        sign = 1 if self.mode == "min" else -1
        if self._best is not None and sign * value >= sign * self._best:
            return False
        self._best = value
        return True

    def _write(self, checkpoint: Checkpoint, names: list[str]) -> None:
        """Writes one file, and gives it the other names too."""
        first = self._folder / names[0]
        save_checkpoint(checkpoint, first)
        for name in names[1:]:
            self._name_too(first, name)

    def _name_too(self, path: Path, name: str) -> None:
        temporary = self._folder / f".{name}.{secrets.token_hex(4)}.tmp"
        try:
            os.link(path, temporary)
        except OSError:  # a file system without links
            with path.open("rb") as file, open_atomic(self._folder / name) as copy:
                shutil.copyfileobj(file, copy)
        else:
            temporary.replace(self._folder / name)

    def _finish_writing(self) -> None:
        """Gives the newest file the names that it has not got yet, and removes the older ones.

        It is resumed from as soon as it has the first of its names, and the next epoch would give it no other.
        """
        newest = max((epoch for epochs in self._kept.values() for epoch in epochs), default=None)
        paths = [self._folder / f"{kind}-{newest}.pt" for kind, epochs in self._kept.items() if newest in epochs]
        there = [path for path in paths if path.exists()]
        if there:
            last = self._folder / "last.pt"
            is_older = not last.exists() or last.stat().st_mtime_ns < there[0].stat().st_mtime_ns
            missing = [path.name for path in paths if path not in there]
            for name in [*missing, *([last.name] if self.save_last and is_older else [])]:
                self._name_too(there[0], name)
        self._remove_old()

    def _remove_old(self) -> None:
        for kind, epochs in self._kept.items():
            for epoch in epochs[: -self.keep_n]:
                (self._folder / f"{kind}-{epoch}.pt").unlink(missing_ok=True)
            del epochs[: -self.keep_n]
