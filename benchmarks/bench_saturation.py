"""How much of its time is a device busy that needs samples four times faster than the workers make them?

Method. The device is a step that sleeps: a fixed time for each batch, no CPU. A job sleeps too, so nothing here depends
on how fast a core is, or on who shares it. 4 workers at 80 ms a job make 50 samples a second; a step of 50 ms takes a
batch of 10, so 200 a second. `long_steps` is the same at 500 ms for 100 samples: the consumer is away for long. Who
serves every sample once can keep the device busy for a quarter of its time, at most. A reservoir serves each several
times; how many, its echo factor, is what the saturation costs.

A measurement begins when the first batch is there, so the first fill (of 50 results, or 100) is not in it, and takes
so many steps. The device's share is the seconds in steps over all; the workers' share the seconds in jobs over those
that 4 workers had. Contenders alternate (`harness.py`).

    reservoir, continuous   async_reservoir(200, load, 50, reservoir_sampler=..., replacement="continuous")
    reservoir, epoch        the same with replacement="epoch", 16 jobs at once
    map                     map(load).batch(10)
    DataLoader              torch's, batch_size=10, persistent workers

Goals: continuous: device at least 0.98 of the time (aim 0.99), workers at least 0.95; epoch: device at least 0.98.

    python -m benchmarks.bench_saturation [--quick] [--rounds 5] [--json PATH] [--only steps,long_steps]
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from torch.utils.data import DataLoader

from benchmarks.comparison import Column, Comparison, Goal, run
from benchmarks.harness import Figures
from trw_pipeline import SamplerRandom, Sequence, SequenceArray

CONTINUOUS, EPOCH, MAP, LOADER = "reservoir, continuous", "reservoir, epoch", "map", "DataLoader"
NB_WORKERS, JOB_S, NB_SAMPLES = 4, 0.08, 100_000
MAX_RESULTS = 200


@dataclass(frozen=True)
class Load:
    """A sample that takes a while to be there."""

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Gives an image of a batch of one, and its uid."""
        time.sleep(JOB_S)
        return {"image": np.zeros((1, 32, 32), np.float32), "sample_uid": batch["sample_uid"]}


class Samples:
    """The same as torch wants it."""

    def __len__(self) -> int:
        return NB_SAMPLES

    def __getitem__(self, index: int) -> Any:
        time.sleep(JOB_S)
        return np.zeros((32, 32), np.float32), index


def endless(batches: Iterable[Any]) -> Iterator[Any]:
    """Gives batches, epoch after epoch."""
    while True:
        yield from batches


def device(batches: Iterator[Any], nb_steps: int, step_s: float) -> tuple[float, float]:
    """Takes so many batches, a step each; returns the seconds in steps, and all."""
    busy_s, start = 0.0, time.perf_counter()
    for _ in range(nb_steps):
        next(batches)
        begin = time.perf_counter()
        time.sleep(step_s)
        busy_s += time.perf_counter() - begin
    return busy_s, time.perf_counter() - start


def figures_of_workers(chain: Sequence) -> dict[str, Any]:
    """Returns the figures of the stage with workers."""
    return next(figures for figures in chain.statistics().values() if figures["workers"])


def measure_chain(chain: Sequence, nb_steps: int, step_s: float) -> Figures:
    """Measures a chain of ours from its first batch on."""
    with chain:
        batches = endless(chain)
        next(batches)
        before = figures_of_workers(chain)
        busy_s, all_s = device(batches, nb_steps, step_s)
        after = figures_of_workers(chain)
    jobs_s = after["busy_s"] - before["busy_s"]
    figures = {"device": busy_s / all_s, "workers": jobs_s / (NB_WORKERS * all_s)}
    if "fresh" in after:
        figures["echo"] = (after["served"] - before["served"]) / max(1, after["fresh"] - before["fresh"])
    return figures


def reservoir(size: int, **options: Any) -> Sequence:
    """A reservoir that batches of that size are drawn from at random."""
    chain = SequenceArray({"x": np.arange(NB_SAMPLES)}).with_seed(0)
    sampler = SamplerRandom(replacement=True, nb_samples_to_generate=20 * size, batch_size=size)
    given = {"nb_workers": NB_WORKERS, "reservoir_sampler": sampler, **options}
    return chain.async_reservoir(MAX_RESULTS, Load(), max(50, size), **given).collate()


def mapped(size: int) -> Sequence:
    """Every sample once."""
    return SequenceArray({"x": np.arange(NB_SAMPLES)}).with_seed(0).map(Load(), NB_WORKERS).batch(size)


def measure_loader(size: int, nb_steps: int, step_s: float) -> Figures:
    """Measures torch's loader from its first batch on."""
    loader: Any = DataLoader(Samples(), size, num_workers=NB_WORKERS, persistent_workers=True)  # pyright: ignore
    batches = endless(loader)
    next(batches)
    busy_s, all_s = device(batches, nb_steps, step_s)
    return {"device": busy_s / all_s}


def saturation(step_s: float, size: int, nb_steps: int) -> Comparison:
    """One length of steps."""
    contenders = {
        CONTINUOUS: lambda: measure_chain(reservoir(size, replacement="continuous"), nb_steps, step_s),
        EPOCH: lambda: measure_chain(reservoir(size, max_jobs_at_once=16), nb_steps, step_s),
        MAP: lambda: measure_chain(mapped(size), max(2, nb_steps // 4), step_s),
        LOADER: partial(measure_loader, size, max(2, nb_steps // 4), step_s),
    }
    return Comparison(
        f"{nb_steps} steps of {1000 * step_s:.0f} ms for {size} samples; jobs of {1000 * JOB_S:.0f} ms, {NB_WORKERS} "
        "workers",
        contenders,
        [
            Column("device busy", "device"),
            Column("workers busy", "workers"),
            Column("echo factor", "echo"),
        ],
        [
            Goal(CONTINUOUS, "device", at_least=0.98),
            Goal(CONTINUOUS, "device", at_least=0.99),
            Goal(CONTINUOUS, "workers", at_least=0.95),
            Goal(EPOCH, "device", at_least=0.98),
        ],
    )


COMPARISONS = {
    "steps": lambda quick: saturation(0.05, 10, 20 if quick else 200),
    "long_steps": lambda quick: saturation(0.5, 100, 3 if quick else 20),
}

if __name__ == "__main__":
    # More workers than cores is what jobs that sleep ask for.
    warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
    run("benchmarks.bench_saturation", COMPARISONS)
