"""What does a pool of workers cost where the jobs cost nothing, or next to nothing?

Method. Contenders alternate, and a ratio is taken within a round before the median over rounds (`harness.py`). Pools
are warm: a contender opens its pool, runs all its jobs once, and is measured while it runs them again. Results come in
order and are compared with what they should be. Where time is slept, not computed, the figure is a share of the ideal:
the seconds of all jobs, divided by the workers, over the seconds that they took.

    tiny         an int in, an int out, 2 workers, streamed
    round_trip   one job there and back on an idle pool of one; bare ZeroMQ is a ROUTER and a DEALER in two processes
    uneven       2 ms a job, but one in twenty 100 ms, 4 workers
    samples      28x28 samples, one job each, then batches of 64 (`bench_sequence.py`), 2 workers
    latency      20 ms a job, which gives 28x28 float32, 16 workers
    away         100 ms a job, 4 workers, and a consumer that takes twenty results, then is away for 500 ms: the share
                 of the time that the workers are busy, by what the jobs say
    idle         a pool of 4 that has nothing to do, watched from outside (`pool_life.py`)
    death        SIGKILL of a worker until that is known, and until its job runs again elsewhere (`pool_life.py`)
    start        a pool of 4 until each worker has delivered a result, first and second one of a fresh program, beside a
                 bare pool of `multiprocess` from a fork server with the same preload (`pool_life.py`)

"ours" is a JobExecutor whose caller puts a job and takes a result if there is one, with `max_jobs_at_once=None`; "ours,
chain" is `SequenceArray(...).map(...)`, as a user would write it. Peers are used as their documentation shows.

Goals for ours (of medians over rounds; x is a ratio): tiny at least 50 x PPE submit and 1 x PPE map with chunks of 64;
round_trip at most 1.15 x bare ZeroMQ and 0.75 x PPE; uneven at least 0.92 of the ideal; samples at least 1 x DataLoader
and 10 x torchdata; latency at least 0.97 of the ideal with at most 0.12 x the CPU of DataLoader; away at least 0.95
busy; idle at most 0.1 % of a core and no context switch; death at most 10 ms until the job runs again, and 0.08 ms more
for each resident MB; start at most 1.5 x bare, the second pool 50 ms a worker, no torch in any worker.

Result (README.md): tiny 4.2 x PPE submit; round_trip 0.91 x PPE, 3.1 x bare ZeroMQ; uneven 0.94 of the ideal
(DataLoader 0.44); samples 0.75 x DataLoader, 3.3 x torchdata; latency 0.966 of the ideal with 0.4 of the CPU of
DataLoader; away 0.995 busy; idle nothing; death 11.3 ms, 12.4 with 400 MB resident; start 0.87 x bare, the second pool
23 ms a worker.

    python -m benchmarks.bench_pool [--quick] [--rounds 5] [--json PATH] [--only tiny,round_trip,...]
"""

from __future__ import annotations

import concurrent.futures
import logging
import multiprocessing
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import zmq

from benchmarks import pool_life
from benchmarks.comparison import Column, Comparison, Goal, run
from benchmarks.harness import CpuClock, Figures
from benchmarks.jobs import Sleeps, Stamped, echo, same
from trw_pipeline import JobExecutor, SamplerSequential, SequenceArray

Job: TypeAlias = Callable[[int], Any]

Epoch: TypeAlias = Callable[[], Iterator[Any]]
"""Runs the jobs 0, 1, ... once more, and gives their results in order."""

Open: TypeAlias = Callable[[Job, int, int], AbstractContextManager[Epoch]]
"""Opens a pool: job, number of jobs, number of workers."""

OURS, CHAIN, DEEP = "ours", "ours, chain", "ours, 64 jobs at once"
LOADER, SUBMIT, MAP, THREADS = "DataLoader", "PPE submit", "PPE map, chunks of 64", "ThreadPoolExecutor.map"
ZMQ, POOL = "bare ZeroMQ", "ProcessPoolExecutor"


# Pools


@contextmanager
def ours(job: Job, nb_jobs: int, nb_workers: int, max_jobs_at_once: int | None = None) -> Iterator[Epoch]:
    """Streams through an executor: a result is taken for each job that is put, as soon as there are some."""
    with JobExecutor(nb_workers, job, max_jobs_at_once, in_order=True) as executor:

        def epoch() -> Iterator[Any]:
            for index in range(nb_jobs):
                executor.put(index)  # waits for room, and takes in what arrives meanwhile
                if executor.poll():
                    yield executor.get().value
            while executor.nb_in_flight:
                yield executor.get().value

        yield epoch


@dataclass(frozen=True)
class AtIndex:
    """The function of a chain: batch with the feature "index" (1,) -> what the job gives, as a batch."""

    job: Job

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Runs the job."""
        result = self.job(batch["index"].item())
        return result if isinstance(result, dict) else {"result": result}


@contextmanager
def chain(job: Job, nb_jobs: int, nb_workers: int) -> Iterator[Epoch]:
    """Maps over a table, as a user would."""
    indices = SequenceArray({"index": np.arange(nb_jobs)}, SamplerSequential())
    sequence = indices.map(AtIndex(job), nb_workers=nb_workers)
    try:
        yield lambda: (item.get("result", item) for item in sequence)
    finally:
        sequence.close()


@dataclass(frozen=True)
class Results:
    """The results of a job as `DataLoader` wants them."""

    job: Job
    nb_jobs: int

    def __len__(self) -> int:
        return self.nb_jobs

    def __getitem__(self, index: int) -> Any:
        return self.job(index)


@contextmanager
def loader(job: Job, nb_jobs: int, nb_workers: int) -> Iterator[Epoch]:
    """Loads one sample a time, with the usual prefetch of 2; its workers end when nothing refers to it any more."""
    from torch.utils.data import DataLoader

    dataset: Any = Results(job, nb_jobs)
    batches = DataLoader(dataset, batch_size=None, num_workers=nb_workers, persistent_workers=True)
    yield lambda: iter(batches)


@contextmanager
def submitted(job: Job, nb_jobs: int, nb_workers: int) -> Iterator[Epoch]:
    """Submits all jobs, then takes the results."""
    with concurrent.futures.ProcessPoolExecutor(nb_workers) as executor:

        def epoch() -> Iterator[Any]:
            futures = [executor.submit(job, index) for index in range(nb_jobs)]
            return (future.result() for future in futures)

        yield epoch


@contextmanager
def mapped_in_chunks(job: Job, nb_jobs: int, nb_workers: int) -> Iterator[Epoch]:
    """Sends 64 jobs at a time."""
    with concurrent.futures.ProcessPoolExecutor(nb_workers) as executor:
        yield lambda: executor.map(job, range(nb_jobs), chunksize=64)


@contextmanager
def mapped_in_threads(job: Job, nb_jobs: int, nb_workers: int) -> Iterator[Epoch]:
    """Maps in threads."""
    with concurrent.futures.ThreadPoolExecutor(nb_workers) as executor:
        yield lambda: executor.map(job, range(nb_jobs))


# Streams


def measure_stream(open_it: Open, job: Job, nb_jobs: int, nb_workers: int, sum_s: float = 0.0) -> Figures:
    """Measures the second epoch of jobs that give their index back, alone or as "index" of a dictionary.

    Args:
        open_it: opens the pool.
        job: what runs.
        nb_jobs: in an epoch.
        nb_workers: in the pool.
        sum_s: seconds that all jobs sleep together.

    Raises:
        RuntimeError: the results are not those of the jobs, in order.
    """
    with open_it(job, nb_jobs, nb_workers) as epoch:
        indices = [result["index"] if isinstance(result, dict) else result for result in epoch()]
        if indices != list(range(nb_jobs)):
            raise RuntimeError(f"{nb_jobs} jobs must give their indices in order")
        clock, start = CpuClock(), time.perf_counter()
        for _ in epoch():
            pass
        whole_s = time.perf_counter() - start
        cpu_s = clock.elapsed_s()
    figures = {"jobs_per_s": nb_jobs / whole_s, "us": 1e6 * whole_s / nb_jobs, "cpu_us": 1e6 * cpu_s / nb_jobs}
    return {**figures, "share_of_ideal": sum_s / nb_workers / whole_s} if sum_s else figures


def tiny(quick: bool) -> Comparison:
    """An int in, an int out."""
    # At 120 µs a job, submitting takes two seconds; the others need more jobs to be measured at all.
    pools: dict[str, tuple[Open, int]] = {
        OURS: (ours, 50_000),
        SUBMIT: (submitted, 20_000),
        MAP: (mapped_in_chunks, 100_000),
    }
    return Comparison(
        "an int in, an int out, 2 workers, in order",
        {
            name: partial(measure_stream, open_it, same, nb_jobs // 50 if quick else nb_jobs, 2)
            for name, (open_it, nb_jobs) in pools.items()
        },
        [
            Column("jobs/s", "jobs_per_s"),
            Column("µs a job", "us"),
            Column("CPU µs", "cpu_us"),
            Column("ours x it", "jobs_per_s", OURS, inverse=True),
        ],
        [Goal(OURS, "jobs_per_s", at_least=50, base=SUBMIT), Goal(OURS, "jobs_per_s", at_least=1, base=MAP)],
    )


def sleepers(title: str, job: Sleeps, nb_workers: int, pools: dict[str, Open], goals: Sequence[Goal]) -> Comparison:
    """Jobs that sleep, each once in an epoch."""
    nb_jobs, sum_s = len(job.durations_s), sum(job.durations_s)
    return Comparison(
        f"{title}, {nb_jobs} jobs, {nb_workers} workers, in order",
        {one: partial(measure_stream, open_it, job, nb_jobs, nb_workers, sum_s) for one, open_it in pools.items()},
        [
            Column("share of ideal", "share_of_ideal"),
            Column("CPU µs a job", "cpu_us"),
            Column("CPU, x DataLoader", "cpu_us", LOADER),
        ],
        goals,
    )


def uneven(quick: bool) -> Comparison:
    """One job in twenty takes fifty times longer than the others."""
    job = Sleeps.uneven(60 if quick else 1000, 0.002, 0.1, one_in=20)
    pools: dict[str, Open] = {OURS: ours, CHAIN: chain, LOADER: loader, THREADS: mapped_in_threads}
    goals = [Goal(one, "share_of_ideal", at_least=0.92) for one in (OURS, CHAIN)]
    return sleepers("2 ms a job, one in twenty 100 ms", job, 4, pools, goals)


def latency(quick: bool) -> Comparison:
    """Samples that come from afar."""
    job = Sleeps((0.02,) * (64 if quick else 1600), with_image=True)
    pools: dict[str, Open] = {OURS: ours, CHAIN: chain, LOADER: loader}
    goals = [Goal(one, "share_of_ideal", at_least=0.97) for one in (OURS, CHAIN)]
    goals += [Goal(one, "cpu_us", at_most=0.12, base=LOADER) for one in (OURS, CHAIN)]
    return sleepers("20 ms a job, 28x28 float32", job, 16, pools, goals)


def samples(quick: bool) -> Comparison:
    """A job a sample, batches in the main process: the contenders of `bench_sequence.py`."""
    from benchmarks import bench_sequence, peers

    workload = next(one for one in bench_sequence.workloads() if one.name == "samples")
    workload = workload.shorter(workload.nb_samples // 16) if quick else workload
    there = bench_sequence.contenders(workload)
    there |= {name: partial(peers.opened, name, workload.task()) for name in peers.installed([peers.TORCHDATA])}
    wanted = (bench_sequence.LOADER, bench_sequence.PROCESSES, peers.TORCHDATA)
    figure, chain_of_ours = "samples_per_s", bench_sequence.PROCESSES
    return Comparison(
        workload.title,
        {one: partial(bench_sequence.measure, there[one], workload.nb_samples) for one in wanted if one in there},
        [
            Column("samples/s", figure),
            Column("CPU s / 1,000", "cpu_s_per_1000"),
            Column("ours x it", figure, chain_of_ours, inverse=True),
        ],
        [
            Goal(chain_of_ours, figure, at_least=1, base=bench_sequence.LOADER),
            Goal(chain_of_ours, figure, at_least=10, base=peers.TORCHDATA),
        ],
        peers.left_out([peers.TORCHDATA]),
    )


# One job there and back


def median_trip(there_and_back: Callable[[], Any], nb_trips: int) -> Figures:
    """Measures each of many trips, after a tenth of them as a warm-up."""
    for _ in range(nb_trips // 10):
        there_and_back()
    trips_s: list[float] = []
    for _ in range(nb_trips):
        start = time.perf_counter()
        there_and_back()
        trips_s.append(time.perf_counter() - start)
    return {"trip_us": 1e6 * statistics.median(trips_s)}


def trip_of_ours(nb_trips: int) -> Figures:
    """Puts a job and gets its result."""
    with JobExecutor(1, same) as executor:

        def there_and_back() -> None:
            executor.put(0)
            executor.get()

        return median_trip(there_and_back, nb_trips)


def trip_of_pool(nb_trips: int) -> Figures:
    """Submits a job and takes its result."""
    with concurrent.futures.ProcessPoolExecutor(1) as executor:
        return median_trip(lambda: executor.submit(same, 0).result(), nb_trips)


def trip_of_zmq(nb_trips: int) -> Figures:
    """Sends eight bytes from a ROUTER to a DEALER in another process, and back."""
    context = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory() as folder,
        zmq.Context() as zmq_context,
        zmq_context.socket(zmq.ROUTER) as socket,
    ):
        address = f"ipc://{Path(folder, 'socket')}"
        socket.rcvtimeo = 60_000  # milliseconds; if the other process fails, so does this
        socket.bind(address)
        process = context.Process(target=echo, args=(address,), daemon=True)
        process.start()
        try:
            identity, _ = socket.recv_multipart()

            def there_and_back() -> None:
                socket.send_multipart([identity, b"12345678"])
                socket.recv_multipart()

            figures = median_trip(there_and_back, nb_trips)
            socket.send_multipart([identity, b""])
        finally:
            process.join(timeout=5)
            process.kill()
            process.join()
            process.close()
    return figures


def round_trip(quick: bool) -> Comparison:
    """One job at a time."""
    nb_trips = 100 if quick else 5000
    trips = {OURS: trip_of_ours, ZMQ: trip_of_zmq, POOL: trip_of_pool}
    return Comparison(
        f"one job there and back, median of {nb_trips:,}",
        {name: partial(trip, nb_trips) for name, trip in trips.items()},
        [Column("µs", "trip_us"), Column("x bare ZeroMQ", "trip_us", ZMQ), Column("x PPE", "trip_us", POOL)],
        [Goal(OURS, "trip_us", at_most=1.15, base=ZMQ), Goal(OURS, "trip_us", at_most=0.75, base=POOL)],
    )


# A consumer that is away

AWAY_S, TAKEN_AT_ONCE, BUSY_WORKERS, BUSY_JOB_S = 0.5, 20, 4, 0.1


def busy_share(spans: Iterable[tuple[float, float]], start: float, end: float, nb_workers: int) -> float:
    """Returns which share of the time of all workers from `start` to `end` lies within the spans of jobs.

    >>> busy_share([(0.0, 2.0), (3.0, 5.0)], start=1.0, end=4.0, nb_workers=1)
    0.6666666666666666
    """
    busy_s = sum(max(0.0, min(end, span_end) - max(start, span_start)) for span_start, span_end in spans)
    return busy_s / (end - start) / nb_workers


def measure_away(open_it: Open, nb_times: int) -> Figures:
    """Measures from the end of the first time away to the end of the last one; jobs are left then for another two."""
    nb_jobs = TAKEN_AT_ONCE * (nb_times + 3)
    with open_it(Stamped(BUSY_JOB_S), nb_jobs, BUSY_WORKERS) as epoch:
        results, spans, ends = epoch(), [], []
        for _ in range(nb_times + 1):
            spans += [next(results) for _ in range(TAKEN_AT_ONCE)]
            time.sleep(AWAY_S)
            ends.append(time.monotonic())
        spans += results
    return {"busy_share": busy_share(spans, ends[0], ends[-1], BUSY_WORKERS)}


def away(quick: bool) -> Comparison:
    """Training steps that take as long as their samples."""
    pools: dict[str, Open] = {
        OURS: ours,
        DEEP: partial(ours, max_jobs_at_once=64),
        CHAIN: chain,
        LOADER: loader,
    }
    nb_times = 2 if quick else 10
    return Comparison(
        f"{TAKEN_AT_ONCE} results, then away for 500 ms, {nb_times} times; 100 ms a job, 4 workers",
        {name: partial(measure_away, open_it, nb_times) for name, open_it in pools.items()},
        [Column("share of time busy", "busy_share")],
        [Goal(name, "busy_share", at_least=0.95) for name in (OURS, DEEP, CHAIN)],
    )


COMPARISONS = {
    "tiny": tiny,
    "round_trip": round_trip,
    "uneven": uneven,
    "samples": samples,
    "latency": latency,
    "away": away,
    "idle": pool_life.idle,
    "death": pool_life.death,
    "start": pool_life.start,
}

if __name__ == "__main__":
    logging.getLogger("trw_pipeline").setLevel(logging.ERROR)  # it warns of each worker that dies
    # More workers than cores is what jobs that sleep ask for.
    warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
    run("benchmarks.bench_pool", COMPARISONS)
