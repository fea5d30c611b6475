"""What the fault storm does, decided beforehand: the same seed gives the same steps, however fast the machine is."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.fault_jobs import BAD, GOOD, ONLY_IN_PROCESSES, Work

JOB_TIMEOUT_S = 2.0
"""Far above what a job takes on a busy machine; jobs that hang take this long."""

LARGEST_BYTES = 50_000_000

FAULTS = {
    "none": 4,
    "kill": 4,
    "stop": 3,
    "interrupt": 4,
    "reset": 3,
    "fill shared memory": 1,
    "exhaust descriptors": 2,
}
"""What happens while a step's jobs run -> how often, relative to the others."""

ENDINGS = ("close", "drop", "interrupted close")

_IN_PROCESSES = ("kill", "stop")


@dataclass(frozen=True)
class Config:
    """How an executor is opened: keywords of `JobExecutor`."""

    backend: str
    start_method: str | None
    nb_workers: int
    in_order: bool
    max_jobs_at_once: int
    max_retries: int
    job_timeout_s: float | None
    max_tasks_per_worker: int | None
    max_arena_bytes: int | None
    compression: str | None
    niceness: int


@dataclass(frozen=True)
class Step:
    """One thing that is done, and then checked.

    Attributes:
        number: counted from 0.
        fault: a key of `FAULTS`; or "open", and one of `ENDINGS`.
        works: jobs that are put meanwhile.
        after: results that are taken before the fault happens, or with an ending before it ends.
        delay_s: how long a worker is stopped, or when the interrupt comes; 0 with "open" is never.
        choice: which worker it hits, in [0, 1).
        nb_hit: so many workers are killed; with an ending, stopped.
        hold: whether the results are kept for some steps.
        release: whether those that are kept are let go first.
        then_reset: whether the executor is reset after an interrupt; else it goes on if it can.
        config: with "open", how.
    """

    number: int
    fault: str
    works: tuple[Work, ...] = ()
    after: int = 0
    delay_s: float = 0.0
    choice: float = 0.0
    nb_hit: int = 1
    hold: bool = False
    release: bool = False
    then_reset: bool = False
    config: Config | None = None

    def __str__(self) -> str:
        if self.config is not None:
            return f"step {self.number}: open (interrupted after {self.delay_s * 1e3:.1f} ms) {self.config}"
        kinds = ", ".join(f"{nb} {kind}" for kind, nb in Counter(work.kind for work in self.works).items())
        size = sum(work.nb_bytes for work in self.works) / 1e6
        flags = " ".join(name for name in ("hold", "release", "then_reset") if getattr(self, name))
        return (
            f"step {self.number}: {self.fault} (hits {self.nb_hit} at {self.choice:.2f}, {self.delay_s * 1e3:.1f} ms) "
            f"after {self.after} results of {len(self.works)} jobs, {size:.1f} MB: {kinds} {flags}".rstrip()
        )


def plan(seed: int) -> Iterator[Step]:
    """Yields the steps of that seed, without end."""
    rng = random.Random(seed)
    serials = itertools.count()
    numbers = itertools.count()
    while True:
        config = _config(rng)
        interrupt_s = 10 ** rng.uniform(-4, -1) if rng.random() < 0.2 else 0.0
        yield Step(next(numbers), "open", delay_s=interrupt_s, config=config)
        for _ in range(rng.randint(2, 10)):
            yield _step(rng, next(numbers), serials, config)
        yield _ending(rng, next(numbers), serials, config)


def _config(rng: random.Random) -> Config:
    backend = rng.choice(("process", "process", "process", "thread"))
    in_processes = backend == "process"
    return Config(
        backend=backend,
        start_method=rng.choice(("forkserver", "forkserver", "spawn", "fork")) if in_processes else None,
        nb_workers=rng.randint(1, 4),
        in_order=rng.random() < 0.5,
        max_jobs_at_once=rng.choice((0, 1, 2, 8, 30)),
        max_retries=rng.choice((0, 1, 2)),
        job_timeout_s=rng.choice((None, JOB_TIMEOUT_S)) if in_processes else None,
        max_tasks_per_worker=rng.choice((None, None, 5, 50)) if in_processes else None,
        max_arena_bytes=rng.choice((None, None, 0, 1_000_000, 64_000_000)) if in_processes else None,
        compression=rng.choice((None, None, None, "lz4", "auto")) if in_processes else None,
        niceness=rng.choice((0, 0, 5)) if in_processes else 0,
    )


def _step(rng: random.Random, number: int, serials: Iterator[int], config: Config) -> Step:
    faults = dict(FAULTS)
    if config.backend != "process":
        faults = {fault: often for fault, often in FAULTS.items() if fault not in _IN_PROCESSES}
    elif config.max_tasks_per_worker is not None:
        del faults["exhaust descriptors"]  # a worker that is replaced then may cost more than are left
    fault = rng.choices(list(faults), list(faults.values()))[0]
    works = _works(rng, serials, config, may_die=fault != "exhaust descriptors")
    return Step(
        number,
        fault,
        works,
        after=rng.randrange(len(works)),
        delay_s=rng.uniform(0.0, 0.3) if fault == "stop" else 10 ** rng.uniform(-4, -1),
        choice=rng.random(),
        nb_hit=rng.choice((1, 1, 2)),
        hold=rng.random() < 0.3,
        release=rng.random() < 0.3,
        then_reset=rng.random() < 0.5,
    )


def _ending(rng: random.Random, number: int, serials: Iterator[int], config: Config) -> Step:
    works = _works(rng, serials, config, may_die=True)
    return Step(
        number,
        rng.choices(ENDINGS, (4, 4, 1))[0],
        works,
        after=rng.randint(0, len(works)),
        delay_s=10 ** rng.uniform(-4, -1),
        choice=rng.random(),
        nb_hit=rng.choice((0, 0, 1)) if config.backend == "process" else 0,
        hold=rng.random() < 0.3,
        release=rng.random() < 0.3,
    )


def _works(rng: random.Random, serials: Iterator[int], config: Config, may_die: bool) -> tuple[Work, ...]:
    """Draws the jobs of one step: mostly good ones, sometimes a few bad ones, sometimes large ones."""
    good = [kind for kind in GOOD if config.backend == "process" or kind not in ONLY_IN_PROCESSES]
    bad = [kind for kind in BAD if config.backend == "process" or kind not in ONLY_IN_PROCESSES]
    if config.job_timeout_s is None:
        bad = [kind for kind in bad if kind != "hangs"]
    if not may_die:
        good = [kind for kind in good if kind != "dies once"]
        bad = [kind for kind in bad if BAD[kind] in ("JobError", "CodecError")]
    share_of_bad = rng.choice((0.0, 0.0, 0.05, 0.3))
    largest = rng.choice((1_000, 1_000, 100_000, 2_000_000))
    drawn: list[Work] = []
    for _ in range(rng.choice((1, 5, 20, 60))):
        kind = rng.choice(bad) if rng.random() < share_of_bad else rng.choices(good, [GOOD[kind] for kind in good])[0]
        if kind == "hangs" and any(work.kind == "hangs" for work in drawn):
            kind = "raises"  # one is enough to wait for
        drawn.append(Work(next(serials), kind, rng.randint(0, largest)))
    if rng.random() < 0.15:
        drawn[rng.randrange(len(drawn))] = Work(next(serials), "array", rng.randint(LARGEST_BYTES // 5, LARGEST_BYTES))
    return tuple(drawn)
