"""What the logs with a row an epoch have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trw_pipeline.reporting.row_files import RowFile
from trw_pipeline.training.callback import Callback
from trw_pipeline.training.history import EpochHistory
from trw_pipeline.training.optimizers import learning_rates

if TYPE_CHECKING:
    from trw_pipeline.training.run import Run


class RowLog(Callback):
    """Writes one row an epoch to `<run folder>/<filename>`.

    A training that is resumed goes on in its file: what came after the checkpoint is cut off, and comes again. A file
    that is there before a training (one that is not resumed) is renamed to `<filename>~`.

    Args:
        filename: in the run folder; its own folder is made.
        open_file: makes the file from its path.
    """

    def __init__(self, filename: str, open_file: Callable[[Path], RowFile]) -> None:
        self.filename = filename
        self._open_file = open_file
        self._file: RowFile | None = None
        self._shape: dict[str, int] = {}  # of the file that is to be cut, while it is not known where it is
        self._started = 0.0
        self._learning_rates: dict[str, float] = {}

    def on_fit_start(self, run: Run) -> None:
        """Find the file, and keep one that is not of this training under another name."""
        assert run.log_dir is not None, "a training in a folder"
        path = run.log_dir / self.filename
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not run.resumed:
            path.replace(path.with_name(f"{path.name}~"))
        run.logs[self.filename] = path
        self._file = self._open_file(path)
        self._cut()

    def on_epoch_start(self, run: Run) -> None:
        """Note the time, and the learning rates before a scheduler changes them."""
        self._started = run.clock()
        if run.resume_point is None:  # else the epoch has begun before
            self._learning_rates = learning_rates(run.optimizers)

    def on_epoch_end(self, run: Run) -> None:
        """Write the row of the epoch."""
        assert self._file is not None, "the training has begun"
        row: dict[str, float] = {"epoch": run.epoch, "time_s": run.clock() - self._started}
        row |= {f"learning_rate[{name}]": rate for name, rate in self._learning_rates.items()}
        self._file.append(row | _by_column(run.history[-1]))

    def state_dict(self) -> dict[str, Any]:
        """Give the shape of the file, and the rates of the epoch."""
        shape = self._shape if self._file is None else self._file.shape()
        return {"shape": dict(shape), "learning_rates": dict(self._learning_rates)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take out of the file what was written since; its length is kept by the checkpoint."""
        self._shape = dict(state["shape"])
        self._learning_rates = dict(state["learning_rates"])
        self._cut()

    def _cut(self) -> None:
        if self._file is not None and self._shape:
            self._file.cut(self._shape)
            self._shape = {}


def _by_column(epoch: EpochHistory) -> dict[str, float]:
    return {
        f"{dataset}/{split}/{output}/{metric}": value
        for dataset, splits in epoch.items()
        for split, outputs in splits.items()
        for output, metrics in outputs.items()
        for metric, value in metrics.items()
    }
