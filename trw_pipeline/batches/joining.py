"""How `collate` joins features: everything that needs torch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from trw_pipeline.batches.device import Device, placed
from trw_pipeline.batches.feature import (
    Feature,
    are_arrays_of_one_dtype,
    different_features,
    dtypes_of,
    kind_of,
    kinds_of,
)
from trw_pipeline.batches.length import holds_samples
from trw_pipeline.batches.tensors import numpy_dtype, promoted, tensor_of


def joined_features(
    batches: Sequence[Mapping[str, Any]], shared: Collection[str], device: Device, pin_memory: bool, non_blocking: bool
) -> dict[str, Any]:
    """Joins checked dicts; see `collate_list_of_dicts`."""
    joined = _joined_mappings(batches, batches, "", shared)
    lengths = {name: len(value) for name, value in joined.items() if name not in shared and holds_samples(value)}
    if len(set(lengths.values())) > 1:
        raise ValueError(
            f"every feature must have one value for each sample, but {len(batches)} dicts together have {lengths}; "
            "a single sample is a batch of one (image[None]); name what belongs to the whole batch in shared_features"
        )
    return placed(joined, device, pin_memory=pin_memory, non_blocking=non_blocking)


def gathered_features(
    batch: Mapping[str, Any], shared: Collection[str], device: Device, pin_memory: bool, non_blocking: bool
) -> dict[str, Any]:
    """Makes tensors of the lists of one checked dict; see `collate_dicts`."""
    collated: dict[str, Any] = {}
    for name, value in batch.items():
        if isinstance(value, list) and name not in shared:
            value = _gathered(Feature(name, value, (batch,), (len(value),)))
        collated[name] = value
    return placed(collated, device, pin_memory=pin_memory, non_blocking=non_blocking)


def _joined_mappings(
    mappings: Sequence[Mapping[str, Any]], batches: Sequence[Mapping[str, Any]], prefix: str, shared: Collection[str]
) -> dict[str, Any]:
    first = mappings[0]
    if len(set(map(tuple, mappings))) > 1:  # of one order they are the same for sure, and that is soon told
        for i, mapping in enumerate(mappings):
            if mapping.keys() != first.keys():
                raise different_features(mappings, i, batches, prefix)
    return {
        name: _own_copy(value)
        if name in shared
        else _joined(Feature(f"{prefix}{name}", [mapping[name] for mapping in mappings], batches))
        for name, value in first.items()
    }


def _joined(feature: Feature) -> Any:
    """Joins the values that one feature has in each of several dicts."""
    values = feature.values
    if are_arrays_of_one_dtype(values):
        with contextlib.suppress(ValueError):  # what does not fit is named below
            return tensor_of(np.concatenate(values))
    kinds = kinds_of(values)
    if kinds == {"array"}:
        if len({shape[1:] for shape in {value.shape for value in values}}) > 1:
            raise feature.misshapen(lambda value: value.shape[1:], "one shape after the first axis")
        return _merged(feature, np.concatenate, torch.cat)
    if kinds == {"list"}:
        chain = [element for value in values for element in value]
        return _gathered(Feature(feature.name, chain, feature.batches, [len(value) for value in values]))
    if kinds == {"mapping"}:
        return _joined_mappings(values, feature.batches, f"{feature.name}.", ())
    if kinds == {"callable"} and all(value is values[0] for value in values):
        return values[0]
    if kinds & {"array", "list", "mapping"}:
        raise feature.mixed(kind_of)
    return _gathered(feature)


def _gathered(feature: Feature) -> Any:
    """Makes one tensor, or else a list, out of values that are one for each sample."""
    kinds = kinds_of(feature.values)
    if kinds == {"number"}:
        return _numbers(feature)
    if kinds == {"array"}:
        if len({value.shape for value in feature.values}) > 1:
            raise feature.misshapen(lambda value: value.shape, "one shape")
        if are_arrays_of_one_dtype(feature.values):
            # What `np.stack` gives, in half the time: it would make a view of each array first.
            return tensor_of(np.concatenate(feature.values).reshape(len(feature.values), *feature.values[0].shape))
        return _merged(feature, np.stack, torch.stack)
    if "array" in kinds:
        raise feature.mixed(kind_of)
    return list(feature.values)


def _numbers(feature: Feature) -> torch.Tensor:
    dtype = promoted(dtypes_of(feature.values))
    plain = [_plain(value) for value in feature.values]
    try:
        if not any(isinstance(value, torch.Tensor) for value in plain):
            return torch.tensor(plain, dtype=dtype)
        tensors = [value if isinstance(value, torch.Tensor) else torch.tensor(value, dtype=dtype) for value in plain]
    except (OverflowError, ValueError, RuntimeError) as error:  # torch has used all three for a number out of range
        raise ValueError(f"the numbers of feature {feature.name!r} must fit {dtype}: {error}") from error
    return torch.stack(_alike(tensors, dtype))


def _merged(feature: Feature, of_arrays: Callable[..., Any], of_tensors: Callable[..., torch.Tensor]) -> Any:
    """Concatenates or stacks arrays and tensors into one tensor; or arrays of a dtype torch has not into an array."""
    values = feature.values
    dtypes = dtypes_of(values)
    if None in dtypes:
        if len({_foreign(value) for value in values}) > 1:
            raise feature.mixed(_foreign)
        return of_arrays(values)
    dtype = promoted(dtypes)
    target = numpy_dtype(dtype)
    if target is not None and all(isinstance(value, np.ndarray) for value in values):
        return tensor_of(of_arrays(values, dtype=target, casting="same_kind"))
    return of_tensors(
        _alike([value if isinstance(value, torch.Tensor) else tensor_of(value) for value in values], dtype)
    )


def _foreign(value: Any) -> Any:
    """Sorts arrays of dtypes that torch has not by what NumPy can merge: texts of any length, records of one dtype."""
    if dtypes_of([value]) != {None}:
        return None
    return value.dtype if value.dtype.kind == "V" else value.dtype.kind


def _alike(tensors: list[torch.Tensor], dtype: torch.dtype) -> list[torch.Tensor]:
    """Brings tensors to one dtype and, if they are on several devices, to the CPU."""
    devices = {tensor.device for tensor in tensors}
    if len(devices) == 1 and all(tensor.dtype is dtype for tensor in tensors):
        return tensors
    device = devices.pop() if len(devices) == 1 else torch.device("cpu")
    return [tensor.to(device, dtype) for tensor in tensors]


def _plain(number: Any) -> Any:
    return number.item() if isinstance(number, (np.ndarray, np.generic)) else number


def _own_copy(value: Any) -> Any:
    """Copies what a batch holds of a shared feature, so that writing into it leaves the input alone."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, list):
        return list(value)
    if isinstance(value, Mapping):
        return {name: _own_copy(nested) for name, nested in value.items()}
    return value
