"""Parts of batches, cut out and joined, for stages that want them of another size. Imports no torch."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from trw_pipeline.batches.length import holds_samples, per_sample_features


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
    return cut(batch, names, start, stop)


def cut(batch: Mapping[str, Any], names: Iterable[str], start: int, stop: int) -> dict[str, Any]:
    """Does `take` where the names of the per-sample features are known and the range is right: nothing is checked."""
    part = dict(batch)
    for name in names:
        part[name] = batch[name][start:stop]
    return part


def joined_rows(rows: Sequence[Mapping[str, Any]], shared_features: Collection[str]) -> dict[str, Any]:
    """Returns a split of batches of one sample: arrays stay arrays, tensors tensors and lists lists.

    A batch-wide value is kept if it is the same object in all of them; else it becomes a list, one for each sample.

    Raises:
        ValueError: two batches have not the same features, or arrays that differ in shape.
    """
    for row in rows:
        if row.keys() != rows[0].keys():
            raise ValueError(f"all batches must have the same features, got {sorted(rows[0])} and {sorted(row)}")
    return {
        name: rows[0][name] if name in shared_features else _joined(name, [row[name] for row in rows])
        for name in (rows[0] if rows else ())
    }


def _joined(name: str, values: list[Any]) -> Any:
    first = values[0]
    if isinstance(first, list):
        return [element for value in values for element in value]
    if holds_samples(first) and len({value.shape[1:] for value in values if hasattr(value, "shape")}) > 1:
        raise ValueError(
            f"the arrays of feature {name!r} must have one shape after the first axis, got "
            f"{sorted({tuple(value.shape) for value in values})}; resize or pad them first"
        )
    if isinstance(first, np.ndarray) and first.ndim:
        return np.concatenate(values)
    if holds_samples(first):
        import torch  # noqa: PLC0415 (heavy; there are tensors, so it is loaded already)

        return torch.cat(values)
    return first if all(value is first for value in values) else values
