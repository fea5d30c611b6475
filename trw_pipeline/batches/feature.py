"""One feature over several samples: what kind of values it has, and how errors name its samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import torch

from trw_pipeline.batches.length import holds_samples, len_batch
from trw_pipeline.batches.tensors import torch_dtype
from trw_pipeline.typing import default_sample_uid_name

Kind: TypeAlias = Literal["number", "array", "list", "mapping", "callable", "object"]
"""A Python or NumPy scalar, or an array or tensor without dimensions; an array or tensor with some; and so on."""


def are_arrays_of_one_dtype(values: Sequence[Any]) -> bool:
    """Tells whether the values are NumPy arrays of one dtype, which torch has.

    Nearly all features are. So this runs for every value of every batch, and all other questions for few.
    """
    if set(map(type, values)) != {np.ndarray}:
        return False
    dtypes = {value.dtype for value in values}
    return len(dtypes) == 1 and torch_dtype(dtypes.pop()) is not None


def kinds_of(values: Sequence[Any]) -> set[Kind]:
    """Gives the kinds of all values."""
    kinds: set[Kind] = set()
    for value_type, same in _by_type(values).items():
        # This runs for every value of every batch. Only arrays of one type may differ in kind, so it asks all others
        # once for the type, and the arrays the one thing that tells.
        if not issubclass(value_type, (np.ndarray, torch.Tensor)):
            kinds.add(kind_of(same[0]))
        elif all(value.ndim for value in same):
            kinds.add("array")
        else:
            kinds.update(map(kind_of, same))
    return kinds


def kind_of(value: Any) -> Kind:
    """Gives the kind of one value."""
    if isinstance(value, torch.Tensor):
        return "array" if value.ndim else "number"
    if isinstance(value, np.ndarray) and value.ndim:
        return "array"
    if isinstance(value, (np.ndarray, np.generic)):  # before the numbers: np.float64 is a float too, np.str_ a str
        return "object" if torch_dtype(value.dtype) is None else "number"
    if isinstance(value, (bool, int, float, complex)):
        return "number"
    if isinstance(value, list):
        return "list"
    if isinstance(value, Mapping):
        return "mapping"
    return "callable" if callable(value) else "object"


def dtypes_of(values: Sequence[Any]) -> set[torch.dtype | None]:
    """Gives the torch dtypes that numbers and arrays want to have; None for an array of a dtype that torch has not."""
    dtypes: set[torch.dtype | None] = set()
    for value_type, same in _by_type(values).items():
        if issubclass(value_type, torch.Tensor):
            dtypes.update(value.dtype for value in same)
        elif issubclass(value_type, (np.ndarray, np.generic)):
            dtypes.update(map(torch_dtype, {value.dtype for value in same}))
        elif issubclass(value_type, bool):
            dtypes.add(torch.bool)
        elif issubclass(value_type, int):
            dtypes.add(torch.int64)
        else:
            default = torch.get_default_dtype()
            dtypes.add(default if issubclass(value_type, float) else default.to_complex())
    return dtypes


def _by_type(values: Sequence[Any]) -> dict[type, Sequence[Any]]:
    types = set(map(type, values))
    if len(types) == 1:
        return {types.pop(): values}
    return {value_type: [value for value in values if type(value) is value_type] for value_type in types}


@dataclass(frozen=True)
class Feature:
    """The values of one feature, and where each of them comes from."""

    name: str
    values: Sequence[Any]
    batches: Sequence[Mapping[str, Any]]
    """The dicts that the user gave: each brought one of the values or, where `nb_values` is given, so many."""
    nb_values: Sequence[int] | None = None

    def mixed(self, kind: Callable[[Any], Any]) -> ValueError:
        """Makes the error for values that are not of one `kind`."""
        i, j = self._differing(kind)
        return ValueError(
            f"the values of feature {self.name!r} must be of one kind, got {_described(self.values[i])} in "
            f"{self._sample(i)} and {_described(self.values[j])} in {self._sample(j)}"
        )

    def misshapen(self, shape: Callable[[Any], Any], rule: str) -> ValueError:
        """Makes the error for arrays that differ in the `shape` of which the `rule` says that it must be one."""
        i, j = self._differing(shape)
        return ValueError(
            f"the arrays of feature {self.name!r} must have {rule}, got {tuple(self.values[i].shape)} in "
            f"{self._sample(i)} and {tuple(self.values[j].shape)} in {self._sample(j)}; resize or pad them first"
        )

    def _differing(self, quality: Callable[[Any], Any]) -> tuple[int, int]:
        first = quality(self.values[0])
        return 0, next(i for i, value in enumerate(self.values) if quality(value) != first)

    def _sample(self, i: int) -> str:
        """Names the sample that value `i` belongs to; of several, the first."""
        if self.nb_values is None:
            number = sum(len(value) if holds_samples(value) else 1 for value in self.values[:i])
            return _sample(number, self.batches[i], 0)
        owner, place = 0, i
        while place >= self.nb_values[owner]:
            place -= self.nb_values[owner]
            owner += 1
        return _sample(i, self.batches[owner], place)


def different_features(
    mappings: Sequence[Mapping[str, Any]], i: int, batches: Sequence[Mapping[str, Any]], prefix: str
) -> ValueError:
    """Makes the error for mapping `i` having other keys than mapping 0.

    Args:
        mappings: what was compared; `batches` themselves or what they hold under one name.
        i: number of the mapping.
        batches: the dicts that the user gave.
        prefix: how the names of the features start.
    """
    missing = [name for name in mappings[0] if name not in mappings[i]]
    unexpected = [name for name in mappings[i] if name not in mappings[0]]
    name = f"{prefix}{(missing or unexpected)[0]}"
    first = _sample(0, batches[0], 0)
    other = _sample(sum(len_batch(batch) or 1 for batch in batches[:i]), batches[i], 0)
    owner, lacking = (first, other) if missing else (other, first)
    return ValueError(
        f"every sample must have the same features, but {name!r} is in {owner} and missing in {lacking}; "
        f"None can stand for a missing value"
    )


def _sample(number: int, batch: Mapping[str, Any], place: int) -> str:
    uid: Any = batch.get(default_sample_uid_name)
    if holds_samples(uid):
        uid = uid[place] if place < len(uid) else None
    if uid is None:
        return f"sample {number}"
    return f"sample {number} ({default_sample_uid_name} {uid.item() if hasattr(uid, 'item') else uid!r})"


def _described(value: Any) -> str:
    kind = type(value).__name__
    if isinstance(value, (np.ndarray, torch.Tensor)):
        return f"{kind} of shape {tuple(value.shape)} and dtype {value.dtype}"
    text = repr(value)
    return f"{kind} {text if len(text) <= 60 else text[:57] + '...'}"
