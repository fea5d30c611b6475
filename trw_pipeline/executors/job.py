"""One job: what the executor knows of it, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from trw_pipeline.errors import CodecError, FailedJobError, JobError
from trw_pipeline.executors.codec import Frame
from trw_pipeline.executors.protocol import ErrorReport
from trw_pipeline.seeding import JobSeed
from trw_pipeline.typing import Key, default_sample_uid_name


class Result(NamedTuple):
    """What became of a job. `error` is set only with `on_error="return"`; `value` is None then.

    Attributes:
        duration_s: how long the mapped function took, with the decoding and encoding around it; 0 if it failed.
        pid: the process that ran it, also if that died of it; None if none did, or it was not known yet.
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
        uid: the `sample_uid` of the item, as it stands there.
        nb_items: more than one of a bundle; then key and uid are of the first.
        frames: the item as it travels; kept because it may have to be sent again.
        attempts: how often it was sent, but for those times when its worker died before it began.
        nb_in_vain: those of these times when it was the next.
    """

    ticket: int
    key: Key | None
    uid: Any
    seed: JobSeed
    nb_items: int = 1
    frames: Sequence[Frame] = ()
    attempts: int = 0
    nb_in_vain: int = 0

    def __str__(self) -> str:
        uid = plain_uid(self.uid)
        key = "" if self.key is None else f", item {self.key}"
        more = "" if self.nb_items == 1 else f" and {self.nb_items - 1} more"
        return f"job {self.ticket}{key}{more}" + ("" if uid is None else f", sample_uid {uid}")

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
        error = kind(
            f"{job} of {self.label!r} {what}",
            ticket=job.ticket,
            key=job.key,
            uid=plain_uid(job.uid),
            stage=self.stage,
            attempts=job.attempts,
            pid=pid,
        )
        error.__cause__ = cause
        return error

    def remote(self, job: Job, pid: int | None, report: ErrorReport) -> FailedJobError:
        """Returns the error of a job that failed at its worker."""
        cause = report.cause()
        kind = CodecError if report.of_codec or isinstance(cause, CodecError) else JobError
        message = f"failed: {report.summary}\n\nTraceback of the job (pid {pid}):\n{report.text}"
        return self.make(kind, job, message, pid, cause)


def uid_of(item: Any) -> Any:
    """Returns the `sample_uid` of an item as it stands there, or None."""
    # A dict is known as a mapping three times sooner than by its abstract class.
    is_mapping = isinstance(item, (dict, Mapping))
    return cast("Mapping[str, Any]", item).get(default_sample_uid_name) if is_mapping else None


def plain_uid(uid: Any) -> Any:
    """Returns the `sample_uid` of an item as plain data: one value for one sample, else a list; None without one."""
    values = _plain(uid)
    return values[0] if isinstance(values, list) and len(cast("list[Any]", values)) == 1 else values


def _plain(value: Any) -> Any:
    """Returns what JSON knows; what it does not know becomes text."""
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in cast("list[Any]", value)]
    plain: Any = value.tolist() if hasattr(value, "tolist") else value
    return str(value) if type(plain) is type(value) else _plain(plain)  # a long double is its own `tolist`
