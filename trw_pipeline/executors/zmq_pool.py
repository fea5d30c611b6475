"""Workers in threads or processes, driven over ZeroMQ by whoever waits for a result.

    executor ──send──▶ ┌────────────┐  ROUTER        DEALER  ┌──────────┐
             ◀─recv──  │  ZmqPool   │ ────────────────────── │ worker 0 │
                       │ a seat for │        ...             ├──────────┤
                       │ each worker│ ────────────────────── │ worker 1 │
                       └────────────┘      shared memory     └──────────┘

The pool chooses the worker of every job, so it knows who holds which ticket: when a worker's sentinel becomes readable,
its answers that already arrived are taken in, its other tickets are reported lost, and a new worker takes its place.
Sockets and sentinels stand in one poller; nothing runs in the background of the main process.

Messages carry control and small objects. Large buffers lie in an arena: the pool sends with each job a slot for its
result, once it knows from earlier ones how much room that takes.
"""

from __future__ import annotations

import logging
import math
import pickle
import time
from collections.abc import Sequence
from typing import Any

import zmq

from trw_pipeline.errors import ExecutorError
from trw_pipeline.executors.balance import due_s, overloaded
from trw_pipeline.executors.blosc_codec import BloscCodec
from trw_pipeline.executors.closing import ClosableInUse
from trw_pipeline.executors.codec import Frame
from trw_pipeline.executors.function import MappedFunction
from trw_pipeline.executors.interrupts import interrupts_held
from trw_pipeline.executors.pickle_codec import PickleCodec
from trw_pipeline.executors.pool import WorkerFigures, milliseconds
from trw_pipeline.executors.protocol import (
    Answer,
    ErrorReport,
    Lost,
    Order,
    Reply,
    ReplyRecord,
    has_message,
    received,
    replies_in,
)
from trw_pipeline.executors.recruiter import ProcessRecruiter, Recruiter, ThreadRecruiter
from trw_pipeline.executors.seat import Held, Seat
from trw_pipeline.executors.worker_log import Levels
from trw_pipeline.executors.worker_options import PoolOptions
from trw_pipeline.typing import StartMethod

logger = logging.getLogger(__name__)

MAX_STARTS_IN_VAIN = 3
"""So many workers in a row that die before they are ready break the pool: the next one would die too."""

LOOK_FOR_DEATHS_S = 0.1
"""So often sentinels are looked at while answers come without a pause; otherwise the wait for answers watches them."""

LAST_ANSWERS_S = 1.0
"""So long answers of a worker that has left are waited for; they come within milliseconds, or not at all."""

_MORE = zmq.NOBLOCK | zmq.SNDMORE
_WEIGHT = 0.1  # of the newest job in the mean of their durations


class ZmqPool(ClosableInUse):
    """A pool of `nb_workers` threads (`start_method=None`) or processes.

    Args:
        nb_workers: at least 1.
        start_method: how processes start, or None for threads.
        options: what else is wished of it.

    Raises:
        ExecutorError: the system can not start a worker, or there is no folder for the socket.
    """

    def __init__(self, nb_workers: int, start_method: StartMethod | None, options: PoolOptions | None = None) -> None:
        options = options or PoolOptions()
        self._recruiter: Recruiter
        if start_method is None:
            self._recruiter = ThreadRecruiter(options)
        else:
            self._recruiter = ProcessRecruiter(options, start_method)
        try:
            super().__init__(f"the workers of {options.name!r}")
        except BaseException:
            self._recruiter.close()
            raise
        self.is_waiting = False
        self._name = options.name
        self._max_tasks = options.max_tasks_per_worker or math.inf
        self._job_timeout_s = options.job_timeout_s
        self._are_threads = start_method is None
        self._function_frames: Sequence[Frame] | None = None
        self._function: MappedFunction | None = None
        self._levels: bytes | None = None  # of the loggers; threads have ours
        self.told: list[tuple[int, bytes]] = []
        self._starts_in_vain = 0
        self._arrived: list[Answer] = []
        self._lost: list[Lost] = []
        self._backlog: list[tuple[int, bytes, Sequence[Frame]]] = []  # jobs for a worker that is to come
        self._look_again = 0.0  # when sentinels are looked at though answers are waiting, by time.monotonic()
        self._seats: dict[bytes, Seat] = {}
        self._seat: Seat | None = None  # that jobs go to until its pack is sent
        self._poller: zmq.Poller | None = None
        self._job_s: float | None = None  # mean
        self._socket = self._recruiter.socket
        self.items, self.results = self._recruiter.items, self._recruiter.results
        try:
            for _ in range(nb_workers):
                self._hire(None)
        except BaseException:
            self.close(0)
            raise

    @property
    def bytes_arena(self) -> int:
        """Bytes of results that came through shared memory."""
        return self._recruiter.room.bytes_arena

    @property
    def bytes_frames(self) -> int:
        """Bytes of results that came in messages."""
        return self._recruiter.room.bytes_frames

    @property
    def bytes_compressed(self) -> int:
        """Bytes of results that came compressed, as they travelled."""
        return self.results.bytes_compressed if isinstance(self.results, BloscCodec) else 0

    def _hire(self, before: Seat | None) -> None:
        seat = self._recruiter.hire(before)
        self._seats[seat.identity] = seat
        self._poller = None
        if self._function is not None:
            self._send_function(seat)

    # Sending

    @property
    def can_send(self) -> bool:
        """Always: jobs wait at their worker."""
        return True

    @property
    def has_idle(self) -> bool:
        """Whether a worker has no job."""
        return any(not seat.held for seat in self._seats.values() if not seat.is_leaving)

    def set_function(self, function: MappedFunction) -> bool:
        """Sends the function to every worker, if it is not the one that they have; whether it has changed since then.

        Threads have it by reference, so of them that is not known.
        """
        is_first = self._function is None
        self._function = function
        if not self._are_threads:
            # Compared as it travels, so that a transform changed between two epochs is never silently the old one.
            self._tell_levels()
            frames = [bytes(frame) for frame in PickleCodec("function_to_run", by_file=True).encode(function)]
            if frames == self._function_frames:
                return False
            self._function_frames = frames
        with self.using():
            for seat in self._seats.values():
                self._send_function(seat)
        return not self._are_threads and not is_first

    def _tell_levels(self) -> None:
        """Tells workers what is to be logged, if that has changed since they had their function."""
        before, self._levels = self._levels, pickle.dumps(Levels.now())
        if before not in (None, self._levels):
            with self.using():
                for seat in self._seats.values():
                    seat.order(Order.LEVELS, 0, [self._levels])
                    self._flush(seat)

    def _send_function(self, seat: Seat) -> None:
        if self._levels is not None:
            seat.order(Order.LEVELS, 0, [self._levels])
        # By reference, each decode consumes what was encoded; as frames, the same ones go to every worker.
        seat.order(Order.FUNCTION, 0, self._function_frames or self.items.encode(self._function))
        self._flush(seat)

    def send(self, ticket: int, seed: bytes, frames: Sequence[Frame]) -> None:
        """Hands the job to the worker that holds the fewest; short jobs share messages.

        Where all workers have had as many jobs as they may, it waits for the next one.
        """
        with self.using():
            self._give(ticket, seed, frames, ())

    def _give(self, ticket: int, seed: bytes, frames: Sequence[Frame], preferred: Sequence[Seat]) -> None:
        seat = self._seat
        if seat is None or preferred:
            staying = [seat for seat in preferred if not seat.is_leaving]
            staying = staying or [seat for seat in self._seats.values() if not seat.is_leaving]
            if not staying:
                self._backlog.append((ticket, seed, frames))
                return
            self._seat = seat = min(staying, key=lambda seat: len(seat.held))
        if seat.give(ticket, Held(seed, frames, self._recruiter.room.slot(seat.shelf)), self._job_s):
            self._flush(seat)
        if seat.nb_taken >= self._max_tasks:
            seat.is_leaving = True
            seat.order(Order.LEAVE)
            self._flush(seat)

    def _move_waiting(self) -> None:
        """Moves jobs that wait behind a slow one to workers that have nothing to do."""
        seat = overloaded(self._seats.values())
        if seat is None:
            return
        idle = [other for other in self._seats.values() if other.is_idle]
        taken = seat.recall()
        self._flush(seat)
        for ticket, held in taken:
            self._give(ticket, held.seed, held.frames, idle)

    def _give_backlog(self) -> None:
        backlog, self._backlog = self._backlog, []
        for job in backlog:
            self._give(*job, ())

    def cancel_below(self, ticket: int) -> None:
        """Tells every worker that holds a job below `ticket` to give it up if it is still waiting."""
        with self.using():
            self._backlog = [job for job in self._backlog if job[0] >= ticket]
            for seat in self._seats.values():
                if any(held < ticket for held in seat.held):
                    seat.order(Order.CANCEL, ticket)
                    self._flush(seat)

    def get_ready_to_wait(self) -> float | None:
        """Sends what waits for company, unless its worker has enough to do; the next answer of that comes back here.

        Returns:
            Seconds until a job may have taken long, or too long, or None.
        """
        for seat in self._seats.values():
            if seat.has_little_ahead(self._job_s):
                self._flush(seat)
        move_s = due_s(self._seats.values())
        ages_s = [seat.job_age_s() for seat in self._seats.values() if seat.held]
        if self._job_timeout_s is None or not ages_s:
            return move_s
        end_s = max(0.0, self._job_timeout_s - max(ages_s))
        return end_s if move_s is None else min(move_s, end_s)

    def _flush(self, seat: Seat) -> None:
        if seat is self._seat:
            self._seat = None
        if seat.pack.nb_records:
            self._post(seat, seat.take_pack())

    def _post(self, seat: Seat, message: Sequence[Frame]) -> None:
        if seat.outbox is not None:
            seat.outbox.append(message)
            return
        try:
            self._socket.send(seat.identity, _MORE)
            for frame in message[:-1]:
                self._socket.send(frame, _MORE)
            self._socket.send(message[-1], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            # The worker is gone; its sentinel says so to the next recv, which reports what it held.
            if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                raise

    # Receiving

    def recv(self, timeout_s: float | None) -> list[Answer]:
        """Returns the answers that are here. Deaths are looked for whenever there is none."""
        with self.using():
            return self._answers(timeout_s)

    def _answers(self, timeout_s: float | None) -> list[Answer]:
        now = time.monotonic()
        deadline = None if timeout_s is None else now + timeout_s
        self.is_waiting = False
        while True:
            self._read()
            if self._arrived and now < self._look_again:
                break
            wait_s = 0 if self._arrived else None if deadline is None else max(0.0, deadline - now)
            events = self._poll(wait_s)
            if self.must_end:
                return []
            self._end_overdue()
            for seat in [seat for seat in self._seats.values() if seat.sentinel in events or seat.overdue]:
                self._bury(seat)
            self._move_waiting()
            now = time.monotonic()
            if self._arrived or self._lost or (deadline is not None and now >= deadline and not events):
                break
        arrived, self._arrived = self._arrived, []
        return arrived

    def _poll(self, timeout_s: float | None) -> dict[Any, int]:
        soon_s = self.get_ready_to_wait() if timeout_s != 0 else None
        if self._poller is None:
            self._poller = zmq.Poller()
            for waitable in self.waitables():
                self._poller.register(waitable, zmq.POLLIN)
        if soon_s is not None:
            timeout_s = soon_s if timeout_s is None else min(timeout_s, soon_s)
        self.is_waiting = True
        events = self._poller.poll(milliseconds(timeout_s))
        self.is_waiting = False
        self._look_again = time.monotonic() + LOOK_FOR_DEATHS_S
        return dict(events)

    def waitables(self) -> list[Any]:
        """Returns the socket of all answers, the bell, and the sentinel of every worker."""
        return [self._socket, self.bell.fileno(), *(seat.sentinel for seat in self._seats.values())]

    def _read(self) -> None:
        """Takes in every message that is here."""
        key = self._recruiter.door.key
        while has_message(self._socket):
            seat = self._seats.get(self._socket.recv())
            message = received(self._socket, key)
            if seat is None:
                self._drop(message)
                continue
            for record in replies_in(message) if message else ():
                self._take(seat, record)
            if seat.pack.nb_records and not seat.has_work:
                self._flush(seat)

    def _drop(self, message: Sequence[Frame]) -> None:
        """Drops the message of a stranger, or of a worker that was buried: what it held has been reported lost."""
        for record in replies_in(message) if message else ():
            if record.reply is Reply.LOG:
                self.told.append((record.ticket, bytes(record.frames[0])))
            elif self._are_threads and record.frames:
                self.results.discard(record.frames)

    def _take(self, seat: Seat, record: ReplyRecord) -> None:
        reply = record.reply
        if reply is Reply.RESULT or reply is Reply.FAILED or reply is Reply.CANCELLED:
            if reply is Reply.CANCELLED and seat.has_given_back(record.ticket):
                return
            held = seat.has_answered(record.ticket, record.duration_s)
            if held is not None:
                self._take_answer(seat, record, held)
        elif reply is Reply.LOG:
            self.told.append((record.ticket, bytes(record.frames[0])))
        elif reply is Reply.HELLO:
            seat.pid = record.ticket
            outbox, seat.outbox = seat.outbox or [], None
            for message in outbox:
                self._post(seat, message)
        elif reply is Reply.READY:
            seat.note_ready()
            self._starts_in_vain = 0
        elif reply is Reply.LEFT:
            seat.let_go(record.ticket)
        else:
            assert reply is Reply.BROKEN, "these are all there are"
            report: ErrorReport = self.results.decode(record.frames)
            raise ExecutorError(
                f"the workers of {self._name!r} can not start: {report.summary}\n\n"
                f"Traceback of the worker (pid {seat.pid}):\n{report.text}"
            )

    def _take_answer(self, seat: Seat, record: ReplyRecord, held: Held) -> None:
        reply, ticket, duration_s, _, _, is_kept, waited_s, _ = record
        frames = self._recruiter.room.frames(record, held.slot)
        if held.slot is not None:
            if is_kept:
                seat.keep(held.slot)
            held.slot.leave()
        if reply is not Reply.CANCELLED:
            seat.nb_answered += 1
            if not self._are_threads:
                mean_s = self._job_s
                self._job_s = duration_s if mean_s is None else mean_s + _WEIGHT * (duration_s - mean_s)
        self._arrived.append(Answer(reply, ticket, seat.pid, duration_s, frames, waited_s))

    # Deaths

    def _end_overdue(self) -> None:
        """Ends the workers whose job takes too long."""
        if self._job_timeout_s is None:
            return
        for seat in self._seats.values():
            at = seat.slate.read() if seat.held else None
            ran_s = 0.0 if at is None else time.monotonic() - at.since
            if at is not None and at.ticket in seat.held and ran_s >= self._job_timeout_s:
                seat.overdue = (at.ticket, ran_s)

    def _bury(self, seat: Seat) -> None:
        """Reports what a dead worker held, and replaces it."""
        self._read()
        if seat.overdue is not None and not self._is_overdue(seat):
            seat.overdue = None  # it has just come to its end
            return
        if seat.is_leaving and seat.overdue is None and seat.process is not None and seat.process.exitcode == 0:
            self._read_last_answers(seat)
        with interrupts_held():  # a seat that is among the others no more, or not yet, has nobody else to free it
            self._replace(seat)
        self._give_backlog()

    def _replace(self, seat: Seat) -> None:
        """Frees the seat of a dead worker, and hires another one."""
        del self._seats[seat.identity]
        self._seat = self._poller = None
        at = seat.slate.read()
        how = seat.end()
        self._recruiter.dismiss(seat)
        if seat.has_failed or not seat.is_leaving:
            why = "" if seat.overdue is None else f" after {seat.overdue[1]:.3g} s in one job"
            nb = len(seat.held)
            logger.warning("worker %s of %r %s%s while it held %d jobs", seat.pid, self._name, how, why, nb)
        was_ready = seat.is_ready or at is not None
        self._report_lost(seat, None if at is None else at.ticket, was_ready, how)
        if not was_ready:
            self._starts_in_vain += 1
            if self._starts_in_vain >= MAX_STARTS_IN_VAIN:
                raise ExecutorError(
                    f"{self._starts_in_vain} workers of {self._name!r} in a row {how} before they were ready"
                )
        self._hire(seat)

    def _is_overdue(self, seat: Seat) -> bool:
        """Whether the worker is still at the job that takes too long. A thread is told to begin no other."""
        assert seat.overdue is not None, "somebody looked"
        ticket = seat.overdue[0]
        if seat.thread is None:
            return ticket in seat.held
        taken = seat.recall(all_of_them=True)
        is_overdue = ticket in seat.held and seat.slate.last == ticket
        if is_overdue:
            seat.is_leaving = seat.has_failed = True
            seat.order(Order.STOP)  # when it comes back
        self._flush(seat)
        for other, held in taken:
            self._give(other, held.seed, held.frames, ())
        return is_overdue

    def _read_last_answers(self, seat: Seat) -> None:
        """Waits for what a worker that left has sent: it is on its way through the system."""
        deadline = time.monotonic() + LAST_ANSWERS_S
        while seat.held and not self.must_end and (left_s := deadline - time.monotonic()) > 0:
            zmq.select([self._socket, self.bell], [], [], left_s)
            self._read()

    def _report_lost(self, seat: Seat, ticket: int | None, was_ready: bool, how: str) -> None:
        # One that it had begun last may be done, and its answer lost: it may have killed the worker a moment later.
        at = ticket if ticket in seat.held else seat.last_begun
        late, ran_s = seat.overdue or (None, None)
        # While it was at a job, even one that was given up, the others only waited.
        coming = next(iter(seat.held), None) if was_ready and ticket is None and at is None else None
        for held in seat.held:
            has_item = seat.thread is None or held != ticket
            of_held_s = ran_s if held == late else None
            self._lost.append(Lost(held, was_ready and held == at, seat.pid, how, has_item, of_held_s, held == coming))

    @property
    def has_lost(self) -> bool:
        """Whether `lost` has news."""
        return bool(self._lost)

    def lost(self) -> list[Lost]:
        """Returns the jobs lost since the last call."""
        lost, self._lost = self._lost, []
        return lost

    def workers(self) -> list[WorkerFigures]:
        """Returns what each worker has done and is at."""
        seats = list(self._seats.values())  # at once: another thread may be at work
        return [seat.figures() for seat in seats]

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
            self._recruiter.close()
            for seat in self._seats.values():
                seat.slate.close()

    def _ask_to_stop(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        for seat in self._seats.values():
            seat.order(Order.STOP)
            self._flush(seat)
        for seat in self._seats.values():
            if seat.thread is not None:
                seat.thread.ring()
                seat.thread.wait(max(0.0, deadline - time.monotonic()))
            elif seat.process is not None and seat.outbox is None:
                seat.process.wait(max(0.0, deadline - time.monotonic()))
