"""Where the results of jobs may lie: in a slot of the arena, of the size that earlier results had."""

from __future__ import annotations

from collections.abc import Sequence

from trw_pipeline.executors.arena import MIN_ARENA_BYTES, Arena, Shelf, Slot
from trw_pipeline.executors.codec import ALIGNMENT, Frame, nb_bytes_of
from trw_pipeline.executors.protocol import ReplyRecord

RESULTS_REMEMBERED = 256
"""A slot has room for the largest of at least so many results; a larger one travels as frames, once."""

WASTE = 4
"""A result that takes less than this part of its slot is copied out."""


class ResultRoom:
    """Gives slots to jobs, and reads what workers wrote there.

    Args:
        arena: shared memory, or None where there is none: then results come as frames.

    Attributes:
        bytes_arena: of results, came through shared memory.
        bytes_frames: of results, came in messages.
    """

    def __init__(self, arena: Arena | None) -> None:
        self.arena = arena
        self.bytes_arena = self.bytes_frames = 0
        self._largest = self._largest_before = 0
        self._nb_results = 0

    def new_shelf(self) -> Shelf | None:
        """Returns a shelf for the slots of one worker."""
        return None if self.arena is None else self.arena.shelf()

    def slot(self, shelf: Shelf | None) -> Slot | None:
        """Returns a slot for the result of a job; None where results are small, or there is no memory left."""
        nb_bytes = max(self._largest, self._largest_before)
        if self.arena is None or shelf is None or nb_bytes < MIN_ARENA_BYTES:
            return None
        return self.arena.take(shelf, nb_bytes)

    def frames(self, record: ReplyRecord, slot: Slot | None) -> Sequence[Frame]:
        """Returns the frames of a reply; those in the slot as views, which keep it in use."""
        frames, places = record.frames, record.places
        if not frames:
            return frames
        self.bytes_frames += len(frames[0])
        if places is not None:
            assert slot is not None, "a worker uses the slot that it was given"
            view = memoryview(slot.lease()).cast("B")
            nb_bytes = end = 0
            for begin, size in places:
                frames.append(view[begin : begin + size])
                nb_bytes += size
                end = max(end, begin + size)
            # A small result in a slot that is there for large ones would keep all of it from others.
            if nb_bytes * WASTE < slot.size:
                frames[1:] = map(bytearray, frames[1:])
            self.bytes_arena += nb_bytes
            self._note_size(max(end, nb_bytes + ALIGNMENT * len(frames)))
        elif len(frames) > 1:
            nb_bytes = nb_bytes_of(frames[1:])
            self.bytes_frames += nb_bytes
            self._note_size(nb_bytes + ALIGNMENT * len(frames))
        if record.wanted_bytes:
            self._note_size(record.wanted_bytes)
        self._nb_results += 1
        if self._nb_results % RESULTS_REMEMBERED == 0:
            self._largest, self._largest_before = 0, self._largest
        return frames

    def _note_size(self, needed: int) -> None:
        if self.arena is not None and needed <= self.arena.max_bytes:
            self._largest = max(self._largest, needed)
