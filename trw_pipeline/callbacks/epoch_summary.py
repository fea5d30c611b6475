"""How the last epoch went, on one screen."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import nn

from trw_pipeline.text_table import text_table
from trw_pipeline.training.callback import Callback
from trw_pipeline.training.history import INFO, OVERALL_LOSS, History, SplitHistory
from trw_pipeline.training.options import Options

_logger = logging.getLogger(__name__)

_COLUMNS = ("dataset", "split", "loss", "error", "samples/s", "waited for data", "best loss so far")
_SHORT = {"waited for data": "waited", "best loss so far": "best loss"}
"""Headers of the table, so that it fits a terminal of 80 columns."""


class CallbackEpochSummary(Callback):
    """Tells how each split of the last epoch went, in one message an epoch.

    | column | meaning |
    |---|---|
    | dataset, split | whose row it is; splits that did not run have none |
    | loss | overall loss, by sample |
    | error | classification error in %; of several heads each, with its name |
    | samples/s | samples per second of wall time |
    | waited for data (in a table: waited) | share of the wall time, in %, that the loop waited for the next batch |
    | best loss so far (in a table: best loss) | lowest overall loss of this split in any epoch, and that epoch |

    On a terminal the message is a table, elsewhere one line for each split.

    Args:
        logger: takes the message, a str of one or more lines. None: it is logged at level INFO.
        track_best_so_far: whether there is the last column.
        table: whether the message is a table. None: if stdout and stderr are terminals.
    """

    def __init__(
        self,
        logger: Callable[[str], Any] | None = None,
        track_best_so_far: bool = True,
        *,
        table: bool | None = None,
    ) -> None:
        self.logger = _logger.info if logger is None else logger
        self.track_best_so_far = track_best_so_far
        self.table = table

    def __call__(
        self,
        options: Options,
        history: History,
        model: nn.Module,
        losses: Any,
        outputs: Any,
        datasets: Any,
        datasets_infos: Any,
        callbacks_per_batch: Any,
        **kwargs: Any,
    ) -> None:
        """Send the message for the newest epoch; nothing if there is none.

        Args:
            options: has the number of epochs.
            history: what to tell of.
            model: not used.
            losses: not used.
            outputs: not used.
            datasets: not used.
            datasets_infos: not used.
            callbacks_per_batch: not used.
            **kwargs: not used.
        """
        if not history:
            return
        nb_epochs = options["training_parameters"]["num_epochs"]
        epoch = len(history) - 1
        title = f"epoch {epoch} ({epoch + 1} of {nb_epochs})" if epoch < nb_epochs else "final evaluation"
        rows = [
            (dataset, split, *_figures(measured), _best(history, dataset, split) if self.track_best_so_far else "")
            for dataset, splits in history[-1].items()
            for split, measured in splits.items()
        ]
        columns = _COLUMNS if self.track_best_so_far else _COLUMNS[:-1]
        as_table = sys.stdout.isatty() and sys.stderr.isatty() if self.table is None else self.table
        short = [_SHORT.get(column, column) for column in columns]
        self.logger(text_table(title, short, rows, nb_names=2) if as_table else _as_lines(title, columns, rows))


class _Figures(NamedTuple):
    loss: str
    error: str
    speed: str
    waited: str


def _figures(measured: SplitHistory) -> _Figures:
    info = measured.get(INFO, {})
    errors = {
        output: f"{100 * metrics['classification error']:.2f} %"
        for output, metrics in measured.items()
        if "classification error" in metrics
    }
    named = [f"{output} {error}" for output, error in errors.items()]
    return _Figures(
        loss=_formatted(measured.get(OVERALL_LOSS, {}).get("loss"), ".5g"),
        error=", ".join(errors.values() if len(errors) == 1 else named),
        speed=_formatted(info.get("samples_per_s"), ".0f"),
        waited=_formatted(info.get("wait_share"), ".1%").replace("%", " %"),
    )


def _best(history: History, dataset: str, split: str) -> str:
    """The lowest overall loss of a split, the earlier of equals; NaN is never the best."""
    known = [
        (loss, epoch)
        for epoch, datasets in enumerate(history)
        for loss in [datasets.get(dataset, {}).get(split, {}).get(OVERALL_LOSS, {}).get("loss")]
        if loss is not None and loss == loss
    ]
    return f"{min(known)[0]:.5g} (epoch {min(known)[1]})" if known else ""


def _formatted(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _as_lines(title: str, columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [
        f"{title} {row[0]}/{row[1]}: "
        + ", ".join(f"{column} {value}" for column, value in zip(columns[2:], row[2:], strict=False) if value)
        for row in rows
    ]
    return "\n".join(lines) or f"{title}: no split ran"
