"""Log records and warnings of worker processes, which reach the handlers of the program.

    worker:  logging, warnings ──▶ WorkerLog ── LOG, before the answer of the job ──▶  program:  hand_on ──▶ handlers

A worker writes nothing by itself: its root logger has this one handler, also where it was forked from a program that
had others. Each logger has the level that it has in the program, so what nobody wants is not sent. A warning is a
record of the logger "py.warnings", as `logging.captureWarnings` makes it; whether it is shown, and how often, the
filters of the worker decide, each for itself. Threads log natively.

A record travels as text, so that it can always travel, and at once, so that a worker that dies has said what it had to
say up to the last moments.
"""

from __future__ import annotations

import logging
import os
import pickle
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from trw_pipeline.executors.job import Job, plain_uid
from trw_pipeline.executors.reply_box import ReplyBox
from trw_pipeline.executors.slate import Slate
from trw_pipeline.typing import Key

logger = logging.getLogger(__name__)

MOST_RECORDS = 1000
"""Of one job; what it logs beyond that is counted."""

MOST_CHARACTERS = 10_000
"""Of one text; what is more is cut off."""

NO_TICKET = (1 << 64) - 1
"""Of what is logged between jobs."""

_PLAIN = (int, float, bool, type(None))
_REPLACED = ("args", "exc_info", "msg", "message", "relativeCreated")


class Levels(NamedTuple):
    """What the program wants to hear.

    Attributes:
        disabled: `logging.disable`.
        root: level of the root logger.
        others: of each logger that has a level of its own.
    """

    disabled: int
    root: int
    others: dict[str, int]

    @classmethod
    def now(cls) -> Levels:
        """Returns those of this process."""
        return cls(logging.root.manager.disable, logging.root.level, dict(_own_levels()))

    def apply(self) -> None:
        """Sets the levels of this process."""
        logging.disable(self.disabled)
        logging.root.setLevel(self.root)
        for name in [name for name, _ in _own_levels() if name not in self.others]:
            logging.getLogger(name).setLevel(logging.NOTSET)
        for name, level in self.others.items():
            logging.getLogger(name).setLevel(level)


def _own_levels() -> Iterator[tuple[str, int]]:
    for name, one in list(logging.root.manager.loggerDict.items()):
        if isinstance(one, logging.Logger) and one.level != logging.NOTSET:
            yield name, one.level


class WorkerLog(logging.Handler):
    """Sends what is logged in this process to the program.

    Only the thread that serves may send: another one would use the socket at the same time. What others log goes with
    the next record or answer of that thread.

    Args:
        box: the way out.
        slate: what the worker is at.
        name: of the worker.
        sample: returns key and uid of the item at hand, where several travelled as one job.

    Attributes:
        is_behind: there is something to send.
    """

    def __init__(self, box: ReplyBox, slate: Slate, name: str, sample: Callable[[], tuple[Key, Any] | None]) -> None:
        super().__init__()
        self._box = box
        self._slate = slate
        self._name = name
        self._sample = sample
        self._pid = os.getpid()
        self._thread = threading.get_ident()
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._ticket = NO_TICKET
        self._nb = 0
        self.is_behind = False

    def install(self) -> None:
        """Becomes the only handler of this process."""
        for one in [logging.root, *logging.root.manager.loggerDict.values()]:
            if isinstance(one, logging.Logger):
                one.handlers.clear()
                one.propagate = True
        logging.root.addHandler(self)
        logging.captureWarnings(False)  # whatever was in force when this process was forked
        logging.captureWarnings(True)

    def emit(self, record: logging.LogRecord) -> None:
        """Sends a record, or counts it where its job has logged too many."""
        if os.getpid() != self._pid:  # the job forked, and the socket is not the copy's
            if logging.lastResort is not None:
                logging.lastResort.handle(record)
            return
        at = self._slate.read()
        ticket = NO_TICKET if at is None else at.ticket
        if ticket != self._ticket:
            self._note_left_out()
            self._ticket, self._nb = ticket, 0
        self._nb += 1
        self.is_behind = True
        if self._nb > MOST_RECORDS:
            return
        try:
            self._add(record)
        except Exception:  # noqa: BLE001 (a record that can not even be written: logging tells so itself)
            self.handleError(record)
            return
        if threading.get_ident() == self._thread:
            self._send(wait=False)

    def catch_up(self) -> None:
        """Sends what could not be sent before, and how much was left out; called by the thread that serves."""
        self.acquire()
        try:
            self._note_left_out()
            self.is_behind = False
        finally:
            self.release()
        self._send(wait=True)  # without that lock, which somebody may want who holds the one that is waited for

    def _note_left_out(self) -> None:
        nb, self._nb = self._nb - MOST_RECORDS, min(self._nb, MOST_RECORDS)
        if nb > 0:
            text = f"{nb} more log records of this job were left out, after its first {MOST_RECORDS}"
            self._add(logger.makeRecord(logger.name, logging.WARNING, __file__, 0, text, (), None))

    def _add(self, record: logging.LogRecord) -> None:
        words: dict[str, Any] = {
            "msg": _cut(record.getMessage()),
            "args": None,
            "exc_info": None,
            "processName": self._name,
        }
        if record.exc_info and not record.exc_text:
            words["exc_text"] = _cut(logging.Formatter().formatException(record.exc_info))
        sample = self._sample()
        if sample is not None:
            words["sample_key"], words["sample_uid"] = sample[0], plain_uid(sample[1])
        attributes = {name: _plain(value) for name, value in record.__dict__.items() if name not in _REPLACED}
        self._waiting.append((self._ticket, pickle.dumps({**attributes, **words})))

    def _send(self, wait: bool) -> None:
        while self._waiting and self._box.tell(*self._waiting[0], wait=wait):
            self._waiting.popleft()


def hand_on(told: list[tuple[int, bytes]], stage: str, job_of: Callable[[int], Job | None]) -> None:
    """Gives records of workers to the handlers here, if their levels are wanted here (by now).

    They have the worker's `process` and `processName`, and moreover `stage`, `sample_key` and `sample_uid`; the last
    two are None where no job was at work.

    Args:
        told: tickets, and records as they travelled; each is taken out before a handler, which may raise, has it.
        stage: that the workers are of.
        job_of: returns the job of a ticket, as far as it is known.
    """
    while told:
        ticket, attributes = told.pop(0)
        _handle(attributes, stage, job_of(ticket))


def _handle(attributes: bytes, stage: str, job: Job | None) -> None:
    record = logging.makeLogRecord(pickle.loads(attributes))
    words = record.__dict__
    words.setdefault("stage", stage)
    words.setdefault("sample_key", None if job is None else job.key)
    words.setdefault("sample_uid", None if job is None else plain_uid(job.uid))
    target = logging.getLogger(record.name)
    if target.isEnabledFor(record.levelno):
        target.handle(record)


def _plain(value: Any) -> Any:
    """Returns what can be read anywhere: of anything but numbers and short texts, the text."""
    if type(value) in _PLAIN:
        return value
    try:
        return _cut(value if isinstance(value, str) else repr(value))
    except Exception:  # noqa: BLE001 (its __repr__ may raise anything)
        return f"<{type(value).__name__}>"


def _cut(text: str) -> str:
    more = len(text) - MOST_CHARACTERS
    return text[:MOST_CHARACTERS] + (f"... ({more} more characters)" if more > 0 else "")
