"""Shared memory for large buffers, on the side of a worker.

The pool says with each job in which slot of its arena the result may lie. What the function made there with
`empty_result` stays where it is; other large buffers are copied in. An item that came through the arena is seen through
a mapping of its own: what is written to it stays here, so that the item can be sent again to somebody else.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import mmap
import os
import threading
import weakref
from collections.abc import Sequence
from typing import Any, SupportsIndex, TypeAlias

import numpy as np
from multiprocess import reduction
from numpy.typing import DTypeLike, NDArray

from trw_pipeline.executors.codec import ALIGNMENT, OUT_OF_BAND_BYTES, Frame, Place, Span

ITEMS_MAPPED = 64
"""So many items that the function keeps are mapped; further ones are copied."""

_ctypes: Any = ctypes  # its stubs know no subclasses of arrays
_POPULATE_READ, _POPULATE_WRITE = 22, 23  # MADV_POPULATE_... of <sys/mman.h>, from Linux 5.14 on

Seen: TypeAlias = "weakref.ref[Any]"
"""Is alive for as long as the function keeps something that lies in shared memory."""


class _Anchor(_ctypes.Array):
    """Is under all arrays that a function made in a slot."""

    _type_ = ctypes.c_ubyte
    _length_ = 0


class ResultSlot:
    """The slot for the result of the job that runs.

    Args:
        mapping: the window that it lies in.
        span: where it lies.
    """

    def __init__(self, mapping: mmap.mmap, span: Span) -> None:
        window, _, self._begin, self._size = span
        self.offset = window + self._begin
        self._mapping = mapping
        self._used = self._missing = 0
        self._lock = threading.Lock()  # a function may make arrays in several threads
        self._anchor: Any = None
        self._is_over = False

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any] | None:
        """Returns an array that lies here, or None if it does not fit or is too small to be worth it."""
        nb_bytes = math.prod(shape) * dtype.itemsize
        if dtype.hasobject or nb_bytes < OUT_OF_BAND_BYTES:
            return None
        with self._lock:
            begin = self._used
            if self._is_over:
                return None
            if begin + nb_bytes > self._size:
                self._missing += nb_bytes + -nb_bytes % ALIGNMENT
                return None
            self._used += nb_bytes + -nb_bytes % ALIGNMENT
            if self._anchor is None:
                kind: Any = type("Anchor", (_Anchor,), {"_length_": self._size, "_type_": ctypes.c_ubyte})
                self._anchor = kind.from_buffer(self._mapping, self._begin)
        return np.ndarray(shape, dtype, self._anchor, begin)

    def place(self, buffers: Sequence[Frame]) -> list[Place] | None:
        """Copies in what does not lie here yet, and returns where each buffer lies; None if there is not the room."""
        places: list[Place] = []
        view = memoryview(self._mapping)[self._begin : self._begin + self._size]
        with self._lock:
            for buffer in buffers:
                raw = memoryview(buffer).cast("B")
                begin = self._begin_of(raw)
                if begin is None or self._overlaps(places, begin, raw.nbytes):
                    begin = self._used
                    if begin + raw.nbytes > self._size:
                        self._missing += sum(memoryview(other).nbytes + ALIGNMENT for other in buffers)
                        return None
                    view[begin : begin + raw.nbytes] = raw
                    self._used += raw.nbytes + -raw.nbytes % ALIGNMENT
                places.append((begin, raw.nbytes))
        return places

    @property
    def wanted_bytes(self) -> int:
        """What would have been enough, also for what the function made here for itself; 0 if all had room."""
        return self._used + self._missing if self._missing else 0

    @staticmethod
    def _overlaps(places: Sequence[Place], begin: int, nb_bytes: int) -> bool:
        """Whether a buffer has been placed already in part: two arrays of a result must not share memory."""
        return any(begin < other + size and other < begin + nb_bytes for other, size in places)

    def _begin_of(self, raw: memoryview) -> int | None:
        if self._anchor is None:
            return None
        begin = np.frombuffer(raw, np.uint8).ctypes.data - ctypes.addressof(self._anchor)
        return begin if 0 <= begin <= self._size - raw.nbytes else None

    def copied(self, places: Sequence[Place]) -> list[Frame]:
        """Returns copies of buffers that lie here."""
        view = memoryview(self._mapping)[self._begin : self._begin + self._size]
        return [bytearray(view[begin : begin + nb_bytes]) for begin, nb_bytes in places]

    def let_go(self) -> Seen | None:
        """Ends the job; returns a sign if the function keeps an array that it made here."""
        with self._lock:
            self._is_over = True
            anchor, self._anchor = self._anchor, None
        if anchor is None:
            return None
        seen = weakref.ref(anchor)
        del anchor
        return None if seen() is None else seen


class ArenaFile:
    """The file of an arena, as it travels to a worker.

    Args:
        fd: its descriptor. In the worker it is another number.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._windows: dict[int, mmap.mmap] = {}
        self._items: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()  # that a function still sees
        self._populated: set[int] = set()  # slots whose pages are mapped

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (reduction.DupFd(self._fd),)

    def result_slot(self, span: Span) -> ResultSlot | None:
        """Returns a slot; its window is mapped when it is first seen. None where it can not be mapped."""
        window, window_bytes, begin, size = span
        mapping = self._windows.get(window)
        if mapping is None:
            try:
                mapping = mmap.mmap(self._fd, window_bytes, flags=mmap.MAP_SHARED, offset=window)
            except (OSError, ValueError):  # no address space, or no descriptor
                return None
            self._windows[window] = mapping
        if window + begin not in self._populated:
            self._populated.add(window + begin)
            with contextlib.suppress(OSError):  # an older system: page by page, then
                mapping.madvise(_POPULATE_WRITE, begin, size)
        return ResultSlot(mapping, span)

    def forget(self, offset: int) -> None:
        """Lets go of a window that is no more."""
        mapping = self._windows.pop(offset, None)
        if mapping is not None:
            self._populated -= {one for one in self._populated if offset <= one < offset + len(mapping)}

    def item_buffers(self, offset: int, size: int, places: Sequence[Place]) -> tuple[list[Frame], Seen | None]:
        """Returns the buffers of an item that lies in the slot at `offset`, and a sign that somebody sees the slot.

        A function that keeps many items would use up the descriptors, one of which belongs to each mapping. So then,
        or where there is no room to map it, the item is read into memory of its own.
        """
        mapping = None
        if len(self._items) < ITEMS_MAPPED:
            with contextlib.suppress(OSError, ValueError):
                mapping = mmap.mmap(self._fd, size, flags=mmap.MAP_PRIVATE, offset=offset)
        if mapping is None:
            return [self._read(offset + begin, nb_bytes) for begin, nb_bytes in places], None
        with contextlib.suppress(OSError):  # an older system: page by page, then
            mapping.madvise(_POPULATE_READ)
        self._items.add(mapping)
        view = memoryview(mapping)
        return [view[begin : begin + nb_bytes] for begin, nb_bytes in places], weakref.ref(mapping)

    def _read(self, offset: int, nb_bytes: int) -> bytearray:
        buffer = bytearray(nb_bytes)
        at = 0
        while at < nb_bytes:  # the system reads no more than 2 GB at a time
            at += os.preadv(self._fd, [memoryview(buffer)[at:]], offset + at)
        return buffer


def _received(duplicate: Any) -> ArenaFile:
    return ArenaFile(duplicate.detach())


def keep_for_good(seen: Seen) -> None:
    """Makes an item the function's own, if it keeps a part of it: a page that is written to is not shared any more."""
    mapping: Any = seen()
    if mapping is not None:
        pages = np.frombuffer(mapping, np.uint8)[:: mmap.PAGESIZE]
        pages |= 0


_slot: ResultSlot | None = None


def set_slot(slot: ResultSlot | None) -> None:
    """Sets where the result of the job that begins may lie."""
    global _slot
    _slot = slot


def empty_result(shape: SupportsIndex | Sequence[int], dtype: DTypeLike = np.float64) -> NDArray[Any]:
    """Returns an array without values that lies, inside a job, where its result will travel.

    A result that is made there, rather than copied there, is handed over at no cost. Everywhere else (in the main
    process, in threads, where the pool has no room, for the first results of a pool, whose size it does not know yet,
    or for less than 16 KB) this is an ordinary `np.empty`, so a function can always use it.

    Args:
        shape: an int or a sequence of ints, as for `np.empty`.
        dtype: as for `np.empty`.

    Returns:
        (shape) array of `dtype`, C order, writable. It may be kept beyond the job, but then its memory can not be used
        for another result, and that of the job travels in a message, more slowly. For what is not part of the result an
        ordinary array is as good.

    Example:
        >>> import numpy as np, trw_pipeline
        >>> def normalised(volume):
        ...     return np.multiply(volume, 1 / 255, out=trw_pipeline.empty_result(volume.shape, np.float32))
        >>> normalised(np.full((2, 2), 255, np.uint8))
        array([[1., 1.],
               [1., 1.]], dtype=float32)
    """
    slot = _slot
    array = None if slot is None else slot.empty(np.broadcast_shapes(shape), np.dtype(dtype))
    return np.empty(shape, dtype) if array is None else array
