"""What pool and workers say to each other.

pool -> worker   FUNCTION            the mapped function (first message, and again when it changed)
                 JOB(ticket, seed)   one item, and a slot of shared memory for its result
                 CANCEL(ticket)      give up every queued job below this ticket
                 RECALL              give back those of the listed jobs that are still waiting, as CANCELLED
                 FORGET(offset)      the window of shared memory that began there is no more
                 LEAVE               end after the jobs that wait
                 LEVELS              of the loggers of the program, pickled
                 STOP                end
worker -> pool   HELLO(pid)          connected; jobs may be sent
                 READY               the function is here and `worker_init` has run
                 RESULT(ticket)      the result of a job
                 FAILED(ticket)      an ErrorReport in its place
                 CANCELLED(ticket)   the job was given up
                 LOG(ticket)         a log record, pickled; of no job without a ticket
                 LEFT(offset)        nobody sees the slot any more that a function had kept
                 BROKEN              an ErrorReport: no job can run here; the worker ends

A message is one blob, which carries the key of the session and then any number of records, and the large buffers of all
of them, those that do not lie in shared memory, as frames of their own:

    blob: key | number of frames | record | record ...     record: fixed part | head of the object | places
    frame, frame, ...                                              (ORDER or REPLY)           in shared memory
"""

from __future__ import annotations

import contextlib
import itertools
import pickle
import struct
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Any, NamedTuple

import zmq

from trw_pipeline.executors.codec import Frame, Place, Span, in_words

KEY_BYTES = 16
"""Of the key that each message of a session carries. One without it is dropped unread."""


class Order(IntEnum):
    """What the pool sends."""

    FUNCTION = 0
    JOB = 1
    CANCEL = 2
    STOP = 3
    FORGET = 4
    LEAVE = 5
    RECALL = 6
    LEVELS = 7


class Reply(IntEnum):
    """What a worker sends."""

    HELLO = 0
    READY = 1
    RESULT = 2
    FAILED = 3
    CANCELLED = 4
    BROKEN = 5
    LEFT = 6
    LOG = 7


ORDERS = tuple(Order)
REPLIES = tuple(Reply)
NO_SEED = bytes(32)

# order, buffers lie in shared memory, their number, bytes of the head, ticket, seed,
# offset and size of the item's slot, span of the slot for the result
ORDER = struct.Struct("<B?xxIQQ32s2Q4Q")
# reply, buffers lie in shared memory, the function keeps the slot, their number, bytes of the head, ticket, seconds the
# job took, seconds the worker had nothing to do before it, bytes that the slot should have had
REPLY = struct.Struct("<B??xIQQddQ")
_PLACE = struct.Struct("<QQ")
_RECORDS = KEY_BYTES + 4  # where they begin in a blob


class OrderRecord(NamedTuple):
    """One order, as a worker reads it.

    Attributes:
        frames: the head, and the buffers that came as frames; none where there is no object.
        item_slot: offset and size of the slot where the buffers lie otherwise, at `places`.
        result_slot: the slot for the result; its size is 0 where there is none.
    """

    order: Order
    ticket: int
    seed: bytes
    frames: Sequence[Frame]
    item_slot: tuple[int, int]
    places: Sequence[Place] | None
    result_slot: Span


class ReplyRecord(NamedTuple):
    """One reply, as the pool reads it.

    Attributes:
        frames: the head, and the buffers that came as frames; none where there is no object.
        places: where the buffers lie otherwise in the slot of the job.
        is_kept: the function goes on to see the slot.
        waited_s: before the job the worker had nothing to do for so long.
        wanted_bytes: what was made in the slot, and did not fit, would have taken; 0 if all did.
    """

    reply: Reply
    ticket: int
    duration_s: float
    frames: list[Frame]
    places: Sequence[Place] | None
    is_kept: bool
    waited_s: float
    wanted_bytes: int


# As their classes make them, at a third of the price.
_order_record: Callable[[Iterable[Any]], OrderRecord] = partial(tuple.__new__, OrderRecord)
_reply_record: Callable[[Iterable[Any]], ReplyRecord] = partial(tuple.__new__, ReplyRecord)


class Outbox:
    """Gathers records for one message.

    Args:
        key: of the session.
    """

    def __init__(self, key: bytes) -> None:
        self._parts: list[Frame] = []
        self._buffers: list[Frame] = []
        self._key = key
        self.nb_records = 0
        self.nb_bytes = 0

    def add(self, record: bytes, frames: Sequence[Frame] = (), places: Sequence[Place] | None = None) -> None:
        """Adds a record; `frames` are the head of its object and, where they have no `places`, the buffers."""
        parts = self._parts
        parts.append(record)
        self.nb_records += 1
        if not frames:
            self.nb_bytes += len(record)
            return
        parts.append(frames[0])
        self.nb_bytes += len(record) + len(frames[0])
        if places is not None:
            parts.extend(_PLACE.pack(begin, size) for begin, size in places)
        elif len(frames) > 1:
            self._buffers.extend(frames[1:])
            self.nb_bytes += sum(memoryview(frame).nbytes for frame in frames[1:])

    def take(self) -> list[Frame]:
        """Returns the message, and begins another one."""
        nb_frames = len(self._buffers).to_bytes(4, "little")
        message = [b"".join((self._key, nb_frames, *self._parts)), *self._buffers]
        self._parts, self._buffers = [], []
        self.nb_records = self.nb_bytes = 0
        return message


def tickets_frame(tickets: Sequence[int]) -> bytes:
    """Writes a list of tickets as the head of an order."""
    return struct.pack(f"<{len(tickets)}Q", *tickets)


def tickets_in(frames: Sequence[Frame]) -> set[int]:
    """Reads it."""
    return set(memoryview(frames[0]).cast("Q")) if frames else set()


def has_message(socket: zmq.Socket[bytes]) -> bool:
    """Whether a message is here. To try to receive one and fail takes four times as long."""
    return bool(zmq.zmq_poll([(socket, zmq.POLLIN)], 0))


def received(socket: zmq.Socket[bytes], key: bytes) -> list[Frame]:
    """Waits for a message, or what is left of it; returns an empty list for one that does not carry the key.

    The blob says how many frames follow: to ask ZeroMQ after each of them costs more than to receive it.
    """
    blob = socket.recv()
    if blob[:KEY_BYTES] == key:
        # Only the large buffers as frames, without a copy: an object of bytes is quicker to make, and a Ctrl-C that
        # comes while pyzmq frees a frame is lost.
        nb_frames = int.from_bytes(blob[KEY_BYTES:_RECORDS], "little")
        return [blob, *(socket.recv(copy=False) for _ in range(nb_frames))]
    while socket.rcvmore:
        socket.recv()
    return []


def orders_in(message: Sequence[Frame]) -> Iterator[OrderRecord]:
    """Reads a message of the pool."""
    blob, buffers = memoryview(message[0]), iter(message[1:])
    at = _RECORDS
    while at < len(blob):
        order, is_shared, nb, head_bytes, ticket, seed, item, item_size, *span = ORDER.unpack_from(blob, at)
        frames, places, at = _object_at(blob, at + ORDER.size, head_bytes, nb, is_shared, buffers)
        yield _order_record((ORDERS[order], ticket, seed, frames, (item, item_size), places, span))


def replies_in(message: Sequence[Frame]) -> Iterator[ReplyRecord]:
    """Reads a message of a worker."""
    blob, buffers = memoryview(message[0]), iter(message[1:])
    at = _RECORDS
    while at < len(blob):
        reply, is_shared, is_kept, nb, head_bytes, ticket, duration_s, waited_s, wanted = REPLY.unpack_from(blob, at)
        frames, places, at = _object_at(blob, at + REPLY.size, head_bytes, nb, is_shared, buffers)
        yield _reply_record((REPLIES[reply], ticket, duration_s, frames, places, is_kept, waited_s, wanted))


def _object_at(
    blob: memoryview, at: int, head_bytes: int, nb_buffers: int, is_shared: bool, buffers: Iterator[Frame]
) -> tuple[list[Frame], Sequence[Place] | None, int]:
    """Returns the frames of an object, or where they lie, and where the next record begins."""
    end = at + head_bytes
    frames: list[Frame] = [blob[at:end]] if head_bytes else []
    if nb_buffers == 0:
        return frames, None, end
    if not is_shared:
        return [*frames, *itertools.islice(buffers, nb_buffers)], None, end
    places_end = end + nb_buffers * _PLACE.size
    return frames, list(_PLACE.iter_unpack(blob[end:places_end])), places_end


@dataclass(slots=True)
class Answer:
    """What became of a job at a worker; `waited_s` before it the worker had nothing to do."""

    reply: Reply
    ticket: int
    pid: int | None
    duration_s: float
    frames: Sequence[Frame]
    waited_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Lost:
    """A job whose worker died.

    Attributes:
        was_running: it may have been what killed the worker, which was at it.
        how: how the worker ended, in words.
        may_run_again: its item is still there. A thread has taken the item itself, not a copy.
        ran_s: seconds the job had run when it was ended because it took too long, else None.
        was_next: the worker was at no job, and this was the next: to take it in may be what killed the worker.
    """

    ticket: int
    was_running: bool
    pid: int | None
    how: str
    may_run_again: bool = True
    ran_s: float | None = None
    was_next: bool = False


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
        # The frames of the traceback that comes with it remember who called, with all that those have: nobody here.
        made: list[Any] = []
        maker = threading.Thread(target=_make_again, args=(self.exception, made), name="exception")
        maker.start()
        maker.join()
        return made[0] if made and isinstance(made[0], BaseException) else None


def _make_again(pickled: bytes, made: list[Any]) -> None:
    with contextlib.suppress(BaseException):  # the class may do what it likes; the text says what happened
        made.append(pickle.loads(pickled))


def _below_us(error: BaseException) -> Any:
    """Returns the traceback from the first frame on that is not of this package's executors, or all of it."""
    here = __name__.rpartition(".")[0]
    step = error.__traceback__
    while step is not None and str(step.tb_frame.f_globals.get("__name__", "")).startswith(here):
        step = step.tb_next
    return step or error.__traceback__
