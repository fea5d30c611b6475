"""Has a pool of workers: opens it, and gives it up where it can not be trusted any more."""

from __future__ import annotations

import os
import weakref
from dataclasses import replace
from types import TracebackType
from typing import Self

from trw_pipeline.errors import ClosedError, ExecutorError
from trw_pipeline.executors.function import MappedFunction
from trw_pipeline.executors.inline_pool import InlinePool
from trw_pipeline.executors.interrupts import interrupts_held
from trw_pipeline.executors.pool import WorkerPool, in_owner
from trw_pipeline.executors.queues import Channels
from trw_pipeline.executors.worker_options import PoolOptions
from trw_pipeline.executors.zmq_pool import ZmqPool
from trw_pipeline.typing import StartMethod

CLOSE_TIMEOUT_S = 1.0
"""Idle workers end within milliseconds; one that is busy for longer than this is killed."""


class PoolOwner:
    """Owns a pool, which ends with it.

    Args:
        nb_workers: 0 runs jobs here.
        start_method: how processes start, or None for threads.
        function: what the workers run.
        channels: its pipes.
        options: of the pool.

    Attributes:
        pool: the workers.
    """

    def __init__(
        self,
        nb_workers: int,
        start_method: StartMethod | None,
        function: MappedFunction,
        channels: Channels,
        options: PoolOptions,
    ) -> None:
        self._wanted = (nb_workers, start_method, replace(options, channels=channels.of_workers))
        self._label = options.name
        self._channels = channels
        self._function = function
        self._function.channels = channels.of_workers
        self._owner = os.getpid()
        self._closed = False
        self._broken: ExecutorError | ClosedError | None = None
        self._open_pool()

    def _open_pool(self) -> None:
        nb_workers, start_method, options = self._wanted
        with interrupts_held():
            self.pool: WorkerPool = InlinePool() if nb_workers == 0 else ZmqPool(nb_workers, start_method, options)
            self._finalizer = weakref.finalize(self, self.pool.close, CLOSE_TIMEOUT_S)
            self._finalizer.atexit = False  # pools still open then are closed together
            try:
                self.pool.set_function(self._function)
            except BaseException:
                self._finalizer()
                raise

    def _reset_pool(self, next_ticket: int) -> None:
        """Gives up the jobs below `next_ticket`, and sends the function if it changed; opens a broken pool again."""
        if self._broken is not None:
            self._open_pool()
            self._broken = None
        elif self.pool.is_in_use:
            # From elsewhere, like `close`: that use ends, and new workers start at the next reset.
            self._break(ClosedError(f"{self._label!r} was reset while it was in use"))
        else:
            self.pool.cancel_below(next_ticket)
            self.pool.set_function(self._function)

    def _break(self, error: ExecutorError | ClosedError) -> None:
        self._broken = error
        self._finalizer()

    def _interrupted(self, error: BaseException) -> None:
        """A signal handler raised (Ctrl-C) where a job or a message was half done: better no pool than a wrong one.

        Or another thread closed the executor: whatever that did to what was going on here, it is a ClosedError.
        """
        if isinstance(error, ClosedError):
            return
        if self._closed and isinstance(error, Exception):
            raise ClosedError("this executor is closed") from error
        self._break(ExecutorError(f"{self._label!r} was interrupted among its jobs; reset() starts it again"))

    @property
    def is_broken(self) -> bool:
        """Whether the workers could not start, or were interrupted or taken away in use; `reset` starts them again."""
        return self._broken is not None

    @property
    def is_usable(self) -> bool:
        """Whether it could take a job: it is not closed, not broken, and ours."""
        return not self._closed and self._broken is None and self.is_ours

    @property
    def is_ours(self) -> bool:
        """Whether this process made it; a forked copy can not use it."""
        return in_owner(self._owner)

    def _check(self) -> None:
        broken = self._broken
        if self._closed or broken is not None or self._owner != os.getpid():
            self._check_owner()
            if broken is not None:
                raise broken

    def _check_owner(self) -> None:
        if self._closed:
            raise ClosedError("this executor is closed")
        if not self.is_ours:
            raise ExecutorError("this executor belongs to another process; make one here")

    def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Ends the workers: at once where they are idle, by force after `timeout` seconds. Idempotent."""
        if self._closed:
            return
        with interrupts_held():
            self._closed = True
            self._finalizer.detach()
            # The jobs stay counted: whoever uses it must not take a close for having none left.
            self.pool.close(timeout)
            self._channels.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
