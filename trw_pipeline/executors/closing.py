"""What can be closed while it is in use: by another thread, a signal handler, the end of the program.

ZeroMQ aborts the program if a socket is closed while somebody waits at it. So every use is marked, and a `close` that
comes meanwhile rings a bell, at which the user looks beside its sockets, and leaves the closing to that user.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

from trw_pipeline.errors import ClosedError, ExecutorError
from trw_pipeline.executors.pool import in_owner

CLOSE_AT_EXIT_S = 0.5
"""At the end of the program, workers have so long to stop."""

WAIT_AT_EXIT_S = 2.0
"""So long the end of the program waits for a daemon thread that has to finish a close."""

_open: weakref.WeakSet[ClosableInUse] = weakref.WeakSet()
_program_ends = threading.Event()


class ClosableInUse(ABC):
    """Sockets with one user at a time, and a `close` that may come from anywhere.

    Args:
        whose: what is closed, for messages.

    Attributes:
        bell: becomes readable when the use has to end.
        has_ended: set once all is freed.
    """

    def __init__(self, whose: str) -> None:
        self._whose = whose
        self._owner = os.getpid()
        self._closing_s: float | None = None  # the `timeout_s` of a close that has been asked for
        self._closed = False
        self._users: dict[object, None] = {}
        self.bell, self._rope = socket.socketpair()
        self.has_ended = threading.Event()
        _open.add(self)

    @property
    def must_end(self) -> bool:
        """Whether a close has been asked for."""
        return self._closing_s is not None

    @property
    def is_in_use(self) -> bool:
        """Whether somebody is at the sockets."""
        return bool(self._users)

    @contextmanager
    def held_open(self) -> Iterator[None]:
        """Keeps the sockets open if they are: what `close` is asked to do meanwhile is done afterwards, here.

        Raises:
            ExecutorError: another use has not ended.
        """
        me = object()
        try:
            # Not a lock: an interrupt that came just after a lock was taken would leave it taken for ever.
            self._users[me] = None
            if next(iter(self._users)) is not me and not self.must_end:
                raise ExecutorError(f"{self._whose} are in use by another thread; use them from one at a time")
            yield
        finally:
            self._users.pop(me, None)
            self._close_if_free()

    @contextmanager
    def using(self) -> Iterator[None]:
        """Holds the sockets open.

        Raises:
            ClosedError: it is closed, or was while it was used.
            ExecutorError: another use has not ended.
        """
        self._refuse_if_closed()
        with self.held_open():
            if not self.must_end:  # else a close came just before: what is left of the pool must not be touched
                yield
        self._refuse_if_closed()

    def _refuse_if_closed(self) -> None:
        if not self.must_end:
            return
        if _program_ends.is_set() and threading.current_thread() is not threading.main_thread():
            threading.Event().wait()  # a daemon thread, which ends with the program: nobody is there to hear an error
        raise ClosedError(f"{self._whose} have been closed")

    def close(self, timeout_s: float) -> None:
        """Ends the workers, by force after `timeout_s`. Idempotent; does nothing in a forked copy of the program.

        While it is in use this returns at once: that use ends, closes, and raises ClosedError.
        """
        if self._closed or not in_owner(self._owner):
            return
        self._closing_s = timeout_s
        self._close_if_free()
        if not self._closed:
            with contextlib.suppress(OSError):  # closed just now
                self._rope.send(b"\0")

    def _close_if_free(self) -> None:
        # Again if somebody who looked at the same moment is gone by now: each would leave it to the other.
        while self._closing_s is not None and not self._closed and not self._users:
            me = object()
            try:
                self._users[me] = None
                if next(iter(self._users)) is me and not self._closed:
                    self._closed = True
                    self._end(self._closing_s)
                    self.bell.close()
                    self._rope.close()
                    self.has_ended.set()
            finally:
                self._users.pop(me, None)

    @abstractmethod
    def _end(self, timeout_s: float) -> None:
        """Frees all there is. Called once, while nobody is at the sockets."""


@atexit.register
def _close_all() -> None:
    """Ends the workers of pools that nobody closed."""
    _program_ends.set()
    left = list(_open)
    for one in left:
        one.close(CLOSE_AT_EXIT_S)
    deadline = time.monotonic() + WAIT_AT_EXIT_S
    for one in left:
        if one.is_in_use:
            one.has_ended.wait(max(0.0, deadline - time.monotonic()))
