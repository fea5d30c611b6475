"""The thread of `SequencePrefetch`: asks a source for items before they are wanted.

    source ──advance──▶ PrefetchThread ──▶ ready: at most `nb_items` ──take──▶ whoever iterates
       ▲                      │ ▲                       │
       └── workers of the     │ └── room: a condition   └── something is ready: `bell`
           stages below ◀─────┘     the end: that and `_wake`, beside the workers' sockets

While it runs the source belongs to the thread: nobody else touches it but under its lock. It waits for room, for the
workers below and for its end, and for nothing by polling. It knows nothing of the iterator, which ends it when it is
closed or collected.
"""

from __future__ import annotations

import atexit
import contextvars
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from trw_pipeline.errors import ExecutorError, WouldBlock
from trw_pipeline.executors.bell import Bell
from trw_pipeline.executors.interrupts import interrupts_held
from trw_pipeline.executors.pool import in_owner
from trw_pipeline.executors.pool_owner import CLOSE_TIMEOUT_S
from trw_pipeline.executors.waiting import wait_for_any
from trw_pipeline.sequences.iterator import KeyedItem, Mark, SequenceIterator, State
from trw_pipeline.typing import Item


class Made(NamedTuple):
    """What the source did when it was asked for an item.

    Attributes:
        keyed: the item and its key, or None where it raised.
        error: what it raised; StopIteration is its end.
        mark: where it stood afterwards.
    """

    keyed: KeyedItem | None
    error: BaseException | None
    mark: Mark


class PrefetchThread:
    """Makes items of a source ahead, in a thread.

    Args:
        source: gives the items.
        nb_items: so many are made and not taken at most, the one that is being made included.
        prepare: called with each item in the thread, or None.

    Attributes:
        bell: rung when something has become ready, and by `close`.
    """

    def __init__(self, source: SequenceIterator, nb_items: int, prepare: Callable[[Item], Item] | None) -> None:
        self.bell = Bell()
        self._source = source
        self._nb_items = nb_items
        self._prepare = prepare
        self._owner = os.getpid()
        # Reentrant, for signal handlers; taken with `with` alone, within which no interrupt can leave them taken.
        self._source_lock = threading.RLock()
        self._lock = threading.RLock()  # of what follows
        self._changed = threading.Condition(self._lock)
        self._ready: deque[Made] = deque()
        self._is_over = self._must_end = self._is_given_up = False
        self._thread: threading.Thread | None = None
        self._cuda_device: int | None = None
        self._wake = Bell()
        _open.add(self)

    # Called by whoever iterates

    def begin(self) -> None:
        """Starts the thread, unless it runs or the source has come to its end.

        Raises:
            ExecutorError: the system can not start it; or this is a forked copy of the process that made it.
        """
        if not in_owner(self._owner):
            raise ExecutorError("this iterator belongs to another process; open an epoch here")
        if self._is_over or (self._thread is not None and not self._must_end):
            return
        self._wait(None)  # for one that must end, where an interrupt came in the midst of a pause
        self._must_end = False
        # In the caller's context, and on its CUDA device: functions that run here are to find what they would there.
        run = contextvars.copy_context().run
        self._cuda_device = cuda_device()
        thread = threading.Thread(target=run, args=(self._run,), name="trw-prefetch", daemon=True)
        with interrupts_held():
            try:
                thread.start()
            except RuntimeError as error:
                raise ExecutorError(f"the thread of prefetch can not be started: {error}") from error
            self._thread = thread

    def take(self) -> Made | None:
        """Returns the oldest of what is ready, or None. The end stays: it is returned again and again."""
        with self._lock:
            made = self._ready[0] if self._ready else None
            if made is not None and not isinstance(made.error, StopIteration):
                self._ready.popleft()
                self._changed.notify()
            return made

    def position_at(self, mark: Mark) -> State:
        """Returns that of the source; the item that is being made without workers is waited for."""
        with self._source_lock:
            return self._source.position_at(mark)

    def pause(self) -> None:
        """Ends the thread after the item that it is at, so that the source is the caller's until the next `begin`."""
        self._end_soon()
        self._wait(None)
        self._thread = None

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Ends the thread and closes the source. Idempotent; does nothing in a forked copy of the program.

        A thread that is busy with an item for longer than `timeout_s` does so itself, when that is made.
        """
        if not in_owner(self._owner):
            return
        self._is_given_up = True
        self._end_soon()
        with self._lock:
            self._ready.clear()
        if self._wait(timeout_s):
            self._source.close()
        self.bell.ring()  # somebody may wait for it

    def _end_soon(self) -> None:
        with self._lock:
            self._must_end = True
            self._changed.notify()
        self._wake.ring()

    def _wait(self, timeout_s: float | None) -> bool:
        """Waits for the thread, but for itself; whether it has ended."""
        thread = self._thread
        if thread is None:
            return True
        if thread is not threading.current_thread():
            thread.join(timeout_s)
        return not thread.is_alive()

    # In the thread

    def _run(self) -> None:
        try:
            while self._waits_for_room() and self._make_one():
                pass
        finally:
            if self._is_given_up:
                self._source.close()

    def _waits_for_room(self) -> bool:
        with self._lock:
            self._changed.wait_for(lambda: self._must_end or len(self._ready) < self._nb_items)
            return not self._must_end

    def _make_one(self) -> bool:
        """Adds one to what is ready; False if the source has no more, or the thread must end."""
        made = self._made()
        if made is None:
            return False
        with self._lock:
            self._is_over = isinstance(made.error, StopIteration)
            was_empty = not self._ready
            if not self._is_given_up:
                self._ready.append(made)
        # In a frame of the thread a batch would outlive whoever took it, and an error would hold itself: its traceback
        # leads to this one.
        del made
        if was_empty:
            self.bell.ring()
        return not self._is_over

    def _made(self) -> Made | None:
        try:
            if self._cuda_device is not None:
                torch: Any = sys.modules["torch"]
                torch.cuda.set_device(self._cuda_device)
            advanced = self._advanced()
            if advanced is None:
                return None
            (key, item), mark = advanced
            return Made((key, item if self._prepare is None else self._prepare(item)), None, mark)
        except BaseException as error:  # noqa: BLE001 (whoever iterates raises it, as if the source had been asked there)
            # Returned from here: in a variable of this frame, to which its traceback leads, it would hold itself.
            return Made(None, error, self._source.mark())

    def _advanced(self) -> tuple[KeyedItem, Mark] | None:
        """Returns the next item and the mark after it, or None if the thread must end before there is one."""
        while not self._must_end:
            try:
                with self._source_lock:
                    return self._source.advance(), self._source.mark()
            except WouldBlock:
                pass
            wait_for_any(self._source.executors(), bells=[*self._source.bells(), self._wake])
        return None


def cuda_device() -> int | None:
    """Returns the number of the current CUDA device where the program uses one: a new thread has another."""
    torch: Any = sys.modules.get("torch")
    return torch.cuda.current_device() if torch is not None and torch.cuda.is_initialized() else None


_open: weakref.WeakSet[PrefetchThread] = weakref.WeakSet()


# After that of the pools was registered, so before it: what waits for workers ends before these do.
@atexit.register
def _end_all() -> None:
    """Ends the threads of epochs that nobody closed."""
    left = [thread for thread in _open if in_owner(thread._owner)]  # pyright: ignore[reportPrivateUsage]
    for thread in left:
        thread._end_soon()  # pyright: ignore[reportPrivateUsage]
    deadline = time.monotonic() + CLOSE_TIMEOUT_S
    for thread in left:
        thread.close(max(0.0, deadline - time.monotonic()))
