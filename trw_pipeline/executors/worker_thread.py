"""A worker in a thread of this process."""

from __future__ import annotations

import contextlib
import socket
import threading

from trw_pipeline.errors import ExecutorError
from trw_pipeline.executors.codec import in_words
from trw_pipeline.executors.worker import Worker


class WorkerThread:
    """Lets a worker serve in a thread, and tells of its end as a process does.

    Attributes:
        sentinel: a descriptor that becomes readable when the worker has ended, for whatever reason. A byte is written
            to it: closing it would say nothing while a forked copy of the program holds another one.
        how_it_ended: in words.

    Raises:
        ExecutorError: the system can not start it.
    """

    def __init__(self, worker: Worker, name: str) -> None:
        self._hears, self._tells = socket.socketpair()
        worker.bell = self._tells.fileno()
        self.sentinel = self._hears.fileno()
        self.how_it_ended = "ended"
        self._thread = threading.Thread(target=self._serve, args=(worker,), name=name, daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            self.end()
            raise ExecutorError(f"a worker thread can not be started: {error}") from error

    def _serve(self, worker: Worker) -> None:
        try:
            worker.serve()
        except BaseException as error:  # noqa: BLE001 (a program may raise anything in a thread; the pool must learn it)
            self.how_it_ended = f"ended with {in_words(error)}"
        finally:
            with contextlib.suppress(OSError):  # it was busy for so long that its pool has gone
                self._tells.send(b"\0")

    @property
    def is_alive(self) -> bool:
        """Whether it still runs."""
        return self._thread.is_alive()

    def ring(self) -> None:
        """Has it end after its job. An order to stop may not reach it, after an interrupt in the midst of a message."""
        self._hears.send(b"\0")

    def wait(self, timeout_s: float) -> None:
        """Waits for its end; not where it would wait for itself, as when a pool is collected in its own worker."""
        if self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def end(self) -> None:
        """Frees its descriptors. A thread that is still busy ends after its job."""
        self._hears.close()
        self._tells.close()
