"""Executors of a stage: one for each epoch that is open, kept for the next epoch when that one ends."""

from __future__ import annotations

import weakref
from collections.abc import Callable

from trw_pipeline.errors import ClosedError
from trw_pipeline.executors.job_executor import JobExecutor


class ExecutorLender:
    """Lends an executor to each open epoch, so that two can be open at once and no result can change sides.

    Workers live on from epoch to epoch. One executor is kept idle at most; a stage has more only while several of its
    epochs are open.

    Args:
        make: makes an executor, with its workers.
        name: of the stage.
        workers: who they are, in words.
    """

    def __init__(self, make: Callable[[], JobExecutor], name: str, workers: str) -> None:
        self.name = name
        self.workers = workers
        self._make = make
        self._idle: JobExecutor | None = None
        self._lent: weakref.WeakSet[JobExecutor] = weakref.WeakSet()
        self.is_closed = False

    def borrow(self) -> JobExecutor:
        """Returns an executor without jobs, that runs the function as it is now.

        Raises:
            ClosedError: after `close`.
        """
        if self.is_closed:
            raise ClosedError("this sequence is closed")
        executor, self._idle = self._idle, None
        if executor is not None and executor.is_ours:
            executor.reset()
        else:
            executor = self._make()
        self._lent.add(executor)
        return executor

    def give_back(self, executor: JobExecutor) -> None:
        """Takes an executor back; what it still runs is given up. One of a parent process is left alone."""
        if not executor.is_ours:
            return
        self._lent.discard(executor)
        if self.is_closed or self._idle is not None or executor.is_broken:
            executor.close()
            return
        if executor.nb_in_flight:
            executor.reset()
        self._idle = executor

    def statistics(self) -> dict[str, int | float]:
        """Returns the figures of all executors of the stage, added up."""
        figures = [executor.statistics() for executor in [self._idle, *self._lent] if executor is not None]
        return {key: sum(one[key] for one in figures) for key in (figures[0] if figures else {})}

    def close(self) -> None:
        """Closes all executors, also those of open epochs. Idempotent."""
        self.is_closed = True
        for executor in [self._idle, *self._lent]:
            if executor is not None:
                executor.close()
        self._idle = None
