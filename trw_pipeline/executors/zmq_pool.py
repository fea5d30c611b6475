"""Workers in threads or processes, driven over ZeroMQ by whoever waits for a result.

    executor ──send──▶ ┌────────────┐  ROUTER        DEALER  ┌──────────┐
             ◀─recv──  │  ZmqPool   │ ────────────────────── │ worker 0 │
                       │ jobs of    │        ...             ├──────────┤
                       │ each worker│ ────────────────────── │ worker 1 │
                       └────────────┘                        └──────────┘

The pool chooses the worker of every job, so it knows who holds which ticket: when a worker's sentinel becomes readable,
its answers that already arrived are taken in, its other tickets are reported lost, and a new worker takes its place.
Sockets and sentinels stand in one poller; nothing runs in the background of the main process.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import math
import signal
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import zmq

from trw_pipeline.errors import ExecutorError
from trw_pipeline.executors.closing import ClosableInUse
from trw_pipeline.executors.codec import Codec, Frame, ReferenceCodec
from trw_pipeline.executors.door import Door, Transport, open_door
from trw_pipeline.executors.function import MappedFunction
from trw_pipeline.executors.pickle_codec import PickleCodec
from trw_pipeline.executors.protocol import ORDER_HEAD, REPLY_HEAD, Answer, ErrorReport, Lost, Order, Reply
from trw_pipeline.executors.slate import read_slate
from trw_pipeline.executors.start import WorkerProcess
from trw_pipeline.executors.worker import Worker
from trw_pipeline.executors.worker_thread import WorkerThread
from trw_pipeline.typing import StartMethod

logger = logging.getLogger(__name__)

MAX_STARTS_IN_VAIN = 3
"""So many workers in a row that die before they are ready break the pool: the next one would die too."""

LOOK_FOR_DEATHS_S = 0.1
"""So often sentinels are looked at while answers come without a pause; otherwise the wait for answers watches them."""

_NO_SEED = bytes(32)


class _Seat:
    """A worker's place in the pool: what was sent to it, and, until it says hello, what is to be sent."""

    def __init__(self, number: int) -> None:
        self.identity = number.to_bytes(4, "big")
        self.held: dict[int, None] = {}  # tickets in the order they were sent
        self.outbox: list[Sequence[Frame]] | None = []  # None once the worker is connected
        self.ready = False
        self.pid: int | None = None
        self.process: WorkerProcess | None = None
        self.thread: WorkerThread | None = None
        self.at: int | None = None  # of a thread: the job it is at. A process has a slate

    def note(self, ticket: int | None) -> None:
        """Is told by a thread what it is at."""
        self.at = ticket

    @property
    def sentinel(self) -> int:
        worker = self.process or self.thread
        assert worker is not None, "a seat is taken before anybody looks"
        return worker.sentinel


class ZmqPool(ClosableInUse):
    """A pool of `nb_workers` threads (`start_method=None`) or processes.

    Args:
        nb_workers: at least 1.
        start_method: how processes start, or None for threads.
        threads_per_worker: threads of BLAS, OpenMP and torch in each worker process.
        name: shown by `ps` and in thread dumps.
        channels: the workers' ends of the two pipes for `worker_post_process_results_fun`.
        transport: how processes are reached; by default ipc where this build of ZeroMQ has it.

    Raises:
        ExecutorError: the system can not start a worker, or there is no folder for the socket.
    """

    def __init__(
        self,
        nb_workers: int,
        start_method: StartMethod | None,
        threads_per_worker: int = 1,
        name: str = "map",
        channels: tuple[Any, Any] = (None, None),
        transport: Transport | None = None,
    ) -> None:
        super().__init__(f"the workers of {name!r}")
        self.items: Codec = ReferenceCodec() if start_method is None else PickleCodec("item")
        self.results: Codec = ReferenceCodec() if start_method is None else PickleCodec("result")
        self.is_waiting = False
        self._start_method: StartMethod | None = start_method
        self._threads_per_worker = threads_per_worker
        self._name = name
        self._channels = channels
        self._numbers = itertools.count()
        self._function_frames: Sequence[Frame] | None = None
        self._function: MappedFunction | None = None
        self._starts_in_vain = 0
        self._arrived: deque[Answer] = deque()
        self._lost: list[Lost] = []
        self._look_again = 0.0  # when sentinels are looked at though answers are waiting, by time.monotonic()
        self._seats: dict[bytes, _Seat] = {}
        self._door: Door | None = None
        # Threads share a context, since one that is stuck in a job can not be made to leave its own.
        self._context = _context_of_threads(self._owner) if start_method is None else zmq.Context[Any]()
        self._socket = self._context.socket(zmq.ROUTER)
        try:
            between_processes: Transport = transport or ("ipc" if zmq.has("ipc") else "tcp")
            self._door = open_door(self._socket, "inproc" if start_method is None else between_processes)
            for _ in range(nb_workers):
                self._hire()
        except BaseException:
            self.close(0)
            raise

    # Workers in

    def _hire(self) -> None:
        assert self._door is not None, "the door is open from the start"
        number = next(self._numbers)
        seat = _Seat(number)
        name = f"trw-{self._name}-{number}"
        if self._start_method is None:
            dealer = self._door.connect(self._context, seat.identity)
            worker = Worker(dealer, self.items, self.results, self._channels, own_process=False, note=seat.note)
            seat.thread = WorkerThread(worker, name)
        else:
            self._door.check()
            arguments = (self._door, seat.identity, self._threads_per_worker, self._channels)
            seat.process = WorkerProcess(self._start_method, name, arguments)
            seat.pid = seat.process.pid
        self._seats[seat.identity] = seat
        if self._function is not None:
            self._send_function(seat)

    # Sending

    @property
    def can_send(self) -> bool:
        """Always: jobs wait at their worker."""
        return True

    def set_function(self, function: MappedFunction) -> None:
        """Sends the function to every worker, if it is not the one that they have."""
        self._function = function
        if self._start_method is not None:
            # Compared as it travels, so that a transform changed between two epochs is never silently the old one.
            frames = [bytes(frame) for frame in PickleCodec("function_to_run").encode(function)]
            if frames == self._function_frames:
                return
            self._function_frames = frames
        with self.using():
            for seat in self._seats.values():
                self._send_function(seat)

    def _send_function(self, seat: _Seat) -> None:
        # By reference, each decode consumes what was encoded; as frames, the same ones go to every worker.
        frames = self._function_frames or self.items.encode(self._function)
        self._post(seat, [ORDER_HEAD.pack(Order.FUNCTION, 0, _NO_SEED), *frames])

    def send(self, ticket: int, seed: bytes, frames: Sequence[Frame]) -> None:
        """Hands the job to the worker that holds the fewest."""
        with self.using():
            seat = min(self._seats.values(), key=lambda seat: len(seat.held))
            seat.held[ticket] = None
            self._post(seat, [ORDER_HEAD.pack(Order.JOB, ticket, seed), *frames])

    def cancel_below(self, ticket: int) -> None:
        """Tells every worker that holds a job below `ticket` to give it up if it is still waiting."""
        with self.using():
            for seat in self._seats.values():
                if any(held < ticket for held in seat.held):
                    self._post(seat, [ORDER_HEAD.pack(Order.CANCEL, ticket, _NO_SEED)])

    def _post(self, seat: _Seat, message: Sequence[Frame]) -> None:
        if seat.outbox is not None:
            seat.outbox.append(message)
            return
        try:
            self._socket.send_multipart([seat.identity, *message], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            # The worker is gone; its sentinel says so to the next recv, which reports what it held.
            if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                raise

    # Receiving

    def recv(self, timeout_s: float | None) -> Answer | None:
        """Returns the next answer. Deaths are looked for whenever no answer is waiting."""
        with self.using():
            return self._next_answer(timeout_s)

    def _next_answer(self, timeout_s: float | None) -> Answer | None:
        now = time.monotonic()
        deadline = None if timeout_s is None else now + timeout_s
        self.is_waiting = False
        while True:
            self._read()
            if self._arrived and now < self._look_again:
                return self._arrived.popleft()
            events = self._poll(0 if self._arrived else None if deadline is None else max(0.0, deadline - now))
            if self.must_end:
                return None
            for seat in [seat for seat in self._seats.values() if seat.sentinel in events]:
                self._bury(seat)
            if self._arrived or self._lost or not events:
                return self._arrived.popleft() if self._arrived else None
            now = time.monotonic()

    def _poll(self, timeout_s: float | None) -> dict[Any, int]:
        poller = zmq.Poller()
        for waitable in self.waitables():
            poller.register(waitable, zmq.POLLIN)
        self.is_waiting = True
        events = poller.poll(None if timeout_s is None else math.ceil(timeout_s * 1000))
        self.is_waiting = False
        self._look_again = time.monotonic() + LOOK_FOR_DEATHS_S
        return dict(events)

    def waitables(self) -> list[Any]:
        """Returns the socket of all answers, the bell, and the sentinel of every worker."""
        return [self._socket, self.bell.fileno(), *(seat.sentinel for seat in self._seats.values())]

    def _read(self) -> None:
        """Takes in every message that is here."""
        with contextlib.suppress(zmq.Again):
            while True:
                seat = self._seats.get(self._socket.recv(zmq.NOBLOCK))
                reply, ticket, pid, duration_s = REPLY_HEAD.unpack(self._socket.recv())
                frames: list[Frame] = []
                while self._socket.rcvmore:
                    # Only the large buffers as frames, without a copy: an object of bytes is quicker to make, and a
                    # Ctrl-C that comes while pyzmq frees a frame is lost.
                    frames.append(self._socket.recv(copy=not frames))
                if seat is not None:  # else of a worker that was buried: what it held has been reported lost
                    self._take(seat, Answer(Reply(reply), ticket, pid, duration_s, frames))

    def _take(self, seat: _Seat, answer: Answer) -> None:
        if answer.reply is Reply.HELLO:
            seat.pid = answer.pid
            outbox, seat.outbox = seat.outbox or [], None
            for message in outbox:
                self._post(seat, message)
        elif answer.reply is Reply.READY:
            seat.ready = True
            self._starts_in_vain = 0
        elif answer.reply is Reply.BROKEN:
            report: ErrorReport = self.results.decode(answer.frames)
            raise ExecutorError(
                f"the workers of {self._name!r} can not start: {report.summary}\n\n"
                f"Traceback of the worker (pid {answer.pid}):\n{report.text}"
            )
        else:
            seat.held.pop(answer.ticket, None)
            self._arrived.append(answer)

    def _bury(self, seat: _Seat) -> None:
        """Reports what a dead worker held, and replaces it."""
        assert self._door is not None, "the door is open from the start"
        self._read()
        del self._seats[seat.identity]
        if seat.thread is not None:
            seat.thread.end()
            how, ticket = seat.thread.how_it_ended, seat.at
        else:
            assert seat.process is not None, "a worker is a thread or a process"
            how, ticket = _how_it_ended(seat.process.end()), read_slate(self._door.slate_path(seat.identity))
        logger.warning("worker %s of %r %s while it held %d jobs", seat.pid, self._name, how, len(seat.held))
        was_ready = seat.ready or ticket is not None
        # Where it was at none of them (between two, or at one whose answer has come), the oldest counts an attempt:
        # without one, a job that kills its worker a moment later would be tried for ever.
        at = ticket if ticket in seat.held else next(iter(seat.held), None)
        for held in seat.held:
            has_item = seat.thread is None or held != ticket
            self._lost.append(Lost(held, was_ready and held == at, seat.pid, how, may_run_again=has_item))
        if not was_ready:
            self._starts_in_vain += 1
            if self._starts_in_vain >= MAX_STARTS_IN_VAIN:
                raise ExecutorError(
                    f"{self._starts_in_vain} workers of {self._name!r} in a row {how} before they were ready"
                )
        self._hire()

    def lost(self) -> list[Lost]:
        """Returns the jobs lost since the last call."""
        lost, self._lost = self._lost, []
        return lost

    # Closing

    def _end(self, timeout_s: float) -> None:
        """Asks every worker to stop, kills those that do not within `timeout_s`, and removes the endpoint.

        A thread can not be killed: one that is still busy ends after its job, and does not keep the program alive.
        """
        processes = [seat.process for seat in self._seats.values() if seat.process is not None]
        try:
            self._ask_to_stop(timeout_s)
        finally:
            for process in processes:
                process.kill()
            for process in processes:
                process.end()
            for seat in self._seats.values():
                if seat.thread is not None:
                    seat.thread.end()
            self._socket.close(linger=0)
            if self._start_method is not None:
                self._context.term()
            self.items.close()
            self.results.close()
            if self._door is not None:
                self._door.remove()

    def _ask_to_stop(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        for seat in self._seats.values():
            self._post(seat, [ORDER_HEAD.pack(Order.STOP, 0, _NO_SEED)])
        for seat in self._seats.values():
            if seat.thread is not None:
                self._flush(seat)
                seat.thread.wait(max(0.0, deadline - time.monotonic()))
            elif seat.process is not None and seat.outbox is None:
                seat.process.wait(max(0.0, deadline - time.monotonic()))

    def _flush(self, seat: _Seat) -> None:
        """Lets a thread that has not said hello yet hear that it should stop."""
        with contextlib.suppress(ExecutorError):  # that it can not start does not matter any more
            while seat.outbox is not None and self._socket.poll(1000):
                self._read()


@functools.cache
def _context_of_threads(pid: int) -> zmq.Context[Any]:
    """Returns the context of the thread pools of a process. ZeroMQ's shared one may be terminated by the program."""
    del pid
    return zmq.Context()


def _how_it_ended(exitcode: int | None) -> str:
    if exitcode is None or exitcode >= 0:
        return f"ended with exit code {exitcode}"
    name = signal.Signals(-exitcode).name if -exitcode in set(signal.Signals) else f"signal {-exitcode}"
    hint = " (often the out-of-memory killer)" if name == "SIGKILL" else ""
    return f"was ended by {name}{hint}"
