"""Shared memory for large buffers on their way between a pool and its workers, on the side of the pool.

The first touch of memory costs many times the second, so it is used again and again: the arena is one anonymous file;
windows of it are mapped, and cut into slots. The pool owns all of them, so a worker that dies takes none along.

    job ─▶ take a slot ─▶ worker writes ─▶ views of it are handed out ─▶ the last view is gone ─▶ the slot is free
                                               each holds a Lease            Lease.__del__

A slot belongs to the shelf of one worker and the one that came back last is taken first, so that its pages stay mapped
and in the caches. No part of the file is used for two slots, so a worker can map a window once and for all. Windows are
large, since Python keeps a descriptor for each mapping, but only what is cut out of them takes memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
import os
import sys
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trw_pipeline.executors.codec import ALIGNMENT, OUT_OF_BAND_BYTES, Codec, Frame, Place, Span

MIN_ARENA_BYTES = 2 * OUT_OF_BAND_BYTES
"""Buffers that are smaller, all those of an object together, travel in a message."""

SHARE_OF_MEMORY = 4
"""By default an arena may take one part in so many of the machine's memory."""

WINDOW_BYTES = 256 << 20
"""Of address space; memory is taken slot by slot."""

LOOK_AFTER_S = 5.0
"""After so long, slots of a shelf that nobody has needed meanwhile are given back to the system."""

_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE of <sys/mman.h>, from Linux 5.14 on

_ctypes: Any = ctypes  # its stubs know no subclasses of arrays
_all: weakref.WeakSet[Arena] = weakref.WeakSet()


class Lease(_ctypes.Array):
    """A buffer under all views of a slot, which gives the slot back when the last view is gone.

    A subclass of `np.ndarray` can not do this: numpy looks for the owner of the memory beneath it, and lets it go.
    """

    _type_ = ctypes.c_ubyte
    _length_ = 0
    slot: Slot | None = None

    def __del__(self) -> None:
        if self.slot is not None:
            self.slot.leave()


@functools.lru_cache(maxsize=256)
def _lease_type(size: int) -> Any:
    """Returns the class of buffers of that many bytes."""
    return type("Lease", (Lease,), {"_length_": size, "_type_": ctypes.c_ubyte})


class Window:
    """A part of the file that is mapped.

    Attributes:
        offset: where it begins in the file.
        size: bytes.
        mapping: the memory.
        used: bytes that were cut out so far.
    """

    def __init__(self, fd: int, offset: int, size: int) -> None:
        os.ftruncate(fd, offset + size)
        self.offset = offset
        self.size = size
        self.mapping = mmap.mmap(fd, size, flags=mmap.MAP_SHARED, offset=offset)
        self.used = 0


class Slot:
    """A piece of the arena.

    Attributes:
        window: where it lies.
        begin: where in the window.
        size: bytes.
        is_inherited: a forked copy of the program sees it too, so it must not be used again.
    """

    __slots__ = ("__weakref__", "_shelf", "_uses", "begin", "is_inherited", "size", "window")

    def __init__(self, window: Window, begin: int, size: int, shelf: Shelf) -> None:
        self.window = window
        self.begin = begin
        self.size = size
        self.is_inherited = False
        self._shelf = shelf
        self._uses: list[bool] = []  # one for each user, the first of them True

    @property
    def offset(self) -> int:
        """Where it begins in the file; it is known by that."""
        return self.window.offset + self.begin

    @property
    def span(self) -> Span:
        """What a worker has to know to find it."""
        return self.window.offset, self.window.size, self.begin, self.size

    @property
    def is_in_use(self) -> bool:
        """Whether it has a user: a job, a lease, or a function that keeps what it made here."""
        return bool(self._uses)

    def enter(self) -> None:
        """Counts one more user; the first one comes when the slot is taken, others while there is one."""
        self._uses.append(not self._uses)

    def leave(self) -> None:
        """Counts one user less. After the last one the slot is free.

        Objects die in any thread, so this is one step that can not be divided: whoever takes the True out was last.
        """
        if self._uses.pop():
            self._shelf.put_back(self)

    def lease(self) -> Lease:
        """Returns a buffer over the whole slot, a user for as long as a view of it lives."""
        buffer: Lease = _lease_type(self.size).from_buffer(self.window.mapping, self.begin)
        self.enter()
        buffer.slot = self
        return buffer

    def give_back(self) -> None:
        """Gives the memory back to the system. The slot must be free."""
        with contextlib.suppress(OSError):  # then it goes with the arena
            self.window.mapping.madvise(mmap.MADV_REMOVE, self.begin, self.size)


class Shelf:
    """The free slots of one worker, or of what goes to all of them.

    Attributes:
        free: those that came back last at the end.
        window: new slots are cut out of it.
        dropped: offsets of windows that the worker need not keep mapped any more.
        is_closed: what comes back is not kept.
    """

    def __init__(self) -> None:
        self.free: list[Slot] = []
        self.window: Window | None = None
        self.dropped: list[int] = []
        self.is_closed = False
        self._fewest = 0
        self._look_at = 0.0

    def put_back(self, slot: Slot) -> None:
        """Takes a slot that nobody here uses any more. From any thread.

        One that a forked copy of the program sees is not used again, and its memory stays taken as long as the arena.
        """
        if not self.is_closed and not slot.is_inherited:
            self.free.append(slot)

    def note_taken(self) -> int:
        """Is called after each taking; returns how many free slots have not been needed for a long time."""
        self._fewest = min(self._fewest, len(self.free))
        now = time.monotonic()
        if now < self._look_at:
            return 0
        unneeded, self._fewest, self._look_at = self._fewest, len(self.free), now + LOOK_AFTER_S
        return unneeded


class Arena:
    """The slots of one pool.

    Args:
        max_bytes: how much memory it may take; beyond it `take` gives None.

    Raises:
        OSError: this system has no anonymous shared files, or none are left.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.nb_bytes = 0
        if not hasattr(os, "memfd_create"):
            raise OSError(f"{sys.platform} has no memfd_create")
        self.fd = os.memfd_create("trw-arena")
        self._end = 0
        self._shelves: list[Shelf] = []
        self._slots: weakref.WeakSet[Slot] = weakref.WeakSet()
        _all.add(self)

    def shelf(self) -> Shelf:
        """Returns a new shelf."""
        shelf = Shelf()
        self._shelves.append(shelf)
        return shelf

    def take(self, shelf: Shelf, nb_bytes: int) -> Slot | None:
        """Returns a slot of at least `nb_bytes`, with one user, or None if there is no memory for it."""
        slot = self._free_slot(shelf, nb_bytes) or self._new_slot(shelf, nb_bytes)
        if slot is not None:
            slot.enter()
        for _ in range(shelf.note_taken()):
            self._give_back(shelf.free.pop(0))
        return slot

    def _free_slot(self, shelf: Shelf, nb_bytes: int) -> Slot | None:
        while shelf.free:
            slot = shelf.free.pop()
            if slot.size >= nb_bytes:
                return slot
            self._give_back(slot)
        return None

    def _new_slot(self, shelf: Shelf, nb_bytes: int) -> Slot | None:
        size = _rounded(nb_bytes)
        if size > self.max_bytes:
            return None
        if self.nb_bytes + size > self.max_bytes:
            self._make_room(self.nb_bytes + size - self.max_bytes)
        if self.nb_bytes + size > self.max_bytes:
            return None
        try:
            window = self._window_with(shelf, size)
            # All of it now: memory that is promised and then is not there would end the program with a bus error.
            os.posix_fallocate(self.fd, window.offset + window.used, size)
        except (OSError, ValueError):  # no memory, no address space, or no descriptor
            return None
        with contextlib.suppress(OSError):  # an older system: page by page, then
            window.mapping.madvise(_POPULATE_WRITE, window.used, size)
        slot = Slot(window, window.used, size, shelf)
        window.used += size
        self.nb_bytes += size
        self._slots.add(slot)
        return slot

    def _window_with(self, shelf: Shelf, size: int) -> Window:
        """Returns a window of the shelf in which so many bytes are left."""
        window = shelf.window
        if window is None or window.used + size > window.size:
            window = Window(self.fd, self._end, max(size, WINDOW_BYTES))
            self._end += window.size
            weakref.finalize(window, shelf.dropped.append, window.offset).atexit = False
            shelf.window = window
        return window

    def _make_room(self, nb_bytes: int) -> None:
        """Gives free slots back to the system, those first that came back first."""
        for shelf in self._shelves:
            while shelf.free and nb_bytes > 0:
                slot = shelf.free.pop(0)
                nb_bytes -= slot.size
                self._give_back(slot)

    def _give_back(self, slot: Slot) -> None:
        self.nb_bytes -= slot.size
        slot.give_back()

    def note_fork(self) -> None:
        """Is called when the program is about to fork."""
        for slot in self._slots:
            slot.is_inherited = slot.is_inherited or slot.is_in_use

    def close(self) -> None:
        """Lets go of the file. Views stay valid for as long as they live. Idempotent."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        for shelf in self._shelves:
            shelf.is_closed = True
            shelf.window = None
            shelf.free.clear()
        self._shelves.clear()


class ArenaCodec:
    """Puts the large buffers of what another codec makes into the arena.

    Args:
        inner: makes and reads the frames.
        arena: where the buffers go, one copy each. The object itself is not needed any more then.
    """

    def __init__(self, inner: Codec, arena: Arena) -> None:
        self._inner = inner
        self._arena = arena
        self._shelf = arena.shelf()

    def encode(self, obj: Any) -> Sequence[Frame]:
        """Returns the head, and a view of the arena for each buffer, or, where that is full, the buffer itself."""
        frames = self._inner.encode(obj)
        if len(frames) == 1:
            return frames
        self._shelf.dropped.clear()  # no worker keeps an item mapped
        places, nb_bytes = placed(frames[1:])
        slot = self._arena.take(self._shelf, nb_bytes) if nb_bytes >= MIN_ARENA_BYTES else None
        if slot is None:
            return frames
        view = memoryview(slot.lease()).cast("B")
        slot.leave()
        for (begin, size), buffer in zip(places, frames[1:], strict=True):
            view[begin : begin + size] = memoryview(buffer).cast("B")
        return [frames[0], *(view[begin : begin + size] for begin, size in places)]

    def decode(self, frames: Sequence[Frame]) -> Any:
        """Returns the object, with views of the arena."""
        return self._inner.decode(frames)

    def discard(self, frames: Sequence[Frame]) -> None:
        """Nothing to free: the views end with the frames."""
        self._inner.discard(frames)

    def close(self) -> None:
        """Nothing to free: the arena is the pool's."""
        self._inner.close()


def placed(buffers: Sequence[Frame]) -> tuple[list[Place], int]:
    """Lays buffers out one behind the other; returns where each begins with its size, and the bytes of it all."""
    places: list[Place] = []
    end = 0
    for buffer in buffers:
        size = memoryview(buffer).nbytes
        places.append((end, size))
        end += size + -size % ALIGNMENT
    return places, end


def slot_of(frame: Frame) -> tuple[Slot, int] | None:
    """Returns the slot that a frame is a view of, and where in it the view begins; None for any other frame."""
    lease = frame.obj if isinstance(frame, memoryview) else None
    if not isinstance(lease, Lease) or lease.slot is None:
        return None
    begin = np.frombuffer(frame, np.uint8).ctypes.data - ctypes.addressof(lease)
    return lease.slot, begin


def usual_max_bytes() -> int:
    """Returns a quarter of the memory that this program may use, as the machine or its container says."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # no such file; or it says "max"
            memory = min(memory, int(Path(name).read_text()))
    return memory // SHARE_OF_MEMORY


def _rounded(nb_bytes: int) -> int:
    """Rounds up to one of eight sizes an octave, so that results of nearly the same size use the same slots."""
    step = max(mmap.PAGESIZE, 1 << max(0, nb_bytes.bit_length() - 4))
    return -(-nb_bytes // step) * step


def _note_fork() -> None:
    for arena in list(_all):
        arena.note_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_note_fork)
