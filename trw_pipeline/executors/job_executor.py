"""The bookkeeper of jobs: counts them, keeps their order, tries again, and turns failures into errors.

    put ──▶ JobTable: in flight ──frames──▶ WorkerPool (inline, threads, processes)
                  ▲                              │ answers, and jobs of dead workers
    get ◀── JobTable: finished ◀─────────────────┘

Nothing runs here by itself: whoever calls `put` or `get` receives answers, notices deaths and sends jobs again while it
waits.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Unpack, get_args

from trw_pipeline.errors import CodecError, ExecutorError, FailedJobError, WouldBlock
from trw_pipeline.executors.bundle import Bundle, BundleSize
from trw_pipeline.executors.capacity import Capacity
from trw_pipeline.executors.codec import nb_bytes_of
from trw_pipeline.executors.cores import with_auto
from trw_pipeline.executors.failures import Failure, FailureLog, OnError
from trw_pipeline.executors.figures import Figures, JobFigures, as_dict, in_lines
from trw_pipeline.executors.function import MappedFunction
from trw_pipeline.executors.job import ErrorMaker, Job, Result
from trw_pipeline.executors.job_table import JobTable
from trw_pipeline.executors.pool import bound, pool_size, seconds
from trw_pipeline.executors.pool_owner import PoolOwner
from trw_pipeline.executors.protocol import NO_SEED, Answer, ErrorReport, Reply
from trw_pipeline.executors.queues import Channels, InputQueue, OutputQueue
from trw_pipeline.executors.start import check_start_method
from trw_pipeline.executors.waiting import STALL_S, StallWatch
from trw_pipeline.executors.worker_log import hand_on
from trw_pipeline.executors.worker_options import PoolOptions, WorkerOptions
from trw_pipeline.seeding import JobSeed, JobSeeds, fresh_seed
from trw_pipeline.typing import Backend, Function, Key, NbWorkers, StartMethod

HEAR_EVERY_S = 0.001
"""So often whoever has a result at hand, and takes none, looks for others."""

MIN_WAIT_S = 0.0001  # to look at what is there takes less


class JobExecutor(PoolOwner):
    """Runs a function over items in a pool of workers.

    Args:
        nb_workers: number of workers; 0 runs the jobs in the calling thread, when their results are asked for. "auto"
            is as many as there are usable cores (affinity mask, limit of the control group), less one for this process;
            a log record of level INFO says how many.
        function_to_run: called with an item; or a list of functions, chained. One that has a parameter `rng` receives a
            `numpy.random.Generator` keyed like the job's seed.
        max_jobs_at_once: how many jobs may be unfinished; 0 is no limit. None begins with two for each worker and finds
            out whether it takes more to keep them busy (up to 256 each, within `max_bytes_in_flight`).
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
        max_bytes_in_flight: with `max_jobs_at_once=None`, what items and results of unfinished jobs may take; None is
            a gigabyte.
        stall_s: when nothing comes for so long while somebody waits, a log record says what runs where.
        seed: jobs are seeded from it and their ticket; None draws a fresh one.
        name: how errors, `ps` and thread dumps call it.
        options: about the workers: a time limit for jobs, shared memory, threads, ... See `WorkerOptions`.

    Arrays and tensors of a result are the caller's own: writable, and their memory is used again only when the last
    view of them is gone; a process that the program forks shares what it sees of them with it. A function may write to
    its item; nobody else sees it.

    A job that has other jobs before it may share their message, and is sent at the latest when the worker has done
    those, which the next `get` or `poll` notices. An item must not be changed between `put` and the arrival of its
    result: it may have to be sent again. When a worker dies, jobs that it had, or whose answers were still on their
    way, may run again. Workers start by themselves, but the first jobs are handed to them by a `put`, `get` or `poll`
    that finds them there: nothing runs in the background of this process. Use from one thread at a time; only `close`,
    `statistics` and `report` may come from elsewhere. Results of jobs that were in flight at `reset` or `close` never
    arrive. A Ctrl-C while it waits for workers does no harm; after one that came in the midst of a message every use is
    an ExecutorError, until `reset`.

    Raises:
        ValueError: an argument out of range.
        TypeError: an argument of a wrong kind.
    """

    def __init__(
        self,
        nb_workers: NbWorkers,
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
        max_bytes_in_flight: int | None = None,
        stall_s: float = STALL_S,
        seed: int | None = None,
        name: str | None = None,
        **options: Unpack[WorkerOptions],
    ) -> None:
        if backend not in get_args(Backend):
            raise ValueError(f"backend must be one of {get_args(Backend)}, got {backend!r}")
        function = MappedFunction(function_to_run, worker_post_process_results_fun, worker_init)
        self.nb_workers = 0 if backend == "inline" else pool_size(with_auto(nb_workers, name or function.name))
        self.name = name
        self._capacity = Capacity(max_jobs_at_once, self.nb_workers, max_bytes_in_flight)
        self._max_waiting = None if output_queue_size is None else bound("output_queue_size", output_queue_size, 0)
        pool_options = PoolOptions.of(options)
        self._job_timeout_s = pool_options.job_timeout_s
        self.stall_watch = StallWatch(seconds("stall_s", stall_s))
        used_method = check_start_method(start_method) if backend == "process" else None
        self._seeds = JobSeeds(fresh_seed() if seed is None else operator.index(seed))
        self._errors = ErrorMaker(name, name or function.name)
        self.log = FailureLog(on_error, max_failures)
        self.job_session_id = 0
        self._next_ticket = 0
        self._table = JobTable(in_order, bound("max_retries", max_retries, 0), self._errors)
        self._item_bytes = 0  # of all items so far
        # Items that are limited by number, time or memory each count for themselves; threads take no trip.
        self._may_bundle = (
            used_method is not None
            and self.nb_workers > 0
            and max_jobs_at_once is None
            and self._table.max_retries > 0
            and pool_options.job_timeout_s is None
            and pool_options.max_tasks_per_worker is None
            and pool_options.compression is None
        )
        self._bundle_size = BundleSize()
        self._heard_at = 0.0  # when answers were taken in last
        channels = Channels.open() if worker_post_process_results_fun is not None else Channels()
        self.channel_main_to_worker, self.channel_worker_to_main = channels.of_main
        super().__init__(
            self.nb_workers, used_method, function, channels, replace(pool_options, name=self._errors.label)
        )

    @property
    def input_queue(self) -> InputQueue:
        """The documented way in: a thin door on `put`."""
        return InputQueue(self)

    @property
    def output_queue(self) -> OutputQueue:
        """The documented way out: a thin door on the results, where a failed job is None."""
        return OutputQueue(self)

    # Jobs in

    @property
    def nb_in_flight(self) -> int:
        """Jobs put and not yet got: waiting, running, or finished and not taken."""
        return len(self._table)

    @property
    def items_in_bundle(self) -> int:
        """How many items a chain had better send as one job; 1 where they are not that short."""
        return self._bundle_size.value

    @property
    def max_jobs_at_once(self) -> int:
        """How many jobs may be unfinished now; 0 is no limit."""
        return self._capacity.value

    def has_room(self) -> bool:
        """Whether `put(item, timeout=0)` would take an item now."""
        limit = self._capacity.value
        return (limit == 0 or len(self._table.in_flight) < limit) and self._may_finish_more() and self.pool.can_send

    def _may_finish_more(self) -> bool:
        limit = self._capacity.value if self._max_waiting is None else self._max_waiting
        return limit == 0 or len(self._table.finished) < limit

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
        if not self.has_room():
            self._wait_for_room(timeout)
        job = Job(self._next_ticket, key, uid, seed or self._seeds((self._next_ticket,)))
        return self._submit(job, item)

    def put_bundle(self, bundle: Bundle, uid: Any) -> int:
        """Queues a bundle, whether there is room or not. Its `Result` has `BundleResults`, unless its worker died."""
        self._check()
        return self._submit(Job(self._next_ticket, bundle.keys[0], uid, NO_SEED, len(bundle)), bundle)

    def put_first(self, item: Any, key: Key, uid: Any, seed: JobSeed, attempts: int) -> int:
        """Queues a job, whether there is room or not. In order its result comes before those of all other jobs.

        The arguments are those of `put`; `attempts` is how often it was tried already, within a bundle.
        """
        self._check()
        self._table.figures.jobs_retried += 1
        return self._submit(Job(self._next_ticket, key, uid, seed, attempts=attempts), item, first=True)

    def put_result(self, value: Any, key: Key, uid: Any) -> int:
        """Queues a job whose result is known: nobody runs it, and it takes its turn among the others."""
        self._check()
        job = Job(self._next_ticket, key, uid, NO_SEED)
        self._next_ticket += 1
        self._table.add(job)
        self._table.finish(job, job.result(value, None, 0.0, None))
        return job.ticket

    def _submit(self, job: Job, item: Any, first: bool = False) -> int:
        self._next_ticket += 1
        try:
            self._table.add(job, first)
            job.frames = frames = self.pool.items.encode(item)
            self._item_bytes += len(frames[0]) if len(frames) == 1 else nb_bytes_of(frames)
            self._send(job)
        except CodecError as error:
            job.attempts = 1
            self._table.finish(job, self._errors.make(CodecError, job, str(error), None, error.__cause__))
        except BaseException as error:
            self._interrupted(error)
            raise
        return job.ticket

    def _wait_for_room(self, timeout: float | None) -> None:
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self.has_room():
            if not self._table.in_flight or not self._may_finish_more() or not self._receive(deadline):
                self._check()
                raise WouldBlock(f"{self.nb_in_flight} jobs are in flight; take results with get() first")

    def _send(self, job: Job) -> None:
        job.attempts += 1
        self.pool.send(job.ticket, job.seed, job.frames)

    # Results out

    def is_ready(self) -> bool:
        """Whether a result can be taken now, without receiving."""
        return self._table.is_ready()

    def poll(self) -> bool:
        """Takes in the answers that have arrived; whether a result can be taken now. Never waits for a worker.

        While a result is there it looks no more than once a millisecond. Without workers a job runs here, now, if no
        result is there.
        """
        table = self._table
        if table.in_flight:
            now = time.monotonic()
            if not table.is_ready() or (self.nb_workers > 0 and now >= self._heard_at + HEAR_EVERY_S):
                self._receive(now)
        return table.is_ready()

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
            JobError: with `on_error="raise"`, a job failed. All four are a FailedJobError.
            JobTimeoutError: with `on_error="raise"`, a job took more than `job_timeout_s`.
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
        table = self._table
        if not table.is_ready():
            self._wait_until_ready(None if timeout is None else time.monotonic() + timeout)
        try:
            job, outcome = table.take()
            if isinstance(outcome, Answer):
                outcome = self._opened(job, outcome)
        except BaseException as error:
            self._interrupted(error)
            raise
        if isinstance(outcome, FailedJobError):
            table.figures.jobs_failed += job.nb_items == 1  # of a bundle each item will be tried again
            return job.result(None, outcome, 0.0, outcome.pid)
        if job.nb_items == 1:
            table.figures.jobs_done += job.attempts > 0
        else:
            table.figures.jobs_failed += len(outcome.value.errors)
            table.figures.jobs_done += job.nb_items - len(outcome.value.errors)
        return outcome

    def _wait_until_ready(self, deadline: float | None) -> None:
        while not self._table.is_ready():
            if not self._table.in_flight:
                self._check()
                raise WouldBlock("no job is in flight")
            if not self._receive(deadline):
                raise WouldBlock("no job has finished yet")

    def _opened(self, job: Job, answer: Answer) -> Result | FailedJobError:
        """Decodes an answer, only now that it is wanted."""
        try:
            value = self.pool.results.decode(answer.frames)
        except CodecError as error:
            return self._errors.make(CodecError, job, str(error), answer.pid, error.__cause__)
        if answer.reply is Reply.FAILED:
            return self._errors.remote(job, answer.pid, value)
        if job.nb_items > 1:
            value.open(self.pool.results)
        return job.result(value, None, answer.duration_s, answer.pid)

    def send_function(self) -> bool:
        """Sends the function again if it has changed (an attribute of a transform, say), for jobs from now on.

        Returns:
            Whether it has changed: jobs in flight are of the old one. Of threads that is not known.

        Raises:
            CodecError: it has become one that can not be sent.
        """
        self._check()
        return self.pool.set_function(self._function)

    def error_in_bundle(self, result: Result, key: Key, uid: Any, why: ErrorReport | CodecError) -> FailedJobError:
        """Returns the error of one item of a bundle, from the `errors` of its `BundleResults`."""
        job = Job(result.ticket, key, uid, NO_SEED, attempts=result.attempts)
        if isinstance(why, ErrorReport):
            return self._errors.remote(job, result.pid, why)
        return self._errors.make(CodecError, job, str(why), result.pid, why.__cause__)

    # What the workers say

    def _receive(self, deadline: float | None) -> bool:
        """Takes in answers and all deaths; False when nothing came before the deadline."""
        try:
            self._heard_at = time.monotonic()
            is_wait = deadline is None or deadline > self._heard_at
            answers = self._wait(deadline) if is_wait else self.pool.recv(0.0)
            lost = self.pool.lost()
            for one in lost:
                job = self._table.after_loss(one, self._job_timeout_s)
                if job is not None:
                    self._send(job)
            self._settle(answers)
        except ExecutorError as error:
            self._break(error)
            hand_on(self.pool.told, self._errors.label, self._table.job)
            raise
        except BaseException as error:
            if not self.pool.is_waiting:
                self._interrupted(error)
            raise
        hand_on(self.pool.told, self._errors.label, self._table.job)
        return bool(answers or lost)

    def _wait(self, deadline: float | None) -> list[Answer]:
        start = time.monotonic()
        self.stall_watch.begin()
        while True:
            timeout_s = None if deadline is None else max(0.0, deadline - time.monotonic())
            answers = self.pool.recv(self.stall_watch.left_s(timeout_s))
            if answers or self.pool.has_lost or timeout_s == 0:
                break
            self.stall_watch.look([self])
        waited_s = time.monotonic() - start
        if waited_s >= MIN_WAIT_S:
            self.note_wait(waited_s)
        return answers

    def note_wait(self, waited_s: float) -> None:
        """Notes that the caller waited so long for a result, until now."""
        figures, pool = self._table.figures, self.pool
        figures.wait_s += waited_s
        all_bytes = self._item_bytes + pool.bytes_arena + pool.bytes_frames
        self._capacity.note_wait(waited_s, all_bytes / max(1, figures.nb_answered))

    def _settle(self, answers: Sequence[Answer]) -> None:
        table, capacity = self._table, self._capacity
        if answers and capacity.may_run_dry(len(table)):
            job_s = sum(answer.duration_s for answer in answers) / len(answers)
            is_held_up = bool(table.finished) and not table.is_ready()
            capacity.note_dry(max(answer.waited_s for answer in answers), job_s, is_held_up)
        capacity.note_answers(len(answers))
        for answer in answers:
            job = table.settle(answer)
            if job is None:  # of before a reset
                if answer.frames:
                    self.pool.results.discard(answer.frames)
            elif self._may_bundle:
                self._bundle_size.note(answer.duration_s, job.nb_items, answer.frames)

    @property
    def failures(self) -> list[Failure]:
        """The jobs that were skipped since the last `reset`."""
        return self.log.failures

    # Life

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
        for answer in self._table.clear():
            if answer.frames:
                self.pool.results.discard(answer.frames)
        self.log = FailureLog(self.log.on_error, self.log.max_failures)
        self.job_session_id += 1
        self._capacity.begin()
        self._reset_pool(self._next_ticket)

    def statistics(self) -> dict[str, Any]:
        """Returns counts since the executor was made, sizes in bytes and times in seconds.

        `items` were handed out; `jobs_done`, `jobs_failed`, `jobs_retried` (sent again), `jobs_lost` (their worker
        died, while they ran or waited there); `jobs_in_flight` of `capacity` (0 is no limit), of which `jobs_running`,
        `jobs_queued` at workers, and `jobs_finished` that wait to be taken (in order: for an older one); `workers`
        wanted, of which `workers_alive`; `wait_s` the caller waited here, `busy_s` the jobs took together, `idle_s`
        living workers were in none, `oldest_job_s` is the age of the oldest that runs; `bytes_arena` came back through
        shared memory, `bytes_frames` in messages, of both `bytes_compressed` compressed; `job_s_p50`, `job_s_p95`,
        `job_s_p99` are percentiles over the newest jobs; `per_worker` has a dict of `pid`, `jobs`, `busy_s` and
        `idle_s` for each living worker. Items that travel together count one by one, but in flight, queued and finished
        they are one.
        """
        return as_dict([self.figures()])

    @property
    def counts(self) -> JobFigures:
        """The counts of jobs so far, which go on."""
        return self._table.figures

    def figures(self) -> Figures:
        """Returns the same as a record."""
        pool = self.pool
        return Figures(
            self._table.figures,
            self.nb_in_flight,
            len(self._table.finished),
            self.max_jobs_at_once,
            self.nb_workers,
            pool.bytes_arena,
            pool.bytes_frames,
            pool.bytes_compressed,
            pool.workers(),
        )

    def report(self) -> str:
        """Says what runs where: the fill level, and of each worker the job it is at and for how long."""
        jobs = list(self._table.in_flight.items())  # at once: another thread may be at work
        known = {ticket: f"{job}" for ticket, job in jobs}
        return in_lines(self._errors.label, self.figures(), known)
