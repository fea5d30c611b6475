"""The filters of a convolution, as pictures over the epochs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from trw_pipeline.batches.device import to_value
from trw_pipeline.nets.mode import looked_at
from trw_pipeline.nets.reflection import find_first_forward_convolution
from trw_pipeline.reporting.images import as_image_ui8, export_image
from trw_pipeline.training.callback import Callback
from trw_pipeline.training.history import History
from trw_pipeline.training.looking import first_batch, split_to_look_at
from trw_pipeline.training.options import Options
from trw_pipeline.training.randomness import seeded

_logger = logging.getLogger(__name__)

FindConvolution: TypeAlias = Callable[[nn.Module, Any], "Mapping[str, Any] | None"]
ExportFilter: TypeAlias = Callable[..., Any]

PICTURE_PIXELS = 96
"""Least width and height of the picture of a filter: three pixels could not be looked at."""


def default_export_filter(
    filter: Any, path: str | Path, min_value: float | None = None, max_value: float | None = None
) -> None:
    """Export one filter as a grey picture, enlarged so that each weight is a square that can be seen.

    Args:
        filter: `(x,)`, `(y, x)` or `(z, y, x)`, a tensor or an array. Of three dimensions the middle slices across z, y
            and x stand side by side.
        path: the PNG file; its folder must exist.
        min_value: what is black; None: the least value.
        max_value: what is white; None: the greatest value.

    Raises:
        ValueError: the filter has another number of dimensions.
        MissingExtraError: Pillow is not installed.
    """
    values: npt.NDArray[Any] = np.asarray(to_value(filter))
    if values.ndim not in (1, 2, 3):
        raise ValueError(f"a filter must have 1, 2 or 3 dimensions, got shape {values.shape}")
    z, y, x = (size // 2 for size in values.shape) if values.ndim == 3 else (0, 0, 0)
    slices = [values[z], values[:, y], values[:, :, x]] if values.ndim == 3 else [np.atleast_2d(values)]
    finite = values[np.isfinite(values)] if np.isfinite(values).any() else np.zeros(1)
    low = float(finite.min()) if min_value is None else min_value
    high = float(finite.max()) if max_value is None else max_value
    pictures = [_enlarged(as_image_ui8(one, low, high)) for one in slices]
    height = max(picture.shape[0] for picture in pictures)
    framed = [np.pad(picture, ((0, height - picture.shape[0]), (0, 8)), constant_values=255) for picture in pictures]
    joined = np.concatenate(framed, axis=1)[:, :-8]
    export_image(np.stack([joined] * 3), path)


class CallbackExportConvolutionKernel(Callback):
    """Exports the kernels of a convolution as pictures, every so many epochs, so that one sees them converge.

    Writes `<run folder>/<dirname>/kernel<k>_filter<f>_iter_<epoch>.png`: k counts the output channels, f the input
    channels of the convolution. All pictures of an epoch have the same scale of grey. In the first epoch, too, so that
    there is one to compare with; before the training it is "iter_0", after it the number of epochs.

    Args:
        export_frequency: epochs from one export to the next.
        dirname: folder of the pictures, in the run folder.
        find_convolution_fn: (model, batch) -> a mapping whose `matched_module` is the convolution, or None.
        dataset_name: dataset of the batch that the convolution is found with. None: the first.
        split_name: split of the batch. None: the first that is not trained on, else the one that is.
        export_filter_fn: called with a filter `(...)` as an array, the path of the picture, and the least and the
            greatest weight of the convolution; like `default_export_filter`.
        max_filters: no more pictures than this at a time: the first filters of the first kernels.

    Raises:
        ValueError: `export_frequency` or `max_filters` is less than 1.
    """

    def __init__(
        self,
        export_frequency: int = 500,
        dirname: str = "convolution_kernels",
        find_convolution_fn: FindConvolution = find_first_forward_convolution,
        dataset_name: str | None = None,
        split_name: str | None = None,
        export_filter_fn: ExportFilter = default_export_filter,
        *,
        max_filters: int = 64,
    ) -> None:
        for name, value in (("export_frequency", export_frequency), ("max_filters", max_filters)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        self.export_frequency = export_frequency
        self.dirname = dirname
        self.find_convolution_fn = find_convolution_fn
        self.dataset_name = dataset_name
        self.split_name = split_name
        self.export_filter_fn = export_filter_fn
        self.max_filters = max_filters

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
        """Export the kernels, if it is time.

        Args:
            options: has the run folder.
            history: its length tells the epoch.
            model: has the convolution; one without is told of at level INFO.
            losses: not used.
            outputs: not used.
            datasets: give the batch.
            datasets_infos: not used.
            callbacks_per_batch: see the batch before the model does.
            **kwargs: not used.

        Raises:
            ValueError: there is no such dataset or split.
            MissingExtraError: Pillow is not installed.
        """
        epoch = max(0, len(history) - 1)
        if epoch % self.export_frequency:
            return
        workflow = options["workflow_options"]
        convolution = self._convolution(model, datasets, callbacks_per_batch, workflow["train_split"])
        if convolution is None:
            _logger.info("no kernels to export: no convolution was found in the model")
            return
        weights = convolution.weight.detach().float().cpu().numpy()
        if isinstance(convolution, (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)):
            weights = weights.swapaxes(0, 1)
        finite = weights[np.isfinite(weights)]
        low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
        folder = Path(workflow["current_logging_directory"]) / self.dirname
        folder.mkdir(parents=True, exist_ok=True)
        for kernel, filter in islice(np.ndindex(*weights.shape[:2]), self.max_filters):
            path = folder / f"kernel{kernel}_filter{filter}_iter_{epoch}.png"
            self.export_filter_fn(weights[kernel, filter], path, low, high)

    def _convolution(self, model: nn.Module, datasets: Any, callbacks_per_batch: Any, train_split: str) -> Any:
        dataset, split = split_to_look_at(datasets, self.dataset_name, self.split_name, train_split)
        # Whatever the model, and the function of the user's, may do.
        with seeded(0), looked_at(model), torch.no_grad():
            batch = first_batch(model, datasets, dataset, split, callbacks_per_batch)
            found = None if batch is None else self.find_convolution_fn(model, batch)
        return None if found is None else found["matched_module"]


def _enlarged(picture: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    factor = max(1, -(-PICTURE_PIXELS // max(picture.shape)))
    return picture.repeat(factor, axis=0).repeat(factor, axis=1)
