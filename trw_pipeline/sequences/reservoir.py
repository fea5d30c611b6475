"""The engine of `SequenceAsyncReservoir`: results are kept and served again while workers make fresh ones.

    source ──▶ jobs ──▶ workers ──▶ finished ──▶ entries ──▶ epochs draw
               └── at the start of an epoch; or, continuously, in a thread of its own ──┘

The reservoir outlives epochs. With `replacement="epoch"` it is driven by who waits for an epoch to begin, and the epoch
draws from a snapshot, so it does not change under it. `continuous_reservoir.py` has the other way.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from trw_pipeline.errors import ExecutorError, WouldBlock
from trw_pipeline.executors.bell import Bell
from trw_pipeline.executors.compressed import Compressed, ReusedBuffers
from trw_pipeline.executors.failures import FailureLog
from trw_pipeline.executors.job_executor import JobExecutor
from trw_pipeline.executors.private_copy import private_copy
from trw_pipeline.sequences.iterator import SequenceIterator, State
from trw_pipeline.sequences.lender import ExecutorLender
from trw_pipeline.sequences.reservoir_entries import Entries, Entry, View, size_of
from trw_pipeline.sequences.reservoir_options import ReservoirRules
from trw_pipeline.sequences.reservoir_source import EndlessSource, Origin, open_passes
from trw_pipeline.sequences.reservoir_state import EntryMark, ReservoirMark, SavedItems, seed_of
from trw_pipeline.sequences.share import Share
from trw_pipeline.typing import Item, Key


class Sent(NamedTuple):
    """A job that is under way.

    Attributes:
        order: how many were sent before it.
        origin: where its item came from.
        saved: the entry that it makes again, or None.
    """

    order: int
    origin: Origin
    saved: State | None


@dataclass(slots=True)
class Intake:
    """How many results are still to enter before an epoch begins: at least, and at most."""

    least: int
    most: float


class Reservoir:
    """Results of a function over an endless source.

    Args:
        open_source: opens the source for a pass of a number.
        lender: lends the executor, for as long as the reservoir lives.
        rules: what it lives by.
        seed: of the chain.
        number: of the stage in the chain.
        share: what this process gets of the samples at the source.
        loaded: a position, whose entries are made again before anything else.

    Attributes:
        entries: what it holds.
        can_resume: whether it has a position, and whether that leads back to the same items.

    Raises:
        CheckpointError: `loaded` is damaged.
    """

    def __init__(
        self,
        open_source: Callable[[int], SequenceIterator],
        lender: ExecutorLender,
        rules: ReservoirRules,
        seed: int,
        number: int,
        share: Share,
        loaded: State | None = None,
    ) -> None:
        self.rules = rules
        self.share = share
        self.entries = Entries(rules)
        self._seed = seed if loaded is None else seed_of(loaded)
        self._open_pass = open_passes(open_source, self._seed, number)
        self._loaded = loaded
        self._source: EndlessSource | None = None
        self._again: SavedItems | None = None
        if loaded is None:
            self._source = EndlessSource(self._open_pass)
        else:
            self._again = SavedItems(self._open_pass, loaded["entries"])
        self.can_resume = self._source is None or (
            self._source.iterator.can_resume and self._source.iterator.has_stable_keys
        )
        self.is_filled = False if loaded is None else loaded["is_filled"]
        self._made_again: list[tuple[Entry, int]] = []
        self._nb_sent = 0
        self._sent: dict[int, Sent] = {}  # ticket -> what is under way, the oldest first
        self._done: dict[int, tuple[int, Key]] = {}  # order -> what was taken in while an older one is under way
        self._fruitless = 0  # jobs in a row that failed or gave nothing
        self._intake: Intake | None = None
        self.waiting: tuple[Entry, Sent] | None = None  # a result for which there is no room yet
        self._buffers = ReusedBuffers()
        self._nb_jobs = 0
        self._lender = lender
        self.executor = lender.borrow()
        weakref.finalize(self, lender.give_back, self.executor).atexit = False
        self.log = FailureLog(self.executor.log.on_error, self.executor.log.max_failures)

    # What an epoch asks for

    @property
    def is_closed(self) -> bool:
        """Whether the sequence was closed."""
        return self._lender.is_closed

    def begin_epoch(self) -> None:
        """Starts to count failures anew, and sends what has changed of the functions, for the jobs to come."""
        self.take_changes()
        self.log = FailureLog(self.log.on_error, self.log.max_failures)
        self._nb_jobs = 0

    def take_changes(self) -> bool:
        """Sends functions again that have changed; whether items on their way are of old ones."""
        is_old = self.executor.send_function()
        return (self._source is not None and self._source.iterator.take_changes()) or is_old

    @property
    def source(self) -> SequenceIterator | None:
        """The pass over the source that is open, or None while saved results are made again."""
        return None if self._source is None else self._source.iterator

    def executors(self) -> list[JobExecutor]:
        """Returns ours and those of the source."""
        return [*(self._again or self._the_source().iterator).executors(), self.executor]

    def bells(self) -> list[Bell]:
        """Returns those of the source."""
        return (self._again or self._the_source().iterator).bells()

    def refresh(self) -> None:
        """Takes in what has finished, and sends jobs in its place; more than once only if results are missing.

        Raises:
            WouldBlock: results are missing.
            ValueError: the source is empty, or the bounds contradict one another.
            ExecutorError: every job of a whole pass over the source failed or gave nothing.
        """
        self.make_again()
        intake = self._intake = self._intake or self._new_intake()
        came = self._receive_all(intake)
        while (self.fill() or came) and intake.least > 0:
            came = self._receive_all(intake)
        if intake.least > 0:
            raise WouldBlock(f"{intake.least} results are missing; {len(self.entries)} are there")
        self._intake = None
        self.is_filled = True
        self.end_epoch()

    def end_epoch(self) -> None:
        """Names what was skipped."""
        self.log.finish(self._nb_jobs)

    def view(self, length: int | None = None) -> View:
        """Returns what an epoch draws from that begins now: what is there, or slots, of which there are `length`."""
        snapshot = None if self.rules.is_continuous else self.entries.by_age()
        nb = len(self.entries) if snapshot is None else len(snapshot)
        return View(self.entries, snapshot, nb if length is None else length, self._opened)

    def _opened(self, entry: Entry) -> Item:
        value = entry.value
        return value.open(self._buffers) if isinstance(value, Compressed) else private_copy(value)

    def note_draw(self) -> None:
        """Nothing to do: nobody waits for room."""

    @property
    def is_ready(self) -> bool:
        """Whether an epoch can begin without waiting, where results enter all the time."""
        return self._again is None and self.is_filled

    def step(self) -> bool:
        """Takes in what has finished, as far as there is room, and sends jobs; whether it did anything.

        Where results enter all the time, instead of `refresh`.
        """
        try:
            self.make_again()
        except WouldBlock:
            return False
        moved = False
        while self._take_one_in():
            moved = True
            self.is_filled = self.is_filled or len(self.entries) >= self.rules.min_samples
        return self.fill() or moved

    def _take_one_in(self) -> bool:
        if self.waiting is not None:
            return self._enter(*self.waiting)
        if not self.executor.poll():
            return False
        self._receive()
        return self.waiting is None

    def _new_intake(self) -> Intake:
        rules = self.rules
        missing = 0 if self.is_filled else max(0, rules.min_samples - len(self.entries))
        if rules.is_deterministic:
            nb = (rules.max_entering or 0) if self.is_filled else missing
            return Intake(nb, nb)
        return Intake(missing, math.inf if rules.max_entering is None else max(missing, rules.max_entering))

    # Jobs

    def fill(self) -> bool:
        """Sends jobs while there is room and the source has items ready; True if one was sent."""
        if self._again is not None:
            return False
        source, sent = self._the_source(), False
        while self._has_room():
            try:
                origin, item = source.take()
            except WouldBlock:
                break
            self._put(origin, item, None)
            sent = True
            if self.executor.max_jobs_at_once == 0 and self.executor.poll():
                break  # without a bound, an endless source would be read for ever
        return sent

    def _put(self, origin: Origin, item: Item, saved: State | None) -> None:
        key = origin.key
        ticket = self.executor.put(item, timeout=0, key=key, uid=origin.uid, seed=origin.of.seed(key))
        self._sent[ticket] = Sent(self._nb_sent, origin, saved)
        self._nb_sent += 1

    def _has_room(self) -> bool:
        limit = self.executor.max_jobs_at_once  # here it bounds what waits to be taken in too
        if limit == 0 and self.executor.is_ready():
            return False
        return self.executor.has_room() and (limit == 0 or self.executor.nb_in_flight < limit)

    @property
    def has_background_jobs(self) -> bool:
        """Whether jobs are under way."""
        return self.executor.nb_in_flight > 0

    def nb_stages_with_background_jobs(self) -> int:
        """Returns the number of stages of the source with unfinished or undelivered jobs."""
        if self._source is None:
            return 0
        iterator = self._source.iterator
        return iterator.has_background_jobs + iterator.nb_sources_with_background_jobs()

    def _the_source(self) -> EndlessSource:
        if self._source is None:
            assert self._loaded is not None, "it was opened with a position"
            self._source = EndlessSource(self._open_pass, self._loaded["after"])
        return self._source

    # Results

    def _receive_all(self, intake: Intake) -> bool:
        came = False
        while intake.most > 0 and self.executor.poll():
            came = True
            if self._receive():
                intake.least -= 1
                intake.most -= 1
        return came

    def _receive(self) -> bool:
        """Takes in a result that is ready; whether it entered."""
        result = self.executor.next_result(timeout=0)
        sent = self._sent.pop(result.ticket)
        self._nb_jobs += 1
        if result.error is None and not (isinstance(result.value, list) and not result.value):
            self._fruitless = 0
            entry = self._entry(sent.origin, result.value)
            if sent.saved is None:
                return self._enter(entry, sent)
            entry.served = sent.saved["served"]
            self._made_again.append((entry, sent.saved["age"]))
            return False
        if sent.saved is None:
            self._note_done(sent)
        if result.error is not None:
            self.log.add(result.error)
        if sent.saved is None:
            self._note_fruitless(result.error)
        return False

    def _entry(self, origin: Origin, value: Any) -> Entry:
        if self.rules.comes_in_arena and not isinstance(value, Compressed):
            # What is kept would fill the shared memory, and all that comes later would travel more slowly.
            value = private_copy(value, "result")
        return Entry(origin, value, size_of(value))

    def _enter(self, entry: Entry, sent: Sent) -> bool:
        """Takes a result in if there is room, else keeps it waiting."""
        nb = len(self.entries)
        self.waiting = entry, sent  # before it is tried: who draws meanwhile has to know that somebody waits
        try:
            if not self.entries.add(entry):
                self._check_bytes(nb)
                return False
        except ValueError:
            self.waiting = None
            self._note_done(sent)
            raise
        self.waiting = None
        self._note_done(sent)
        self._check_bytes(nb)
        return True

    def _check_bytes(self, nb_before: int) -> None:
        """Raises ValueError if the first epoch can never start."""
        if not self.is_filled and nb_before < self.rules.min_samples and len(self.entries) <= nb_before:
            self.waiting = None
            raise ValueError(
                f"max_reservoir_bytes must have room for min_reservoir_samples={self.rules.min_samples} results, got "
                f"{self.rules.max_bytes} bytes, and {nb_before} results take {self.entries.nb_bytes}"
            )

    def _note_done(self, sent: Sent) -> None:
        """Remembers what was taken in before an older one, which is where a saved position will begin."""
        oldest = next(iter(self._sent.values()), None)
        if oldest is not None and sent.order > oldest.order:
            self._done[sent.order] = sent.origin.name
        else:
            self._done = {order: name for order, name in self._done.items() if order > sent.order}

    def _note_fruitless(self, error: Exception | None) -> None:
        self._fruitless += 1
        longest = self._the_source().longest_pass
        if longest and self._fruitless >= longest:
            raise ExecutorError(
                f"the last {self._fruitless} jobs of async_reservoir, a whole pass over its source, failed or gave "
                "nothing"
            ) from error

    # Positions

    def make_again(self) -> None:
        """Makes what was loaded, and sends jobs for what comes next; raises WouldBlock until it is there."""
        again = self._again
        if again is None:
            return
        moved, are_all_sent = True, False
        while moved:
            moved = False
            while self._has_room():
                try:
                    self._put(*again.take())
                    moved = True
                except StopIteration:
                    are_all_sent = True
                    break
                except WouldBlock:
                    break
            while self._sent and self.executor.poll():
                self._receive()
                moved = True
        if not are_all_sent or self._sent:
            raise WouldBlock(f"{len(self._made_again)} saved results are made again")
        self.entries.put_back(self._made_again)
        self._made_again, self._again = [], None
        self.fill()

    def mark(self) -> ReservoirMark | State:
        """Returns what is to be saved; what was loaded, as long as that is not made again."""
        if self._again is not None:
            assert self._loaded is not None, "it is made again from that"
            return self._loaded
        entries, source = self.entries, self._the_source()
        not_in = [*([] if self.waiting is None else [self.waiting[1]]), *list(self._sent.values())[:1]]
        oldest = min(not_in, default=None)
        return ReservoirMark(
            self._seed,
            [EntryMark(entry.origin, entry.served, entries.age(entry)) for entry in entries.by_age()],
            source.mark(None if oldest is None else oldest.origin, self._done.values()),
            self.is_filled,
        )

    def close_source(self) -> None:
        """Closes the pass that is open."""
        for one in (self._again, self._source):
            if one is not None:
                one.close()
