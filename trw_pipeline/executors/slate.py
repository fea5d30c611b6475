"""What a worker is at, for the pool to read: also after the worker has died.

Answers that a worker has sent may die with it, since ZeroMQ sends in the background. So that the job which killed it
is not confused with one that was done before, the worker notes each job as it begins in memory that outlives it: a
mapped file, or, for a thread, a piece of memory of the program.
"""

from __future__ import annotations

import mmap
import os
import time
from typing import Any, NamedTuple

_NOTHING = (1 << 64) - 1
_TICKET, _SINCE, _RECALLS = range(3)
_BLANK = _NOTHING.to_bytes(8, "little") + bytes(16)
SLATE_BYTES = len(_BLANK)


class AtWork(NamedTuple):
    """The job that a worker is at, and since when, by `time.monotonic()`, which all processes share."""

    ticket: int
    since: float


class Slate:
    """Holds the note of a worker, the job it began last, and one of the pool, how often it took jobs back.

    Each is written in one piece, which `struct` would not do: it clears a field before it fills it.

    Args:
        memory: of `SLATE_BYTES`, as `_BLANK` at first.
    """

    def __init__(self, memory: Any) -> None:
        self._show(memory)

    def _show(self, memory: Any) -> None:
        self._numbers = memoryview(memory).cast("B").cast("Q")
        self._times = memoryview(memory).cast("B").cast("d")

    @classmethod
    def in_file(cls, path: str) -> Slate:
        """Maps a file, which is made if it is not there.

        Raises:
            OSError: it can not be.
        """
        # Not by `os.open`: what it returns would be lost if a signal handler raised just then.
        with open(path, "a+b", buffering=0) as file:
            if os.fstat(file.fileno()).st_size < SLATE_BYTES:
                os.chmod(path, 0o600)
                # Takes the space now: later a full disk would be a bus error.
                file.write(_BLANK)
            return cls(mmap.mmap(file.fileno(), SLATE_BYTES))

    @classmethod
    def in_memory(cls) -> Slate:
        """Makes one for a thread."""
        return cls(bytearray(_BLANK))

    def close(self) -> None:
        """Lets go of the file of a worker that has ended: it is at nothing, but `last` stays. Idempotent.

        Python keeps a descriptor for the mapping, and whoever still knows the worker would keep that.
        """
        # A copy takes its place at once, so another thread may be reading.
        self._show(bytearray(self._numbers))
        self.end()

    def begin(self, ticket: int) -> None:
        """Notes the job that begins now."""
        self._numbers[_TICKET] = ticket
        self._times[_SINCE] = time.monotonic()

    def end(self) -> None:
        """Notes that it is over."""
        self._times[_SINCE] = 0.0

    def read(self) -> AtWork | None:
        """Returns what the worker is at, or None if it is between two jobs or has not begun."""
        while True:
            ticket, since = self._numbers[_TICKET], self._times[_SINCE]
            if self._numbers[_TICKET] == ticket:  # else the time may be of another one
                return AtWork(ticket, since) if since else None

    @property
    def last(self) -> int | None:
        """The job that the worker began last, or None before the first."""
        ticket = self._numbers[_TICKET]
        return None if ticket == _NOTHING else ticket

    @property
    def nb_recalls(self) -> int:
        """How often the pool has taken jobs back, or is about to."""
        return self._numbers[_RECALLS]

    def note_recall(self) -> None:
        """Is called by the pool before it chooses the jobs that it takes back."""
        self._numbers[_RECALLS] += 1
