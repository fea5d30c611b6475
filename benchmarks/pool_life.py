"""How a pool idles, how it bears the death of a worker, and how it starts: comparisons of `bench_pool.py`.

Idling and starting are measured of fresh programs (`programs.py`). Dying is measured in the program itself: a job says
through a FIFO that it runs, its worker is killed, and the job tells when it ran again; `time.monotonic()` is one clock
for all processes of a machine.
"""

from __future__ import annotations

import concurrent.futures
import json
import os
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from benchmarks.comparison import Column, Comparison, Goal
from benchmarks.harness import Figures
from benchmarks.jobs import Victim
from trw_pipeline import JobExecutor, WorkerLostError

ROOT = Path(__file__).resolve().parents[1]
OURS, POOL, LOADER, BARE = "ours", "ProcessPoolExecutor", "DataLoader", "bare forkserver"
LIMIT_S = 60.0
"""Nothing here takes this long; what does has failed."""


@contextmanager
def program(function: str) -> Iterator[subprocess.Popen[str]]:
    """Starts a function of `programs.py`, and lets it end by closing its input.

    Raises:
        RuntimeError: it failed.
    """
    code = f"from benchmarks.programs import {function}; {function}()"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-W", "ignore::UserWarning", "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        try:
            yield process
            process.communicate(timeout=LIMIT_S)
        except BaseException:
            process.kill()
            raise
    if process.returncode != 0:
        raise RuntimeError(f"{function} must end with 0, it ended with {process.returncode}")


def said_by(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Returns the next thing that a program says."""
    assert process.stdout is not None, "it was started with a pipe"
    line = process.stdout.readline()
    if not line:
        raise RuntimeError("the program ended before it said what it found")
    return json.loads(line)


# Idle


def threads_of(pids: list[int]) -> list[tuple[int, int]]:
    """Returns of every thread of the processes: voluntary context switches, and nanoseconds on a CPU."""
    found: list[tuple[int, int]] = []
    for pid in pids:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            status = (thread / "status").read_text().splitlines()
            switches = next(int(line.split()[1]) for line in status if line.startswith("voluntary_ctxt_switches"))
            found.append((switches, int((thread / "schedstat").read_text().split()[0])))
    return found


def measure_idle(function: str, duration_s: float) -> Figures:
    """Watches a program that has nothing to do, and all its descendants, from outside."""
    with program(function) as process:
        said_by(process)
        time.sleep(0.5)  # for what is put off to the first idle moment
        others = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
        main_before, others_before = threads_of([process.pid]), threads_of(others)
        time.sleep(duration_s)
        main, rest = threads_of([process.pid]), threads_of(others)
    ran_ns = sum(ns for _, ns in [*main, *rest]) - sum(ns for _, ns in [*main_before, *others_before])
    return {
        "cpu_percent": 100 * ran_ns / 1e9 / duration_s,
        "switches_main": sum(count for count, _ in main) - sum(count for count, _ in main_before),
        "switches_others": sum(count for count, _ in rest) - sum(count for count, _ in others_before),
    }


def idle(quick: bool) -> Comparison:
    """A pool of 4 that has nothing to do."""
    duration_s = 1.0 if quick else 10.0
    programs = {OURS: "idle_ours", POOL: "idle_executor_of_python", LOADER: "idle_loader"}
    return Comparison(
        f"a pool of 4 with nothing to do, {duration_s:.0f} s",
        {name: partial(measure_idle, function, duration_s) for name, function in programs.items()},
        [
            Column("CPU, % of a core", "cpu_percent"),
            Column("switches, main", "switches_main"),
            Column("switches, workers", "switches_others"),
        ],
        [
            Goal(OURS, "cpu_percent", at_most=0.1),
            Goal(OURS, "switches_main", at_most=0),
            Goal(OURS, "switches_others", at_most=0),
        ],
    )


# Death


@contextmanager
def scene() -> Iterator[str]:
    """Makes the folder of a `Victim`."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        os.mkfifo(Path(folder, "ready"))
        yield folder


def report_of(folder: str) -> dict[str, Any]:
    """Waits until the job runs; returns what it reports.

    Raises:
        RuntimeError: it does not.
    """
    ready = os.open(Path(folder, "ready"), os.O_RDONLY | os.O_NONBLOCK)
    try:
        if not select.select([ready], [], [], LIMIT_S)[0]:
            raise RuntimeError(f"the job should have reported within {LIMIT_S} s")
        # A report is shorter than what a pipe takes at once.
        return json.loads(os.read(ready, 4096))
    finally:
        os.close(ready)


def wait_for_all(executor: JobExecutor) -> None:
    """Waits until every worker has done a job: one that is still starting could not take over at once."""
    pids: set[int] = set()
    while len(pids) < executor.nb_workers:
        for _ in range(executor.nb_workers):
            executor.put(-1)
        pids |= {executor.get(LIMIT_S).value for _ in range(executor.nb_workers)}


def killed(report: dict[str, Any]) -> float:
    """Kills the worker; returns when, by `time.monotonic()`."""
    now = time.monotonic()
    os.kill(report["pid"], signal.SIGKILL)
    return now


@contextmanager
def running(executor: JobExecutor, folder: str, number: int) -> Iterator[dict[str, Any]]:
    """Lets a job run while the other worker is idle; gives its report, and ends what its worker leaves."""
    wait_for_all(executor)
    executor.put(number)
    report = report_of(folder)
    try:
        yield report
    finally:
        if report["child"] is not None:
            os.kill(report["child"], signal.SIGKILL)


def times_until_known(nb_kills: int, **of_victim: Any) -> list[float]:
    """Returns the seconds from each kill to the error, of jobs that are tried once."""
    times_s: list[float] = []
    with scene() as folder, JobExecutor(2, Victim(folder, **of_victim), max_retries=0) as executor:
        for number in range(nb_kills):
            with running(executor, folder, number) as report:
                at = killed(report)
                try:
                    executor.get(LIMIT_S)
                except WorkerLostError:
                    times_s.append(time.monotonic() - at)
    return times_s


def times_until_again(nb_kills: int, **of_victim: Any) -> list[float]:
    """Returns the seconds from each kill to the start of the next attempt, at the other worker."""
    times_s: list[float] = []
    with scene() as folder, JobExecutor(2, Victim(folder, **of_victim)) as executor:
        for number in range(nb_kills):
            with running(executor, folder, number) as report:
                at = killed(report)
                times_s.append(executor.get(LIMIT_S).value - at)
    return times_s


def measure_death(nb_kills: int, **of_victim: Any) -> Figures:
    """Measures some deaths; the median of each kind of time counts."""
    return {
        "known_ms": 1000 * statistics.median(times_until_known(nb_kills, **of_victim)),
        "again_ms": 1000 * statistics.median(times_until_again(nb_kills, **of_victim)),
    }


def measure_death_in_python(nb_kills: int) -> Figures:
    """Measures the executor of `concurrent.futures`, which is of no use after a death: each time another one."""
    times_s: list[float] = []
    for number in range(nb_kills):
        with scene() as folder, concurrent.futures.ProcessPoolExecutor(2) as executor:
            future = executor.submit(Victim(folder), number)
            at = killed(report_of(folder))
            try:
                future.result(LIMIT_S)
            except BrokenProcessPool:
                times_s.append(time.monotonic() - at)
    return {"known_ms": 1000 * statistics.median(times_s)}


def death(quick: bool) -> Comparison:
    """A worker is killed in the midst of a job, the other one of the pool is idle."""
    nb_kills = 2 if quick else 10
    resident = 400 * 10**6
    small, large, parent = "ours, small", "ours, 400 MB resident", "ours, leaves a child"
    # The kernel tears a process down before anybody is told: 0.08 ms a resident MB.
    limits = {small: 10.0, large: 10.0 + 0.08 * 400, parent: 10.0}
    return Comparison(
        f"SIGKILL of one of two workers, median of {nb_kills}",
        {
            small: partial(measure_death, nb_kills),
            large: partial(measure_death, nb_kills, resident_bytes=resident),
            parent: partial(measure_death, nb_kills, leaves_child=True),
            POOL: partial(measure_death_in_python, nb_kills),
        },
        [Column("known, ms", "known_ms"), Column("runs again, ms", "again_ms")],
        [Goal(name, "again_ms", at_most=limit) for name, limit in limits.items()],
    )


# Start


def measure_start(function: str) -> Figures:
    """Runs a program that opens two pools of four."""
    with program(function) as process:
        found = said_by(process)
    return {
        "first_s": found["first_s"],
        "second_s": found["second_s"],
        "second_s_per_worker": found["second_s"] / 4,
        "with_torch": found["with_torch"],
    }


def start(quick: bool) -> Comparison:
    """A pool of four in a fresh program; `quick` changes nothing, it takes a second."""
    del quick
    return Comparison(
        "a pool of 4 until each has delivered a result, first and second pool of a fresh program",
        {OURS: partial(measure_start, "start_ours"), BARE: partial(measure_start, "start_bare")},
        [
            Column("first, s", "first_s"),
            Column("second, s", "second_s"),
            Column("first, x bare", "first_s", BARE),
            Column("second, x bare", "second_s", BARE),
            Column("workers with torch", "with_torch"),
        ],
        [
            Goal(OURS, "first_s", at_most=1.5, base=BARE),
            Goal(OURS, "second_s_per_worker", at_most=0.05),
            Goal(OURS, "with_torch", at_most=0),
        ],
    )
