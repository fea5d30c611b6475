"""The jobs of an executor: in flight, finished, and in which order they are handed out."""

from __future__ import annotations

from collections import deque
from typing import TypeAlias

from trw_pipeline.errors import FailedJobError, JobTimeoutError, WorkerLostError
from trw_pipeline.executors.figures import JobFigures
from trw_pipeline.executors.job import ErrorMaker, Job, Result
from trw_pipeline.executors.protocol import Answer, Lost

Outcome: TypeAlias = Answer | FailedJobError | Result
"""What became of a job: an answer that nobody has decoded yet, an error of ours, or a result that was known before."""


MOST_IN_VAIN = 10
"""So many workers may die before they begin a job that was their next: to take it in may be what kills them."""


class JobTable:
    """Every job is in flight, or finished, or gone. The table is the truth; no counter stands beside it.

    Args:
        in_order: jobs are handed out in the order in which they came; else as they finish.
        max_retries: a job whose worker died is tried this many times more.
        errors: makes the errors of jobs that are not.

    Attributes:
        figures: counts of all jobs so far.
        max_retries: as given.
        in_flight: by ticket, oldest first.
        finished: by ticket.
    """

    def __init__(self, in_order: bool, max_retries: int, errors: ErrorMaker) -> None:
        self.figures = JobFigures()
        self.in_flight: dict[int, Job] = {}
        self.finished: dict[int, tuple[Job, Outcome]] = {}
        self._due: deque[int] = deque()  # tickets as they will be handed out
        self._in_order = in_order
        self.max_retries = max_retries
        self._errors = errors

    def __len__(self) -> int:
        return len(self.in_flight) + len(self.finished)

    def add(self, job: Job, first: bool = False) -> None:
        """Takes a new job in, to be handed out as the last one, or as the first."""
        self.in_flight[job.ticket] = job
        if self._in_order:
            (self._due.appendleft if first else self._due.append)(job.ticket)

    def finish(self, job: Job, outcome: Outcome) -> None:
        """Notes what became of a job."""
        ticket = job.ticket
        del self.in_flight[ticket]
        self.finished[ticket] = (job, outcome)
        if not self._in_order:
            self._due.append(ticket)

    def is_ready(self) -> bool:
        """Whether a job can be handed out."""
        due = self._due
        return bool(due) and due[0] in self.finished

    def take(self) -> tuple[Job, Outcome]:
        """Hands out the next job; it must be ready."""
        return self.finished.pop(self._due.popleft())

    def settle(self, answer: Answer) -> Job | None:
        """Finishes and returns the job that a worker has answered; None if it is none of ours (any more)."""
        job = self.in_flight.get(answer.ticket)
        if job is None:
            return None
        figures, duration_s = self.figures, answer.duration_s
        figures.busy_s += duration_s
        figures.nb_answered += 1
        nb = job.nb_items
        if nb == 1:
            figures.durations_s.append(duration_s)
        else:
            figures.durations_s.extend([duration_s / nb] * nb)
        self.finish(job, answer)
        return job

    def after_loss(self, lost: Lost, job_timeout_s: float | None) -> Job | None:
        """Returns the job to be sent again after its worker died; None if it is to be given up, or is none of ours."""
        job = self.in_flight.get(lost.ticket)
        if job is None:
            return None
        self.figures.jobs_lost += job.nb_items
        if lost.ran_s is not None:
            why = f"took {lost.ran_s:.1f} s, more than job_timeout_s={job_timeout_s}"
            reason = f"{why}; its worker, pid {lost.pid}, {lost.how}"
            self.finish(job, self._errors.make(JobTimeoutError, job, reason, lost.pid))
            return None
        if not lost.was_running:
            job.attempts -= 1  # it only waited there
            job.nb_in_vain += lost.was_next
            if job.nb_in_vain > MOST_IN_VAIN:
                reason = (
                    f"lost its worker {job.nb_in_vain} times before it began; the last one, pid {lost.pid}, {lost.how}"
                )
                self.finish(job, self._errors.make(WorkerLostError, job, reason, lost.pid))
                return None
        # The items of a bundle are tried again one by one: but for one of them they are innocent.
        is_end = job.attempts > self.max_retries or (job.nb_items > 1 and lost.was_running)
        if is_end or not lost.may_run_again:
            reason = f"lost its worker at each of {job.attempts} attempts; the last one, pid {lost.pid}, {lost.how}"
            self.finish(job, self._errors.make(WorkerLostError, job, reason, lost.pid))
            return None
        self.figures.jobs_retried += job.nb_items
        return job

    def job(self, ticket: int) -> Job | None:
        """Returns a job that is not handed out yet; None of any other ticket."""
        finished = self.finished.get(ticket)
        return self.in_flight.get(ticket) if finished is None else finished[0]

    def clear(self) -> list[Answer]:
        """Forgets all jobs; returns the answers that nobody will decode."""
        answers = [outcome for _, outcome in self.finished.values() if isinstance(outcome, Answer)]
        self.in_flight.clear()
        self.finished.clear()
        self._due.clear()
        return answers
