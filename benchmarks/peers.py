"""Contenders of other libraries, where they are installed, and the bound: processes that only copy memory.

None of the libraries is a dependency of ours. They go into an environment of their own, layered on one that has the
project, so that nothing here is replaced:

    python -m venv PEERS
    echo "import site; site.addsitedir('SITE_PACKAGES_OF_THE_PROJECT')" > PEERS/lib/python3.11/site-packages/base.pth
    PEERS/bin/pip install --no-deps torchdata spdl-core

A contender whose library is missing is left out, and the benchmark says so in one line.
"""

from __future__ import annotations

import gc
import importlib.util
import itertools
import multiprocessing
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch

from benchmarks.harness import CpuClock, Figures, busy_s
from benchmarks.workloads import BatchOf, MakeSample, stacked

Tensors: TypeAlias = Mapping[str, torch.Tensor]

TORCHDATA, SPDL, MEMCPY = "torchdata, processes", "spdl, arena", "only memcpy"

LIBRARIES = {TORCHDATA: "torchdata", SPDL: "spdl"}


@dataclass(frozen=True)
class Task:
    """The samples that a peer makes.

    Attributes:
        make: makes a sample.
        nb_samples: in an epoch, whole batches.
        batch_size: number of samples in a batch.
        is_job_a_batch: whether a job makes a batch; else it makes one sample.
        nb_workers: number of processes.
    """

    make: MakeSample
    nb_samples: int
    batch_size: int
    is_job_a_batch: bool
    nb_workers: int


def installed(names: Iterable[str]) -> list[str]:
    """Returns those of the contenders whose library is there."""
    return [name for name in names if importlib.util.find_spec(LIBRARIES[name]) is not None]


def left_out(names: Iterable[str]) -> dict[str, str]:
    """Returns why each of the others is not there."""
    names = list(names)
    return {name: f"{LIBRARIES[name]} is not installed" for name in names if name not in installed(names)}


def opened(name: str, task: Task) -> Iterable[Tensors]:
    """Opens a contender; it ends with `close`, where it has one, and when nothing refers to it any more."""
    return {TORCHDATA: TorchdataBatches, SPDL: SpdlBatches}[name](task)


# torchdata


@dataclass(frozen=True)
class TensorsOf:
    """Makes a batch of tensors in the worker, as torch's own queues want it: they travel through shared memory."""

    make: MakeSample

    def __call__(self, indices: np.ndarray) -> dict[str, torch.Tensor]:
        """Makes the samples of `indices` (N,)."""
        return _tensors(BatchOf(self.make)({"index": indices}))


class TorchdataBatches:
    """torchdata's process mapper, with twice as many jobs on their way as there are workers, as is its default.

    Its workers live for one epoch. So that a second epoch finds a pool that runs, as the others' does, all epochs are
    cut from one endless stream; it may thus have a few jobs done when an epoch begins. When it is closed, its threads
    may write that a worker they still heard from is gone; it means nothing.
    """

    def __init__(self, task: Task) -> None:
        from torchdata.nodes import Batcher, IterableWrapper, Mapper, ParallelMapper  # pyright: ignore

        self._nb_batches = task.nb_samples // task.batch_size
        source: Any = IterableWrapper(_EndlessJobs(task))
        if task.is_job_a_batch:
            self._node: Any = ParallelMapper(source, TensorsOf(task.make), task.nb_workers, method="process")
        else:
            samples = ParallelMapper(source, task.make, task.nb_workers, method="process")
            self._node = Mapper(Batcher(samples, task.batch_size), _collated)
        self._runs = False

    def __iter__(self) -> Iterator[Tensors]:
        if not self._runs:
            self._node.reset()
            self._runs = True
        return itertools.islice(iter(self._node.next, None), self._nb_batches)

    def close(self) -> None:
        """Ends the workers: they do when nothing refers to their node."""
        self._node = None
        gc.collect()


@dataclass(frozen=True)
class _EndlessJobs:
    task: Task

    def __iter__(self) -> Iterator[Any]:
        if not self.task.is_job_a_batch:
            return itertools.cycle(range(self.task.nb_samples))
        size = self.task.batch_size
        return (np.arange(start, start + size) for start in itertools.cycle(range(0, self.task.nb_samples, size)))


def _collated(samples: list[Any]) -> dict[str, torch.Tensor]:
    return _tensors(stacked(samples))


def _tensors(batch: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(array) for name, array in batch.items()}


# SPDL


class SpdlBatches:
    """SPDL's iterables in subprocesses, one for each worker, with a pool of reused shared-memory segments.

    Each process makes every n-th batch, and they are taken in turn, so batches come in order. On Python 3.11 its way of
    leaving the segments makes the resource tracker write a KeyError for each when they are closed; it means nothing.
    """

    BUFFERED = 4  # batches that wait at each process; another four segments are for those that are read or made

    def __init__(self, task: Task) -> None:
        from spdl.pipeline import SharedMemorySegmentPool, iterate_in_subprocess  # pyright: ignore

        one = stacked([task.make(index) for index in range(task.batch_size)])
        segment_bytes = sum(array.nbytes for array in one.values()) + 4096 * len(one)  # each of them aligned
        self._shares: list[Any] = [
            iterate_in_subprocess(
                partial(_Share, task, number),
                buffer_size=self.BUFFERED,
                mp_context="fork",
                arena=SharedMemorySegmentPool(segment_bytes, 2 * self.BUFFERED),
            )
            for number in range(task.nb_workers)
        ]

    def __iter__(self) -> Iterator[Tensors]:
        shares = [iter(share) for share in self._shares]
        for share in itertools.cycle(shares):
            if (batch := next(share, None)) is None:
                break
            yield _tensors(batch)
            del batch  # with it goes its segment
        for share in shares:
            next(share, None)  # an epoch is over only when its end has been seen

    def close(self) -> None:
        """Ends the processes: they do when nothing refers to their iterable."""
        self._shares.clear()
        gc.collect()


@dataclass(frozen=True)
class _Share:
    task: Task
    number: int

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        size, nb_workers = self.task.batch_size, self.task.nb_workers
        for start in range(self.number * size, self.task.nb_samples, nb_workers * size):
            yield stacked([self.task.make(index) for index in range(start, start + size)])


# The bound


def measure_memcpy(task: Task) -> Figures:
    """Measures how many samples a second the workers can copy together, from warm memory to warm memory.

    Nothing is sent and nothing is read: no transport that copies a sample once can be faster. It has no first batch.
    """
    context = multiprocessing.get_context("fork")
    pipes = [context.Pipe() for _ in range(task.nb_workers)]
    arrays = [np.asarray(value) for value in task.make(0).values()]
    workers = [context.Process(target=_copy, args=(arrays, theirs), daemon=True) for _, theirs in pipes]
    ends = [ours for ours, _ in pipes]
    nb_copies = max(1, task.nb_samples // task.nb_workers)
    try:
        for worker in workers:
            worker.start()
        _copied(ends, 2)
        busy_before_s, clock, start = busy_s(), CpuClock(), time.perf_counter()
        _copied(ends, nb_copies)
        whole_s = time.perf_counter() - start
        cpu_s = clock.elapsed_s()
        others_cpu_s = busy_s() - busy_before_s - cpu_s
    finally:
        for worker in workers:
            worker.kill()
            worker.join()
            worker.close()
        for end in itertools.chain.from_iterable(pipes):
            end.close()
    nb_samples = nb_copies * task.nb_workers
    return {
        "samples_per_s": nb_samples / whole_s,
        "cpu_s_per_1000": 1000 * cpu_s / nb_samples,
        "epoch_s": whole_s,
        "others_cpu_s": others_cpu_s,
    }


def _copied(ends: Iterable[Any], nb_copies: int) -> None:
    ends = list(ends)
    for end in ends:
        end.send(nb_copies)
    for end in ends:
        end.recv()


def _copy(arrays: list[np.ndarray], end: Any) -> None:
    copies = [np.empty_like(array) for array in arrays]
    while True:
        for _ in range(end.recv()):
            for copy, array in zip(copies, arrays, strict=True):
                np.copyto(copy, array)
        end.send(None)
