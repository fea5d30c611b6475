"""A batch of plain arrays as frames, without a pickle.

Most of what travels is a dict of arrays, and the next one has the same features, dtypes and shapes. So it is written as
a description, from which both ends know the rest by heart once they have seen it, and the bytes of the arrays:

    lengths | description (JSON) | pickled scalars | small arrays, each at a multiple of 16        large arrays
    └──────────────────────────────── head ─────────────────────────────────────────────┘          one frame each

The description travels each time: 100 bytes cost nothing, and neither end has to know what the other one has seen.

Many small batches of one layout are written together, column by column, with one description.
"""

from __future__ import annotations

import importlib
import json
import math
import pickle
import struct
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trw_pipeline.executors.codec import OUT_OF_BAND_BYTES, Frame, buffer_of

MARK = b"\0"
"""First byte of a head; that of a pickle is 0x80."""

_LENGTHS = struct.Struct("<cxxxII")  # mark, bytes of the description, bytes of the scalars
_MANY = struct.Struct("<III")  # number of batches, bytes of the description, bytes of the scalars
_ALIGNMENT = 16  # of small arrays, within the head
_PLAIN_KINDS = "biufc"  # of dtypes: bool, integers, floats, complex numbers
SCALARS = frozenset(
    {int, float, bool, str, bytes, complex, type(None), np.bool_, *(np.dtype(code).type for code in "bBhHiIlLqQefd")}
)
_CARRIERS = {
    1: "u1",
    2: "u2",
    4: "u4",
    8: "u8",
    16: "u8",
    32: "u8",
}  # a memoryview knows unsigned integers of these sizes
_KNOWN_AT_MOST = 1024  # layouts; of a function whose every result has another shape, not all are kept


@dataclass(frozen=True, slots=True)
class _Layout:
    """What all batches of one layout have in common.

    Attributes:
        description: JSON: of each array its name, dtype, shape and whether it is a tensor; of a scalar its name alone.
        prefix: lengths and description, for a batch without scalars.
        arrays: for each array its name, dtype, shape, and where it begins among the small ones, or -1 for a large one.
        padding: for each array, zeros up to the next one.
        names: all features in their order.
        scalars: those that are no arrays.
        tensors: those that are tensors.
        is_small: whether there are no large arrays.
    """

    description: bytes
    prefix: bytes
    arrays: tuple[tuple[str, np.dtype[Any], tuple[int, ...], int], ...]
    padding: tuple[bytes, ...]
    names: tuple[str, ...]
    scalars: tuple[str, ...]
    tensors: tuple[str, ...]
    is_small: bool


_known: dict[Any, Any] = {}  # what it is known by -> its _Layout, or None of what is not plain
_NEW: Any = object()


def plain_frames(obj: Any) -> list[Frame] | None:
    """Returns the frames of a dict of plain arrays, tensors and scalars; None of anything else.

    An array is plain if it is an `np.ndarray` itself, of numbers and in C order: it arrives as that, and writable. A
    tensor is plain if it is a `torch.Tensor` itself, contiguous, on the CPU and of a dtype that numpy has.
    """
    found = _arrays_of(obj)
    return None if found is None or found[0] is None else _framed(found[0], obj, found[1])


def _arrays_of(obj: Any) -> tuple[_Layout | None, list[Any]] | None:
    """Returns the layout of a dict of arrays, tensors and scalars, and its arrays; None of anything else.

    The layout is None where an array is not plain.
    """
    if type(obj) is not dict:
        return None
    features: dict[Any, Any] = obj
    key: list[Any] = []
    arrays: list[Any] = []
    for name, value in features.items():
        if type(name) is not str:
            return None
        kind = type(value)
        is_tensor = False
        if kind is not np.ndarray:
            if kind in SCALARS:
                key.append(name)
                continue
            value, is_tensor = _array_of(value), True
            if value is None:
                return None
        if not value.flags.c_contiguous:
            return None
        key.append((name, value.dtype, value.shape, is_tensor))
        arrays.append(value)
    found = tuple(key)
    layout = _known.get(found, _NEW)
    if layout is _NEW:
        layout = _learn(found, found)
    return layout, arrays


def _array_of(tensor: Any) -> Any:
    """Returns the numpy view of a plain tensor, without its graph; None of anything else."""
    torch: Any = sys.modules.get("torch")
    if torch is None or type(tensor) is not torch.Tensor or tensor.layout is not torch.strided:
        return None
    try:
        return tensor.detach().numpy()
    except (TypeError, RuntimeError):  # on another device, conjugated, or of a dtype that numpy has not got
        return None


def _framed(layout: _Layout, features: dict[str, Any], arrays: list[Any]) -> list[Frame]:
    if layout.scalars:
        scalars = pickle.dumps(tuple([features[name] for name in layout.scalars]), protocol=5)
        lengths = _LENGTHS.pack(MARK, len(layout.description), len(scalars))
        parts: list[Any] = [lengths, layout.description, scalars]
    else:
        parts = [layout.prefix]
    buffers: list[Frame] = []
    for array, (_, _, _, begin), padding in zip(arrays, layout.arrays, layout.padding, strict=True):
        if begin < 0:
            buffers.append(array.reshape(-1).view(_CARRIERS[array.itemsize]).data)
        else:
            parts.append(array)
            parts.append(padding)
    return [b"".join(parts), *buffers]


def is_plain(head: Frame) -> bool:
    """Whether a head was written here, and is no pickle."""
    return buffer_of(head)[0] == 0


def plain_batch(frames: Sequence[Frame]) -> dict[str, Any]:
    """Returns the batch. Its small arrays share one piece of memory; a large one is a view of its frame.

    Raises:
        ValueError: these are not the frames of a batch.
    """
    head = memoryview(buffer_of(frames[0]))
    _, description_bytes, scalars_bytes = _LENGTHS.unpack_from(head)
    end = _LENGTHS.size + description_bytes
    description = bytes(head[_LENGTHS.size : end])
    layout = _known.get(description) or _learn(description, _parsed(description))
    if layout is None:
        raise ValueError(f"not the description of a batch: {description!r}")
    small = bytearray(head[end + scalars_bytes :])  # a copy of our own: writable and aligned
    large = iter(frames)
    next(large)
    made: dict[str, Any] = {
        name: np.ndarray(shape, dtype, small, begin) if begin >= 0 else np.ndarray(shape, dtype, buffer_of(next(large)))
        for name, dtype, shape, begin in layout.arrays
    }
    if layout.tensors:
        torch = importlib.import_module("torch")  # whoever sent a tensor has it; nobody else pays for it
        made.update({name: torch.from_numpy(made[name]) for name in layout.tensors})
    if not layout.scalars:
        return made
    made.update(zip(layout.scalars, pickle.loads(head[end : end + scalars_bytes]), strict=True))
    return {name: made[name] for name in layout.names}


class Columns:
    """Gathers plain batches of one layout without large arrays, to write them together.

    Each is copied at once: whoever makes them may use the same memory for the next one.
    """

    def __init__(self) -> None:
        self._layout: _Layout | None = None
        self._rows: list[list[Any]] = []
        self._scalars: list[tuple[Any, ...]] = []

    def add(self, batch: Any) -> bool:
        """Adds a batch; False if it is none of those."""
        found = _arrays_of(batch)
        if found is None:
            return False
        layout, arrays = found
        if layout is None or layout is not self._layout:
            if layout is None or not layout.is_small or self._layout is not None:
                return False
            self._layout = layout
        self._rows.append([array.tobytes() for array in arrays])
        if layout.scalars:
            self._scalars.append(tuple([batch[name] for name in layout.scalars]))
        return True

    def written(self) -> bytes:
        """Returns what `batches_of` reads. At least one was added."""
        layout, nb = self._layout, len(self._rows)
        assert layout is not None, "somebody looked"
        scalars = pickle.dumps(self._scalars, protocol=5) if layout.scalars else b""
        parts: list[Any] = [_MANY.pack(nb, len(layout.description), len(scalars)), layout.description, scalars]
        for column, (_, _, nb_bytes) in zip(zip(*self._rows, strict=True), _columns(layout, nb), strict=True):
            parts.extend(column)
            parts.append(bytes(-nb * nb_bytes % _ALIGNMENT))
        return b"".join(parts)


def _columns(layout: _Layout, nb: int) -> Iterator[tuple[tuple[str, np.dtype[Any], tuple[int, ...], int], int, int]]:
    """Yields of each array what the layout says, where its column begins, and its bytes in one batch."""
    begin = 0
    for array in layout.arrays:
        nb_bytes = math.prod(array[2]) * array[1].itemsize
        yield array, begin, nb_bytes
        begin += nb * nb_bytes + -nb * nb_bytes % _ALIGNMENT


def batches_of(written: Any) -> list[dict[str, Any]]:
    """Reads what `Columns` wrote. Each array has memory of its own, so that one that is kept keeps no other."""
    whole = memoryview(written).cast("B")
    nb, description_bytes, scalars_bytes = _MANY.unpack_from(whole)
    end = _MANY.size + description_bytes
    description = bytes(whole[_MANY.size : end])
    layout = _known.get(description) or _learn(description, _parsed(description))
    assert layout is not None, "written by Columns"
    memory = whole[end + scalars_bytes :]
    made: list[dict[str, Any]] = [{} for _ in range(nb)]
    for (name, dtype, shape, _), begin, nb_bytes in _columns(layout, nb):
        for i, batch in enumerate(made):
            batch[name] = np.ndarray(shape, dtype, memory, begin + i * nb_bytes).copy()
    if layout.tensors:
        torch = importlib.import_module("torch")
        for batch in made:
            batch.update({name: torch.from_numpy(batch[name]) for name in layout.tensors})
    if not layout.scalars:
        return made
    for batch, values in zip(made, pickle.loads(whole[end : end + scalars_bytes]), strict=True):
        batch.update(zip(layout.scalars, values, strict=True))
    return [{name: batch[name] for name in layout.names} for batch in made]


def _parsed(description: bytes) -> tuple[Any, ...]:
    features = json.loads(description)
    return tuple(one if isinstance(one, str) else (one[0], np.dtype(one[1]), tuple(one[2]), one[3]) for one in features)


def _learn(known_by: Any, features: tuple[Any, ...]) -> _Layout | None:
    if len(_known) >= _KNOWN_AT_MOST:
        _known.clear()
    _known[known_by] = layout = _layout(features)
    return layout


def _is_plain(described: tuple[Any, ...]) -> bool:
    return described[1].kind in _PLAIN_KINDS and described[1].itemsize in _CARRIERS


def _layout(features: tuple[Any, ...]) -> _Layout | None:
    described = [one for one in features if isinstance(one, tuple)]
    names = tuple(one[0] if isinstance(one, tuple) else one for one in features)
    if not all(map(_is_plain, described)):
        return None
    arrays: list[tuple[str, np.dtype[Any], tuple[int, ...], int]] = []
    padding: list[bytes] = []
    begin = 0
    for name, dtype, shape, _ in described:
        nb_bytes = math.prod(shape) * dtype.itemsize
        is_small = nb_bytes < OUT_OF_BAND_BYTES
        arrays.append((name, dtype, shape, begin if is_small else -1))
        padding.append(bytes(-nb_bytes % _ALIGNMENT) if is_small else b"")
        begin += nb_bytes + len(padding[-1]) if is_small else 0
    description = json.dumps(
        [(one[0], one[1].str, one[2], one[3]) if isinstance(one, tuple) else one for one in features]
    ).encode()
    return _Layout(
        description,
        _LENGTHS.pack(MARK, len(description), 0) + description,
        tuple(arrays),
        tuple(padding),
        names,
        scalars=tuple(one for one in features if isinstance(one, str)),
        tensors=tuple(one[0] for one in described if one[3]),
        is_small=all(begin >= 0 for _, _, _, begin in arrays),
    )
