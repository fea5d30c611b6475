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

from trw_pipeline.errors import ClosedError, ExecutorError
from trw_pipeline.executors.interrupts import interrupts_held
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
        must_end: a close has been asked for.
        users: the uses that have not ended, by `id`, so that one that was cut off by an interrupt can die.
        has_ended: set once all is freed.
    """

    def __init__(self, whose: str) -> None:
        self._whose = whose
        self._owner = os.getpid()
        self._closing_s = 0.0  # the `timeout_s` of a close that has been asked for
        self._closed = False
        self.must_end = False
        self.users: dict[int, None] = {}
        self.bell, self._rope = socket.socketpair()
        self.has_ended = threading.Event()
        _open.add(self)

    @property
    def is_in_use(self) -> bool:
        """Whether somebody is at the sockets."""
        return bool(self.users)

    def held_open(self) -> Use:
        """Keeps the sockets open if they are: what `close` is asked to do meanwhile is done afterwards, here.

        Raises:
            ExecutorError: another use has not ended.
        """
        return Use(self, may_be_closed=True)

    def using(self) -> Use:
        """Holds the sockets open.

        Raises:
            ClosedError: it is closed, or was while it was used.
            ExecutorError: another use has not ended.
        """
        return Use(self)

    def check_use(self, use: Use, may_be_closed: bool) -> None:
        """Raises what `using` says of a use that has just begun."""
        if self.must_end:
            if not may_be_closed:
                self.refuse_if_closed()  # what is left must not be touched
        elif next(iter(self.users)) != id(use):
            raise ExecutorError(f"{self._whose} are in use by another thread; use them from one at a time")

    def refuse_if_closed(self) -> None:
        """Raises ClosedError if a close has been asked for."""
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
        self.must_end = True
        self.close_if_free()
        if not self._closed:
            with contextlib.suppress(OSError):  # closed just now
                self._rope.send(b"\0")

    def close_if_free(self) -> None:
        """Ends it if nobody is at the sockets."""
        # Again if somebody who looked at the same moment is gone by now: each would leave it to the other.
        while self.must_end and not self._closed and not self.users:
            me = -threading.get_ident()  # no `id` of a use
            with interrupts_held():
                self.users[me] = None
                if next(iter(self.users)) == me and not self._closed:
                    self._closed = True
                    try:
                        self._end(self._closing_s)
                    finally:
                        self.bell.close()
                        self._rope.close()
                        self.has_ended.set()
                self.users.pop(me, None)

    @abstractmethod
    def _end(self, timeout_s: float) -> None:
        """Frees all there is. Called once, while nobody is at the sockets."""


class Use:
    """One use of what can be closed meanwhile, as a context. A class, and short, because this is paid for every job.

    Args:
        of: what is used.
        may_be_closed: whether it may be used though a close has been asked for.
    """

    __slots__ = ("_may_be_closed", "_of")

    def __init__(self, of: ClosableInUse, may_be_closed: bool = False) -> None:
        self._of = of
        self._may_be_closed = may_be_closed

    def __enter__(self) -> None:
        of = self._of
        # Not a lock: an interrupt that came just after a lock was taken would leave it taken for ever.
        of.users[id(self)] = None
        try:
            if of.must_end or len(of.users) > 1:
                of.check_use(self, self._may_be_closed)
        except BaseException:
            self._end()
            raise

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        of = self._of
        of.users.pop(id(self), None)
        if of.must_end:
            of.close_if_free()
            if kind is None and not self._may_be_closed:
                of.refuse_if_closed()

    def _end(self) -> None:
        of = getattr(self, "_of", None)
        if of is not None:
            of.users.pop(id(self), None)
            if of.must_end:
                of.close_if_free()

    def __del__(self) -> None:
        self._end()  # an interrupt may have come before the end, or cut it short


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
