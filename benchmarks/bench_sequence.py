"""How many samples a second does a chain deliver, at what cost, and how soon, beside torch's `DataLoader`?

Method. All contenders make the same samples with the same code and deliver the same batches of CPU tensors; that is
checked before anything is timed. They alternate within one run, and a ratio is taken within a round before the median
over rounds (`harness.py`). A measurement opens a fresh pool and takes the time to its first batch (cold), runs that
epoch to its end, and measures the second one from `iter()` to its last batch: samples a second, time to the first batch
(warm), CPU seconds of all processes. The fork server that our workers come from has started before, in the check: it
does so once in a program.

    in-process loop     no workers: the limit where samples cost nothing
    DataLoader          its own collate to tensors in shared memory, prefetch 2, persistent workers
    DataLoader tuned    collate to arrays in the workers, tensors made in the main process, prefetch 4
    ours, processes     SequenceArray(...).map(..., nb_workers=...).collate(), or .batch(64) on `samples`
    ours, threads       the same with backend="thread"
    torchdata, spdl     on small, 8mb and 32mb, where they are installed (`peers.py` says how they are used)
    only memcpy         on 8mb and 32mb: as many processes that copy a sample again and again, and send nothing

Samples a second, median ratio to `DataLoader` over five rounds (README.md has the spread, the other figures, and why):

    x DataLoader          small  samples   cpu  latency    8mb   32mb
    --------------------  -----  -------  ----  -------  -----  -----
    in-process loop        11.9     10.5  0.92            8.56   2.97
    DataLoader                1        1     1        1      1      1
    DataLoader tuned       3.04     2.92  1.16     1.29  0.668  0.321
    ours, processes        5.58    0.808  1.53     1.29      5   4.24
    ours, threads          2.35    0.212  1.56     1.29   7.38   4.42
    torchdata, processes  0.785                           1.02    1.2
    spdl, arena            4.45                           5.11   3.21
    only memcpy                                           21.5   18.1

Machine: 2 cores of an Intel Xeon (virtual), 24 GiB, Linux 6.18, Python 3.11.7, torch 2.13.0+cpu, numpy 2.4.6, pyzmq
27.3.0. No other program took part, but the host is shared, and the speed of a core varied by a half.

    python -m benchmarks.bench_sequence [--quick] [--rounds 5] [--json PATH] [--only small,samples,...]
"""

from __future__ import annotations

import argparse
import gc
import time
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.utils.data import DataLoader

from benchmarks import peers
from benchmarks.harness import (
    MIN_ROUNDS,
    CpuClock,
    Figures,
    Rounds,
    Spread,
    alternate,
    busy_s,
    machine,
    machine_line,
    ratios,
    shown,
    table,
    values_of,
    write_json,
)
from benchmarks.workloads import BatchOf, CopiedArray, InflatedVolume, MakeSample, SmallImage, stacked
from trw_pipeline import SamplerSequential, Sequence, SequenceArray
from trw_pipeline.typing import Backend

Tensors: TypeAlias = Mapping[str, torch.Tensor]
"""What every contender delivers: feature name -> tensor (N, ...) on the CPU."""

READ_FROM_BYTES = 2**20
"""Of a tensor of at least this size the consumer reads one value of each memory page, so that nobody is paid for memory
that is not there yet. Reading smaller ones would cost more than some contenders do."""

IN_PROCESS, LOADER, TUNED, PROCESSES, THREADS = (
    "in-process loop",
    "DataLoader",
    "DataLoader tuned",
    "ours, processes",
    "ours, threads",
)


FIRST_BATCHES = ("first_cold_ms", "first_warm_ms")


@dataclass(frozen=True)
class Workload:
    """Samples to make and the batches to make of them.

    Attributes:
        name: for `--only`.
        title: what it shows.
        make: makes a sample.
        nb_samples: in an epoch.
        batch_size: number of samples in a batch.
        job_size: number of samples in a job of ours; a job of `DataLoader` is always a batch.
        nb_workers: for every contender that has workers.
        in_process: whether the loop without workers is measured too.
        peers: those of other libraries that are measured where they are installed.
        bound: whether processes that only copy memory are measured too.
    """

    name: str
    title: str
    make: MakeSample
    nb_samples: int
    batch_size: int
    job_size: int
    nb_workers: int = 2
    in_process: bool = True
    peers: tuple[str, ...] = ()
    bound: bool = False

    def shorter(self, nb_samples: int) -> Workload:
        """Returns the same with about so many samples, in whole batches."""
        return replace(self, nb_samples=max(1, nb_samples // self.batch_size) * self.batch_size)

    def task(self) -> peers.Task:
        """Returns what a peer should do."""
        is_job_a_batch = self.job_size == self.batch_size
        return peers.Task(self.make, self.nb_samples, self.batch_size, is_job_a_batch, self.nb_workers)


def workloads() -> list[Workload]:
    """Makes the data of all workloads."""
    images, volumes = SmallImage.drawn(), InflatedVolume.drawn()
    others = (peers.TORCHDATA, peers.SPDL)
    large = partial(Workload, batch_size=1, job_size=1, peers=others, bound=True)
    # At the slowest contender's pace about one or two seconds an epoch.
    return [
        Workload("small", "28x28 float32, batches of 64 made in the workers", images, 64 * 1000, 64, 64, peers=others),
        Workload("samples", "28x28 float32, one job a sample, then batches of 64", images, 64 * 100, 64, 1),
        Workload("cpu", "inflate and normalise 64^3 int16, one a batch", volumes, 300, 1, 1),
        Workload(
            "latency",
            "20 ms of sleep a sample, one a batch, 16 workers (at most 800 samples/s)",
            SmallImage.drawn(latency_s=0.02),
            1600,
            1,
            1,
            nb_workers=16,
            in_process=False,
        ),
        large("8mb", "8 MiB float32 copied into a fresh array, one a batch", CopiedArray((2, 1024, 1024)), 200),
        large("32mb", "32 MiB float32, the same", CopiedArray((8, 1024, 1024)), 40),
    ]


# Contenders


def tensors(batch: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
    """Gives arrays as tensors that share their memory."""
    return {name: torch.from_numpy(array) for name, array in batch.items()}


@dataclass(frozen=True)
class Indexed:
    """The samples of a workload as `DataLoader` wants them."""

    workload: Workload

    def __len__(self) -> int:
        return self.workload.nb_samples

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.workload.make(index)


@dataclass(frozen=True)
class InProcess:
    """The loop that somebody without a loader would write."""

    workload: Workload

    def __iter__(self) -> Iterator[Tensors]:
        size, make = self.workload.batch_size, self.workload.make
        for start in range(0, self.workload.nb_samples, size):
            yield tensors(stacked([make(index) for index in range(start, start + size)]))


@dataclass(frozen=True)
class MadeInMain:
    """Batches of arrays from the workers of a `DataLoader`, made tensors in the main process."""

    loader: DataLoader[Any]

    def __iter__(self) -> Iterator[Tensors]:
        return map(tensors, self.loader)


def loader(workload: Workload, prefetch: int, collate: Callable[..., Any] | None = None) -> DataLoader[Any]:
    """Makes a `DataLoader` whose workers outlive the epoch; `collate` None is its own, to tensors in shared memory."""
    dataset: Any = Indexed(workload)
    return DataLoader(
        dataset,
        workload.batch_size,
        num_workers=workload.nb_workers,
        collate_fn=collate,
        prefetch_factor=prefetch,
        persistent_workers=True,
    )


def chain(workload: Workload, backend: Backend) -> Sequence:
    """Makes our chain: jobs of indices to the workers, tensors out."""
    indices = SequenceArray({"index": np.arange(workload.nb_samples)}, SamplerSequential(workload.job_size))
    batches = indices.map(BatchOf(workload.make), nb_workers=workload.nb_workers, backend=backend)
    if workload.job_size < workload.batch_size:
        return batches.batch(workload.batch_size // workload.job_size)
    return batches.collate()


def contenders(workload: Workload) -> dict[str, Callable[[], Iterable[Tensors]]]:
    """Returns name -> opens it: no worker runs before its first epoch begins."""
    with_workers: dict[str, Callable[[], Iterable[Tensors]]] = {
        LOADER: partial(loader, workload, 2),
        TUNED: lambda: MadeInMain(loader(workload, 4, stacked)),
        PROCESSES: partial(chain, workload, "process"),
        THREADS: partial(chain, workload, "thread"),
        **{name: partial(peers.opened, name, workload.task()) for name in peers.installed(workload.peers)},
    }
    return {IN_PROCESS: partial(InProcess, workload), **with_workers} if workload.in_process else with_workers


@contextmanager
def opened(open_it: Callable[[], Iterable[Tensors]]) -> Iterator[Iterable[Tensors]]:
    """Opens a contender, and ends its workers: those of a `DataLoader` end when nothing refers to it any more."""
    batches: Any = open_it()
    try:
        yield batches
    finally:
        if hasattr(batches, "close"):
            batches.close()


# Measurement


def consumed(batch: Tensors) -> int:
    """Receives a batch as a training step would, and returns its number of samples."""
    for tensor in batch.values():
        if tensor.nbytes >= READ_FROM_BYTES:
            tensor.view(-1)[:: 4096 // tensor.element_size()].sum()
    return len(batch["target"])


def timed_epoch(batches: Iterable[Tensors], nb_samples: int, start: float) -> tuple[float, float]:
    """Returns the seconds from `start` to the first batch, and to the end of the epoch.

    Raises:
        RuntimeError: the epoch has not `nb_samples` samples.
    """
    epoch = iter(batches)
    nb_received = consumed(next(epoch))
    first_s = time.perf_counter() - start
    for batch in epoch:
        nb_received += consumed(batch)
    whole_s = time.perf_counter() - start
    if nb_received != nb_samples:
        raise RuntimeError(f"an epoch must have {nb_samples} samples, it had {nb_received}")
    return first_s, whole_s


def measure(open_it: Callable[[], Iterable[Tensors]], nb_samples: int) -> Figures:
    """Measures a first epoch in a fresh pool, for its first batch, and a second one as the steady state.

    CPU seconds are those of the second epoch, all of whose processes live before it begins and after it ends, in both
    camps: so starting and ending workers is on nobody's account.
    """
    gc.collect()  # what the one before left behind
    start = time.perf_counter()
    with opened(open_it) as batches:
        cold_s, _ = timed_epoch(batches, nb_samples, start)
        busy_before_s, clock = busy_s(), CpuClock()
        warm_s, whole_s = timed_epoch(batches, nb_samples, time.perf_counter())
        cpu_s = clock.elapsed_s()
        others_cpu_s = busy_s() - busy_before_s - cpu_s
    return {
        "samples_per_s": nb_samples / whole_s,
        "cpu_s_per_1000": 1000 * cpu_s / nb_samples,
        "first_cold_ms": 1000 * cold_s,
        "first_warm_ms": 1000 * warm_s,
        "epoch_s": whole_s,
        "others_cpu_s": others_cpu_s,
    }


def check_same_content(workload: Workload) -> None:
    """Checks that the contenders deliver the same batches, in the same order, over a short epoch.

    Raises:
        RuntimeError: two of them differ.
    """
    short = workload.shorter(min(workload.nb_samples, 4 * workload.batch_size))
    found: dict[str, list[Any]] = {}
    for name, open_it in contenders(short).items():
        with opened(open_it) as batches:
            found[name] = [_digest(batch) for batch in batches]
    expected = found[LOADER]
    for name, digests in found.items():
        if digests != expected:
            raise RuntimeError(f"{workload.name}: {name!r} does not deliver the batches of {LOADER!r}")


def _digest(batch: Tensors) -> list[tuple[Any, ...]]:
    return [
        (name, tensor.dtype, tuple(tensor.shape), zlib.crc32(tensor.numpy().tobytes()))
        for name, tensor in sorted(batch.items())
    ]


# Report


def details(rounds: Rounds) -> str:
    """Lays out every figure of one workload: median (least-greatest of the rounds)."""
    header = [
        "",
        "samples/s",
        "x DataLoader",
        "x tuned",
        "CPU s / 1,000",
        "first batch cold ms",
        "first batch warm ms",
    ]
    rows = [
        [
            name,
            str(Spread.of(values_of(figures, "samples_per_s"))),
            str(Spread.of(ratios(figures, rounds[LOADER], "samples_per_s"))),
            shown(Spread.of(ratios(figures, rounds[TUNED], "samples_per_s")).median),
            str(Spread.of(values_of(figures, "cpu_s_per_1000"))),
            *("" if name == peers.MEMCPY else str(Spread.of(values_of(figures, first))) for first in FIRST_BATCHES),
        ]
        for name, figures in rounds.items()
    ]
    return table(header, rows)


def summary(results: Mapping[str, Rounds]) -> str:
    """Lays out the samples/s of all workloads, as the median ratio to `DataLoader`."""
    rows: list[list[str]] = []
    for name in dict.fromkeys(name for rounds in results.values() for name in rounds):
        cells = [
            shown(Spread.of(ratios(rounds[name], rounds[LOADER], "samples_per_s")).median) if name in rounds else ""
            for rounds in results.values()
        ]
        rows.append([name, *cells])
    return table(["x DataLoader", *results], rows)


def cores_of_others(rounds: Rounds) -> float:
    """Returns how many cores other programs kept busy on average while the steady state was measured.

    Summed before it is divided: the machine's own count goes in steps of 10 ms, which is much of a short epoch.
    """
    measured = [one for figures in rounds.values() for one in figures]
    return max(0.0, sum(values_of(measured, "others_cpu_s"))) / sum(values_of(measured, "epoch_s"))


def arguments(all_workloads: list[Workload]) -> argparse.Namespace:
    """Reads the command line."""
    names = [workload.name for workload in all_workloads]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_sequence", description="Measures the algebra.")
    parser.add_argument("--quick", action="store_true", help="short epochs, two rounds: to see that it runs")
    parser.add_argument("--rounds", type=int, help=f"rounds for each workload, at least {MIN_ROUNDS} (default)")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the figures of every round there")
    parser.add_argument("--only", default=",".join(names), metavar="NAMES", help=f"some of {','.join(names)}")
    given = parser.parse_args()
    given.only = given.only.split(",")
    if given.rounds is None:
        given.rounds = 2 if given.quick else MIN_ROUNDS
    if unknown := [name for name in given.only if name not in names]:
        parser.error(f"--only must name some of {names}, got {unknown}")
    if given.rounds < (1 if given.quick else MIN_ROUNDS):
        parser.error(f"--rounds must be at least {MIN_ROUNDS}, got {given.rounds}")
    return given


def main() -> None:
    """Measures what the command line asks for, and prints tables."""
    all_workloads = workloads()
    given = arguments(all_workloads)
    # More workers than cores is what samples that sleep ask for.
    warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
    facts = machine()
    print(machine_line(facts))
    results: dict[str, Rounds] = {}
    for workload in [workload for workload in all_workloads if workload.name in given.only]:
        one = workload.shorter(workload.nb_samples // 16) if given.quick else workload
        check_same_content(one)
        measures = {name: partial(measure, open_it, one.nb_samples) for name, open_it in contenders(one).items()}
        bound = {peers.MEMCPY: partial(peers.measure_memcpy, one.task())} if one.bound else {}
        rounds = alternate(measures | bound, given.rounds)
        results[workload.name] = rounds
        print(f"\n{workload.name}: {workload.title}; {one.nb_samples} samples an epoch, {given.rounds} rounds")
        print(details(rounds))
        for name, why in peers.left_out(one.peers).items():
            print(f"left out: {name} ({why})")
        print(f"cores kept busy by other programs meanwhile: {cores_of_others(rounds):.2f}", flush=True)
    print(f"\n{summary(results)}")
    if given.quick:
        print("\nquick run: short epochs and few rounds, not to be quoted")
    if given.json is not None:
        write_json(given.json, {"machine": facts, "quick": given.quick, "workloads": results})


if __name__ == "__main__":
    main()
