"""The numbers of every epoch, as a table that any program reads."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trw_pipeline.files import write_text
from trw_pipeline.training.callback import Callback
from trw_pipeline.training.history import EpochHistory
from trw_pipeline.training.optimizers import learning_rates

if TYPE_CHECKING:
    from trw_pipeline.training.run import Run


class CallbackTrainLog(Callback):
    """Writes one row an epoch to `<run folder>/<filename>`, a CSV file with one header.

    | column | meaning |
    |---|---|
    | `epoch` | from 0 |
    | `time_s` | wall time in seconds from the start of the epoch to the writing of its row |
    | `learning_rate[<dataset>]` | rate the epoch was trained with; of further parameter groups: `[<dataset>/1]` |
    | `<dataset>/<split>/<output>/<metric>` | as in the history |

    A column stays once it is there: where it has no value, the field is empty. A metric that is new widens the table by
    a column at its end; the file is then replaced by a wider one, atomically. Numbers are written so that reading them
    gives the same number. After each epoch the file is closed, so a row of an epoch that ended is there whatever comes.
    The final evaluation is no epoch and has no row.

    A file of that name that is there before a training (one that is not resumed) is renamed to `<filename>~`.

    Args:
        filename: name of the file in the run folder.
    """

    def __init__(self, filename: str = "trainlog.csv") -> None:
        self.filename = filename
        self._started = 0.0
        self._learning_rates: dict[str, float] = {}
        self._path = Path()
        self._shape: tuple[int, int] | None = None  # rows and columns that a resumed training had written

    def on_fit_start(self, run: Run) -> None:
        """Keep a file that is not of this training under another name."""
        self._path = self._path_of(run)
        run.logs[self.filename] = self._path
        if self._path.exists() and not run.resumed:
            self._path.replace(self._path.with_name(f"{self._path.name}~"))
        self._cut()

    def on_epoch_start(self, run: Run) -> None:
        """Note the time, and the learning rates before a scheduler changes them."""
        self._started = run.clock()
        if run.resume_point is None:  # else the epoch has begun before
            self._learning_rates = learning_rates(run.optimizers)

    def on_epoch_end(self, run: Run) -> None:
        """Write the row of the epoch."""
        row: dict[str, float] = {"epoch": run.epoch, "time_s": run.clock() - self._started}
        row |= {f"learning_rate[{name}]": rate for name, rate in self._learning_rates.items()}
        _append_row(self._path_of(run), row | _by_column(run.history[-1]))

    def _path_of(self, run: Run) -> Path:
        return Path(run.options["workflow_options"]["current_logging_directory"]) / self.filename

    def state_dict(self) -> dict[str, Any]:
        """Give how many rows and columns the file has, and the rates of the epoch."""
        nb_rows, nb_columns = self._shape or _shape_of(_read(self._path))  # perhaps it is not cut yet
        return {"nb_rows": nb_rows, "nb_columns": nb_columns, "learning_rates": dict(self._learning_rates)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take out of the file what was written since."""
        self._shape = state["nb_rows"], state["nb_columns"]
        self._learning_rates = dict(state["learning_rates"])
        self._cut()

    def _cut(self) -> None:
        if self._shape is None or self._path == Path():  # nothing to do, or not known yet where
            return
        nb_rows, nb_columns = self._shape
        self._shape = None
        table = _read(self._path)
        kept = [row[:nb_columns] for row in table[:nb_rows]]  # a column that came later stands at the end
        if kept != table:
            write_text(self._path, _as_csv(kept))


def _by_column(epoch: EpochHistory) -> dict[str, float]:
    return {
        f"{dataset}/{split}/{output}/{metric}": value
        for dataset, splits in epoch.items()
        for split, outputs in splits.items()
        for output, metrics in outputs.items()
        for metric, value in metrics.items()
    }


def _append_row(path: Path, row: dict[str, float]) -> None:
    """Add a row to a CSV file, with new columns if the row has any that the file has not."""
    table = _read(path)
    columns = list(table[0]) if table else []
    new = [name for name in row if name not in columns]
    values = [row.get(name, "") for name in (*columns, *new)]
    if new:
        blanks = [""] * len(new)
        wider = [columns + new, *(older + blanks for older in table[1:]), values]
        write_text(path, _as_csv(wider))
    else:
        with path.open("a", encoding="utf-8", newline="") as file:
            file.write(_as_csv([values]))


def _read(path: Path) -> list[list[str]]:
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def _shape_of(table: list[list[str]]) -> tuple[int, int]:
    return len(table), len(table[0]) if table else 0


def _as_csv(rows: Iterable[Sequence[str | float]]) -> str:
    text = io.StringIO()
    # A float is written as its `repr`, the shortest text that reads back as the same number.
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
