"""The best epoch of each metric."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection
from pathlib import Path
from typing import Any

from torch import nn

from trw_pipeline.files import write_text
from trw_pipeline.reporting.metric_direction import best_index, metric_direction
from trw_pipeline.training.callback import Callback
from trw_pipeline.training.history import INFO, RESOURCES, History, curves_of, epochs_of
from trw_pipeline.training.options import Options

_COLUMNS = ("dataset", "split", "output", "metric", "better", "best", "epoch")


class CallbackExportBestHistory(Callback):
    """Writes the best value of each metric, and its epoch, to `<run folder>/<filename>`.

    The file has a line for each metric, with values separated by tabs:

    | column | meaning |
    |---|---|
    | dataset, split, output, metric | where the metric stands in the history |
    | better | "lower" or "higher", by the name of the metric: see `metric_direction` |
    | best | the best value, the shortest text that reads back as the same number; empty if none was finite |
    | epoch | when it was reached first, from 0 |

    Args:
        filename: of the file, in the run folder.
        metric_to_discard: names of metrics that are left out. The measurements in `info` and `resources` always are.
    """

    def __init__(self, filename: str = "best_history.txt", metric_to_discard: Collection[str] = ()) -> None:
        self.filename = filename
        self.metric_to_discard = metric_to_discard

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
        """Write the file.

        Args:
            options: has the run folder and the number of epochs.
            history: what to search. The entry of a final evaluation is no epoch, so it is left out, unless it is all.
            model: not used.
            losses: not used.
            outputs: not used.
            datasets: not used.
            datasets_infos: not used.
            callbacks_per_batch: not used.
            **kwargs: not used.
        """
        text = io.StringIO()
        writer = csv.writer(text, "excel-tab", lineterminator="\n")
        writer.writerow(_COLUMNS)
        for (dataset, output, metric), curves in curves_of(epochs_of(history, options)).items():
            if output in (INFO, RESOURCES) or metric in self.metric_to_discard:
                continue
            for split, points in curves.items():
                best = best_index(metric, [value for _, value in points])
                epoch, value = ("", "") if best is None else points[best]
                writer.writerow([dataset, split, output, metric, metric_direction(metric), value, epoch])
        write_text(Path(options["workflow_options"]["current_logging_directory"]) / self.filename, text.getvalue())
