"""A copy of an item that shares no memory with it."""

from __future__ import annotations

import copy
import sys
from typing import Any, cast

import numpy as np

from trw_pipeline.errors import CodecError
from trw_pipeline.executors.codec import in_words, part_at

_IMMUTABLE = frozenset({type(None), bool, int, float, complex, str, bytes, range, type(...)})


def private_copy(obj: Any, noun: str = "item") -> Any:
    """Copies an object as a trip to or from a worker process would.

    Dicts, lists and tuples are copied with what they hold; arrays are copied; tensors are copied without their graph.
    Anything else goes through `copy.deepcopy`.

    Args:
        obj: what to copy.
        noun: what it is, for the error.

    Raises:
        CodecError: a part can not be copied (a lock, a generator, an open file); the message names it. Or `obj` is
            nested too deep.
    """
    try:
        return _copied(obj, noun)
    except RecursionError as error:
        raise CodecError(f"{noun} can not be copied: {in_words(error)}") from error


def _copied(obj: Any, path: str) -> Any:
    kind: Any = type(obj)
    if kind in _IMMUTABLE:
        return obj
    if kind is np.ndarray and not obj.dtype.hasobject:
        return obj.copy()
    if kind is dict:
        return {key: _copied(value, part_at(path, key)) for key, value in cast("dict[Any, Any]", obj).items()}
    if kind is list:
        return [_copied(value, f"{path}[{i}]") for i, value in enumerate(cast("list[Any]", obj))]
    if kind is tuple:
        return tuple(_copied(value, f"{path}[{i}]") for i, value in enumerate(cast("tuple[Any, ...]", obj)))
    if issubclass(kind, tuple) and hasattr(kind, "_asdict"):  # a namedtuple
        return kind(**{name: _copied(value, f"{path}.{name}") for name, value in obj._asdict().items()})
    torch: Any = sys.modules.get("torch")
    if (
        torch is not None
        and isinstance(obj, torch.Tensor)
        and getattr(kind, "__deepcopy__", None) is torch.Tensor.__deepcopy__
    ):
        copied = obj.detach().as_subclass(torch.Tensor).clone()
        return copied if kind is torch.Tensor else _as(kind, copied, vars(obj), path)
    try:
        return copy.deepcopy(obj)
    except Exception as error:
        raise CodecError(f"{path} can not be copied: {in_words(error)}") from error


def _as(kind: Any, tensor: Any, attributes: dict[str, Any], path: str) -> Any:
    """Makes a tensor one of a subclass, which `copy.deepcopy` can not copy."""
    made = tensor.as_subclass(kind)
    made.__dict__.update({name: _copied(value, f"{path}.{name}") for name, value in attributes.items()})
    return made
