"""What goes through the layers, as numbers in which trouble shows."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from torch import nn

from trw_pipeline.nets.activations import Activations, activations_of
from trw_pipeline.text_table import text_table
from trw_pipeline.training.callback import Callback
from trw_pipeline.training.history import History
from trw_pipeline.training.looking import first_batch, split_to_look_at
from trw_pipeline.training.options import Options
from trw_pipeline.training.randomness import seeded

_logger = logging.getLogger(__name__)

_COLUMNS = ("layer", "type", "mean", "std", "least", "greatest", "zeros", "not finite")


class CallbackActivationStatistics(Callback):
    """Tells what each layer gives for one batch: mean, spread, range, share of zeros and of values that are no numbers.

    A layer whose values are all 0 is dead, one whose spread grows from layer to layer is about to overflow, and a share
    that is not finite tells where a NaN comes from. One batch is read and put through the model in evaluation mode;
    layers are modules without parts, and what functions do between them is not seen.

    Args:
        dataset_name: dataset of the batch. None: the first that has the split.
        split_name: split of the batch. None: the first that is not trained on.
        logger_fn: takes the table, a str of several lines. None: it is logged at level INFO.
    """

    def __init__(
        self,
        dataset_name: str | None = None,
        split_name: str | None = "train",
        logger_fn: Callable[[str], Any] | None = None,
    ) -> None:
        self.dataset_name = dataset_name
        self.split_name = split_name
        self.logger_fn = _logger.info if logger_fn is None else logger_fn

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
        """Tell of the layers.

        Args:
            options: has the name of the split that is trained on.
            history: its length tells the epoch.
            model: what to look into.
            losses: not used.
            outputs: not used.
            datasets: give the batch.
            datasets_infos: not used.
            callbacks_per_batch: see the batch before the model does.
            **kwargs: not used.

        Raises:
            ValueError: there is no such dataset or split.
        """
        train_split = options["workflow_options"]["train_split"]
        dataset, split = split_to_look_at(datasets, self.dataset_name, self.split_name, train_split)
        with seeded(0):  # a model may draw, too
            batch = first_batch(model, datasets, dataset, split, callbacks_per_batch)
            if batch is None:
                return
            found = activations_of(model, batch)
        when = f"after epoch {len(history) - 1}" if history else "before training"
        self.logger_fn(
            text_table(f"activations {when}, a batch of {dataset}/{split}", _COLUMNS, map(_row, found), nb_names=2)
        )


def _row(layer: Activations) -> tuple[str, ...]:
    return (
        layer.name or "(model)",
        layer.kind,
        *(f"{value:.3g}" for value in (layer.mean, layer.std, layer.low, layer.high)),
        *(f"{share:.1%}".replace("%", " %") for share in (layer.zeros, layer.not_finite)),
    )
