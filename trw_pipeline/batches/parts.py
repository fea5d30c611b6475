"""Part of a batch, for the stages that cut batches to another size."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from trw_pipeline.batches.length import per_sample_features


def take(batch: Mapping[str, Any], start: int, stop: int, shared_features: Collection[str] = ()) -> dict[str, Any]:
    """Takes the samples [start, stop) out of a batch.

    >>> take({"x": [1, 2, 3], "name": "mnist"}, 1, 3)
    {'x': [2, 3], 'name': 'mnist'}

    Args:
        batch: feature name -> value; it is not changed.
        start: first sample, from 0.
        stop: one past the last sample, at least `start` and at most the number of samples.
        shared_features: names of features that belong to the whole batch although they are lists, arrays or tensors.

    Returns:
        A new dict with the features of `batch` in their order. Lists are cut into new lists; arrays and tensors are
        cut into views that share memory with `batch`. Batch-wide values are the same objects in every part, a nested
        mapping among them, whatever it holds.

    Raises:
        ValueError: the range does not lie within the batch, or its per-sample features differ in length.
        TypeError: `batch` is not a mapping, or `shared_features` is one string.
    """
    names = per_sample_features(batch, shared_features)
    nb_samples = len(batch[names[0]]) if names else 0
    if not 0 <= start <= stop <= nb_samples:
        raise ValueError(f"start and stop must satisfy 0 <= start <= stop <= {nb_samples}, got {start} and {stop}")
    part = dict(batch)
    for name in names:
        part[name] = batch[name][start:stop]
    return part
