"""Moves jobs that wait behind a slow one to workers that have nothing to do.

Jobs wait at their worker, so that it goes on while the caller is away. A job that takes long, or a worker that is slow
to start, would hold up those behind it. So the pool takes half of them back:

    pool:   raise the count of recalls ─▶ read what the worker is at ─▶ RECALL(all tickets that wait behind that)
    worker: note the job it begins     ─▶ read the count             ─▶ if it was raised, wait for the RECALL

Each side writes before it reads, so at least one sees what the other wrote: no job is begun by two.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from trw_pipeline.executors.seat import Seat


def due_s(seats: Iterable[Seat]) -> float | None:
    """Returns the seconds until jobs have waited for too long while a worker has nothing to do, or None."""
    least_s = min((seat.holds_up_in_s() for seat in _that_hold_up(seats)), default=math.inf)
    return None if least_s == math.inf else least_s


def overloaded(seats: Iterable[Seat]) -> Seat | None:
    """Returns a seat where jobs have waited for too long while another worker is idle, that with most of them first."""
    late = [seat for seat in _that_hold_up(seats) if seat.holds_up_in_s() == 0]
    return max(late, key=lambda seat: len(seat.held), default=None)


def _that_hold_up(seats: Iterable[Seat]) -> list[Seat]:
    """Returns the seats with jobs, if another worker is idle."""
    all_of_them = list(seats)
    return [seat for seat in all_of_them if seat.held] if any(seat.is_idle for seat in all_of_them) else []
