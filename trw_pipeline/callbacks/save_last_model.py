"""The model as it was at the end."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from torch import nn

from trw_pipeline.files import open_atomic
from trw_pipeline.training.callback import Callback
from trw_pipeline.training.history import History
from trw_pipeline.training.options import Options
from trw_pipeline.training.saved_model import save_model, save_with_torch

_logger = logging.getLogger(__name__)


class CallbackSaveLastModel(Callback):
    """Saves the model and the result: `<run folder>/<model_name>.model` and `<run folder>/<model_name>.model.result`.

    `Trainer.load_model` reads them. Hung in the list of each epoch, it keeps the model of the newest epoch.

    A model that can not be pickled as a whole (one with a lambda, TorchScript or a parametrization such as weight norm
    in it, or of a class within a function) must not cost what was trained: a warning says why, and its `state_dict()`
    is in `<run folder>/<model_name>.weights`, for `torch.load`.

    Args:
        model_name: name of the file without `.model`.
    """

    def __init__(self, model_name: str = "last") -> None:
        self.model_name = model_name

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
        """Save the model.

        Args:
            options: has the run folder; part of the result.
            history: part of the result.
            model: what to save.
            losses: not used.
            outputs: part of the result, without the heads.
            datasets: not used.
            datasets_infos: part of the result.
            callbacks_per_batch: not used.
            **kwargs: not used.

        Raises:
            OSError: a file can not be written.
        """
        result = {"history": history, "options": options, "outputs": outputs, "datasets_infos": datasets_infos}
        folder = Path(options["workflow_options"]["current_logging_directory"])
        path = folder / f"{self.model_name}.model"
        try:
            save_model(model, result, path)
        except OSError:
            raise
        except Exception as error:
            # Pickle, torch and whatever a model holds have each their own errors for it.
            weights = path.with_name(f"{self.model_name}.weights")
            _logger.warning(
                "%s is not written, because model or result can not be pickled; the weights are in %s: %s",
                path.name,
                weights.name,
                error,
            )
            _logger.debug("%s is not written", path.name, exc_info=True)
            with open_atomic(weights) as file:
                save_with_torch(model.state_dict(), file)
