"""What pool and workers say to each other: a small fixed head, then the frames of an object.

pool -> worker   FUNCTION            the mapped function (first message, and again when it changed)
                 JOB(ticket, seed)   one item
                 CANCEL(ticket)      give up every queued job below this ticket
                 STOP                end
worker -> pool   HELLO               connected; jobs may be sent
                 READY               the function is here and `worker_init` has run
                 RESULT(ticket)      the result of a job
                 FAILED(ticket)      an ErrorReport in its place
                 CANCELLED(ticket)   the job was given up
                 BROKEN              an ErrorReport: no job can run here; the worker ends
"""

from __future__ import annotations

import pickle
import struct
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from trw_pipeline.executors.codec import Frame, in_words


class Order(IntEnum):
    """What the pool sends."""

    FUNCTION = 0
    JOB = 1
    CANCEL = 2
    STOP = 3


class Reply(IntEnum):
    """What a worker sends."""

    HELLO = 0
    READY = 1
    RESULT = 2
    FAILED = 3
    CANCELLED = 4
    BROKEN = 5


ORDER_HEAD = struct.Struct("<BQ32s")  # order, ticket, seed of the job
REPLY_HEAD = struct.Struct("<BQId")  # reply, ticket, pid, seconds the job took


@dataclass(frozen=True, slots=True)
class Answer:
    """One reply of a worker."""

    reply: Reply
    ticket: int
    pid: int
    duration_s: float
    frames: Sequence[Frame]


@dataclass(frozen=True, slots=True)
class Lost:
    """A job whose worker died.

    Attributes:
        was_running: it may have been what killed the worker, which was at it.
        how: how the worker ended, in words.
        may_run_again: its item is still there. A thread has taken the item itself, not a copy.
    """

    ticket: int
    was_running: bool
    pid: int | None
    how: str
    may_run_again: bool = True


@dataclass(frozen=True, slots=True)
class ErrorReport:
    """A failure as it travels.

    Attributes:
        summary: the last line of the traceback, such as "ValueError: no such file".
        text: the whole traceback with its chain of causes.
        exception: the exception itself within one process; between processes its pickle, or None if it has none.
        of_codec: the result could not be encoded; the function itself went well.
    """

    summary: str
    text: str
    exception: BaseException | bytes | None
    of_codec: bool = False

    @classmethod
    def of(cls, error: BaseException, exception: BaseException | bytes | None, of_codec: bool = False) -> ErrorReport:
        """Describes `error`, leaving out our own frames above the mapped function.

        Never fails: of an exception that `traceback` can not format, the kind, message and frames are shown.
        """
        try:
            shown = error.with_traceback(_below_us(error))
            summary = "".join(traceback.format_exception_only(shown)).strip()
            text = "".join(traceback.format_exception(shown))
        except KeyboardInterrupt:
            raise
        except BaseException:  # noqa: BLE001 (attributes of the exception are code of the user)
            summary = in_words(error)
            text = "".join(["Traceback (most recent call last):\n", *traceback.format_tb(_below_us(error)), summary])
        return cls(summary, text, exception, of_codec)

    def cause(self) -> BaseException | None:
        """Returns the exception as it can be had here; None if there is none, or its class can not be made again."""
        if not isinstance(self.exception, bytes):
            return self.exception
        try:
            rebuilt: Any = pickle.loads(self.exception)
        except KeyboardInterrupt:
            raise
        except BaseException:  # noqa: BLE001 (the class may do what it likes; the text says what happened)
            return None
        return rebuilt if isinstance(rebuilt, BaseException) else None


def _below_us(error: BaseException) -> Any:
    """Returns the traceback from the first frame on that is not of this package's executors, or all of it."""
    here = __name__.rpartition(".")[0]
    step = error.__traceback__
    while step is not None and str(step.tb_frame.f_globals.get("__name__", "")).startswith(here):
        step = step.tb_next
    return step or error.__traceback__
