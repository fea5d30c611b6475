"""How an object becomes frames, and an object again: the seam where transports differ."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

Frame: TypeAlias = Any
"""One buffer: bytes, a memoryview, or a `zmq.Frame`."""

Place: TypeAlias = tuple[int, int]
"""Where a buffer begins in a slot of shared memory, and its bytes."""

Span: TypeAlias = tuple[int, int, int, int]
"""A slot of shared memory: offset and size of its window in the file, where it begins in the window, and its bytes."""

NO_SPAN: Span = (0, 0, 0, 0)

OUT_OF_BAND_BYTES = 16 * 1024
"""Smaller buffers stay in the head: below about this size a frame of its own costs more than the copy it saves."""

ALIGNMENT = 64
"""In a slot, buffers begin at a multiple of this many bytes: a cache line."""


class Codec(Protocol):
    """Turns objects into frames and back. Every frame list is either decoded once or discarded once."""

    def encode(self, obj: Any) -> Sequence[Frame]:
        """Returns the frames of `obj`; raises CodecError, naming the part, if it can not travel."""
        ...

    def decode(self, frames: Sequence[Frame]) -> Any:
        """Returns the object. What it holds stays valid for as long as the object lives."""
        ...

    def discard(self, frames: Sequence[Frame]) -> None:
        """Gives up an object that nobody will decode."""
        ...

    def close(self) -> None:
        """Frees what is left. Idempotent."""
        ...


class ReferenceCodec:
    """Hands objects over within one process: a frame holds the number under which the object waits."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._waiting: dict[int, Any] = {}

    def encode(self, obj: Any) -> Sequence[Frame]:
        """Keeps the object until it is decoded or discarded."""
        number = next(self._numbers)
        self._waiting[number] = obj
        return [number.to_bytes(8, "little")]

    def decode(self, frames: Sequence[Frame]) -> Any:
        """Returns the object itself."""
        return self._waiting.pop(_number(frames))

    def discard(self, frames: Sequence[Frame]) -> None:
        """Drops the reference."""
        self._waiting.pop(_number(frames), None)

    def close(self) -> None:
        """Drops all references."""
        self._waiting.clear()


def buffer_of(frame: Frame) -> Any:
    """Returns what can be read of a frame."""
    return getattr(frame, "buffer", frame)  # zmq.Frame has one; bytes and memoryview are one


def nb_bytes_of(frames: Sequence[Frame]) -> int:
    """Returns how many bytes frames have together."""
    return sum(len(frame) if isinstance(frame, bytes) else memoryview(buffer_of(frame)).nbytes for frame in frames)


def in_words(error: BaseException) -> str:
    """Returns the kind and message of an exception of the user, who may have made one that can not be shown."""
    try:
        return f"{type(error).__name__}: {error}"
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 (its __str__ may raise anything)
        return f"{type(error).__name__} (its message can not be shown)"


def part_at(path: str, key: Any) -> str:
    """Returns the name of a part of a dict, such as `item['a']`, also for a key that can not be shown."""
    try:
        return f"{path}[{key!r}]"
    except Exception:  # noqa: BLE001 (its __repr__ may raise anything)
        return f"{path}[a {type(key).__name__}]"


def _number(frames: Sequence[Frame]) -> int:
    return int.from_bytes(bytes(frames[0]), "little")
