"""Samples as other libraries give them, made the batches that travel here. A worker needs it: it imports no torch."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from trw_pipeline.batches.parts import joined_rows
from trw_pipeline.typing import Batch, default_sample_uid_name


def named_features(item: Any, features: Sequence[str] | None, whose: str) -> Batch:
    """Returns a dict of what a dataset or a loader gave.

    Args:
        item: a dict, which passes as it is, or a tuple or list of features.
        features: their names; by default `feature_0`, `feature_1`, ...
        whose: who gave it, for errors.

    Raises:
        ValueError: a tuple or list has not as many features as there are names.
        TypeError: the item is neither a dict, a tuple nor a list.
    """
    if isinstance(item, Mapping):
        return dict(cast("Mapping[str, Any]", item))
    if not isinstance(item, (tuple, list)):
        raise TypeError(f"{whose} must give dicts, tuples or lists, got {type(item).__name__}")
    values = cast("Sequence[Any]", item)
    names = features or [f"feature_{i}" for i in range(len(values))]
    if len(names) != len(values):
        raise ValueError(
            f"features names {len(names)} features {list(names)}, but an item of {whose} has {len(values)}"
        )
    return dict(zip(names, values, strict=True))


def check_features(features: Sequence[str] | None) -> list[str] | None:
    """Returns names of features as a list; raises TypeError for a single string, the likely slip."""
    if isinstance(features, str):
        raise TypeError(f"features must be a list of names, got the string {features!r}")
    return None if features is None else list(features)


def batch_of_one(sample: Mapping[str, Any]) -> Batch:
    """Returns the batch that holds one sample: arrays, tensors and NumPy scalars get an axis 0, all else a list."""
    tensor_type = getattr(sys.modules.get("torch"), "Tensor", ())
    return {
        name: value[None] if isinstance(value, (np.ndarray, np.generic, tensor_type)) else [value]
        for name, value in sample.items()
    }


class Fetch:
    """The mapped function that reads samples of a map-style dataset: it goes to each worker once, with the dataset.

    Args:
        dataset: gives a sample for its number; of several, through `__getitems__` where it has that.
        features: names of what it gives as tuples or lists.
    """

    def __init__(self, dataset: Any, features: list[str] | None) -> None:
        self.dataset = dataset
        self.features = features
        self.__name__ = type(dataset).__name__

    def __call__(self, numbers: Batch) -> Batch:
        """Returns the batch of the samples whose numbers are the `sample_uid` of the one given."""
        wanted: list[int] = numbers[default_sample_uid_name].tolist()
        fetch_all = getattr(self.dataset, "__getitems__", None) if len(wanted) > 1 else None
        samples: Any = [self.dataset[number] for number in wanted] if fetch_all is None else fetch_all(wanted)
        rows = [self.row(number, sample) for number, sample in zip(wanted, samples, strict=True)]
        return joined_rows(rows, ()) if len(rows) > 1 else rows[0]

    def row(self, number: int, sample: Any) -> Batch:
        """Returns a sample as a batch of one, with its number as `sample_uid` unless it has one of its own."""
        named = named_features(sample, self.features, self.__name__)
        named.setdefault(default_sample_uid_name, np.int64(number))
        return batch_of_one(named)

    def feature(self, number: int, name: str) -> Any:
        """Returns one feature of a sample as it would be in a batch of one; raises ValueError if it has none such."""
        row = self.row(number, self.dataset[number])
        if name not in row:
            raise ValueError(f"there is no feature {name!r} among {sorted(row)}")
        return row[name]

    def has_uids(self, number: int) -> bool:
        """Tells from one sample whether the samples have a `sample_uid` of their own."""
        return default_sample_uid_name in named_features(self.dataset[number], self.features, self.__name__)
