"""What the values of a split may be, and which of them would be misread."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from trw_pipeline.batches.length import len_batch


class Part(dict[str, Any]):
    """A split of some samples of another: what is batch-wide there is so here, however many values it has."""


def check_values(split: Mapping[str, Any], samples: Mapping[str, Any], shared_features: tuple[str, ...]) -> None:
    """Raises ValueError for values that would be misread, by their names.

    Args:
        split: feature name -> value.
        samples: those of its features that have one value for each sample.
        shared_features: those that are said to belong to the whole split.
    """
    for name, value in split.items():
        if isinstance(value, np.ma.MaskedArray):
            raise ValueError(
                f"feature {name!r} is a masked array, whose mask would be lost: give {name}.filled(value), and the "
                "mask as a feature of its own"
            )
    single = [name for name in split if name not in samples and name not in shared_features]
    many = {name: nb for name in single if (nb := _nb_values(split[name])) is not None}
    told = {name: f"{name!r} ({type(split[name]).__name__} of {nb} values)" for name, nb in many.items()}
    if split and not samples:
        hint = f"; batch-wide are {', '.join(told.values())}: make each a list if it holds one value for each sample"
        needed = "split needs an array, tensor or list with one row for each sample"
        raise ValueError(f"{needed}, got {sorted(split)}{hint if told else ''}")
    nb_samples = len_batch(samples)
    for name, nb in many.items():
        # Every sample would get all of them, and a function that reads batch["path"][0] the first one every time.
        if nb == nb_samples > 1 and not isinstance(split, Part):
            raise ValueError(
                f"feature {told[name]} would be batch-wide, and there are as many samples: make it a list or an array "
                "if it holds one value for each sample, else name it in shared_features"
            )


def _nb_values(value: Any) -> int | None:
    """Returns the length of what has one, unless it is known to be a single value: a text, a mapping."""
    if isinstance(value, (str, bytes, bytearray, Mapping)):
        return None
    try:
        return len(value)
    except TypeError:  # arrays and tensors without dimensions have it too
        return None


def of_one_kind(value: Any) -> Any:
    """Returns a list of Python numbers of several kinds as a list of the widest of them, anything else as it is.

    Left mixed, the dtype of a batch would be that of the numbers that happen to be in it.
    """
    kinds = set(map(type, cast("list[Any]", value))) if isinstance(value, list) else set[type]()
    if len(kinds) < 2 or not kinds <= {bool, int, float}:
        return value
    widest = float if float in kinds else int
    return [widest(number) for number in value]
