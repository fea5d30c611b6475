"""Where the training is, batch by batch."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, ClassVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from trw_pipeline.training.callback import Callback

if TYPE_CHECKING:
    from rich.progress import TaskID

    from trw_pipeline.training.run import Run


_REFRESH_S = 0.1
"""Seconds between two drawings: smooth to the eye, and nothing beside any batch that is worth a bar."""


class CallbackProgressBar(Callback):
    """Shows a bar for the split at work on a terminal, and nothing elsewhere.

    The bar counts batches. Of a split that does not know its length it takes the number of batches that this split had
    the last time; the first time the bar only shows that something moves. When the training ends, however it ends, the
    bar is gone and the cursor back. It touches no tensor, so it never waits for the device, and needs no thread: it is
    drawn when a batch ends.

    Args:
        console: where to draw. None: the standard error of the process, as it is when the training starts.
    """

    outer: ClassVar[bool] = True

    def __init__(self, *, console: Console | None = None) -> None:
        self.console = console
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._drawn = 0.0
        self._nb_batches: dict[tuple[str, str], int] = {}

    def on_fit_start(self, run: Run) -> None:
        """Start to draw, if there is a terminal."""
        self._stop()
        self._nb_batches = {}
        console = Console(stderr=True) if self.console is None else self.console
        if not console.is_terminal:
            return
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        self._progress = Progress(
            *columns,
            console=console,
            transient=True,
            auto_refresh=False,
            # What others print to a terminal goes above the bar; what they print to a file stays out of the terminal.
            redirect_stdout=sys.stdout.isatty(),
            redirect_stderr=sys.stderr.isatty(),
        )
        self._progress.start()

    def on_split_start(self, run: Run) -> None:
        """Show a bar for the split."""
        if self._progress is not None:
            total = run.num_batches if run.num_batches is not None else self._nb_batches.get((run.dataset, run.split))
            # A split that belongs to no training, as in a loop of the user's, has no epoch.
            when = "final evaluation " if run.is_final else f"epoch {run.epoch} " if run.epochs else ""
            self._task = self._progress.add_task(f"{when}{run.dataset}/{run.split}", total=total)
            self._draw()

    def on_batch_end(self, run: Run) -> None:
        """Move by one batch."""
        if self._progress is not None and self._task is not None:
            self._progress.advance(self._task)
            if time.monotonic() - self._drawn >= _REFRESH_S:
                self._draw()

    def on_split_end(self, run: Run) -> None:
        """Take the bar of the split away, and keep its number of batches."""
        self._nb_batches[run.dataset, run.split] = run.batch_index
        if self._progress is not None and self._task is not None:
            self._progress.remove_task(self._task)
            self._task = None
            self._draw()

    def on_fit_end(self, run: Run) -> None:
        """Stop drawing."""
        self._stop()

    def on_exception(self, run: Run) -> None:
        """Stop drawing, so that the traceback finds a clean terminal."""
        self._stop()

    def _draw(self) -> None:
        assert self._progress is not None  # the callers asked
        self._progress.refresh()
        self._drawn = time.monotonic()

    def _stop(self) -> None:
        if self._progress is not None:
            self._progress.stop()
        self._progress = self._task = None
