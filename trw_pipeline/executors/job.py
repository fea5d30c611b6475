"""One job: what the executor knows of it, and what became of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trw_pipeline.errors import CodecError, FailedJobError, JobError
from trw_pipeline.executors.codec import Frame
from trw_pipeline.executors.protocol import ErrorReport
from trw_pipeline.seeding import JobSeed
from trw_pipeline.typing import Key


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a job. `error` is set only with `on_error="return"`; `value` is None then.

    Attributes:
        duration_s: how long the mapped function took, with the decoding and encoding around it.
        pid: the process that ran it, or None if its worker was lost.
        attempts: how often it was tried.
    """

    ticket: int
    value: Any
    error: FailedJobError | None
    key: Key | None
    uid: Any
    duration_s: float
    pid: int | None
    attempts: int


@dataclass(slots=True)
class Job:
    """A job that was put and not yet got.

    Attributes:
        key: where its item stands at its source.
        uid: the `sample_uid` of the item.
        frames: the item as it travels; kept because it may have to be sent again.
        attempts: how often it was sent.
    """

    ticket: int
    key: Key | None
    uid: Any
    seed: JobSeed
    frames: Sequence[Frame] = ()
    attempts: int = 0

    def result(self, value: Any, error: FailedJobError | None, duration_s: float, pid: int | None) -> Result:
        """Returns what is handed out."""
        return Result(self.ticket, value, error, self.key, self.uid, duration_s, pid, self.attempts)


@dataclass(frozen=True, slots=True)
class ErrorMaker:
    """Makes the errors of the jobs of one executor.

    Attributes:
        stage: name that the user gave to it, or None.
        label: what messages call it.
    """

    stage: str | None
    label: str

    def make(
        self,
        kind: type[FailedJobError],
        job: Job,
        what: str,
        pid: int | None,
        cause: BaseException | None = None,
    ) -> FailedJobError:
        """Returns an error about a job; `what` ends the sentence that names it."""
        key = "" if job.key is None else f", item {job.key}"
        uid = "" if job.uid is None else f", sample_uid {job.uid}"
        error = kind(
            f"job {job.ticket}{key}{uid} of {self.label!r} {what}",
            ticket=job.ticket,
            key=job.key,
            uid=job.uid,
            stage=self.stage,
            attempts=job.attempts,
            pid=pid,
        )
        error.__cause__ = cause
        return error

    def remote(self, job: Job, pid: int, report: ErrorReport) -> FailedJobError:
        """Returns the error of a job that failed at its worker."""
        cause = report.cause()
        kind = CodecError if report.of_codec or isinstance(cause, CodecError) else JobError
        message = f"failed: {report.summary}\n\nTraceback of the job (pid {pid}):\n{report.text}"
        return self.make(kind, job, message, pid, cause)
