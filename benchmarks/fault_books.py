"""What the fault storm remembers of the jobs it has put, and the rules by which it judges what comes back."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

from benchmarks.fault_jobs import BAD, Work, is_right
from trw_pipeline.errors import FailedJobError
from trw_pipeline.executors.job import Result

BUSY_LOAD = 2.0 * (os.cpu_count() or 1)
"""With so many processes that want to run, any job may take longer than its limit."""


class Violation(AssertionError):
    """A promise of the executor was broken."""


@dataclass(frozen=True)
class _Entry:
    """A job that was put: when, and what had happened to workers long before."""

    work: Work
    put_at: float
    nb_kills: int
    nb_stops: int


class Books:
    """The jobs of one executor.

    Args:
        max_retries: of the executor.
        in_order: of the executor.
        job_timeout_s: of the executor.

    Attributes:
        nb_kills: workers killed from outside.
        nb_stops: workers stopped from outside.
        hold: whether values are kept.
        kept: those that were.
        pids: workers that have given a result.
        nb_late: jobs that took too long because the machine was busy with others.
    """

    def __init__(self, max_retries: int, in_order: bool, job_timeout_s: float | None) -> None:
        self.nb_kills = 0
        self.nb_stops = 0
        self.nb_late = 0
        self.hold = False
        self.kept: list[tuple[Work, Any]] = []
        self.pids: set[int] = set()
        self._max_retries = max_retries
        self._in_order = in_order
        self._job_timeout_s = job_timeout_s
        self._entries: dict[int, _Entry] = {}  # of jobs that were put and not taken
        self._long_ago = self._lately = (0, 0)  # kills and stops, at the beginning of the last step and of this one
        self._last_put = -1
        self._last_taken = -1
        self._may_miss = False

    def begin_step(self, hold: bool) -> None:
        """Begins a step, in which values are kept or not."""
        self.hold = hold
        self._long_ago, self._lately = self._lately, (self.nb_kills, self.nb_stops)

    def put(self, ticket: int, work: Work, put_at: float) -> None:
        """Notes a job that was put, at a time by `time.monotonic()`."""
        if ticket <= self._last_put:
            raise Violation(f"expected a ticket above {self._last_put}, got {ticket}")
        self._last_put = ticket
        # Not what has happened by now: a job may be sent to a worker of which nobody has noticed yet that it is dead.
        self._entries[ticket] = _Entry(work, put_at, *self._long_ago)

    def forget(self) -> None:
        """Notes that all jobs have been given up."""
        self._entries.clear()
        self._may_miss = False

    def may_miss_one(self) -> None:
        """Notes an interrupt: the ticket, or the result, that was being handed out may be lost."""
        self._may_miss = True

    def is_waiting(self, nb_in_flight: int) -> bool:
        """Whether results are still to come.

        Args:
            nb_in_flight: what the executor says.

        Raises:
            Violation: it knows of fewer or of more jobs than it should.
        """
        slack = 1 if self._may_miss else 0
        if abs(len(self._entries) - nb_in_flight) > slack:
            raise Violation(
                f"expected {len(self._entries)} jobs in flight ({sorted(self._entries)}), got {nb_in_flight}"
            )
        if nb_in_flight == 0:
            self.forget()
        return nb_in_flight > 0

    def take(self, result: Result) -> None:
        """Judges a result.

        Raises:
            Violation: it should not have come, not now, or not like this.
        """
        ticket = result.ticket
        if self._in_order and ticket < self._last_taken:
            raise Violation(f"expected results in order, got ticket {ticket} after {self._last_taken}")
        self._last_taken = max(ticket, self._last_taken)
        entry = self._entries.pop(ticket, None)
        if entry is None:
            if self._may_miss and ticket >= self._last_put:  # of a put that was interrupted, here or there
                self._last_put = ticket
                return
            raise Violation(f"expected one of the tickets {sorted(self._entries)}, got {ticket}: {result}")
        if self._in_order and any(other < ticket for other in self._entries) and not self._may_miss:
            raise Violation(f"expected ticket {min(self._entries)} before {ticket}")
        if result.pid is not None and result.error is None:
            self.pids.add(result.pid)
        if not 1 <= result.attempts <= self._max_retries + 1:
            raise Violation(f"expected at most {self._max_retries + 1} attempts, got {result}")
        if result.error is None:
            self._judge_value(entry, result.value)
        else:
            self._judge_error(entry, result.error)

    def _judge_value(self, entry: _Entry, value: Any) -> None:
        if entry.work.kind in BAD:
            raise Violation(f"expected {BAD[entry.work.kind]} of {entry.work}, got {value}")
        self.check_value(entry.work, value, "the right value")
        if self.hold:
            self.kept.append((entry.work, value))

    def check_value(self, work: Work, value: Any, what: str) -> None:
        """Compares every byte.

        Raises:
            Violation: there is another one.
        """
        if not is_right(work, value):
            raise Violation(f"expected {what}, got something else of {work}")

    def _judge_error(self, entry: _Entry, error: FailedJobError) -> None:
        kind = type(error).__name__
        own_deaths = {"dies once": 1, "exits": self._max_retries + 1, "crashes": self._max_retries + 1}
        nb_deaths = self.nb_kills - entry.nb_kills + own_deaths.get(entry.work.kind, 0)
        if kind == "WorkerLostError" and nb_deaths > self._max_retries:
            if error.attempts != self._max_retries + 1:
                raise Violation(f"expected {self._max_retries + 1} attempts of {entry.work}, got {error.attempts}")
            return
        if kind == "JobTimeoutError" and self._job_timeout_s is not None:
            waited_s = time.monotonic() - entry.put_at
            if waited_s < self._job_timeout_s:
                raise Violation(f"expected {self._job_timeout_s} s for {entry.work}, got a time-out after {waited_s}")
            if self.nb_stops > entry.nb_stops:  # a worker that was stopped is late with any job
                return
            if os.getloadavg()[0] > BUSY_LOAD:  # and so is one that gets no core
                self.nb_late += 1
                return
        if BAD.get(entry.work.kind) != kind or kind == "WorkerLostError":
            raise Violation(f"expected {BAD.get(entry.work.kind, 'a value')} of {entry.work}, got {error!r}")
