"""How fast does one array get from a worker to the main process?

Method. One worker sends the same arrays again and again, so it computes nothing, and the main process keeps several
messages in flight. A measurement opens a contender, lets it warm up (twice as many messages as are in flight, so that
every slot or buffer has been used), then counts messages for half a second while it takes and drops them, and again
while it reads one value of every memory page of what it gets. CPU is that of all processes, while messages are dropped.
Contenders alternate, and a ratio is taken within a round before the median over rounds (`harness.py`).

    memcpy                  the base: the same arrays copied once, from warm memory to warm memory, in the main process
    ours                    JobExecutor(1, ...), a process
    torch queue             torch.multiprocessing.Queue of tensors, torch's default sharing strategy
    multiprocessing queue   multiprocessing.Queue of arrays
    ProcessPoolExecutor     of concurrent.futures, one worker

`in_slot` asks for something else: what a job gains that computes its result right where the main process reads it
(`trw_pipeline.empty_result`), beside one that returns a fresh array, which then has to be copied. "at most" is the same
in one process, without any transport: no pool can gain more. glibc's allocator gives an array of up to 32 MiB memory
that was used before, once one of that size has been freed; the system makes new pages for a larger one each time. So
there are two sizes, and little to gain at the first.

Goals (the median over rounds of the ratio of messages a second): 0.70 of memcpy at 4 MB and 0.97 at 64 MB, when taken;
at 4 KB one 60th of the CPU of torch's queue; in the slot 3 times as fast.

Result (README.md has the tables): 0.58 of memcpy at 4 MB, 0.95 at 64 MB; 4.7 and 3.6 times torch's queue; in the slot
1.4 times as fast at 8 MiB, 1.9 at 64 MiB.

    python -m benchmarks.bench_transport [--quick] [--rounds 5] [--json PATH] [--only 4kb,256kb,...]
"""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch.multiprocessing

import trw_pipeline
from benchmarks.comparison import Column, Comparison, Goal, run
from benchmarks.harness import CpuClock, Figures
from benchmarks.jobs import Payload, Scaled, fill_queue
from trw_pipeline import JobExecutor

Receive: TypeAlias = Callable[[], Any]
"""Returns the next message: feature name -> array or tensor; or an array."""

Open: TypeAlias = Callable[[], AbstractContextManager[Receive]]
"""Starts a worker that sends; it ends with the context."""

MEMCPY, OURS, TORCH_QUEUE, QUEUE, POOL = (
    "memcpy",
    "ours",
    "torch queue",
    "multiprocessing queue",
    "ProcessPoolExecutor",
)
FRESH, IN_SLOT, FRESH_HERE, IN_SLOT_HERE = "fresh array", "in the slot", "at most: fresh array", "at most: in the slot"

PAGE_BYTES = 4096

# name -> (arrays in a message, bytes of them together, messages in flight)
SIZES = {
    "4kb": (8, 4 * 2**10, 64),
    "256kb": (1, 256 * 2**10, 16),
    "4mb": (1, 4 * 2**20, 8),
    "64mb": (1, 64 * 2**20, 4),
}

GOALS = {
    "4kb": [Goal(OURS, "cpu_us", at_most=1 / 60, base=TORCH_QUEUE)],
    "4mb": [Goal(OURS, "taken_per_s", at_least=0.70, base=MEMCPY)],
    "64mb": [Goal(OURS, "taken_per_s", at_least=0.97, base=MEMCPY)],
}

SCALED_SHAPES = {"in_slot": (1024, 2048), "in_slot_64mb": (8192, 2048)}  # 8 and 64 MiB of float32


# Contenders


@contextmanager
def memcpy(payload: Payload) -> Iterator[Receive]:
    """Copies the arrays to the same place each time: no message can be faster."""
    sources = payload()
    copies = {name: np.empty_like(array) for name, array in sources.items()}

    def receive() -> Any:
        for name, array in sources.items():
            np.copyto(copies[name], array)
        return copies

    yield receive


@contextmanager
def ours(function: Callable[[Any], Any], nb_in_flight: int) -> Iterator[Receive]:
    """Runs a job a message."""
    with JobExecutor(1, function, max_jobs_at_once=nb_in_flight, in_order=True) as executor:
        for _ in range(nb_in_flight):
            executor.put(0)

        def receive() -> Any:
            message = executor.get().value
            executor.put(0)
            return message

        yield receive


@contextmanager
def through_queue(payload: Payload, nb_in_flight: int, of_torch: bool) -> Iterator[Receive]:
    """Lets a process fill a bounded queue."""
    library: Any = torch.multiprocessing if of_torch else multiprocessing
    context = library.get_context("fork")
    queue = context.Queue(nb_in_flight)
    process = context.Process(target=fill_queue, args=(queue, payload, of_torch), daemon=True)
    process.start()
    try:
        yield queue.get
    finally:
        process.terminate()
        process.join(timeout=5)
        process.kill()
        process.join()
        process.close()
        queue.close()


@contextmanager
def executor_of_python(payload: Payload, nb_in_flight: int) -> Iterator[Receive]:
    """Submits a job a message."""
    with concurrent.futures.ProcessPoolExecutor(1) as executor:
        futures = deque(executor.submit(payload) for _ in range(nb_in_flight))

        def receive() -> Any:
            message = futures.popleft().result()
            futures.append(executor.submit(payload))
            return message

        yield receive


@contextmanager
def in_process(scaled: Scaled, nb_slots: int) -> Iterator[Receive]:
    """Computes results in the main process, into memory that is used in turn."""
    slots = deque(np.zeros(scaled.shape, np.float32) for _ in range(nb_slots))

    def receive() -> Any:
        slots.rotate()
        return scaled.into(slots[0])

    yield receive


# Measurement


def drop(message: Any) -> None:
    """Receives a message and does not look at it."""


def read(message: Any) -> None:
    """Reads one value of every page of a message."""
    for array in message.values() if isinstance(message, dict) else [message]:
        if array.nbytes <= PAGE_BYTES:
            array[0].item()
        else:
            array.reshape(-1)[:: PAGE_BYTES // array.itemsize].sum()


def messages(receive: Receive, consume: Callable[[Any], None], duration_s: float, at_least: int) -> tuple[int, float]:
    """Receives messages for a time; returns their number and the seconds that they took."""
    nb_received, start = 0, time.perf_counter()
    while True:
        consume(receive())
        nb_received += 1
        elapsed_s = time.perf_counter() - start
        if elapsed_s >= duration_s and nb_received >= at_least:
            return nb_received, elapsed_s


def measure(open_it: Open, nb_in_flight: int, duration_s: float) -> Figures:
    """Measures messages that are dropped, then messages that are read."""
    with open_it() as receive:
        messages(receive, read, 0.0, at_least=2 * nb_in_flight)
        clock = CpuClock()
        nb_taken, taken_s = messages(receive, drop, duration_s, at_least=2 * nb_in_flight)
        cpu_s = clock.elapsed_s()
        nb_read, read_s = messages(receive, read, duration_s, at_least=2 * nb_in_flight)
    return {
        "taken_us": 1e6 * taken_s / nb_taken,
        "taken_per_s": nb_taken / taken_s,
        "read_us": 1e6 * read_s / nb_read,
        "read_per_s": nb_read / read_s,
        "cpu_us": 1e6 * cpu_s / nb_taken,
    }


# Comparisons


def transport(name: str, quick: bool) -> Comparison:
    """Compares the ways of one size."""
    nb_arrays, nb_bytes, nb_in_flight = SIZES[name]
    payload = Payload(nb_arrays, nb_bytes)
    ways: dict[str, Open] = {
        MEMCPY: partial(memcpy, payload),
        OURS: partial(ours, payload, nb_in_flight),
        TORCH_QUEUE: partial(through_queue, payload, nb_in_flight, of_torch=True),
        QUEUE: partial(through_queue, payload, nb_in_flight, of_torch=False),
        POOL: partial(executor_of_python, payload, nb_in_flight),
    }
    columns = [
        Column("taken µs", "taken_us"),
        Column("read µs", "read_us"),
        Column("CPU µs", "cpu_us"),
        Column("taken, x memcpy", "taken_per_s", MEMCPY),
        Column("read, x memcpy", "read_per_s", MEMCPY),
        Column("taken, ours x it", "taken_per_s", OURS, inverse=True, median_only=True),
        Column("read, ours x it", "read_per_s", OURS, inverse=True, median_only=True),
    ]
    title = f"{nb_arrays} arrays of {nb_bytes // nb_arrays:,} bytes a message, {nb_in_flight} in flight"
    return Comparison(title, _measures(ways, nb_in_flight, quick), columns, GOALS.get(name, []))


def in_slot(name: str, quick: bool) -> Comparison:
    """Compares a job that computes into the slot with one that returns a fresh array."""
    shape, nb_in_flight = SCALED_SHAPES[name], 8
    fresh, into_slot = Scaled(shape, in_slot=False), Scaled(shape, in_slot=True)
    ways: dict[str, Open] = {
        FRESH: partial(ours, fresh, nb_in_flight),
        FRESH_HERE: partial(in_process, fresh, nb_in_flight),
        IN_SLOT_HERE: partial(in_process, into_slot, nb_in_flight),
    }
    left_out: dict[str, str] = {}
    if getattr(trw_pipeline, "empty_result", None) is None:
        left_out[IN_SLOT] = "there is no trw_pipeline.empty_result"
    else:
        ways[IN_SLOT] = partial(ours, into_slot, nb_in_flight)
    columns = [
        Column("taken µs", "taken_us"),
        Column("read µs", "read_us"),
        Column("CPU µs", "cpu_us"),
        Column("taken, x fresh", "taken_per_s", FRESH),
        Column("read, x fresh", "read_per_s", FRESH),
        Column(f"taken, x {FRESH_HERE}", "taken_per_s", FRESH_HERE),
    ]
    goals = [Goal(IN_SLOT, "taken_per_s", at_least=3, base=FRESH)]
    title = f"a product of {4 * shape[0] * shape[1] // 2**20} MiB computed by one worker, {nb_in_flight} in flight"
    return Comparison(title, _measures(ways, nb_in_flight, quick), columns, goals, left_out)


def _measures(ways: dict[str, Open], nb_in_flight: int, quick: bool) -> dict[str, Callable[[], Figures]]:
    duration_s = 0.02 if quick else 0.5
    return {name: partial(measure, open_it, nb_in_flight, duration_s) for name, open_it in ways.items()}


COMPARISONS = {
    **{name: partial(transport, name) for name in SIZES},
    **{name: partial(in_slot, name) for name in SCALED_SHAPES},
}

if __name__ == "__main__":
    run("benchmarks.bench_transport", COMPARISONS)
