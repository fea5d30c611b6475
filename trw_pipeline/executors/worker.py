"""The worker's side: receive orders, run jobs, answer each with exactly one reply.

                 DEALER                                   one thread for the parent's death (processes only)
    pool  ─────────────────▶  inbox ─▶ MappedFunction            │
          ◀─────────────────  reply box                          ▼ os._exit

All orders that have arrived are read before the next job starts, so CANCEL and STOP overtake the jobs that wait. The
replies of short jobs share messages (`reply_box.py`).
"""

from __future__ import annotations

import os
import pickle
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle
import zmq

from trw_pipeline.errors import CodecError
from trw_pipeline.executors.bundle import Bundle
from trw_pipeline.executors.codec import NO_SPAN, Codec, Frame, Place
from trw_pipeline.executors.function import MappedFunction
from trw_pipeline.executors.private_copy import private_copy
from trw_pipeline.executors.protocol import (
    NO_SEED,
    ErrorReport,
    Order,
    OrderRecord,
    Reply,
    has_message,
    orders_in,
    received,
    tickets_in,
)
from trw_pipeline.executors.reply_box import ReplyBox
from trw_pipeline.executors.result_slot import ArenaFile, ResultSlot, Seen, keep_for_good, set_slot
from trw_pipeline.executors.slate import Slate
from trw_pipeline.executors.worker_log import WorkerLog
from trw_pipeline.seeding import seed_globals
from trw_pipeline.typing import Key

LAST_LINGER_MS = 5000
"""So long a worker that can not start, or that leaves, waits for its last reply to get out; others do not wait."""

TIDY_AFTER_S = 0.001
"""Of a job of so many seconds it makes no odds."""

LOOK_FOR_ORDERS_S = 0.001
"""So often orders that have come are looked at while short jobs wait here."""


class Worker:
    """One worker, in a thread or as the whole of a process.

    Args:
        socket: a connected DEALER; closed by `serve`.
        key: of the session.
        orders: decodes the function and items.
        replies: encodes results and error reports.
        channels: our ends of the pipes for `worker_post_process_results_fun`.
        own_process: whether the global generators are ours to seed, and exceptions have to be pickled.
        slate: where each job is noted as it begins.
        log_name: names the worker in what it logs, all of which goes to the pool; None leaves logging alone.
        arena: shared memory, if there is any.
        prepare: called once the function, and with it what it imports, is here.
        tidy: called after jobs that took a while.

    Attributes:
        bell: a descriptor that becomes readable when the worker should end though no order says so, or None.
    """

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        key: bytes,
        orders: Codec,
        replies: Codec,
        channels: tuple[Any, Any],
        own_process: bool,
        slate: Slate,
        log_name: str | None = None,
        arena: ArenaFile | None = None,
        prepare: Callable[[], None] = lambda: None,
        tidy: Callable[[], None] = lambda: None,
    ) -> None:
        self._socket = socket
        self._key = key
        self._orders = orders
        self._replies = replies
        self._channels = channels
        self._own_process = own_process
        self._slate = slate
        self._arena = arena
        self._prepare = prepare
        self._tidy = tidy
        self.bell: int | None = None
        self._poller = zmq.Poller()
        self._box = ReplyBox(socket, key, holds_back=own_process)
        self._log = None if log_name is None else WorkerLog(self._box, slate, log_name, self._at_hand)
        self._bundle: Bundle | None = None  # that is run
        self._inbox: deque[OrderRecord] = deque()
        self._look_at = 0.0
        self._cancelled_below = 0
        self._nb_recalls = 0
        self._waited_s = 0.0  # for orders, since the last job
        self._given_back: list[int] = []
        self._function: MappedFunction | None = None
        self._kept: list[tuple[int, Seen]] = []  # slots that the function keeps, and a sign that it does

    def serve(self) -> None:
        """Answers orders until STOP, or until the pool is gone."""
        if self._log is not None:
            self._log.install()
        try:
            self._box.add(Reply.HELLO, os.getpid())
            while self._carry_out(self._next_order()):
                pass
            self._box.send()
        except (zmq.ContextTerminated, zmq.Again):
            pass  # Again: a thread was still busy when its pool closed, and nobody is there to answer
        finally:
            self._box.close()
            self._socket.close()

    def _next_order(self) -> OrderRecord:
        while True:
            if self._inbox and time.perf_counter() >= self._look_at:
                self._read_all()
            while self._given_back:
                self._box.add(Reply.CANCELLED, self._given_back.pop())
            if not self._inbox:
                self._read_next()
                continue
            record = self._inbox.popleft()
            if record.order is not Order.JOB:
                return record
            self._slate.begin(record.ticket)
            if self._slate.nb_recalls == self._nb_recalls:  # only now: see `balance.py`
                return record
            self._slate.end()
            self._inbox.appendleft(record)
            self._read_next()

    def _read_next(self) -> None:
        self._box.send()
        start = time.perf_counter()
        if self._wait():
            self._read_one()
            self._read_all()
        else:
            self._inbox.append(OrderRecord(Order.STOP, 0, NO_SEED, [], (0, 0), None, NO_SPAN))
        self._waited_s += time.perf_counter() - start

    def _wait(self) -> bool:
        """Waits for an order, where something else may end the wait; False if it did."""
        if self.bell is None:
            return True
        if not self._poller.sockets:
            self._poller.register(self._socket, zmq.POLLIN)
            self._poller.register(self.bell, zmq.POLLIN)
        return self._socket in dict(self._poller.poll())

    def _read_all(self) -> None:
        with self._box.lock:
            while has_message(self._socket):
                self._read_one()
        self._look_at = time.perf_counter() + LOOK_FOR_ORDERS_S

    def _read_one(self) -> None:
        message = received(self._socket, self._key)
        for record in orders_in(message) if message else ():
            if record.order is Order.CANCEL:
                self._cancelled_below = max(self._cancelled_below, record.ticket)
            elif record.order is Order.RECALL:
                self._give_back(tickets_in(record.frames))
                continue
            elif record.order is Order.STOP:
                self._inbox.clear()
            self._inbox.append(record)

    def _give_back(self, tickets: set[int]) -> None:
        """Lets go of jobs that somebody else does."""
        self._nb_recalls += 1
        inbox, self._inbox = self._inbox, deque()
        for record in inbox:
            if record.order is Order.JOB and record.ticket in tickets:
                self._given_back.append(record.ticket)
            else:
                self._inbox.append(record)

    def _carry_out(self, record: OrderRecord) -> bool:
        order = record.order
        if order is Order.JOB:
            if self._kept:
                self._tell_what_is_left()
            if record.ticket < self._cancelled_below:
                self._orders.discard(record.frames)
                self._box.add(Reply.CANCELLED, record.ticket)
            else:
                self._run(record)
            self._slate.end()
        elif order is Order.FUNCTION:
            return self._take_function(record.frames)
        elif order is Order.LEVELS:
            pickle.loads(record.frames[0]).apply()
        elif order is Order.LEAVE:
            self._socket.linger = LAST_LINGER_MS
        elif order is Order.FORGET and self._arena is not None:
            self._arena.forget(record.ticket)
        return order not in (Order.STOP, Order.LEAVE)

    def _take_function(self, frames: Sequence[Frame]) -> bool:
        try:
            function: MappedFunction = self._orders.decode(frames)
            if self._function is None:
                self._prepare()
                if function.worker_init is not None:
                    function.worker_init()
            function.channels = self._channels
            function.begin()
            self._function = function
        except BaseException as error:  # noqa: BLE001 (SystemExit too: the pool must learn why)
            self._socket.linger = LAST_LINGER_MS
            self._report(Reply.BROKEN, 0, ErrorReport.of(error, None))
            return False
        self._box.add(Reply.READY)
        self._box.send()
        return True

    # One job

    def _run(self, record: OrderRecord) -> None:
        start = time.perf_counter()
        span = record.result_slot
        slot = self._arena.result_slot(span) if span[3] and self._arena is not None else None
        set_slot(slot)
        try:
            item, seen = self._item(record)
        except BaseException as error:  # noqa: BLE001 (an object of the user's is made again)
            set_slot(None)
            if slot is not None:
                slot.let_go()
            self._report(Reply.FAILED, record.ticket, self._describe(error), time.perf_counter() - start)
            return
        reply, frames, places = self._attempt(item, record.seed, slot)
        item = None
        set_slot(None)
        if seen is not None:
            keep_for_good(seen)
        kept = None if slot is None else slot.let_go()
        if slot is not None and kept is not None:
            self._kept.append((slot.offset, kept))
            if places is not None:  # the function may write there again: what was in it must be somebody else's by then
                frames, places = [*frames, *slot.copied(places)], None
        duration_s = time.perf_counter() - start
        wanted_bytes = 0 if slot is None else slot.wanted_bytes
        if self._log is not None and self._log.is_behind:
            self._log.catch_up()
        self._box.add(reply, record.ticket, frames, places, kept is not None, duration_s, self._waited_s, wanted_bytes)
        self._waited_s = 0.0
        if duration_s >= TIDY_AFTER_S:
            self._tidy()

    def _item(self, record: OrderRecord) -> tuple[Any, Seen | None]:
        if record.places is None:
            return self._orders.decode(record.frames), None
        assert self._arena is not None, "only a pool with an arena puts items into it"
        buffers, seen = self._arena.item_buffers(*record.item_slot, record.places)
        return self._orders.decode([*record.frames, *buffers]), seen

    def _attempt(
        self, item: Any, seed: bytes, slot: ResultSlot | None
    ) -> tuple[Reply, Sequence[Frame], Sequence[Place] | None]:
        """Runs the function, and encodes what comes of it, so that nothing of the item and result is left here."""
        function = self._function
        assert function is not None, "the pool sends the function before the first job"
        try:
            if type(item) is Bundle:
                self._bundle = item
                result: Any = item.run(self._seeded, self._replies, self._describe)
                self._bundle = None
            elif self._own_process:
                seed_globals(seed)
                result = function.run_alone(item, seed)
            else:
                result = function(private_copy(item), seed)
        except BaseException as error:  # noqa: BLE001 (a job may raise SystemExit or KeyboardInterrupt: it failed)
            return Reply.FAILED, self._replies.encode(self._describe(error)), None
        try:
            frames = self._replies.encode(result)
        except CodecError as error:
            return Reply.FAILED, self._replies.encode(ErrorReport.of(error, None, of_codec=True)), None
        places = slot.place(frames[1:]) if slot is not None and len(frames) > 1 else None
        return Reply.RESULT, frames if places is None else frames[:1], places

    def _at_hand(self) -> tuple[Key, Any] | None:
        return None if self._bundle is None else self._bundle.at_hand()

    def _seeded(self, item: Any, seed: bytes) -> Any:
        seed_globals(seed)
        assert self._function is not None, "somebody looked"
        return self._function.run_alone(item, seed)

    def _tell_what_is_left(self) -> None:
        """Gives back the slots that the function has let go of by now."""
        kept, self._kept = self._kept, []
        for offset, seen in kept:
            if seen() is None:
                self._box.add(Reply.LEFT, offset)
            else:
                self._kept.append((offset, seen))

    def _describe(self, error: BaseException) -> ErrorReport:
        report = ErrorReport.of(error, error)
        if not self._own_process:
            return report
        try:
            from tblib import pickling_support  # noqa: PLC0415 (only where something fails)

            pickling_support.install(error)  # its traceback travels with it, and those of its causes
            pickled = cloudpickle.dumps(error)
        except BaseException:  # noqa: BLE001 (then its text has to do)
            pickled = None
        return ErrorReport(report.summary, report.text, pickled)

    def _report(self, reply: Reply, ticket: int, report: ErrorReport, duration_s: float = 0.0) -> None:
        self._box.add(reply, ticket, self._replies.encode(report), None, False, duration_s)
