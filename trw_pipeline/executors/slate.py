"""What a worker process was at when it died.

Answers that a worker has sent may die with it, since ZeroMQ sends in the background. So that the job which killed it
is not confused with one that was done before, the worker writes the ticket of its job into a mapped file, which
outlives it.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

_NOTHING = (1 << 64) - 1


class Slate:
    """The worker's side.

    Args:
        path: the file, made here.

    Raises:
        OSError: it can not be made.
    """

    def __init__(self, path: str) -> None:
        with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b", buffering=0) as file:
            file.write(_NOTHING.to_bytes(8, "little"))  # takes the space now: later a full disk would be a SIGBUS
            self._map = mmap.mmap(file.fileno(), 8)

    def write(self, ticket: int | None) -> None:
        """Notes the job that begins, or None between two."""
        self._map[:] = (_NOTHING if ticket is None else ticket).to_bytes(8, "little")


def read_slate(path: str) -> int | None:
    """Returns the ticket that the worker was at, or None if it was between two jobs or had not begun."""
    try:
        ticket = int.from_bytes(Path(path).read_bytes(), "little")
    except OSError:
        return None
    return None if ticket == _NOTHING else ticket
