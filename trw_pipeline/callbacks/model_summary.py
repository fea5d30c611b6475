"""What is trained, told once."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from trw_pipeline.files import write_text
from trw_pipeline.nets.model_summary import model_summary
from trw_pipeline.training.callback import Callback
from trw_pipeline.training.history import History
from trw_pipeline.training.looking import first_batch, split_to_look_at
from trw_pipeline.training.options import Options
from trw_pipeline.training.randomness import seeded

_logger = logging.getLogger(__name__)


class CallbackModelSummary(Callback):
    """Tells of each layer of the model: the shape of its output, its parameters and its operations.

    Writes the same to `<run folder>/model_summary.txt`. One batch is read and put through the model in evaluation mode;
    weights, statistics and random generators stay as they are.

    Args:
        logger: takes the text, a str of several lines. None: it is logged at level INFO.
        dataset_name: dataset of the batch. None: the first.
        split_name: split of the batch. None: the first that is not trained on, else the one that is.
    """

    def __init__(
        self,
        logger: Callable[[str], Any] | None = None,
        dataset_name: str | None = None,
        split_name: str | None = None,
    ) -> None:
        self.logger = _logger.info if logger is None else logger
        self.dataset_name = dataset_name
        self.split_name = split_name

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
        """Tell of the model.

        Args:
            options: has the run folder.
            history: not used.
            model: what to tell of.
            losses: not used.
            outputs: not used.
            datasets: give the batch.
            datasets_infos: not used.
            callbacks_per_batch: see the batch before the model does.
            **kwargs: not used.

        Raises:
            ValueError: there is no such dataset or split.
        """
        workflow = options["workflow_options"]
        names = split_to_look_at(datasets, self.dataset_name, self.split_name, workflow["train_split"])
        with seeded(0):  # a model may draw, too
            batch = first_batch(model, datasets, *names, callbacks_per_batch)
            if batch is None:
                return
            text = model_summary(model, batch, self.logger)
        write_text(Path(workflow["current_logging_directory"]) / "model_summary.txt", f"{text}\n")
