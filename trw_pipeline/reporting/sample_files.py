"""One sample as files that a person opens: a text, and beside it a picture or an array of each larger feature."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trw_pipeline.batches.device import to_value
from trw_pipeline.files import safe_filename, write_bytes, write_text
from trw_pipeline.reporting.images import export_image, sample_pictures

_MOST_NUMBERS = 16
"""An array of at most so many numbers is written into the text."""

_MOST_CHARACTERS = 500
"""Of the text of a value."""

ClassNames = Mapping[str, Mapping[int, str]]
"""Feature that holds classes -> class -> its name."""


def export_sample(
    folder: Path, name: str, features: Mapping[str, Any], class_names: ClassNames | None = None
) -> list[str]:
    """Write a sample to `<folder>/<name>.txt` and the files beside it.

    | value of a feature | is written as |
    |---|---|
    | number, text, or array of at most 16 numbers | a line of the text |
    | image or volume, see `sample_pictures` | `<name>_<feature>.png`; several are numbered: `<name>_<feature>_0.png` |
    | any other array of numbers | `<name>_<feature>.npy` |
    | anything else | a line of the text, of at most 500 characters |

    Of what is not in the text there is a line with dtype, shape, range and the names of its files. A file that is there
    already is replaced.

    Args:
        folder: made if it is absent.
        name: of the files; see `file_name`, which shortens it if it is long.
        features: feature -> value of this one sample, without the batch axis, in the order of the text.
        class_names: of the features whose value is a class; it gets its name in the text.

    Returns:
        Names of the files, that of the text first.

    Raises:
        MissingExtraError: there is a picture to write and Pillow is not installed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    name = file_name(name)
    lines: list[str] = []
    files: list[str] = []
    for feature, value in features.items():
        value = value if _is_sparse(value) else to_value(value)
        if _is_large(value):
            written = _write_array(folder, f"{name}_{file_name(feature)}", value)
            files += written
            lines.append(f"{feature}: {describe_array(value)}, in {', '.join(written)}")
        else:
            lines.append(f"{feature}: {_as_text(value, (class_names or {}).get(feature, {}))}")
    write_text(folder / f"{name}.txt", "".join(f"{line}\n" for line in lines))
    return [f"{name}.txt", *files]


def file_name(*parts: object) -> str:
    """Make the first part of the names of files: parts without special characters, spaces as `_`, joined by `_`.

    It is no longer than one of `safe_filename`.
    """
    return safe_filename("_".join(safe_filename(str(part)).replace(" ", "_") for part in parts))


def distinct_file_names(texts: Iterable[object]) -> list[str]:
    """Make a file name of each text, as `file_name` does; those that are like an earlier one get their number."""
    names: list[str] = []
    for number, text in enumerate(texts):
        name = file_name(text)
        names.append(f"{name}-{number}" if name in names else name)
    return names


def describe_array(array: np.ndarray) -> str:
    """Tell dtype, shape and range of an array of numbers: `float32 (1, 28, 28), 0 to 1`."""
    finite = array[np.isfinite(array)]
    between = f"{finite.min():.6g} to {finite.max():.6g}" if finite.size else "nothing finite"
    nb_other = array.size - finite.size
    return f"{array.dtype} {array.shape}, {between}" + (f", {nb_other} not finite" if nb_other and finite.size else "")


def _is_sparse(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout != torch.strided


def _is_large(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind in "buif" and value.size > _MOST_NUMBERS


def _write_array(folder: Path, name: str, array: np.ndarray) -> list[str]:
    pictures = sample_pictures(array)
    names = [f"{name}.png"] if len(pictures) == 1 else [f"{name}_{number}.png" for number in range(len(pictures))]
    for picture, picture_name in zip(pictures, names, strict=True):
        export_image(picture, folder / picture_name)
    if pictures:
        return names
    data = io.BytesIO()
    np.save(data, array, allow_pickle=False)
    write_bytes(folder / f"{name}.npy", data.getvalue())
    return [f"{name}.npy"]


def _as_text(value: Any, names: Mapping[int, str]) -> str:
    if _is_sparse(value):
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}, sparse"
    if isinstance(value, (np.ndarray, np.generic)):
        value = value.tolist()
    if isinstance(value, int) and not isinstance(value, bool) and value in names:
        return f"{value} ({names[value]})"
    if isinstance(value, float):
        return f"{value:.9g}"
    text = value if isinstance(value, str) and value.isprintable() else f"{value!r}"
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}... ({len(text)} characters)"
