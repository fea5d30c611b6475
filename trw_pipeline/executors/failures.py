"""What is done about failed jobs: raised, or recorded up to a limit."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from trw_pipeline.errors import ExecutorError, FailedJobError
from trw_pipeline.typing import Key

logger = logging.getLogger(__name__)

OnError: TypeAlias = Literal["raise", "skip", "return"]
NAMED_AT_MOST = 10
"""So many samples are named in a message; `failures` holds all of them."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed sample.

    Attributes:
        stage: name of the stage, or None.
        key: where the item stands at its source, or None outside a sequence.
        uid: its `sample_uid`, or None.
        error: a JobError, WorkerLostError or CodecError with the remote traceback.
        attempts: how often it was tried.
    """

    stage: str | None
    key: Key | None
    uid: Any
    error: FailedJobError
    attempts: int

    def __str__(self) -> str:
        return str(self.error).partition("\n")[0]  # which names the sample


class FailureLog:
    """The failed samples of one epoch.

    Args:
        on_error: "raise", "skip", or "return", which records nothing.
        max_failures: with "skip", how many may fail: an int is a count, a float in [0, 1] a share of all jobs, which is
            judged at the end of the epoch. None is no limit.

    Raises:
        ValueError: an unknown `on_error`, or a negative or too large `max_failures`.
        TypeError: `max_failures` is no number.
    """

    def __init__(self, on_error: OnError, max_failures: int | float | None) -> None:
        if on_error not in ("raise", "skip", "return"):
            raise ValueError(f"on_error must be 'raise', 'skip' or 'return', got {on_error!r}")
        if max_failures is not None:
            if isinstance(max_failures, bool) or not isinstance(max_failures, (int, float)):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise TypeError(f"max_failures must be a count, a share or None, got {max_failures!r}")
            if not 0 <= max_failures <= (math.inf if isinstance(max_failures, int) else 1.0):
                raise ValueError(f"max_failures must be a count or a share in [0, 1], got {max_failures!r}")
        self.on_error: OnError = on_error
        self.max_failures = max_failures
        self.failures: list[Failure] = []

    def add(self, error: FailedJobError) -> None:
        """Raises the error or records it, as `on_error` says.

        Raises:
            FailedJobError: `on_error` is "raise".
            ExecutorError: this failure is one more than `max_failures` allows.
        """
        if self.on_error == "raise":
            raise error
        self.failures.append(Failure(error.stage, error.key, error.uid, error, error.attempts))
        if isinstance(self.max_failures, int) and len(self.failures) > self.max_failures:
            raise ExecutorError(f"more than max_failures={self.max_failures} jobs failed: {self._named()}") from error

    def finish(self, nb_jobs: int) -> None:
        """Ends the epoch: names what was skipped in one warning, and judges the share.

        Raises:
            ExecutorError: a larger share than `max_failures` failed.
        """
        if not self.failures:
            return
        logger.warning("skipped %d of %d jobs: %s", len(self.failures), nb_jobs, self._named())
        if isinstance(self.max_failures, float) and len(self.failures) > self.max_failures * nb_jobs:
            raise ExecutorError(
                f"{len(self.failures)} of {nb_jobs} jobs failed, more than max_failures={self.max_failures}: "
                f"{self._named()}"
            ) from self.failures[-1].error

    def _named(self) -> str:
        named = "; ".join(str(failure) for failure in self.failures[:NAMED_AT_MOST])
        more = len(self.failures) - NAMED_AT_MOST
        return named + (f"; and {more} more" if more > 0 else "")
