"""The learning rates of a training, as a picture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from trw_pipeline.files import safe_filename
from trw_pipeline.reporting.history_plot import plot_history
from trw_pipeline.training.callback import Callback
from trw_pipeline.training.history import History
from trw_pipeline.training.optimizers import Optimizers, learning_rates
from trw_pipeline.training.options import Options

if TYPE_CHECKING:
    from trw_pipeline.training.run import Run


class CallbackLearningRateRecorder(Callback):
    """Notes the learning rate that each epoch begins with, and plots them when the training ends, also by an error.

    Writes `<run folder>/<dirname>/<dataset>.png`, with a curve for each optimizer and parameter group of the dataset. A
    scheduler that steps with every batch changes the rate within an epoch, which this does not show.

    Args:
        dirname: folder of the plots, in the run folder.
    """

    def __init__(self, dirname: str = "lr_recorder") -> None:
        self.dirname = dirname
        self._rates: dict[str, list[list[float]]] = {}  # name -> pairs of epoch and rate
        self._now: dict[str, float] = {}

    def on_fit_start(self, run: Run) -> None:
        """Forget another training."""
        if not run.resumed:
            self._rates, self._now = {}, {}

    def on_epoch_start(self, run: Run) -> None:
        """Note the rates before a scheduler changes them."""
        if run.resume_point is None or not self._now:  # else the epoch has begun before
            self._now = learning_rates(run.optimizers)

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
        """Keep the rates of the newest epoch, and plot all if it was the last.

        Args:
            options: has the run folder.
            history: its length tells the epoch. Empty, before the training: nothing is done.
            model: not used.
            losses: not used.
            outputs: not used.
            datasets: not used.
            datasets_infos: not used.
            callbacks_per_batch: not used.
            **kwargs: `optimizers`, whose present rates are taken where nobody told that the epoch began (this then is
                after its scheduler); without them, as after the training, nothing is done. `last_epoch`.

        Raises:
            MissingExtraError: matplotlib is not installed.
        """
        optimizers: Optimizers | None = kwargs.get("optimizers")
        if not history or not optimizers:
            return
        for name, rate in (self._now or learning_rates(optimizers)).items():
            self._rates.setdefault(name, []).append([len(history) - 1, rate])
        if kwargs.get("last_epoch"):
            self._plot(options)

    def on_fit_end(self, run: Run) -> None:
        """Plot what was kept: whether an epoch was the last may have turned out after it."""
        self._plot(run.options)

    def on_exception(self, run: Run) -> None:
        """Plot what was kept of a training that ends before its time."""
        self._plot(run.options)

    def state_dict(self) -> dict[str, Any]:
        """Give the rates of all epochs, and those of the one at work."""
        return {
            "rates": {name: [list(pair) for pair in pairs] for name, pairs in self._rates.items()},
            "now": {**self._now},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take them back."""
        self._rates = {name: [list(pair) for pair in pairs] for name, pairs in state["rates"].items()}
        self._now = dict(state["now"])

    def _plot(self, options: Options) -> None:
        plots: dict[str, dict[str, list[tuple[int, float]]]] = {}
        for name, pairs in self._rates.items():
            dataset, _, rest = name.partition("/")
            plots.setdefault(dataset, {})[rest or "learning rate"] = [(int(epoch), rate) for epoch, rate in pairs]
        for dataset, curves in plots.items():
            folder = Path(options["workflow_options"]["current_logging_directory"]) / self.dirname
            folder.mkdir(parents=True, exist_ok=True)
            plot_history(
                folder / f"{safe_filename(dataset)}.png", curves, f"learning rate of {dataset}", "learning rate"
            )
