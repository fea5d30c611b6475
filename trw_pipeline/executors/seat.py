"""A worker's place in a pool: the worker, what it holds, and what is on its way to it."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Sequence
from typing import NamedTuple

from trw_pipeline.executors.arena import Shelf, Slot, slot_of
from trw_pipeline.executors.codec import NO_SPAN, Frame, Place, Span
from trw_pipeline.executors.pool import WorkerFigures
from trw_pipeline.executors.protocol import NO_SEED, ORDER, Order, Outbox, tickets_frame
from trw_pipeline.executors.slate import Slate
from trw_pipeline.executors.start import WorkerProcess
from trw_pipeline.executors.worker_thread import WorkerThread

PACK_S = 0.001
"""Jobs share a message until they are expected to take this long together."""

SLOW_S = 0.005
"""A job that has run so long is slow: those behind it are worth the two messages it costs to move them."""

FROZEN_S = 0.1
"""A worker that has begun no job for so long, though it has some, is not going to."""

PACK_BYTES = 64 * 1024
"""A message of this size is sent."""


class Held(NamedTuple):
    """A job that a worker has.

    Attributes:
        seed: of the job.
        frames: its item; what of it lies in shared memory must stay there until the worker has answered.
        slot: where the result may lie.
    """

    seed: bytes
    frames: Sequence[Frame]
    slot: Slot | None


class Seat:
    """The place of one worker.

    Args:
        number: names it in the pool.
        key: of the session.
        slate: what the worker is at.
        shelf: the slots of its results, or None without an arena.

    Attributes:
        held: the jobs it has, by ticket, in the order they were sent.
        recalled: jobs that were given to another worker, until this one has heard of it.
        outbox: messages for a worker that has not said hello yet, else None.
        pack: orders that wait for more of them.
        is_leaving: it gets no more jobs.
        has_failed: it ended in another way than it was asked to.
        overdue: the job for which it was ended, and the seconds it had run.
    """

    def __init__(self, number: int, key: bytes, slate: Slate, shelf: Shelf | None) -> None:
        self.identity = number.to_bytes(4, "big")
        self.slate = slate
        self.shelf = shelf
        self.held: dict[int, Held] = {}
        self.recalled: dict[int, Held] = {}
        self.outbox: list[Sequence[Frame]] | None = []
        self.pack = Outbox(key)
        self.is_leaving = self.has_failed = False
        self.overdue: tuple[int, float] | None = None
        self.pid: int | None = None
        self.process: WorkerProcess | None = None
        self.thread: WorkerThread | None = None
        self.nb_taken = 0  # jobs, since it started
        self._nb_packed = 0
        self._hired_at = self._stirred_at = time.monotonic()
        self._ready_at: float | None = None
        self.nb_answered = 0
        self._busy_s = 0.0
        self._kept: dict[int, Slot] = {}

    @property
    def sentinel(self) -> int:
        """A descriptor that becomes readable when the worker has ended."""
        worker = self.process or self.thread
        assert worker is not None, "a seat is taken before anybody looks"
        return worker.sentinel

    @property
    def is_ready(self) -> bool:
        """Whether the function is there and `worker_init` has run."""
        return self._ready_at is not None

    def note_ready(self) -> None:
        """Notes that it can run jobs."""
        if self._ready_at is None:
            self._ready_at = time.monotonic()

    # Jobs

    def give(self, ticket: int, held: Held, expected_s: float | None) -> bool:
        """Adds a job to the pack; whether that should be sent now: it is worth it, or the worker has nothing to do."""
        all_held, pack = self.held, self.pack
        if not all_held:
            self._stirred_at = time.monotonic()
        seed, frames, slot = held
        span = NO_SPAN if slot is None else slot.span
        all_held[ticket] = held
        self.nb_taken += 1
        self._nb_packed = nb = self._nb_packed + 1
        if len(frames) == 1:
            pack.add(ORDER.pack(Order.JOB, False, 0, len(frames[0]), ticket, seed, 0, 0, *span), frames)
        else:
            self.order(Order.JOB, ticket, frames, seed, span)
        return expected_s is None or nb == len(all_held) or nb * expected_s >= PACK_S or pack.nb_bytes >= PACK_BYTES

    def order(
        self,
        order: Order,
        ticket: int = 0,
        frames: Sequence[Frame] = (),
        seed: bytes = NO_SEED,
        result_slot: Span = NO_SPAN,
    ) -> None:
        """Adds an order to the pack."""
        places: list[Place] | None = None
        item_slot = (0, 0)
        if len(frames) > 1:
            found = [slot_of(frame) for frame in frames[1:]]
            if found[0] is not None:
                item_slot = found[0][0].offset, found[0][0].size
                places = [(one[1], len(frame)) for one, frame in zip(found, frames[1:], strict=True) if one]
        head_bytes = len(frames[0]) if frames else 0
        nb_buffers = max(0, len(frames) - 1)
        record = ORDER.pack(order, places is not None, nb_buffers, head_bytes, ticket, seed, *item_slot, *result_slot)
        self.pack.add(record, frames, places)

    def take_pack(self) -> list[Frame]:
        """Returns the orders of the pack as a message."""
        self._nb_packed = 0
        if self.shelf is not None:
            while self.shelf.dropped:
                self.order(Order.FORGET, self.shelf.dropped.pop())
        return self.pack.take()

    def has_answered(self, ticket: int, duration_s: float) -> Held | None:
        """Notes an answer, and returns the job that it is of; None of one that is not here (any more).

        A job that was given up counts nowhere.
        """
        self._stirred_at = time.monotonic()
        self._busy_s += duration_s
        return self.held.pop(ticket, None) or self.recalled.pop(ticket, None)

    def has_given_back(self, ticket: int) -> bool:
        """Notes that the worker has let go of a job; whether it had been recalled."""
        held = self.recalled.pop(ticket, None)
        if held is not None and held.slot is not None:
            held.slot.leave()
        return held is not None

    @property
    def is_idle(self) -> bool:
        """Whether it could begin a job at once."""
        return not self.held and self.is_ready and not self.is_leaving and not self.recalled

    @property
    def last_begun(self) -> int | None:
        """The job that the worker began last, if it is still here."""
        last = self.slate.last
        return last if last in self.held else None

    def _not_begun(self) -> list[int]:
        """Returns the tickets that the worker has not begun, oldest first, and that have not been recalled before."""
        begun = self.last_begun
        tickets = list(self.held)
        # Those that stand before it are done, though their answers may be on their way.
        waiting = tickets if begun is None else tickets[tickets.index(begun) + 1 :]
        return [ticket for ticket in waiting if ticket not in self.recalled]

    def holds_up_in_s(self) -> float:
        """Returns the seconds until its jobs wait for too long, if nothing happens; infinity if none could be recalled.

        That which it is about to begin is only waiting once the worker is frozen.
        """
        nb = len(self._not_begun())
        if nb == 0:
            return math.inf
        is_about_to_begin = nb == 1 and self.is_ready and self.slate.read() is None
        return max(0.0, (FROZEN_S if is_about_to_begin else SLOW_S) - self._delay_s())

    def job_age_s(self) -> float:
        """Returns the seconds that the worker has been at its job; 0 if it is at none."""
        at = self.slate.read()
        return 0.0 if at is None else time.monotonic() - at.since

    def _delay_s(self) -> float:
        """Returns the seconds for which the worker has kept jobs waiting: by the one it is at, or by beginning none."""
        since = self._stirred_at if self.is_ready else self._hired_at
        return self.job_age_s() or time.monotonic() - since

    def recall(self, all_of_them: bool = False) -> list[tuple[int, Held]]:
        """Takes the older half of the jobs back that have not been begun, or all. The order has to be sent."""
        self.slate.note_recall()
        waiting = self._not_begun()  # only now: see `balance.py`
        taken = waiting if all_of_them else waiting[: -(-len(waiting) // 2)]
        self.order(Order.RECALL, 0, [tickets_frame(taken)])
        self.recalled.update((ticket, self.held.pop(ticket)) for ticket in taken)
        self.nb_taken -= len(taken)
        return [(ticket, self.recalled[ticket]) for ticket in taken]

    def has_little_ahead(self, expected_s: float | None) -> bool:
        """Whether the jobs at the worker or on its way are soon done, with so many seconds for each."""
        return (len(self.held) - self._nb_packed) * (expected_s or 0.0) < PACK_S

    @property
    def has_work(self) -> bool:
        """Whether a job is at the worker, or on its way; those in the pack are not."""
        return len(self.held) > self._nb_packed

    # Slots that a function keeps

    def keep(self, slot: Slot) -> None:
        """Leaves a slot in use until `let_go`."""
        slot.enter()
        self._kept[slot.offset] = slot

    def let_go(self, offset: int) -> None:
        """Frees a slot that was kept."""
        slot = self._kept.pop(offset, None)
        if slot is not None:
            slot.leave()

    # Its end

    def end(self) -> str:
        """Makes sure that the worker has ended, frees what it held, and returns how it ended, in words."""
        if self.thread is not None:
            self.thread.end()
            how = self.thread.how_it_ended if self.overdue is None else "is left to itself"
        else:
            assert self.process is not None, "a worker is a thread or a process"
            exitcode = self.process.end()
            self.has_failed = exitcode != 0
            how = _how_it_ended(exitcode) if self.overdue is None else "was ended"
        for held in [*self.held.values(), *self.recalled.values()]:
            if held.slot is not None:
                held.slot.leave()
        for slot in self._kept.values():
            slot.leave()
        self._kept.clear()
        return how

    def figures(self) -> WorkerFigures:
        """Returns what it has done."""
        at, now = self.slate.read(), time.monotonic()
        if at is not None and at.ticket not in self.held:
            at = None  # its answer is here, and counted; the worker is about to note the end
        age_s = 0.0 if at is None else now - at.since
        busy_s = self._busy_s + age_s
        idle_s = 0.0 if self._ready_at is None else max(0.0, now - self._ready_at - busy_s)
        ticket = None if at is None else at.ticket
        nb_waiting = len(self.held) - (ticket in self.held)
        return WorkerFigures(self.pid, self.nb_answered, busy_s, idle_s, ticket, age_s, nb_waiting)


def _how_it_ended(exitcode: int | None) -> str:
    if exitcode is None or exitcode >= 0:
        return f"ended with exit code {exitcode}"
    name = signal.Signals(-exitcode).name if -exitcode in set(signal.Signals) else f"signal {-exitcode}"
    hint = " (often the out-of-memory killer)" if name == "SIGKILL" else ""
    return f"was ended by {name}{hint}"
