"""Where the tensors of a batch live, and how they get there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias, cast

import numpy as np
import torch

from trw_pipeline.batches.length import require_mapping
from trw_pipeline.batches.tensors import numpy_dtype, tensor_of, torch_dtype

Device: TypeAlias = torch.device | str | int | None
"""What torch accepts as a device; None is the CPU."""


def transfer_batch_to_device(batch: Mapping[str, Any], device: Device, non_blocking: bool = False) -> dict[str, Any]:
    """Moves the tensors and arrays of a batch to a device.

    Args:
        batch: feature name -> value; it is not changed.
        device: where to; None is the CPU.
        non_blocking: do not wait for copies out of pinned memory. Copies to the CPU always wait: torch would hand out
            tensors whose values have not arrived.

    Returns:
        A new dict. Tensors, and arrays of a dtype that torch has, become tensors on the device, also within nested
        mappings (as plain dicts). Everything else is the same object as in `batch`, lists of tensors too. What lies on
        the device already is not copied, and an array moved to the CPU may share its memory with the tensor.

    Raises:
        TypeError: `batch` is not a mapping.
    """
    return placed(batch, device, pin_memory=False, non_blocking=non_blocking)


def placed(batch: Mapping[str, Any], device: Device, *, pin_memory: bool, non_blocking: bool) -> dict[str, Any]:
    """Does `transfer_batch_to_device`, by way of pinned memory where `pin_memory` and CUDA is available."""
    require_mapping(batch, "a batch")
    target = device if isinstance(device, torch.device) else torch.device("cpu" if device is None else device)
    pin = pin_memory and torch.cuda.is_available()
    wait = not non_blocking or target.type == "cpu"

    def place(tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.pin_memory() if pin and tensor.device.type == "cpu" else tensor
        return tensor.to(target, non_blocking=not wait)

    moved = dict(batch)
    for name, value in moved.items():
        # `to` would give back what is there already, but takes its time to find out.
        if pin or not isinstance(value, torch.Tensor) or value.device != target:
            moved[name] = with_tensors(value, place)
    return moved


def with_tensors(value: Any, place: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Returns what `place` makes of each tensor, and of arrays of a dtype that torch has, in nested mappings too."""
    if isinstance(value, torch.Tensor):
        return place(value)
    if isinstance(value, np.ndarray) and torch_dtype(value.dtype) is not None:
        return place(tensor_of(value))
    if isinstance(value, Mapping):
        return {name: with_tensors(nested, place) for name, nested in value.items()}
    return value


def get_device(module: torch.nn.Module, batch: Mapping[str, Any] | None = None) -> torch.device | None:
    """Tells on which device a module lives.

    A module split across several devices has no single answer: this gives the device of its first parameter.

    Args:
        module: the module to ask.
        batch: asked where the module has neither parameters nor buffers.

    Returns:
        The device of the first parameter, else of the first buffer, else of the first tensor in `batch` (nested
        mappings included), else None.
    """
    for tensors in (module.parameters(), module.buffers(), tensors_in(batch)):
        for tensor in tensors:
            return tensor.device
    return None


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yields the tensors of a batch, those in nested mappings too."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for nested in value.values():
            yield from tensors_in(nested)


def to_value(v: Any) -> Any:
    """Turns tensors into NumPy arrays, wherever they are in a container.

    Args:
        v: a tensor on any device, with or without gradient; or a mapping, list or tuple, nested at will.

    Returns:
        For a tensor a NumPy array of the same shape and dtype; a dtype that NumPy has not is widened (bfloat16 to
        float32, which holds every value exactly). For a mapping a dict, for a list a list, for a tuple a tuple (a named
        tuple stays one). Anything else is returned as it is. An array from a CPU tensor shares its memory.
    """
    if isinstance(v, torch.Tensor):
        if numpy_dtype(v.dtype) is None:
            v = v.to(torch.complex64 if v.is_complex() else torch.float32)
        return v.numpy(force=True)
    if isinstance(v, Mapping):
        return {name: to_value(nested) for name, nested in v.items()}
    if isinstance(v, list):
        return [to_value(nested) for nested in cast("list[Any]", v)]
    if isinstance(v, tuple):
        values = [to_value(nested) for nested in cast("tuple[Any, ...]", v)]
        return type(v)(*values) if hasattr(v, "_fields") else tuple(values)  # a named tuple takes its fields one by one
    return v
