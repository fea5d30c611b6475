"""The model as it was at the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from trw_pipeline.training.callback import Callback
from trw_pipeline.training.history import History
from trw_pipeline.training.options import Options
from trw_pipeline.training.saved_model import save_model


class CallbackSaveLastModel(Callback):
    """Saves the model and the result: `<run folder>/<model_name>.model` and `<run folder>/<model_name>.model.result`.

    `Trainer.load_model` reads them. Hung in the list of each epoch, it keeps the model of the newest epoch.

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
        """
        result = {"history": history, "options": options, "outputs": outputs, "datasets_infos": datasets_infos}
        folder = Path(options["workflow_options"]["current_logging_directory"])
        save_model(model, result, folder / f"{self.model_name}.model")
