"""What does it cost that every epoch is watched, and that workers hand on what they log?

Two contenders read the same chain in one process, in turn: as it is, and with watching taken out (the usual `next_item`
without a watch, as it was before there was one). A ratio is taken between two epochs of the same round, of the CPU
seconds of this process, which other programs change least; then comes the median over rounds. The items are as cheap as
they get, since of slow ones nothing could be seen:

- array: rows of an array, one by one, which is the fastest iterator there is;
- inline: a function that does nothing, in this process, and batches of 16;
- processes: the same function in two workers, whose short items travel together.

Both contenders have the same workers, so the last one does not show what log records cost the jobs that write none.
That is shown by `--against PATH`: a checkout without them, whose jobs are measured in processes of their own, in turn
with ours.

Result, quiet machine (README.md): 1.01 times an unwatched epoch for bare rows at 1.1 us each, 1.01 inline, 1.02 with
processes, each within its spread. On a machine that others kept busy (load 15 on 2 cores) the least of 40 epochs was
0.1 us an item above the unwatched one, 6 % of bare rows, and 0.3 % of batches from an inline function.

    python -m benchmarks.bench_watching [--quick] [--rounds 9] [--against PATH]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import Spread, alternate, machine, machine_line, ratios, shown, table, values_of
from trw_pipeline.errors import ClosedError, WouldBlock
from trw_pipeline.executors.waiting import wait_for_any
from trw_pipeline.seeding import globals_lent
from trw_pipeline.sequences.iterator import SequenceIterator
from trw_pipeline.sequences.samplers import SamplerSequential
from trw_pipeline.sequences.sequence import Sequence, SequenceArray

WATCHED, UNWATCHED = "watched", "unwatched"


def same(batch: Any) -> Any:
    """The cheapest job."""
    return batch


def _array(nb: int) -> SequenceArray:
    return SequenceArray({"x": np.arange(nb)}, SamplerSequential())


CHAINS: dict[str, tuple[Callable[[int], Sequence], int]] = {
    "array": (_array, 20_000),
    "inline": (lambda nb: _array(nb).map(same).batch(16, collate_fn=None), 4_000),
    "processes": (lambda nb: _array(nb).map(same, nb_workers=2).batch(16, collate_fn=None), 8_000),
}
"""Chain -> how to make it, and items at its source."""


def _next_item(self: SequenceIterator, blocking: bool) -> Any:
    """What `SequenceIterator.next_item` would be if nobody watched."""
    while True:
        if self._closed:
            raise ClosedError(f"this iterator of {self.stage!r} is closed")
        try:
            item = self.advance()[1]
        except StopIteration:
            self.is_over = True
            raise
        except WouldBlock:
            executors, bells = self.executors(), self.bells()
            if not blocking or not (executors or bells):
                raise
        else:
            self.nb_given += 1
            return item
        with globals_lent():
            wait_for_any(executors, bells=bells)


@contextmanager
def nobody_watching() -> Iterator[None]:
    """Takes watching out."""
    usual = SequenceIterator.next_item, SequenceIterator.watch
    SequenceIterator.next_item, SequenceIterator.watch = _next_item, lambda self, watcher: None  # type: ignore
    try:
        yield
    finally:
        SequenceIterator.next_item, SequenceIterator.watch = usual  # type: ignore


def epoch_s(chain: Sequence) -> dict[str, float]:
    """Reads an epoch; in CPU seconds of this process."""
    start = time.process_time()
    for _ in chain:
        pass
    return {"s": time.process_time() - start}


def unwatched_epoch_s(chain: Sequence) -> dict[str, float]:
    """Reads one that nobody watches."""
    with nobody_watching():
        return epoch_s(chain)


JOBS = """
import os, time
from trw_pipeline import JobExecutor
def clock():  # CPU seconds of this process and its workers
    pids = [os.getpid(), *(one["pid"] for one in executor.statistics()["per_worker"])]
    return sum(time.clock_gettime(~pid << 3 | 2) for pid in pids)
def same(x):
    return x
with JobExecutor(2, same, max_jobs_at_once=64) as executor:
    def run(nb):
        got = 0
        for i in range(nb):
            while not executor.has_room():
                executor.get(); got += 1
            executor.put(i)
        while got < nb:
            executor.get(); got += 1
    run(2000)
    start = clock()
    run({nb})
    print(clock() - start)
"""


def jobs_s(checkout: Path, nb: int) -> dict[str, float]:
    """Runs tiny jobs, each for itself, with the package of a checkout; in CPU seconds, those of the workers too."""
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    program = [sys.executable, "-c", JOBS.replace("{nb}", str(nb))]
    said = subprocess.run(program, env=environment, cwd=checkout, check=True, capture_output=True, text=True).stdout
    return {"s": float(said)}


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--against", type=Path)
    options = parser.parse_args()
    scale, nb_rounds = (20, 3) if options.quick else (1, options.rounds)
    print(machine_line(machine()))
    rows: list[list[str]] = []
    for name, (make, nb) in CHAINS.items():
        with make(nb // scale) as chain:
            epoch_s(chain)
            contenders = {
                WATCHED: lambda chain=chain: epoch_s(chain),
                UNWATCHED: lambda chain=chain: unwatched_epoch_s(chain),
            }
            rounds = alternate(contenders, nb_rounds)
        item_us = 1e6 * Spread.of(values_of(rounds[UNWATCHED], "s")).median / (nb // scale)
        rows.append([name, shown(item_us), str(Spread.of(ratios(rounds[WATCHED], rounds[UNWATCHED], "s")))])
    if options.against is not None:
        nb = 4_000 // scale
        here = Path(__file__).resolve().parents[1]
        rounds = alternate(
            {WATCHED: lambda: jobs_s(here, nb), UNWATCHED: lambda: jobs_s(options.against, nb)}, nb_rounds
        )
        item_us = 1e6 * Spread.of(values_of(rounds[UNWATCHED], "s")).median / nb
        rows.append(["jobs", shown(item_us), str(Spread.of(ratios(rounds[WATCHED], rounds[UNWATCHED], "s")))])
    print(table(["chain", "us an item", "x unwatched"], rows))


if __name__ == "__main__":
    main()
