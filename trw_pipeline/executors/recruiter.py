"""Gives a pool its socket and its workers: threads, or processes with shared memory."""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import os
from typing import Any, Protocol

import zmq

from trw_pipeline.errors import ExecutorError
from trw_pipeline.executors.arena import Arena, ArenaCodec, usual_max_bytes
from trw_pipeline.executors.blosc_codec import with_compression
from trw_pipeline.executors.codec import Codec, ReferenceCodec
from trw_pipeline.executors.door import Door, open_door
from trw_pipeline.executors.interrupts import signals_held
from trw_pipeline.executors.pickle_codec import PickleCodec
from trw_pipeline.executors.result_room import ResultRoom
from trw_pipeline.executors.result_slot import ArenaFile
from trw_pipeline.executors.seat import Seat
from trw_pipeline.executors.slate import Slate
from trw_pipeline.executors.start import WorkerProcess
from trw_pipeline.executors.worker import Worker
from trw_pipeline.executors.worker_main import WorkerSetup
from trw_pipeline.executors.worker_options import PoolOptions
from trw_pipeline.executors.worker_thread import WorkerThread
from trw_pipeline.typing import StartMethod

logger = logging.getLogger(__name__)

OPENING_DESCRIPTORS = 16
"""So many are to be free for a pool of processes: a memory, the socket with its context, a bell, and some to spare."""

SPARE_DESCRIPTORS = 8
"""So many are to be free for a worker that starts, and some more for those that started just before."""


class Recruiter(Protocol):
    """Seats workers of one kind.

    Attributes:
        socket: a ROUTER to which all of them connect.
        door: how they do.
        items: encodes what goes to a worker.
        results: decodes what comes back.
        room: where results may lie.
    """

    socket: zmq.Socket[bytes]
    door: Door
    items: Codec
    results: Codec
    room: ResultRoom

    def hire(self, before: Seat | None) -> Seat:
        """Starts a worker; it takes over the slots of the one that was there before.

        Raises:
            ExecutorError: the system can not.
        """
        ...

    def dismiss(self, seat: Seat) -> None:
        """Removes what a worker that has ended has left."""
        ...

    def close(self) -> None:
        """Frees the socket and all else. The workers have ended."""
        ...


class ThreadRecruiter:
    """Seats threads, which take and give objects by reference."""

    def __init__(self, options: PoolOptions) -> None:
        self.items: Codec = ReferenceCodec()
        self.results: Codec = ReferenceCodec()
        self.room = ResultRoom(None)
        self._options = options
        self._numbers = itertools.count()
        # A context for all threads: one that is stuck in a job can not be made to leave a context of its own.
        self._context = _context_of_threads(os.getpid())
        self.socket = self._context.socket(zmq.ROUTER)
        self.door = open_door(self.socket, "inproc")

    def hire(self, before: Seat | None) -> Seat:
        """Starts a thread."""
        del before
        seat = Seat(next(self._numbers), self.door.key, Slate.in_memory(), None)
        worker = Worker(
            self.door.connect(self._context, seat.identity),
            self.door.key,
            self.items,
            self.results,
            self._options.channels,
            own_process=False,
            slate=seat.slate,
        )
        seat.thread = WorkerThread(worker, f"trw-{self._options.name}-{int.from_bytes(seat.identity, 'big')}")
        return seat

    def dismiss(self, seat: Seat) -> None:
        """Nothing is left of a thread."""

    def close(self) -> None:
        """Closes the socket."""
        self.socket.close(linger=0)
        self.items.close()
        self.results.close()


class ProcessRecruiter:
    """Seats processes, which take and give frames, large ones through an arena."""

    def __init__(self, options: PoolOptions, start_method: StartMethod) -> None:
        _check_descriptors(OPENING_DESCRIPTORS)
        self._options = options
        self._start_method: StartMethod = start_method
        self._numbers = itertools.count()
        with contextlib.ExitStack() as opened:
            arena = _arena(options.max_arena_bytes)
            if arena is not None:
                opened.callback(arena.close)
            self.room = ResultRoom(arena)
            items = with_compression(PickleCodec("item", by_file=True), options.compression)
            self.items: Codec = items if arena is None else ArenaCodec(items, arena)
            self.results = with_compression(PickleCodec("result"), options.compression)
            context: zmq.Context[Any] = zmq.Context()
            opened.callback(_terminate, context)
            self.socket = context.socket(zmq.ROUTER)
            opened.callback(self.socket.close, linger=0)
            self.door = open_door(self.socket, options.transport or ("ipc" if zmq.has("ipc") else "tcp"))
            self._opened = opened.pop_all()

    def hire(self, before: Seat | None) -> Seat:
        """Starts a process."""
        self.door.check()
        number, options, arena = next(self._numbers), self._options, self.room.arena
        _check_descriptors(SPARE_DESCRIPTORS + min(number, SPARE_DESCRIPTORS))
        name = f"trw-{options.name}-{number}"
        shelf = self.room.new_shelf() if before is None else before.shelf
        seat = Seat(number, self.door.key, self.door.slate(number.to_bytes(4, "big")), shelf)
        setup = WorkerSetup(
            self.door,
            name,
            options.threads_per_worker,
            options.niceness,
            options.channels,
            None if arena is None else ArenaFile(arena.fd),
            options.compression,
        )
        try:
            seat.process = WorkerProcess(self._start_method, name, (setup, seat.identity), options.preload)
        except BaseException:
            self.dismiss(seat)
            raise
        seat.pid = seat.process.pid
        return seat

    def dismiss(self, seat: Seat) -> None:
        """Removes the slate of a process."""
        seat.slate.close()
        with contextlib.suppress(OSError):  # the folder has been removed
            os.remove(self.door.slate_path(seat.identity))

    def close(self) -> None:
        """Closes the socket, and removes its folder."""
        self._opened.close()
        self.items.close()
        self.results.close()
        self.door.remove()


def _terminate(context: zmq.Context[Any]) -> None:
    with signals_held():  # a context whose end is interrupted is forgotten by pyzmq, with its descriptors
        context.term()


def _check_descriptors(nb: int) -> None:
    """Makes sure that so many are free: ZeroMQ ends the program if there is none when a worker connects.

    Raises:
        ExecutorError: they are not.
    """
    opened: list[int] = []
    try:
        for _ in range(nb):
            opened.append(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        raise ExecutorError(f"no new worker can join, it needs file descriptors (ulimit -n): {error}") from error
    finally:
        for fd in opened:
            os.close(fd)


@functools.cache
def _context_of_threads(pid: int) -> zmq.Context[Any]:
    """Returns the context of the thread pools of a process. ZeroMQ's shared one may be terminated by the program."""
    del pid
    return zmq.Context()


def _arena(max_bytes: int | None) -> Arena | None:
    """Makes shared memory; None where there is none, or none is wanted."""
    if max_bytes == 0:
        return None
    try:
        return Arena(usual_max_bytes() if max_bytes is None else max_bytes)
    except OSError as error:
        logger.info("no shared memory, large buffers travel in messages: %s", error)
        return None
