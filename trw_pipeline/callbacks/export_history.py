"""The history as pictures."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from torch import nn

from trw_pipeline.files import safe_filename
from trw_pipeline.reporting.history_plot import plot_history
from trw_pipeline.training.callback import Callback
from trw_pipeline.training.history import INFO, RESOURCES, History, curves_of, epochs_of
from trw_pipeline.training.options import Options


class CallbackExportHistory(Callback):
    """Plots each metric over the epochs, the splits of a dataset together.

    Writes `<run folder>/<export_dirname>/<dataset>_<output>_<metric>.png`, each name without special characters.

    Args:
        export_dirname: folder of the plots, in the run folder.
        metrics_to_report: names of the metrics to plot. None: all of them, but for the measurements in `info`
            and `resources`.
    """

    def __init__(self, export_dirname: str = "history", metrics_to_report: Collection[str] | None = None) -> None:
        self.export_dirname = export_dirname
        self.metrics_to_report = metrics_to_report

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
        """Plot the history.

        Args:
            options: has the run folder and the number of epochs.
            history: what to plot. The entry of a final evaluation is no epoch, so it is left out, unless it is all.
            model: not used.
            losses: not used.
            outputs: not used.
            datasets: not used.
            datasets_infos: not used.
            callbacks_per_batch: not used.
            **kwargs: not used.

        Raises:
            MissingExtraError: matplotlib is not installed.
        """
        folder = Path(options["workflow_options"]["current_logging_directory"]) / self.export_dirname
        for (dataset, output, metric), curves in curves_of(epochs_of(history, options)).items():
            is_of_model = output not in (INFO, RESOURCES)
            wanted = is_of_model if self.metrics_to_report is None else metric in self.metrics_to_report
            if wanted:
                folder.mkdir(exist_ok=True)
                path = folder / f"{safe_filename(f'{dataset}_{output}_{metric}').replace(' ', '_')}.png"
                plot_history(path, curves, title=f"{dataset}: {output}", ylabel=metric)
