"""Ends a training that gets no better."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from trw_pipeline.training.callback import Callback
from trw_pipeline.training.history import metric_at
from trw_pipeline.training.optimizers import MetricPath

if TYPE_CHECKING:
    from trw_pipeline.training.run import Run

_logger = logging.getLogger(__name__)


class CallbackEarlyStopping(Callback):
    """Ends the training after the epoch in which `patience` evaluations in a row brought no improvement.

    The epoch itself is completed, and the final evaluation follows. An epoch in which the metric was not evaluated
    counts for nothing; a metric that is NaN is no improvement. Any number of these may be used together: the first that
    gives up ends the training.

    Args:
        metric: (dataset, split, output, metric); the total loss of a split is `("...", "...", "overall_loss", "loss")`.
        patience: so many evaluations without improvement, at least 1.
        mode: whether the metric is better the lower ("min") or the higher ("max") it is.
        min_delta: it has to be better than the best so far by more than this, at least 0.

    Raises:
        ValueError: an argument is out of range; or, at the end of the first epoch, the history has no such metric.
    """

    def __init__(
        self, metric: MetricPath, patience: int, mode: Literal["min", "max"] = "min", min_delta: float = 0.0
    ) -> None:
        if patience < 1:
            raise ValueError(f"patience must be at least 1, got {patience}")
        if mode not in ("min", "max"):
            raise ValueError(f"mode must be 'min' or 'max', got {mode!r}")
        if not 0 <= min_delta < math.inf:
            raise ValueError(f"min_delta must be at least 0 and finite, got {min_delta}")
        if len(metric) != 4:
            raise ValueError(f"metric must be (dataset, split, output, metric), got {metric!r}")
        self.metric = metric
        self.patience = patience
        self.mode = mode
        self.min_delta = min_delta
        self._best: float | None = None
        self._nb_in_vain = 0

    def on_fit_start(self, run: Run) -> None:
        """Begin anew, unless the training goes on."""
        if not run.resumed:
            self._best, self._nb_in_vain = None, 0

    def on_epoch_end(self, run: Run) -> None:
        """Compare the metric with the best so far."""
        value = metric_at(run.history[-1], self.metric, has_all_splits=run.epoch == 0)
        if value is None:
            return
        if self._is_better(value):
            self._best, self._nb_in_vain = value, 0
            return
        self._nb_in_vain += 1
        if self._nb_in_vain >= self.patience:
            run.stop = True
            _logger.info(
                "the training stops after epoch %d: %s was not better than %s in %d evaluations",
                run.epoch,
                "/".join(self.metric),
                self._best,
                self._nb_in_vain,
            )

    def _is_better(self, value: float) -> bool:
        if math.isnan(value):
            return False
        if self._best is None:
            return True
        gain = self._best - value if self.mode == "min" else value - self._best
        return gain > self.min_delta

    def state_dict(self) -> dict[str, Any]:
        """Give the best value so far, and how many evaluations were in vain since."""
        return {"best": self._best, "nb_in_vain": self._nb_in_vain}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take them back."""
        self._best, self._nb_in_vain = state["best"], state["nb_in_vain"]
