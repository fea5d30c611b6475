"""The way out of a worker: replies of short jobs share messages, and none waits for long.

A message costs as much as some tens of tiny jobs, most of it for waking somebody. So a reply is held back while more of
them come within a millisecond. Whoever runs out of work sends what is held; and since the next job may take an hour, a
thread looks after what it would hold up.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Sequence

import zmq

from trw_pipeline.executors.codec import Frame, Place
from trw_pipeline.executors.protocol import REPLY, Outbox, Reply

HOLD_S = 0.001
"""So long replies are gathered; a job that took as long is worth a message of its own."""

HOLD_BYTES = 64 * 1024
"""A message of this size is sent."""

SLOW_S, NB_QUICK = 0.01, 32
"""After a job of so many seconds nothing is held back for so many jobs: there will be more of them, and while one holds
the interpreter lock in a single call nobody can send what it holds up."""

LOOK_AFTER_S = 0.005
"""So often the thread looks at what is held while a job runs: whoever takes the interpreter lock from a job that short
jobs are measured against should not do so often."""


class ReplyBox:
    """Sends replies.

    Args:
        socket: the worker's DEALER; whoever uses it takes `lock`, but for the wait for orders when nothing is held.
        key: of the session.
        holds_back: whether messages are worth saving. Those between threads are not.
    """

    def __init__(self, socket: zmq.Socket[bytes], key: bytes, holds_back: bool) -> None:
        self.lock = threading.Lock()
        self._socket = socket
        self._box = Outbox(key)
        self._nb_quick = NB_QUICK if holds_back else -math.inf  # jobs in a row
        self._pid = os.getpid()
        self._held_since = 0.0
        self._held = threading.Event()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def add(
        self,
        reply: Reply,
        ticket: int = 0,
        frames: Sequence[Frame] = (),
        places: Sequence[Place] | None = None,
        is_kept: bool = False,
        duration_s: float = 0.0,
        waited_s: float = 0.0,
        wanted_bytes: int = 0,
    ) -> None:
        """Adds a reply, and sends all of them if it is time."""
        if os.getpid() != self._pid:
            os._exit(0)  # the job forked, and came back in the copy as well: only the original answers
        nb_buffers = len(places) if places is not None else max(0, len(frames) - 1)
        head_bytes = len(frames[0]) if frames else 0
        is_shared = places is not None
        record = REPLY.pack(
            reply, is_shared, is_kept, nb_buffers, head_bytes, ticket, duration_s, waited_s, wanted_bytes
        )
        now = time.perf_counter()
        with self.lock:
            box = self._box
            if not box.nb_records:
                self._held_since = now
            box.add(record, frames, places)
            self._nb_quick = self._nb_quick + 1 if duration_s < SLOW_S else 0
            is_young = duration_s < HOLD_S and now - self._held_since < HOLD_S
            has_buffers = nb_buffers > 0 and places is None  # they are the function's, which may fill them again
            if self._nb_quick > NB_QUICK and is_young and box.nb_bytes < HOLD_BYTES and not has_buffers:
                self._look_after()
            else:
                self._send()

    def tell(self, ticket: int, entry: bytes, wait: bool) -> bool:
        """Sends a log record, after all that is held; False, if not `wait`, where something is being sent just now."""
        if not self.lock.acquire(blocking=wait):
            return False
        try:
            self._box.add(REPLY.pack(Reply.LOG, False, False, 0, len(entry), ticket, 0.0, 0.0, 0), [entry])
            self._send()
        finally:
            self.lock.release()
        return True

    def send(self) -> None:
        """Sends what is held."""
        with self.lock:
            self._send()

    def _send(self) -> None:
        if not self._box.nb_records:
            return
        # Copied on the way out: a function may return the same buffer from every call and fill it again at once.
        # Without a mark at which it would wait, a send waits only where there is nobody to send to.
        self._socket.send_multipart(self._box.take(), zmq.NOBLOCK, copy=True)

    def _look_after(self) -> None:
        if self._held.is_set():
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="replies", daemon=True)
            self._thread.start()
        self._held.set()

    def _watch(self) -> None:
        while True:
            self._held.wait()
            if self._closed.wait(LOOK_AFTER_S):
                return
            with self.lock:
                if not self._box.nb_records:
                    self._held.clear()  # sleeps until something is held again
                    if self._closed.is_set():  # just now, so that nobody sets `held` again
                        return
                elif time.perf_counter() - self._held_since >= LOOK_AFTER_S:
                    self._send()

    def close(self) -> None:
        """Ends the thread."""
        self._closed.set()
        self._held.set()
        if self._thread is not None:
            self._thread.join()
