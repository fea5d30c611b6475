"""Every error that the package raises on its own account.

    TrwError
    ├── WouldBlock            nothing is ready now, and the caller asked not to wait
    ├── ClosedError           used after close()
    ├── ExecutorError         the pool as a whole can not go on
    │   ├── JobError          the mapped function failed; the worker's traceback is in the message
    │   ├── WorkerLostError   a job lost its worker (killed, crashed) more often than it may
    │   ├── JobTimeoutError   a job took longer than it may; its worker was ended
    │   └── CodecError        an object can not be sent to, or back from, a worker
    ├── CheckpointError       a saved state does not fit, or is damaged
    ├── ExplanationError      a way to explain does not fit the model; also a ValueError
    ├── NonFiniteLossError    a loss is NaN or infinite; also a FloatingPointError
    └── MissingExtraError     an optional library is absent; also an ImportError

Wrong arguments are plain `ValueError` and `TypeError`.
"""

from __future__ import annotations

from typing import Any


class TrwError(Exception):
    """Base of all errors of the package."""


class WouldBlock(TrwError):
    """Nothing is ready now and the caller asked not to wait, or there is nothing that would ever become ready.

    It never means that an epoch is over.
    """


class ClosedError(TrwError):
    """A sequence, an iterator or an executor was used after `close()`."""


class ExecutorError(TrwError):
    """The worker pool can not go on: its workers die while starting, or too many jobs failed."""


class FailedJobError(ExecutorError):
    """What the errors of one job have in common: which job it was, and where it ran.

    Attributes:
        ticket: number of the job in its executor.
        key: where the item stands at its source, a tuple of ints, or None outside a sequence.
        uid: the `sample_uid` of the item, or None if it has none.
        stage: name of the stage, or None.
        attempts: how often the job was tried, at least 1.
        pid: process that ran the last attempt, or None if unknown.
    """

    def __init__(
        self,
        message: str,
        *,
        ticket: int | None = None,
        key: tuple[int, ...] | None = None,
        uid: Any = None,
        stage: str | None = None,
        attempts: int = 1,
        pid: int | None = None,
    ) -> None:
        super().__init__(message)
        self.ticket = ticket
        self.key = key
        self.uid = uid
        self.stage = stage
        self.attempts = attempts
        self.pid = pid

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args[0]), dict(self.__dict__)


def _rebuild(kind: type[FailedJobError], message: str) -> FailedJobError:
    return kind(message)


class JobError(FailedJobError):
    """The mapped function raised, or returned None.

    `str()` holds the original message and the worker's whole traceback with every cause. `__cause__` is the original
    exception where it could be rebuilt in this process; an exception that can not be pickled leaves it None.
    """


class WorkerLostError(FailedJobError):
    """The job's worker died (killed, crashed, exited) at every allowed attempt at this job."""


class JobTimeoutError(FailedJobError):
    """The job took longer than `job_timeout_s`; its worker was ended and replaced, and the job was not tried again."""


class CodecError(FailedJobError):
    """An item can not be sent to a worker, or a result can not be sent back; the message names the part."""


class CheckpointError(TrwError):
    """A saved state does not fit what it is loaded into, or is damaged."""


class NonFiniteLossError(TrwError, FloatingPointError):
    """A loss that is trained on, or a weight, is NaN or infinite; the message says where, of which head and samples."""


class ExplanationError(TrwError, ValueError):
    """A way to explain does not fit the model: it has no convolution for Grad-CAM, no ReLU to be guided, no image."""


class MissingExtraError(TrwError, ImportError):
    """An optional library is missing.

    Args:
        feature: what was asked for.
        extra: the extra of this package that brings the library.
    """

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(f"{feature} needs an optional library: pip install 'trw_pipeline[{extra}]'")
        self.extra = extra
