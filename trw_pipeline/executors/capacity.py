"""How many jobs may be unfinished at once."""

from __future__ import annotations

import math
import time
from typing import Final

from trw_pipeline.executors.pool import bound

JOBS_PER_WORKER = 2
"""What an executor that chooses begins with: one job runs and one waits at each worker."""

MOST_JOBS_PER_WORKER = 256
"""What it may grow to: a quarter of a second's worth of jobs of a millisecond."""

AHEAD_S = 0.002
"""Each worker should have enough to do for so long, so that short jobs can share messages."""

DRY_S = 0.0002
"""A worker that waited longer for a job could have done another one, if that takes no longer."""

AWAY_S = 0.02
"""If it waited for so long, the caller was away. Less may be the system's doing, which gave the core to others."""

WORTH_IT = 0.05
"""A caller who waits for less than this share of the time is slower than the workers, and more jobs are no help."""

HELD_UP_S = 0.01
"""A wait of this length for a slow job is not the system's doing either."""

MIN_S = 1e-5
"""A job takes at least so long, with what it costs to hand it over."""

SHRINK_AFTER = 16
"""So many answers for each place, without need for more of them, are a long time."""

_GROWTH = 1.25

MAX_BYTES_IN_FLIGHT = 1 << 30
"""By default the items and results of unfinished jobs may take this together."""


class Capacity:
    """The bound on unfinished jobs: given, or found.

    What is found: at least two for each worker; more when workers ran dry though all places were taken, and the caller
    then had to wait: once if it had been away, else twice. So many that each worker has enough to do for two
    milliseconds, or, if the caller was away, as for a training step, for as long again; and a quarter more each time
    that finished jobs wait for a slow one. A caller who is slower than the workers never waits, and nothing grows: what
    is in flight had better fit into the caches. For the same reason it becomes a fifth less after a long time without
    need for more.

    Args:
        max_jobs_at_once: 0 is no limit; None finds one.
        nb_workers: of the executor.
        max_bytes_in_flight: what is found does not grow beyond it, judged by the mean of the jobs so far. None is a
            gigabyte.

    Attributes:
        value: the bound now; 0 is none.

    Raises:
        TypeError: a bound is neither an int nor None.
        ValueError: a bound is negative.
    """

    def __init__(self, max_jobs_at_once: int | None, nb_workers: int, max_bytes_in_flight: int | None) -> None:
        self._nb_workers: Final = max(1, nb_workers)
        self._adapts: Final = max_jobs_at_once is None and nb_workers > 0
        self._max_bytes: Final = bound("max_bytes_in_flight", max_bytes_in_flight, MAX_BYTES_IN_FLIGHT)
        self.value = bound("max_jobs_at_once", max_jobs_at_once, JOBS_PER_WORKER * nb_workers or 1)
        self._least: Final = self.value
        self._nb_begun = 0  # answers since the start
        self._nb_answers = 0  # since it grew or shrank last
        self._nb_needs = 0
        self._was_away = False
        self._waited_s, self._changed_at = 0.0, time.monotonic()
        self._wanted = 0
        self._is_held_up = False

    def may_run_dry(self, nb_in_flight: int) -> bool:
        """Whether it matters that a worker has nothing to do: all places are taken, and there could be more of them."""
        return self._adapts and nb_in_flight >= self.value

    def begin(self) -> None:
        """Notes a start: workers have had nothing to do until now, and that says nothing."""
        self._nb_begun = self._nb_needs = 0

    def note_answers(self, nb: int) -> None:
        """Notes that so many jobs were answered."""
        self._nb_answers += nb
        if nb and not self._nb_begun:  # the caller waited for the first ones, of which more jobs are no cure
            self._waited_s, self._changed_at = 0.0, time.monotonic()
        self._nb_begun += nb
        if self._adapts and self._nb_answers >= SHRINK_AFTER * self.value:
            self._change(max(self._least, int(self.value / _GROWTH)))
            self._nb_needs = 0

    def note_dry(self, idle_s: float, job_s: float, is_held_up: bool) -> None:
        """Notes that a worker had nothing to do for a while, though all places were taken.

        Args:
            idle_s: for so long.
            job_s: what a job takes.
            is_held_up: finished jobs wait for an older one.
        """
        if idle_s >= DRY_S:
            was_away = idle_s >= AWAY_S
            self._was_away = self._was_away or (was_away and self._nb_begun >= self._nb_workers)
            ahead_s = idle_s if was_away else AHEAD_S
            needed = self._nb_workers * (JOBS_PER_WORKER + math.ceil(ahead_s / max(MIN_S, job_s)))
            self._wanted = max(self._wanted, needed)
        self._is_held_up = self._is_held_up or is_held_up

    def note_wait(self, waited_s: float, job_bytes: float) -> None:
        """Is told when the caller waited with nothing finished; a job takes `job_bytes` with its item and result."""
        now = time.monotonic()
        self._waited_s += waited_s
        if self._is_held_up and waited_s >= HELD_UP_S:
            self._wanted = max(self._wanted, math.ceil(_GROWTH * self.value))
        if self._wanted and self._waited_s >= WORTH_IT * (now - self._changed_at):
            self._nb_needs += 2 if self._was_away else 1
            if self._nb_needs >= 2:  # the first one may be no more than the start
                most = min(MOST_JOBS_PER_WORKER * self._nb_workers, int(self._max_bytes / max(1.0, job_bytes)))
                self._change(max(self.value, min(self._wanted, most)))
        self._wanted, self._is_held_up, self._was_away = 0, False, False

    def _change(self, value: int) -> None:
        self.value = value
        self._nb_answers = 0
        self._waited_s, self._changed_at = 0.0, time.monotonic()
