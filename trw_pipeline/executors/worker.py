"""The worker's side: receive orders, run jobs, answer each with exactly one reply.

                 DEALER                                   one thread for the parent's death (processes only)
    pool  ─────────────────▶  inbox ─▶ MappedFunction            │
          ◀─────────────────  reply                              ▼ os._exit

All orders that have arrived are read before the next job starts, so CANCEL and STOP overtake the jobs that wait. A
process worker imports numpy, zmq and what unpickling the function imports; nothing else on our account.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle
import zmq

from trw_pipeline.errors import CodecError
from trw_pipeline.executors.codec import Codec, Frame
from trw_pipeline.executors.door import Door
from trw_pipeline.executors.function import MappedFunction
from trw_pipeline.executors.pickle_codec import PickleCodec
from trw_pipeline.executors.private_copy import private_copy
from trw_pipeline.executors.protocol import ORDER_HEAD, REPLY_HEAD, ErrorReport, Order, Reply
from trw_pipeline.executors.slate import Slate
from trw_pipeline.seeding import seed_globals

BROKEN_LINGER_MS = 5000
"""So long a worker that can not start waits for its report to get out; nobody waits for what others have on its way."""

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


class Worker:
    """One worker, in a thread or as the whole of a process.

    Args:
        socket: a connected DEALER; closed by `serve`.
        orders: decodes the function and items.
        replies: encodes results and error reports.
        channels: our ends of the pipes for `worker_post_process_results_fun`.
        own_process: whether the global generators are ours to seed, and exceptions have to be pickled.
        prepare: called once the function, and with it what it imports, is here.
        note: called with the ticket when a job begins, and with None after it.
    """

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        orders: Codec,
        replies: Codec,
        channels: tuple[Any, Any],
        own_process: bool,
        prepare: Callable[[], None] = lambda: None,
        note: Callable[[int | None], None] | None = None,
    ) -> None:
        self._socket = socket
        self._orders = orders
        self._replies = replies
        self._channels = channels
        self._own_process = own_process
        self._prepare = prepare
        self._note = note or (lambda ticket: None)
        self._pid = os.getpid()
        self._inbox: deque[tuple[Order, int, bytes, Sequence[Frame]]] = deque()
        self._cancelled_below = 0
        self._function: MappedFunction | None = None

    def serve(self) -> None:
        """Answers orders until STOP, or until the pool is gone."""
        try:
            self._reply(Reply.HELLO)
            while self._carry_out(*self._next_order()):
                pass
        except (zmq.ContextTerminated, zmq.Again):
            pass  # Again: a thread was still busy when its pool closed, and nobody is there to answer
        finally:
            self._socket.close()

    def _next_order(self) -> tuple[Order, int, bytes, Sequence[Frame]]:
        if not self._inbox:
            self._accept(self._socket.recv_multipart(copy=False))
        with contextlib.suppress(zmq.Again):
            while True:
                self._accept(self._socket.recv_multipart(zmq.NOBLOCK, copy=False))
        return self._inbox.popleft()

    def _accept(self, message: Sequence[Frame]) -> None:
        kind, ticket, seed = ORDER_HEAD.unpack(message[0].buffer)
        if kind == Order.CANCEL:
            self._cancelled_below = max(self._cancelled_below, ticket)
        elif kind == Order.STOP:
            self._inbox.clear()
        self._inbox.append((Order(kind), ticket, seed, message[1:]))

    def _carry_out(self, order: Order, ticket: int, seed: bytes, frames: Sequence[Frame]) -> bool:
        if order is Order.FUNCTION:
            return self._take_function(frames)
        if order is Order.JOB:
            if ticket < self._cancelled_below:
                self._orders.discard(frames)
                self._reply(Reply.CANCELLED, ticket)
            else:
                self._note(ticket)
                self._run(ticket, seed, frames)
                self._note(None)
        return order is not Order.STOP

    def _take_function(self, frames: Sequence[Frame]) -> bool:
        try:
            function: MappedFunction = self._orders.decode(frames)
            if self._function is None:
                self._prepare()
                if function.worker_init is not None:
                    function.worker_init()
            function.channels = self._channels
            self._function = function
        except BaseException as error:  # noqa: BLE001 (SystemExit too: the pool must learn why)
            self._socket.linger = BROKEN_LINGER_MS
            self._report(Reply.BROKEN, 0, ErrorReport.of(error, None))
            return False
        self._reply(Reply.READY)
        return True

    def _run(self, ticket: int, seed: bytes, frames: Sequence[Frame]) -> None:
        function = self._function
        assert function is not None, "the pool sends the function before the first job"
        start = time.perf_counter()
        try:
            item = self._orders.decode(frames)
            if self._own_process:
                seed_globals(seed)
            else:
                item = private_copy(item)
            result = function(item, seed)
        except BaseException as error:  # noqa: BLE001 (a job may raise SystemExit or KeyboardInterrupt: it failed)
            self._report(Reply.FAILED, ticket, self._describe(error), time.perf_counter() - start)
            return
        try:
            encoded = self._replies.encode(result)
        except CodecError as error:
            self._report(Reply.FAILED, ticket, ErrorReport.of(error, None, of_codec=True), time.perf_counter() - start)
            return
        self._reply(Reply.RESULT, ticket, encoded, time.perf_counter() - start)

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
        self._reply(reply, ticket, self._replies.encode(report), duration_s)

    def _reply(self, reply: Reply, ticket: int = 0, frames: Sequence[Frame] = (), duration_s: float = 0.0) -> None:
        if os.getpid() != self._pid:
            os._exit(0)  # the job forked, and came back in the copy as well: only the original answers
        # Copied on the way out: a function may return the same buffer from every call and fill it again at once.
        # Without a mark at which it would wait, a send waits only where there is nobody to send to.
        head = REPLY_HEAD.pack(reply, ticket, self._pid, duration_s)
        self._socket.send_multipart([head, *frames], zmq.NOBLOCK, copy=True)


def worker_main(
    door: Door,
    identity: bytes,
    threads: int,
    channels: tuple[Any, Any],
    block_until_parent_dies: Callable[[], object],
) -> None:
    """Entry point of a worker process."""
    # Ctrl-C reaches the whole process group; only the main process decides what it means. A handler, not SIG_IGN:
    # a program that a job starts would inherit that.
    signal.signal(signal.SIGINT, lambda *_: None)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

    def follow_parent() -> None:
        block_until_parent_dies()
        door.remove()
        os._exit(1)

    threading.Thread(target=follow_parent, name="parent-watch", daemon=True).start()
    for variable in _THREAD_VARIABLES:
        os.environ[variable] = str(threads)
    if sys.__stderr__ is not None:
        faulthandler.enable(sys.__stderr__)  # a native crash shows where in Python it happened
    note = None
    with contextlib.suppress(OSError):  # then the oldest job is blamed for our death
        note = Slate(door.slate_path(identity)).write
    context: zmq.Context[Any] = zmq.Context()
    Worker(
        door.connect(context, identity),
        orders=PickleCodec("item"),
        replies=PickleCodec("result"),
        channels=channels,
        own_process=True,
        prepare=lambda: _limit_threads(threads),
        note=note,
    ).serve()
    context.term()


def _limit_threads(threads: int) -> None:
    """Limits the numerical libraries that are loaded by now; those to come read the environment."""
    from threadpoolctl import threadpool_limits  # noqa: PLC0415 (not needed in the main process)

    threadpool_limits(threads)
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(threads)
