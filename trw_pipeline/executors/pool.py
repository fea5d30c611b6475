"""What every pool offers to the executor: it carries jobs and says what became of them; it keeps no order."""

from __future__ import annotations

import operator
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, SupportsIndex

from trw_pipeline.executors.codec import Codec, Frame
from trw_pipeline.executors.function import MappedFunction
from trw_pipeline.executors.protocol import Answer, Lost


class WorkerPool(Protocol):
    """A job that was sent is answered once or reported lost once, until `close`.

    Attributes:
        items: encodes what goes to a worker.
        results: decodes what comes back.
        is_waiting: nothing is half done, so that an exception which comes from outside now (a Ctrl-C) does no harm.
    """

    items: Codec
    results: Codec
    is_waiting: bool

    @property
    def can_send(self) -> bool:
        """Whether a job sent now would be taken up; a pool without queues takes one at a time."""
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

    def set_function(self, function: MappedFunction) -> None:
        """Sets what jobs run from now on; a worker process receives it only if it has changed.

        Raises:
            CodecError: it can not be sent to a worker.
            ExecutorError: there is no worker, and its `worker_init` fails here.
        """
        ...

    def send(self, ticket: int, seed: bytes, frames: Sequence[Frame]) -> None:
        """Hands a job to a worker. Never blocks."""
        ...

    def recv(self, timeout_s: float | None) -> Answer | None:
        """Returns one answer, or None when `timeout_s` has passed (None waits) or `lost` has news.

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

    def close(self, timeout_s: float) -> None:
        """Ends the workers, by force after `timeout_s`. Idempotent; from any thread or signal handler."""
        ...


def pool_size(nb_workers: int) -> int:
    """Returns `nb_workers`.

    Raises:
        TypeError: it is not an int.
        ValueError: it is negative.
    """
    if isinstance(nb_workers, bool) or not isinstance(nb_workers, SupportsIndex):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"nb_workers must be an int, got {nb_workers!r}")
    if operator.index(nb_workers) < 0:
        raise ValueError(f"nb_workers must be at least 0, got {nb_workers}")
    return operator.index(nb_workers)


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


def in_owner(pid: int) -> bool:
    """Whether this is the process that made the object: a forked copy must leave its sockets and children alone."""
    return pid == os.getpid()
