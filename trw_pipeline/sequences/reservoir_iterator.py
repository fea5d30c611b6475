"""One epoch of a reservoir: draws from what is in it."""

from __future__ import annotations

import itertools
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from trw_pipeline.errors import ClosedError
from trw_pipeline.executors.bell import Bell
from trw_pipeline.executors.job_executor import JobExecutor
from trw_pipeline.sequences.continuous_reservoir import ContinuousReservoir
from trw_pipeline.sequences.iterator import Epoch, KeyedItem, Mark, SequenceIterator, State, next_of, without_signals
from trw_pipeline.sequences.reservoir import Reservoir
from trw_pipeline.sequences.reservoir_entries import View
from trw_pipeline.sequences.reservoir_state import ReservoirMark, position_of
from trw_pipeline.sequences.samplers import Sampler, drawn_rows
from trw_pipeline.sequences.stage import order_of
from trw_pipeline.typing import Item

AnyReservoir = Reservoir | ContinuousReservoir


class DrawMark(NamedTuple):
    """Where an epoch stood.

    Attributes:
        has_begun: whether it was known what it draws from.
        nb_given: items.
        nb_drawn: results drawn.
    """

    has_begun: bool
    nb_given: int
    nb_drawn: int


class ReservoirIterator(SequenceIterator):
    """One epoch: draws from a snapshot of the reservoir; from its slots, where results enter all the time.

    Args:
        reservoir: is refreshed before the first item.
        renew: makes the reservoir of a saved position, in place of the one that the sequence has.
        sampler: which results are drawn, and how many at a time; None draws each once, the oldest first.
        collate: called with each list of drawn results, or None.
        max_items: the epoch ends after so many draws of a result, or None.
        epoch: keys the order.
        number: of the stage in the chain.
    """

    stage = "async_reservoir"

    def __init__(
        self,
        reservoir: AnyReservoir,
        renew: Callable[[State], AnyReservoir],
        sampler: Sampler | None,
        collate: Callable[[list[Item]], Item] | None,
        max_items: int | None,
        epoch: Epoch,
        number: int,
    ) -> None:
        super().__init__()
        self.share = reservoir.share
        self._reservoir: AnyReservoir | None = reservoir
        self._given_up: Callable[[], AnyReservoir | None] = lambda: None  # the same, if it is still there
        self._is_live = reservoir.rules.is_continuous
        self._is_deterministic = reservoir.rules.is_deterministic
        self.can_resume = reservoir.can_resume
        self.is_reproducible = self.has_stable_keys = self.can_resume and not self._is_live
        self._renew = renew
        self._sampler = sampler
        self._collate = collate
        self._max_items = max_items
        self._epoch = epoch
        self._number = number
        self._is_told = False  # the reservoir, that this epoch begins
        self._before: ReservoirMark | State | None = None  # the reservoir, before it was refreshed for this epoch
        self._begun: ReservoirMark | State | None = None  # and after it was
        self._loaded: State | None = None  # the position that it went to
        self._view: View | None = None
        self._length: int | None = None
        self._has_ended = False
        self._order: Iterator[Any] = iter(())
        self._drawn: list[int] = []  # in this epoch, since it was opened or went to a position
        self._nb_drawn = 0
        self._count = 0

    def executors(self) -> list[JobExecutor]:
        """Returns those of the reservoir until the epoch has begun; after that nothing has to be waited for."""
        return self._open_reservoir().executors() if self._is_to_begin else []

    def bells(self) -> list[Bell]:
        """Returns those of the reservoir, as long."""
        return self._open_reservoir().bells() if self._is_to_begin else []

    @property
    def _is_to_begin(self) -> bool:
        # One that was closed never will: a stage beside it has ended the epoch, and jobs above may not be done yet.
        return self._view is None and not self._closed

    def take_changes(self) -> bool:
        """Sends functions again that have changed; results of old ones are what a reservoir is for."""
        if self._is_to_begin:
            self._open_reservoir().take_changes()
        return False

    @property
    def reads(self) -> tuple[SequenceIterator, ...]:
        """The pass over the source of the reservoir, unless a thread reads it."""
        source = self._reservoir.source if isinstance(self._reservoir, Reservoir) else None
        return () if source is None else (source,)

    def fill(self) -> bool:
        """Sends jobs of the reservoir; its source hands them out as far as it can."""
        return not self._closed and self._open_reservoir().fill()

    @property
    def has_background_jobs(self) -> bool:
        """Whether jobs of the reservoir are in flight."""
        return self._reservoir is not None and self._reservoir.has_background_jobs

    def nb_sources_with_background_jobs(self) -> int:
        """Returns the number of stages below with unfinished or undelivered jobs."""
        return 0 if self._reservoir is None else self._reservoir.nb_stages_with_background_jobs()

    def _open_reservoir(self) -> AnyReservoir:
        if self._reservoir is None or self._reservoir.is_closed:
            raise ClosedError("the reservoir was closed before this epoch was over")
        return self._reservoir

    # Items

    def advance(self) -> KeyedItem:
        """Returns the next drawn results, copied: what is done to them does not change the reservoir."""
        reservoir = self._open_reservoir()
        view = self._view or self._begin(reservoir)
        if self._is_live:
            reservoir.refresh()
        try:
            if self._max_items is not None and self._nb_drawn >= self._max_items:
                raise StopIteration
            drawn = next_of(self._order, type(self._sampler).__name__)
        except StopIteration:
            if self._is_live and not self._has_ended:
                self._has_ended = True
                reservoir.end_epoch()
            raise
        numbers = drawn_rows("results to draw", drawn, len(view))
        if self._max_items is not None:
            numbers = numbers[: self._max_items - self._nb_drawn]
        results = [view.draw(int(number)) for number in numbers]
        reservoir.note_draw()
        self._nb_drawn += len(numbers)
        if not self._is_live:
            self._drawn += map(int, numbers)
        key, self._count = self.share.key(self._count), self._count + 1
        return key, results if self._collate is None else without_signals(self._collate, results)

    def _begin(self, reservoir: AnyReservoir) -> View:
        """Opens the view, as soon as all that belongs there is in the reservoir."""
        if not self._is_told:
            if self._loaded is None and self.can_resume and not self._is_live:
                self._before = reservoir.mark()
            reservoir.begin_epoch()
            self._is_told = True
        loaded = self._loaded
        if loaded is not None and loaded["begun"]:
            reservoir.make_again()
        else:
            reservoir.refresh()
        self._view = view = reservoir.view(None if loaded is None or not self._is_live else loaded["length"])
        self._length = len(view)
        if self.can_resume and not self._is_live:
            self._begun = reservoir.mark()
        self._order = itertools.islice(self._new_order(view), self._count, None)
        return view

    def _new_order(self, view: View) -> Iterator[Any]:
        if self._sampler is None:
            return iter(range(len(view)))
        return order_of(self._sampler, view, self._epoch.seed, self._epoch.number, self._number, "order")

    def close(self) -> None:
        """Gives up the epoch; the reservoir is the sequence's."""
        super().close()
        if self._reservoir is not None:
            self._given_up = weakref.ref(self._reservoir)
        self._reservoir = self._view = None

    # Position

    def mark(self) -> Mark:
        """Returns what was given. What is in the reservoir is spelled out only where it is asked for."""
        return DrawMark(self._length is not None, self._count, self._nb_drawn)  # its view is gone once it is closed

    def position_at(self, mark: Mark) -> State:
        """Returns what the epoch draws from, how much of it was drawn, and how the reservoir goes on after it.

        Where results enter all the time it is what is there now.
        """
        if not self.can_resume:
            raise self._can_not_resume()
        at: DrawMark = mark
        if not at.has_begun and self._loaded is not None:
            return self._loaded
        # What an epoch draws from that depends on speed is known only by now; had it begun then, it would be the same.
        has_begun = at.has_begun or (self._length is not None and not self._is_deterministic)
        held = self._served_at(at.nb_drawn) if has_begun else self._before
        if held is None:
            # A stage that ended this epoch may still give what it has taken of it, and be asked where that stood.
            held = (self._given_up() or self._open_reservoir()).mark()
        return {
            "stage": self.stage,
            "share": str(self.share),
            "seed": self._epoch.seed,
            "epoch": self._epoch.number,
            "begun": has_begun,
            "count": at.nb_given,
            "drawn": at.nb_drawn,
            "length": self._length if has_begun else None,
            "reservoir": position_of(held),
        }

    def _served_at(self, nb_drawn: int) -> ReservoirMark | State | None:
        """Returns the reservoir of this epoch when so many results had been drawn of it."""
        begun = self._begun
        if not isinstance(begun, ReservoirMark):
            return begun
        served = Counter(self._drawn[: len(self._drawn) - (self._nb_drawn - nb_drawn)])
        entries = [entry._replace(served=entry.served + served[i]) for i, entry in enumerate(begun.entries)]
        return begun._replace(entries=entries)

    def go_to(self, position: State) -> None:
        """Goes there: the results that the epoch draws from are made again, by pass and key of their items."""
        if not self.can_resume:
            raise self._can_not_resume()
        self.check_position(
            position,
            share=str,
            seed=int,
            epoch=int,
            begun=bool,
            count=int,
            drawn=int,
            length=(int, type(None)),
            reservoir=Mapping,
        )
        self.check_share(position)
        self._reservoir = None
        self._reservoir = self._renew(position["reservoir"])
        self._loaded = position
        self._epoch = Epoch(position["seed"], position["epoch"])
        self._count, self._nb_drawn = position["count"], position["drawn"]
