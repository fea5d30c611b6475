"""What an executor has done, counted; and what runs where, in words."""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from trw_pipeline.executors.pool import WorkerFigures

DURATIONS_REMEMBERED = 1024
"""Percentiles are taken over so many of the newest jobs."""

PERCENTILES = (50, 95, 99)


@dataclass(slots=True)
class JobFigures:
    """Counts of jobs since the executor was made, times in seconds and sizes in bytes.

    Attributes:
        nb_answered: by workers.
        jobs_retried: sent again.
        jobs_lost: their worker died.
        wait_s: the caller waited here.
        busy_s: the jobs took together.
        durations_s: of the newest jobs.
    """

    jobs_done: int = 0
    jobs_failed: int = 0
    jobs_retried: int = 0
    jobs_lost: int = 0
    nb_answered: int = 0
    wait_s: float = 0.0
    busy_s: float = 0.0
    durations_s: deque[float] = field(default_factory=lambda: deque(maxlen=DURATIONS_REMEMBERED))


@dataclass(frozen=True, slots=True)
class Figures:
    """What one executor has done, and has now.

    Attributes:
        jobs: counts since it was made.
        in_flight: put, and not yet got.
        finished: of those, how many wait to be taken, perhaps for an older one.
        capacity: how many may be unfinished; 0 is no limit.
        nb_workers: wanted.
        bytes_arena: came back through shared memory.
        bytes_frames: came back in messages.
        bytes_compressed: came back compressed, either way.
        workers: one for each worker that there is.
    """

    jobs: JobFigures
    in_flight: int
    finished: int
    capacity: int
    nb_workers: int
    bytes_arena: int
    bytes_frames: int
    bytes_compressed: int
    workers: list[WorkerFigures]


def as_dict(of: Iterable[Figures]) -> dict[str, Any]:
    """Adds up the figures of executors that run the same function; of none all are zero.

    See `JobExecutor.statistics` for the meaning of each.
    """
    figures = list(of)
    jobs = [one.jobs for one in figures]
    workers = list(itertools.chain.from_iterable(one.workers for one in figures))
    nb_running = sum(worker.ticket is not None for worker in workers)
    nb_unfinished = sum(one.in_flight - one.finished for one in figures)
    durations = sorted(itertools.chain.from_iterable(one.durations_s for one in jobs))
    return {
        "items": sum(one.jobs_done for one in jobs),
        "jobs_done": sum(one.jobs_done for one in jobs),
        "jobs_failed": sum(one.jobs_failed for one in jobs),
        "jobs_retried": sum(one.jobs_retried for one in jobs),
        "jobs_lost": sum(one.jobs_lost for one in jobs),
        "jobs_in_flight": sum(one.in_flight for one in figures),
        "jobs_running": nb_running,
        "jobs_queued": max(0, nb_unfinished - nb_running),
        "jobs_finished": sum(one.finished for one in figures),
        "capacity": sum(one.capacity for one in figures),
        "workers": sum(one.nb_workers for one in figures),
        "workers_alive": len(workers),
        "wait_s": sum(one.wait_s for one in jobs),
        "busy_s": sum(one.busy_s for one in jobs),
        "oldest_job_s": max((worker.age_s for worker in workers if worker.ticket is not None), default=0.0),
        "idle_s": sum(worker.idle_s for worker in workers),
        "bytes_arena": sum(one.bytes_arena for one in figures),
        "bytes_frames": sum(one.bytes_frames for one in figures),
        "bytes_compressed": sum(one.bytes_compressed for one in figures),
        **{f"job_s_p{percent}": _percentile(durations, percent) for percent in PERCENTILES},
        "per_worker": [
            {"pid": worker.pid, "jobs": worker.nb_jobs, "busy_s": worker.busy_s, "idle_s": worker.idle_s}
            for worker in workers
        ],
    }


def _percentile(ascending: list[float], percent: int) -> float:
    """Returns the value of the nearest rank; 0 of none."""
    return ascending[math.ceil(len(ascending) * percent / 100) - 1] if ascending else 0.0


def in_lines(name: str, figures: Figures, uids: dict[int, str]) -> str:
    """Says what runs where: a line on the executor, and one for each worker.

    Args:
        name: of the executor.
        figures: as they are now.
        uids: what is known of a job by its ticket, for those that run.
    """
    limit = figures.capacity or "any number"
    lines = [
        f"{name!r}: {figures.in_flight} of {limit} jobs in flight, {figures.finished} of them finished; "
        f"{len(figures.workers)} of {figures.nb_workers} workers alive"
    ]
    for worker in figures.workers:
        what = "idle" if worker.ticket is None else f"{uids.get(worker.ticket, f'job {worker.ticket}')}"
        since = "" if worker.ticket is None else f" for {worker.age_s:.1f} s"
        lines.append(f"  worker {worker.pid}: {what}{since}, {worker.nb_waiting} waiting, {worker.nb_jobs} done")
    return "\n".join(lines)
