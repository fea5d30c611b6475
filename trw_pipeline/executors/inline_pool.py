"""The pool without workers: a job runs in the calling thread when its result is asked for."""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from trw_pipeline.errors import ExecutorError
from trw_pipeline.executors.codec import Codec, Frame, ReferenceCodec
from trw_pipeline.executors.function import MappedFunction
from trw_pipeline.executors.pool import WorkerFigures
from trw_pipeline.executors.private_copy import private_copy
from trw_pipeline.executors.protocol import Answer, ErrorReport, Lost, Reply
from trw_pipeline.seeding import seeded_globals


class InlinePool:
    """Runs each job as a worker process would: on a copy of the item, seeded, with failures reported.

    `KeyboardInterrupt` and `SystemExit` are the caller's, not the job's: they pass through, and the job is still there.
    """

    def __init__(self) -> None:
        self.items: Codec = ReferenceCodec()
        self.results: Codec = ReferenceCodec()
        self.is_waiting = False
        self.told: list[tuple[int, bytes]] = []  # a job that runs here logs here
        self.bytes_arena = self.bytes_frames = self.bytes_compressed = 0
        self._jobs: deque[tuple[int, bytes, Any]] = deque()
        self._function: MappedFunction | None = None

    @property
    def can_send(self) -> bool:
        """One job at a time: an inline stage does no work that nobody has asked for yet."""
        return not self._jobs

    @property
    def has_idle(self) -> bool:
        """Never: there is no worker."""
        return False

    @property
    def has_lost(self) -> bool:
        """Never."""
        return False

    @property
    def must_end(self) -> bool:
        """Never: nobody can close it while it waits."""
        return False

    @property
    def is_in_use(self) -> bool:
        """Never: nobody waits at it."""
        return False

    def held_open(self) -> AbstractContextManager[None]:
        """Nothing to keep: there are no sockets."""
        return contextlib.nullcontext()

    def set_function(self, function: MappedFunction) -> bool:
        """Sets the function; the first time, runs its `worker_init` here. What has not run yet runs as it is then."""
        if self._function is None and function.worker_init is not None:
            try:
                function.worker_init()
            except Exception as error:
                raise ExecutorError(f"worker_init of {function.name!r} failed: {error!r}") from error
        function.begin()
        self._function = function
        return False

    def send(self, ticket: int, seed: bytes, frames: Sequence[Frame]) -> None:
        """Keeps the job until `recv`."""
        self._jobs.append((ticket, seed, self.items.decode(frames)))

    def get_ready_to_wait(self) -> float | None:
        """Nothing is held back."""
        return None

    def recv(self, timeout_s: float | None) -> list[Answer]:
        """Runs the oldest job, however short `timeout_s` is."""
        del timeout_s
        if not self._jobs:
            return []
        ticket, seed, item = self._jobs[0]
        start = time.perf_counter()
        self.is_waiting = True
        reply, outcome = self._run(seed, item)
        self.is_waiting = False
        self.bytes_arena = self.bytes_frames = self.bytes_compressed = 0
        self._jobs.popleft()  # only now: a job that Ctrl-C interrupted runs again
        return [Answer(reply, ticket, os.getpid(), time.perf_counter() - start, self.results.encode(outcome))]

    def _run(self, seed: bytes, item: Any) -> tuple[Reply, Any]:
        function = self._function
        assert function is not None, "set_function comes before the first job"
        try:
            own = private_copy(item)
            with seeded_globals(seed):
                result = function.run_alone(own, seed)
            # A copy, as from a process: a function may return the same buffer from every call and fill it again.
            return Reply.RESULT, private_copy(result, "result")
        except Exception as error:  # noqa: BLE001 (the executor decides what a failure means)
            return Reply.FAILED, ErrorReport.of(error, error)

    def lost(self) -> list[Lost]:
        """Nothing: there is no worker to lose."""
        return []

    def cancel_below(self, ticket: int) -> None:
        """Drops the jobs that have not run."""
        self._jobs = deque(job for job in self._jobs if job[0] >= ticket)

    def waitables(self) -> list[Any]:
        """Nothing: `recv` never waits."""
        return []

    def workers(self) -> list[WorkerFigures]:
        """Nobody."""
        return []

    def close(self, timeout_s: float) -> None:
        """Drops what is left."""
        del timeout_s
        self._jobs.clear()
        self.items.close()
        self.results.close()
