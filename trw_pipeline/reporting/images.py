"""Arrays as pictures: channels first in memory, a file of an image format on the disk."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trw_pipeline.batches.device import to_value
from trw_pipeline.errors import MissingExtraError
from trw_pipeline.files import write_bytes

_MOST_CHANNELS = 8
"""More channels of a feature are not shown, and a first axis longer than that is not one of channels but of slices."""


def as_rgb_image(value: Any) -> np.ndarray:
    """See an array as a colour image.

    Args:
        value: an array or tensor (y, x), (1, y, x), both grey, or (3, y, x), of any dtype of numbers or bool.

    Returns:
        (3, y, x), of the dtype of `value`; the three channels of a grey image are the same memory, read only.

    Raises:
        ValueError: the shape is none of these.
        TypeError: it is no array or tensor of real numbers.
    """
    image = _as_array(value)
    if image is None:
        raise TypeError(f"an image must be an array or a tensor of real numbers, got {type(value).__name__}")
    if image.ndim == 2:
        image = image[np.newaxis]
    if image.ndim != 3 or image.shape[0] not in (1, 3):
        raise ValueError(f"an image must be (y, x), (1, y, x) or (3, y, x), got the shape {image.shape}")
    return image if image.shape[0] == 3 else np.broadcast_to(image, (3, *image.shape[1:]))


def as_image_ui8(image: Any, min_value: float | None = None, max_value: float | None = None) -> np.ndarray:
    """Rescale an image to the range [0, 255].

    Args:
        image: an array or tensor of real numbers or bool, of any shape.
        min_value: becomes 0, and so does what is below. None: the least finite value of the image; of bool, False.
        max_value: becomes 255, and so does what is above. None: the greatest finite value of the image; of bool, True.

    Returns:
        uint8, of the same shape. Values between are interpolated and rounded to the nearest. NaN is 0, and so is all
        of an image whose two bounds are the same.

    Raises:
        ValueError: a bound is not finite, or the two given ones are in the wrong order.
        TypeError: it is no array or tensor of real numbers.
    """
    for name, bound in (("min_value", min_value), ("max_value", max_value)):
        if bound is not None and not np.isfinite(bound):
            raise ValueError(f"{name} must be finite, got {bound}")
    if min_value is not None and max_value is not None and min_value > max_value:
        raise ValueError(f"min_value must not be above max_value, got {min_value} and {max_value}")
    array = _as_array(image)
    if array is None:
        raise TypeError(f"an image must be an array or a tensor of real numbers, got {type(image).__name__}")
    values = array.astype(np.float64)
    known = np.array([0.0, 1.0]) if array.dtype == bool else values[np.isfinite(values)]
    low = float(known.min(initial=np.inf)) if min_value is None else float(min_value)
    high = float(known.max(initial=-np.inf)) if max_value is None else float(max_value)
    if not high > low:  # a constant image, or one that has nothing finite
        return np.zeros(values.shape, np.uint8)
    scaled = np.nan_to_num((values - low) / (high - low), nan=0.0, posinf=1.0, neginf=0.0)
    return np.rint(scaled.clip(0.0, 1.0) * 255).astype(np.uint8)


def export_image(image: Any, path: str | Path) -> None:
    """Write an image to a file, atomically.

    Args:
        image: (3, y, x), or grey as `as_rgb_image` takes it. uint8 is written as it is, everything else rescaled by
            `as_image_ui8` from its least to its greatest value.
        path: the file; its folder must exist. Its suffix says the format, such as `.png` or `.jpg`.

    Raises:
        ValueError: the shape is not that of an image, or no format has this suffix.
        TypeError: it is no array or tensor of real numbers.
        MissingExtraError: Pillow is not installed.
    """
    try:
        from PIL import Image  # noqa: PLC0415 (optional)
    except ImportError as error:
        raise MissingExtraError("an image file", "images") from error
    picture = as_rgb_image(image)
    if picture.dtype != np.uint8:
        picture = as_image_ui8(picture)
    if not picture.size:
        raise ValueError(f"an image must have pixels, got the shape {picture.shape}")
    format_name = Image.registered_extensions().get(Path(path).suffix.lower())
    if format_name is None:
        raise ValueError(f"the suffix of path must be one of an image format, such as .png, got {str(path)!r}")
    data = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(picture.transpose(1, 2, 0))).save(data, format=format_name)
    write_bytes(path, data.getvalue())


def sample_pictures(value: Any) -> list[np.ndarray]:
    """Show a feature of one sample in pictures, if it is an image or a volume.

    | shape | is taken for | pictures |
    |---|---|---|
    | (y, x), (1, y, x), (3, y, x) | an image | one |
    | (C, y, x), C up to 8 | an image of that many channels | one for each channel |
    | (z, y, x), z above 8 | a volume | its middle slices across z, y and x |
    | (C, z, y, x) | a volume of that many channels | those of its middle slices, of 8 channels at most |

    Each picture is rescaled by itself from its least to its greatest finite value; NaN is black.

    Args:
        value: the feature without the batch axis.

    Returns:
        (3, y, x) uint8 arrays; none where `value` is no array or tensor of real numbers or bool, has another number of
        axes, or one of its y and x is shorter than 2.
    """
    array = _as_array(value)
    if array is None or not 2 <= array.ndim <= 4 or min(array.shape[-2:]) < 2 or not array.size:
        return []
    if array.ndim == 2 or (array.ndim == 3 and array.shape[0] <= _MOST_CHANNELS):
        return _pictures_of_image(array)
    volume = array if array.ndim == 4 else array[np.newaxis]
    slices = [volume.take(volume.shape[axis] // 2, axis) for axis in (1, 2, 3)]
    return [picture for image in slices for picture in _pictures_of_image(image[:_MOST_CHANNELS])]


def _pictures_of_image(image: np.ndarray) -> list[np.ndarray]:
    parts = [image] if image.ndim == 2 or image.shape[0] in (1, 3) else list(image)
    return [as_rgb_image(as_image_ui8(part)) for part in parts]


def _as_array(value: Any) -> np.ndarray | None:
    """The values in the memory of the CPU, or None if they are no dense array of real numbers or bool."""
    if isinstance(value, torch.Tensor) and value.layout == torch.strided:
        value = to_value(value)
    return value if isinstance(value, np.ndarray) and value.dtype.kind in "buif" else None
