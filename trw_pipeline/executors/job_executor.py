"""The bookkeeper of jobs: counts them, keeps their order, tries again, and turns failures into errors.

    put ──▶ in flight: ticket -> job ──frames──▶ WorkerPool (inline, threads, processes)
                  ▲                                  │ answers, and jobs of dead workers
    get ◀── finished: ticket -> result ◀─────────────┘

Nothing runs here by itself: whoever calls `put` or `get` receives answers, notices deaths and sends jobs again while it
waits. The table of jobs in flight is the truth; no counter stands beside it.
"""

from __future__ import annotations

import contextlib
import math
import operator
import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, get_args

import zmq

from trw_pipeline.errors import ClosedError, CodecError, ExecutorError, FailedJobError, WorkerLostError, WouldBlock
from trw_pipeline.executors.failures import Failure, FailureLog, OnError
from trw_pipeline.executors.function import MappedFunction
from trw_pipeline.executors.inline_pool import InlinePool
from trw_pipeline.executors.job import ErrorMaker, Job, Result
from trw_pipeline.executors.pool import WorkerPool, bound, in_owner, pool_size
from trw_pipeline.executors.protocol import Answer, Lost, Reply
from trw_pipeline.executors.queues import InputQueue, OutputQueue
from trw_pipeline.executors.start import check_start_method, one_way_pipe
from trw_pipeline.executors.zmq_pool import ZmqPool
from trw_pipeline.seeding import JobSeed, fresh_seed, job_seed
from trw_pipeline.typing import Backend, Function, Key, StartMethod

CLOSE_TIMEOUT_S = 1.0
"""Idle workers end within milliseconds; one that is busy for longer than this is killed."""

JOBS_PER_WORKER = 2
"""With `max_jobs_at_once=None`: one job runs and one waits at each worker."""


class JobExecutor:
    """Runs a function over items in a pool of workers.

    Args:
        nb_workers: number of workers; 0 runs the jobs in the calling thread, when their results are asked for.
        function_to_run: called with an item; or a list of functions, chained. One that has a parameter `rng` receives a
            `numpy.random.Generator` keyed like the job's seed.
        max_jobs_at_once: how many jobs may be unfinished; 0 is no limit, None twice the number of workers.
        worker_post_process_results_fun: runs in the worker, `fun(results, channel_main_to_worker=...,
            channel_worker_to_main=...)`; what it returns is the result.
        output_queue_size: how many finished jobs may wait to be taken before no more are accepted; 0 is no limit, None
            as many as `max_jobs_at_once`.
        backend: "process", "thread" (for functions that release the interpreter lock) or "inline".
        in_order: results come in the order of the tickets; else as they finish.
        on_error: what `get` does with a failed job: "raise" its error, "skip" it into `failures`, or "return" it in
            the `Result`.
        max_failures: with "skip", a count or share of jobs; more is an error.
        max_retries: a job whose worker dies is tried this many times more.
        worker_init: runs once in each worker before its first job.
        start_method: "forkserver" (default on Linux), "spawn" or "fork"; the program's own is not touched.
        threads_per_worker: threads of BLAS, OpenMP and torch in a worker process.
        seed: jobs are seeded from it and their ticket; None draws a fresh one.
        name: how errors, `ps` and thread dumps call it.

    An item must not be changed between `put` and the arrival of its result: it may have to be sent again, and a job
    whose worker died may run twice. Use from one thread at a time; only `close` may come from elsewhere. Results of
    jobs that were in flight at `reset` or `close` never arrive. A Ctrl-C while it waits for workers does no harm; after
    one that came in the midst of a message every use is an ExecutorError, until `reset`.

    Raises:
        ValueError: an argument out of range.
        TypeError: an argument of a wrong kind.
    """

    def __init__(
        self,
        nb_workers: int,
        function_to_run: Function | Sequence[Function],
        max_jobs_at_once: int | None = 0,
        worker_post_process_results_fun: Callable[..., Any] | None = None,
        output_queue_size: int | None = 0,
        *,
        backend: Backend = "process",
        in_order: bool = False,
        on_error: OnError = "raise",
        max_failures: int | float | None = None,
        max_retries: int = 2,
        worker_init: Callable[[], Any] | None = None,
        start_method: StartMethod | None = None,
        threads_per_worker: int = 1,
        seed: int | None = None,
        name: str | None = None,
    ) -> None:
        if backend not in get_args(Backend):
            raise ValueError(f"backend must be one of {get_args(Backend)}, got {backend!r}")
        self.nb_workers = 0 if backend == "inline" else pool_size(nb_workers)
        self.name = name
        self.max_jobs_at_once = bound("max_jobs_at_once", max_jobs_at_once, JOBS_PER_WORKER * self.nb_workers or 1)
        self._max_waiting = bound("output_queue_size", output_queue_size, self.max_jobs_at_once)
        self._max_retries = bound("max_retries", max_retries, 0)
        self._threads_per_worker = bound("threads_per_worker", threads_per_worker, 1, at_least=1)
        self._start_method: StartMethod | None = check_start_method(start_method) if backend == "process" else None
        self._in_order = in_order
        self._function = MappedFunction(function_to_run, worker_post_process_results_fun, worker_init)
        self._seed = fresh_seed() if seed is None else operator.index(seed)
        self._errors = ErrorMaker(name, name or self._function.name)
        self._open_channels()
        self.log = FailureLog(on_error, max_failures)
        self.job_session_id = 0
        self._next_ticket = 0
        self._counts = {"jobs_done": 0, "jobs_failed": 0, "jobs_retried": 0, "jobs_lost": 0}
        self.wait_s = 0.0
        self._busy_s = 0.0
        self._bytes = 0
        self._owner = os.getpid()
        self._jobs: dict[int, Job] = {}
        self._finished: dict[int, tuple[Job, Answer | FailedJobError]] = {}
        self._due: deque[int] = deque()  # tickets as they will be handed out
        self._closed = False
        self._broken: ExecutorError | ClosedError | None = None
        self._open_pool()

    @property
    def input_queue(self) -> InputQueue:
        """The documented way in: a thin door on `put`."""
        return InputQueue(self)

    @property
    def output_queue(self) -> OutputQueue:
        """The documented way out: a thin door on the results, where a failed job is None."""
        return OutputQueue(self)

    def _open_channels(self) -> None:
        """Makes the two pipes that the documented post-processing function receives, where there is one."""
        self.channel_main_to_worker = self.channel_worker_to_main = None
        self._worker_channels: tuple[Any, Any] = (None, None)
        if self._function.post_process is not None:
            to_worker, self.channel_main_to_worker = one_way_pipe()
            self.channel_worker_to_main, to_main = one_way_pipe()
            self._worker_channels = self._function.channels = (to_worker, to_main)

    def _open_pool(self) -> None:
        if self.nb_workers == 0:
            self.pool: WorkerPool = InlinePool()
        else:
            self.pool = ZmqPool(
                self.nb_workers,
                self._start_method,
                threads_per_worker=self._threads_per_worker,
                name=self._errors.label,
                channels=self._worker_channels,
            )
        self._finalizer = weakref.finalize(self, self.pool.close, CLOSE_TIMEOUT_S)
        self._finalizer.atexit = False  # pools still open then are closed together
        try:
            self.pool.set_function(self._function)
        except BaseException:
            self._finalizer()
            raise

    # Jobs in

    @property
    def nb_in_flight(self) -> int:
        """Jobs put and not yet got: waiting, running, or finished and not taken."""
        return len(self._jobs) + len(self._finished)

    def has_room(self) -> bool:
        """Whether `put(item, timeout=0)` would take an item now."""
        return (
            self.pool.can_send
            and (self.max_jobs_at_once == 0 or len(self._jobs) < self.max_jobs_at_once)
            and self._may_finish_more()
        )

    def _may_finish_more(self) -> bool:
        return self._max_waiting == 0 or len(self._finished) < self._max_waiting

    def put(
        self,
        item: Any,
        timeout: float | None = None,
        *,
        key: Key | None = None,
        uid: Any = None,
        seed: JobSeed | None = None,
    ) -> int:
        """Queues a job and returns its ticket.

        Args:
            item: what the function is called with. One that can not be sent is a failed job: `get` tells.
            timeout: seconds to wait for room; None waits, 0 never waits.
            key: where the item stands at its source, for errors.
            uid: its `sample_uid`, for errors.
            seed: seeds the job; by default it comes from the executor's seed and the ticket.

        Raises:
            WouldBlock: no room in time; or there will be none before a result is taken.
            ClosedError: after `close`.
            ExecutorError: the workers can not start.
        """
        self._check()
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self.has_room():
            if not self._jobs or not self._may_finish_more() or not self._receive(deadline):
                self._check()
                raise WouldBlock(f"{self.nb_in_flight} jobs are in flight; take results with get() first")
        ticket, self._next_ticket = self._next_ticket, self._next_ticket + 1
        try:
            self._accept(Job(ticket, key, uid, seed or job_seed(self._seed, ticket)), item)
        except BaseException as error:
            self._interrupted(error)
            raise
        return ticket

    def _accept(self, job: Job, item: Any) -> None:
        self._jobs[job.ticket] = job
        if self._in_order:
            self._due.append(job.ticket)
        try:
            job.frames = self.pool.items.encode(item)
        except CodecError as error:
            job.attempts = 1
            self._finish(job, self._errors.make(CodecError, job, str(error), None, error.__cause__))
        else:
            self._send(job)

    def _send(self, job: Job) -> None:
        job.attempts += 1
        self.pool.send(job.ticket, job.seed, job.frames)

    # Results out

    def is_ready(self) -> bool:
        """Whether a result can be taken now, without receiving."""
        return bool(self._due) and self._due[0] in self._finished

    def poll(self) -> bool:
        """Takes in an answer that has arrived; whether a result can be taken now. Never waits for a worker."""
        return self.is_ready() or (bool(self._jobs) and self._receive(time.monotonic()) and self.is_ready())

    def take_in(self) -> bool:
        """Takes in all that has arrived; whether something had, or this executor can not be used any more.

        Unlike `poll` it runs nothing where there are no workers.
        """
        if self._closed or self.is_broken:
            return True
        came = False
        while self.pool.waitables() and self._receive(time.monotonic()):
            came = True
        return came

    def get(self, timeout: float | None = None) -> Result:
        """Returns the next result.

        Args:
            timeout: seconds to wait; None waits, 0 never waits (but without workers a job runs here, now).

        Raises:
            WouldBlock: nothing finished in time; or no job is in flight, so nothing ever will.
            JobError: with `on_error="raise"`, a job failed.
            WorkerLostError: with `on_error="raise"`, a job's worker died at each attempt.
            CodecError: with `on_error="raise"`, an item or a result can not travel.
            ExecutorError: the workers can not start, or more than `max_failures` jobs failed.
            ClosedError: after `close`.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            result = self.next_result(None if deadline is None else deadline - time.monotonic())
            if result.error is None or self.log.on_error == "return":
                return result
            self.log.add(result.error)

    def next_result(self, timeout: float | None) -> Result:
        """Returns the next result with its error, if any, in it: `get` before it looks at `on_error`."""
        self._check()
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self.is_ready():
            if not self._jobs:
                self._check()
                raise WouldBlock("no job is in flight")
            if not self._receive(deadline):
                raise WouldBlock("no job has finished yet")
        try:
            job, outcome = self._finished.pop(self._due.popleft())
            if isinstance(outcome, Answer):
                outcome = self._opened(job, outcome)
        except BaseException as error:
            self._interrupted(error)
            raise
        if isinstance(outcome, FailedJobError):
            self._counts["jobs_failed"] += 1
            return job.result(None, outcome, 0.0, outcome.pid)
        self._counts["jobs_done"] += 1
        return outcome

    def _opened(self, job: Job, answer: Answer) -> Result | FailedJobError:
        """Decodes an answer, only now that it is wanted."""
        try:
            value = self.pool.results.decode(answer.frames)
        except CodecError as error:
            return self._errors.make(CodecError, job, str(error), answer.pid, error.__cause__)
        if answer.reply is Reply.FAILED:
            return self._errors.remote(job, answer.pid, value)
        return job.result(value, None, answer.duration_s, answer.pid)

    # What the workers say

    def _receive(self, deadline: float | None) -> bool:
        """Takes in one answer and all deaths; False when nothing came before the deadline."""
        start = time.monotonic()
        try:
            answer = self.pool.recv(None if deadline is None else max(0.0, deadline - start))
            self.wait_s += time.monotonic() - start
            lost = self.pool.lost()
            for one in lost:
                self._try_again(one)
            if answer is not None:
                self._settle(answer)
        except ExecutorError as error:
            self._break(error)
            raise
        except BaseException as error:
            if not self.pool.is_waiting:
                self._interrupted(error)
            raise
        return answer is not None or bool(lost)

    def _settle(self, answer: Answer) -> None:
        job = self._jobs.get(answer.ticket)
        if job is not None:
            self._busy_s += answer.duration_s
            self._bytes += sum(len(frame) for frame in answer.frames)
            self._finish(job, answer)
        elif answer.frames:  # of before a reset
            self.pool.results.discard(answer.frames)

    def _finish(self, job: Job, outcome: Answer | FailedJobError) -> None:
        del self._jobs[job.ticket]
        self._finished[job.ticket] = (job, outcome)
        if not self._in_order:
            self._due.append(job.ticket)

    def _try_again(self, lost: Lost) -> None:
        job = self._jobs.get(lost.ticket)
        if job is None:
            return
        self._counts["jobs_lost"] += 1
        if not lost.was_running:
            job.attempts -= 1  # it only waited there
        if job.attempts > self._max_retries or not lost.may_run_again:
            reason = f"lost its worker at each of {job.attempts} attempts; the last one, pid {lost.pid}, {lost.how}"
            self._finish(job, self._errors.make(WorkerLostError, job, reason, lost.pid))
            return
        self._counts["jobs_retried"] += 1
        self._send(job)

    def _break(self, error: ExecutorError | ClosedError) -> None:
        self._broken = error
        self._finalizer()

    def _interrupted(self, error: BaseException) -> None:
        """A signal handler raised (Ctrl-C) where a job or a message was half done: better no pool than a wrong one.

        Or another thread closed the executor: whatever that did to what was going on here, it is a ClosedError.
        """
        if isinstance(error, ClosedError):
            return
        if self._closed and isinstance(error, Exception):
            raise ClosedError("this executor is closed") from error
        self._break(ExecutorError(f"{self._errors.label!r} was interrupted among its jobs; reset() starts it again"))

    @property
    def is_broken(self) -> bool:
        """Whether the workers could not start, or were interrupted or taken away in use; `reset` starts them again."""
        return self._broken is not None

    @property
    def failures(self) -> list[Failure]:
        """The jobs that were skipped since the last `reset`."""
        return self.log.failures

    # Life

    @property
    def is_ours(self) -> bool:
        """Whether this process made it; a forked copy can not use it."""
        return in_owner(self._owner)

    def _check(self) -> None:
        self._check_owner()
        if self._broken is not None:
            raise self._broken

    def _check_owner(self) -> None:
        if self._closed:
            raise ClosedError("this executor is closed")
        if not self.is_ours:
            raise ExecutorError("this executor belongs to another process; make one here")

    def reset(self) -> None:
        """Forgets all jobs: what waits is given up, what runs goes on and its result is dropped.

        A function that changed since it was sent (an attribute of a transform, say) is sent again. An executor that is
        broken starts its workers again. From another thread it ends, like `close`, what goes on there.

        Raises:
            ClosedError: after `close`.
            CodecError: the function has become one that can not be sent.
            ExecutorError: in a forked copy of the process that made it.
        """
        self._check_owner()
        for _, outcome in self._finished.values():
            if isinstance(outcome, Answer) and outcome.frames:
                self.pool.results.discard(outcome.frames)
        self._jobs.clear()
        self._finished.clear()
        self._due.clear()
        self.log = FailureLog(self.log.on_error, self.log.max_failures)
        self.job_session_id += 1
        if self._broken is not None:
            self._open_pool()
            self._broken = None
        elif (
            self.pool.is_in_use
        ):  # from elsewhere, like `close`: that use ends, and new workers start at the next reset
            self._break(ClosedError(f"{self._errors.label!r} was reset while it was in use"))
        else:
            self.pool.cancel_below(self._next_ticket)
            self.pool.set_function(self._function)

    def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Ends the workers: at once where they are idle, by force after `timeout` seconds. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._finalizer.detach()
        self.pool.close(timeout)  # the jobs stay counted: whoever uses it must not take a close for having none left
        for channel in (self.channel_main_to_worker, self.channel_worker_to_main, *self._worker_channels):
            if channel is not None:
                channel.close()

    def __enter__(self) -> JobExecutor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def statistics(self) -> dict[str, int | float]:
        """Returns counts since the executor was made, sizes in bytes and times in seconds.

        `items` were handed out; `jobs_done`, `jobs_failed`, `jobs_retried` (sent again), `jobs_lost` (their worker
        died); `jobs_in_flight` of `capacity` (0 is no limit) with `workers`; `wait_s` the caller waited here, `busy_s`
        the jobs took together; `bytes_frames` came back from workers.
        """
        return {
            "items": self._counts["jobs_done"],
            **self._counts,
            "jobs_in_flight": self.nb_in_flight,
            "capacity": self.max_jobs_at_once,
            "workers": self.nb_workers,
            "wait_s": self.wait_s,
            "busy_s": self._busy_s,
            "bytes_arena": 0,
            "bytes_frames": self._bytes,
        }


def wait_for_any(executors: Sequence[JobExecutor], timeout_s: float | None = None) -> None:
    """Returns when something came in for one of the executors (an answer, a death, a close), or after `timeout_s`.

    It takes in what has arrived for all of them. So one whose results nobody wants at present does not end the wait
    of the others for ever.

    Raises:
        ExecutorError: the workers of one of them can not start.
    """
    if any([executor.take_in() for executor in executors]):
        return
    poller = zmq.Poller()
    start = time.monotonic()
    with contextlib.ExitStack() as uses:
        for pool in dict.fromkeys(executor.pool for executor in executors):
            uses.enter_context(pool.held_open())
            if pool.must_end:
                return
            for waitable in pool.waitables():
                poller.register(waitable, zmq.POLLIN)
        poller.poll(None if timeout_s is None else math.ceil(timeout_s * 1000))
    waited_s = time.monotonic() - start
    for executor in executors:
        executor.wait_s += waited_s
