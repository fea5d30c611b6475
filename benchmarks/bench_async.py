"""What does `async for` add to an item that is ready, beside the plain loop?

Method. The same chain is read to its end by the plain loop and by one task of an event loop, in turn within one run; a
round gives the difference of the two, by the item, and the median is taken over rounds. `bare` has items that cost
nothing, so what is added is seen as it is; `array` makes each item (a row of an array); `processes` has two workers
whose jobs are short, so that now and then nothing is ready and the task has to wait.

Medians over rounds. Goal: at most 5 us added.

    chain      plain us  added us
    ---------  --------  --------
    bare          0.234     0.135
    array          1.14     0.154
    processes      9.47     0.503

Machine: 2 cores of an AMD EPYC (virtual), Linux, Python 3.11.7, pyzmq 27.3.0, nothing else running. Where other
programs used both cores it was 1.25, 1.25 and nothing that could be told from noise.

    python -m benchmarks.bench_async [--rounds 11]
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from benchmarks.harness import Figures, Spread, alternate
from trw_pipeline.sequences.iterator import PlainIterator, SequenceIterator
from trw_pipeline.sequences.samplers import SamplerSequential
from trw_pipeline.sequences.sequence import Sequence, SequenceArray
from trw_pipeline.typing import Batch

NB_ITEMS = 20_000


class Bare(Sequence):
    """The same item again and again."""

    def __iter__(self) -> SequenceIterator:
        return PlainIterator(iter([{"x": 0}] * NB_ITEMS), "Bare")


def rows() -> SequenceArray:
    """Returns a chain with an array for each item."""
    return SequenceArray({"x": np.arange(NB_ITEMS)}, SamplerSequential())


def same(batch: Batch) -> Batch:
    """A job that is done at once."""
    return batch


CHAINS: dict[str, Callable[[], Sequence]] = {
    "bare": Bare,
    "array": rows,
    "processes": lambda: rows().map(same, nb_workers=2),
}


def plain(sequence: Sequence) -> int:
    """Counts the items of an epoch."""
    return sum(1 for _ in sequence)


def in_event_loop(sequence: Sequence) -> int:
    """Does so in a task."""

    async def count() -> int:
        nb = 0
        async for _ in sequence:
            nb += 1
        return nb

    return asyncio.run(count())


def measure(read: Callable[[Sequence], int], sequence: Sequence) -> Figures:
    """Reads an epoch; returns the microseconds an item."""
    start = time.perf_counter()
    nb = read(sequence)
    took_s = time.perf_counter() - start
    if nb != NB_ITEMS:
        raise AssertionError(f"{nb} items came, not {NB_ITEMS}")
    return {"us": 1e6 * took_s / nb}


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=11)
    nb_rounds: int = parser.parse_args().rounds
    print(f"{'chain':<9}  plain us  added us")
    for name, make in CHAINS.items():
        with make() as sequence:
            measure(plain, sequence)  # workers start, and code is warm
            rounds = alternate({r.__name__: partial(measure, r, sequence) for r in (plain, in_event_loop)}, nb_rounds)
        before = [figures["us"] for figures in rounds["plain"]]
        added = [figures["us"] - one for figures, one in zip(rounds["in_event_loop"], before, strict=True)]
        print(f"{name:<9}  {Spread.of(before).median:8.3g}  {Spread.of(added).median:8.3g}")


if __name__ == "__main__":
    main()
