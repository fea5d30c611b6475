"""How many samples a batch holds, and in which of its features. Imports no torch: a worker may need it."""

from __future__ import annotations

import functools
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np


def holds_samples(value: Any) -> bool:
    """Tells whether a feature's value has one entry for each sample.

    Returns:
        True for a list, and for a NumPy array, a torch tensor or a stored array (see `is_stored`) of at least one
        dimension. All else is batch-wide: numbers, strings, tuples, mappings, callables, None, arrays and tensors
        without dimensions.
    """
    return isinstance(value, list) or (_is_kind_of_array(type(value)) and value.ndim > 0)


def is_stored(value: Any) -> bool:
    """Tells whether a value is an array of HDF5, Zarr or Blosc2, of at least one dimension: its rows are to be read."""
    return _is_kind_of_stored(type(value)) and value.ndim > 0


@functools.lru_cache
def _is_kind_of_array(kind: type) -> bool:
    # Nobody can hand us a tensor unless torch is loaded, so there is no need to load it to ask; nor will the answer
    # for a type ever change.
    tensor_type = getattr(sys.modules.get("torch"), "Tensor", ())
    return issubclass(kind, np.ndarray) or issubclass(kind, tensor_type) or _is_kind_of_stored(kind)


@functools.lru_cache
def _is_kind_of_stored(kind: type) -> bool:
    return any(issubclass(kind, getattr(sys.modules.get(module), name, ())) for module, name in _STORED)


_STORED = (("h5py", "Dataset"), ("zarr", "Array"), ("blosc2", "NDArray"))


def len_batch(batch: Any, *, shared_features: Collection[str] = ()) -> int:
    """Counts the samples of a batch or split.

    >>> len_batch({"name": "mnist", "image": np.zeros((5, 28, 28)), "target": [0, 1, 2, 3, 4]})
    5

    Args:
        batch: a mapping from feature name to value; or a list (any sequence but a string), array or tensor.
        shared_features: names of features that hold one value for the whole batch, and so do not count.

    Returns:
        The length of the first feature, in the mapping's order, whose value is a list or an array or tensor of at
        least one dimension; 0 if there is none. Of a list, array or tensor: its own length. That the other features
        have the same length is not checked here, see `per_sample_features`.

    Raises:
        TypeError: `batch` is neither a mapping nor something that holds samples.
    """
    if isinstance(batch, (dict, Mapping)):  # nearly always a dict, which is found out sooner
        shared = shared_features and feature_names(shared_features)
        for name, value in batch.items():
            if name not in shared and holds_samples(value):
                return _length(value)
        return 0
    if holds_samples(batch) or (isinstance(batch, Sequence) and not isinstance(batch, (str, bytes))):
        return _length(batch)
    raise TypeError(f"a batch must be a mapping, a list, an array or a tensor, got {type(batch).__name__}")


def per_sample_features(batch: Mapping[str, Any], shared_features: Collection[str] = ()) -> list[str]:
    """Names the features that have one entry for each sample, and checks that they agree on how many there are.

    Args:
        batch: feature name -> value.
        shared_features: names of features that hold one value for the whole batch although it is a list, an array or
            a tensor. Names that the batch has not are ignored.

    Returns:
        The names, in the order of the batch.

    Raises:
        ValueError: two of the features differ in length; both names and lengths are given.
        TypeError: `batch` is not a mapping, or `shared_features` is one string.
    """
    require_mapping(batch, "a batch")
    shared = feature_names(shared_features)
    names = [name for name, value in batch.items() if name not in shared and holds_samples(value)]
    for name in names[1:]:
        if _length(batch[name]) != _length(batch[names[0]]):
            raise ValueError(
                f"every feature must have one entry for each sample, but feature {names[0]!r} has "
                f"{_length(batch[names[0]])} and feature {name!r} has {_length(batch[name])}; "
                f"name a feature that belongs to the whole batch in shared_features"
            )
    return names


def _length(value: Any) -> int:
    return value.shape[0] if hasattr(value, "shape") else len(value)  # an array of Zarr has no `len`


def require_mapping(value: Any, what: str) -> None:
    """Raises TypeError unless `value` is a mapping; `what` names it in the message."""
    if not isinstance(value, (dict, Mapping)):
        raise TypeError(f"{what} must be a mapping from feature name to value, got {type(value).__name__}")


def feature_names(shared_features: Collection[str]) -> Collection[str]:
    """Gives the names back; raises TypeError for a single string, the likely slip."""
    if isinstance(shared_features, str):  # `in` would look for parts of the string
        raise TypeError(f"shared_features must be a list or tuple of names, got the string {shared_features!r}")
    return shared_features
