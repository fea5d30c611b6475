"""Executors of a stage: one for each epoch that is open, kept for the next epoch when that one ends."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from trw_pipeline.errors import ClosedError
from trw_pipeline.executors.figures import as_dict
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
        self._lent: set[weakref.ref[JobExecutor]] = set()
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
        self._lent.add(weakref.ref(executor, self._lent.discard))
        return executor

    def give_back(self, executor: JobExecutor) -> None:
        """Takes an executor back; what it still runs is given up. One of a parent process is left alone."""
        if not executor.is_ours:
            return
        self._lent.discard(weakref.ref(executor))
        if self.is_closed or self._idle is not None or executor.is_broken:
            executor.close()
            return
        if executor.nb_in_flight:
            executor.reset()
        self._idle = executor

    def statistics(self) -> dict[str, Any]:
        """Returns the figures of all executors of the stage, added up."""
        return as_dict(executor.figures() for executor in self._executors())

    def work(self) -> tuple[float, int]:
        """Returns the seconds that the jobs of all executors took so far, and their number."""
        counts = [executor.counts for executor in self._executors()]
        return sum(one.busy_s for one in counts), sum(one.nb_answered for one in counts)

    def report(self) -> str:
        """Says what runs where in each of them."""
        return "\n".join(executor.report() for executor in self._executors()) or f"{self.name!r}: no workers yet"

    def close(self) -> None:
        """Closes all executors, also those of open epochs. Idempotent."""
        self.is_closed = True
        for executor in self._executors():
            executor.close()
        self._idle = None

    def _executors(self) -> list[JobExecutor]:
        lent = list(self._lent)  # at once: the thread of an epoch may give one back meanwhile
        return [executor for executor in (self._idle, *(one() for one in lent)) if executor is not None]
