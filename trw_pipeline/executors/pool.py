"""What every pool offers to the executor: it carries jobs and says what became of them; it keeps no order."""

from __future__ import annotations

import logging
import math
import operator
import os
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, SupportsIndex

from trw_pipeline.executors.codec import Codec, Frame
from trw_pipeline.executors.function import MappedFunction
from trw_pipeline.executors.protocol import Answer, Lost

logger = logging.getLogger(__name__)

MOST_WORKERS: float = 60 if sys.platform == "win32" else math.inf
"""Windows waits for at most 64 handles at once, of which some are needed for other things."""


@dataclass(frozen=True, slots=True)
class WorkerFigures:
    """What a worker has done.

    Attributes:
        pid: of the process, or None if it has not said hello yet.
        nb_jobs: answered.
        busy_s: seconds in jobs.
        idle_s: seconds since it was ready in which it was in none.
        ticket: of the job it is at, or None.
        age_s: seconds it has been at that.
        nb_waiting: jobs that wait at it.
    """

    pid: int | None
    nb_jobs: int
    busy_s: float
    idle_s: float
    ticket: int | None
    age_s: float
    nb_waiting: int


class WorkerPool(Protocol):
    """A job that was sent is answered once or reported lost once, until `close`.

    Attributes:
        items: encodes what goes to a worker.
        results: decodes what comes back.
        told: log records of workers, for `hand_on`, each with a ticket; whoever hands one on takes it out.
        is_waiting: nothing is half done, so that an exception which comes from outside now (a Ctrl-C) does no harm.
    """

    items: Codec
    results: Codec
    is_waiting: bool
    told: list[tuple[int, bytes]]

    @property
    def bytes_arena(self) -> int:
        """Bytes of results that came through shared memory."""
        ...

    @property
    def bytes_frames(self) -> int:
        """Bytes of results that came in messages."""
        ...

    @property
    def bytes_compressed(self) -> int:
        """Bytes of results that came compressed, either way."""
        ...

    @property
    def can_send(self) -> bool:
        """Whether a job sent now would be taken up; a pool without queues takes one at a time."""
        ...

    @property
    def has_idle(self) -> bool:
        """Whether a worker has no job."""
        ...

    @property
    def has_lost(self) -> bool:
        """Whether `lost` has news."""
        ...

    @property
    def must_end(self) -> bool:
        """Whether a close has been asked for: nothing may be begun any more."""
        ...

    @property
    def is_in_use(self) -> bool:
        """Whether a call that has not returned is at it, of another thread or further up in this one."""
        ...

    def held_open(self) -> AbstractContextManager[None]:
        """Keeps what `waitables` returns open, unless it `must_end` already. A `close` meanwhile makes it readable."""
        ...

    def set_function(self, function: MappedFunction) -> bool:
        """Sets what jobs run from now on; a worker process receives it only if it has changed.

        Returns:
            Whether jobs that were sent before run another one.

        Raises:
            CodecError: it can not be sent to a worker.
            ExecutorError: there is no worker, and its `worker_init` fails here.
        """
        ...

    def send(self, ticket: int, seed: bytes, frames: Sequence[Frame]) -> None:
        """Hands a job to a worker, at the latest when somebody waits. Never blocks."""
        ...

    def get_ready_to_wait(self) -> float | None:
        """Sends what is held back. Returns the seconds after which a `recv` is due whatever comes, or None."""
        ...

    def recv(self, timeout_s: float | None) -> list[Answer]:
        """Returns the answers that are here; none when `timeout_s` has passed (None waits) or `lost` has news.

        Raises:
            ExecutorError: the workers can not start.
        """
        ...

    def lost(self) -> list[Lost]:
        """Returns, once, the jobs whose worker died since the last call."""
        ...

    def cancel_below(self, ticket: int) -> None:
        """Gives up waiting jobs below `ticket`; running ones go on. Their answers mean nothing any more."""
        ...

    def waitables(self) -> list[Any]:
        """Returns the sockets and descriptors that become readable when `recv(0)` is worth a call."""
        ...

    def workers(self) -> list[WorkerFigures]:
        """Returns what each worker has done and is at."""
        ...

    def close(self, timeout_s: float) -> None:
        """Ends the workers, by force after `timeout_s`. Idempotent; from any thread or signal handler."""
        ...


def pool_size(nb_workers: int) -> int:
    """Returns `nb_workers`, or, with a warning, as many as the system allows.

    Raises:
        TypeError: it is not an int.
        ValueError: it is negative.
    """
    if isinstance(nb_workers, bool) or not isinstance(nb_workers, SupportsIndex):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"nb_workers must be an int or 'auto', got {nb_workers!r}")
    nb_workers = operator.index(nb_workers)
    if nb_workers < 0:
        raise ValueError(f"nb_workers must be at least 0, got {nb_workers}")
    if nb_workers > MOST_WORKERS:
        logger.warning(
            "%d workers were asked for, this system can wait for %.0f; so many are used", nb_workers, MOST_WORKERS
        )
    return int(min(nb_workers, MOST_WORKERS))


def bound(name: str, value: int | None, if_none: int, at_least: int = 0) -> int:
    """Returns `value`, or `if_none`.

    Raises:
        TypeError: it is neither an int nor None.
        ValueError: it is below `at_least`.
    """
    value = if_none if value is None else value
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"{name} must be an int or None, got {value!r}")
    if operator.index(value) < at_least:
        raise ValueError(f"{name} must be at least {at_least}, got {value}")
    return operator.index(value)


def seconds(name: str, value: float) -> float:
    """Returns `value`.

    Raises:
        TypeError: it is no number.
        ValueError: it is not above 0.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"{name} must be a number of seconds, got {value!r}")
    if not value > 0:
        raise ValueError(f"{name} must be above 0, got {value!r}")
    return value


def milliseconds(timeout_s: float | None) -> int | None:
    """Returns a timeout as ZeroMQ wants it; None waits. One that is longer than a day ends after a day."""
    return None if timeout_s is None else math.ceil(min(timeout_s, 86400.0) * 1000)


def in_owner(pid: int) -> bool:
    """Whether this is the process that made the object: a forked copy must leave its sockets and children alone."""
    return pid == os.getpid()
