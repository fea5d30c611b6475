"""The engine of `SequenceMaxSamples`: epochs that go on where the one before stopped."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

from trw_pipeline.sequences.iterator import Epoch, KeyedItem, Mark, SequenceIterator, State
from trw_pipeline.sequences.rebatch import SampleCursor
from trw_pipeline.sequences.recipe import Recipe
from trw_pipeline.sequences.stage import StageRecipe, check_count


class Leftover:
    """What the newest epoch left of the source. It belongs to the recipe, and knows nothing of it.

    Were an epoch to hand its cursor to the recipe itself, each would keep the other alive.
    """

    def __init__(self) -> None:
        self._cursor: SampleCursor | None = None
        self._state: State | None = None
        self._newest = 0

    def lend(self, make: Callable[[], SampleCursor]) -> tuple[SampleCursor, bool, int]:
        """Returns a cursor, whether it goes on where another epoch stopped, and the number that gives it back."""
        cursor, state = self._cursor, self._state
        self._cursor = self._state = None
        self._newest += 1
        if cursor is not None and cursor.source.take_changes():
            # What is on its way was made by a function that is no more: it is made again.
            state = cursor.position_at(cursor.mark())
            cursor.source.close()
            cursor = None
        if cursor is None:
            cursor = make()
            if state is None:
                return cursor, False, self._newest
            cursor.go_to(state)
        return cursor, True, self._newest

    def give_back(self, cursor: SampleCursor, number: int) -> None:
        """Keeps the cursor of the newest epoch, unless the source has no more; closes any other."""
        if number == self._newest and not cursor.is_exhausted:
            self._cursor = cursor
        else:
            cursor.source.close()

    def position(self) -> State | None:
        """Returns where the next epoch will begin, or None for the start of the source."""
        return self._state if self._cursor is None else self._cursor.position_at(self._cursor.mark())

    def replace(self, state: State | None) -> None:
        """Makes the next epoch begin there. What epochs that are open leave is not kept any more."""
        cursor, self._cursor, self._state = self._cursor, None, state
        self._newest += 1
        if cursor is not None:
            cursor.source.close()


class MaxSamplesIterator(SequenceIterator):
    """Ends after a number of samples, and gives back the source where it stopped.

    Args:
        leftover: lends what the epoch before left of the source, and takes back what this one leaves, once: when it
            ends or is given up.
        open_source: opens a pass over the source.
        max_samples: so many samples at most.
        shared_features: features that belong to the whole split.
    """

    stage = "max_samples"

    def __init__(
        self,
        leftover: Leftover,
        open_source: Callable[[], SequenceIterator],
        max_samples: int,
        shared_features: tuple[str, ...],
    ) -> None:
        self._make_cursor = lambda: SampleCursor(open_source(), shared_features)
        self._cursor, self._goes_on, number = leftover.lend(self._make_cursor)
        super().__init__(self._cursor.source)
        self._max_samples = max_samples
        self._given = 0
        self._count = 0
        self._leftover = leftover
        self._number = number
        self._closed_at: Mark = None
        self._give_back_at_end()

    def _give_back_at_end(self) -> None:
        self._give_back = weakref.finalize(self, self._leftover.give_back, self._cursor, self._number)
        self._give_back.atexit = False

    def _start_again(self) -> None:
        """Opens a pass over the source in place of what the epoch before left."""
        self._give_back.detach()
        self._cursor.source.close()
        self._cursor = self._make_cursor()
        self.sources = (self._cursor.source,)
        self._goes_on = False
        self._give_back_at_end()

    def advance(self) -> KeyedItem:
        """Returns the next batch of the source, cut where the limit is reached; its key is its number."""
        try:
            part, nb_samples = self._next_part()
        except StopIteration:
            self._given = self._max_samples  # the source may be read by the next epoch from now on
            self._give_back()
            raise
        self._given += nb_samples
        key, self._count = self.share.key(self._count), self._count + 1
        return key, part

    def _next_part(self) -> tuple[Any, int]:
        if self._given >= self._max_samples:
            raise StopIteration
        try:
            return self._cursor.take(self._max_samples - self._given)
        except StopIteration:
            if not self._goes_on or self._given:
                raise
        # The epoch before had ended just where the source does: an empty epoch would be of no use.
        self._start_again()
        return self._cursor.take(self._max_samples)

    def close(self) -> None:
        """Gives the source back; it stays open for the next epoch."""
        if not self._closed:
            self._closed_at = self.mark()  # the next epoch takes the source further
        self._closed = True
        self._given = self._max_samples
        self._give_back()

    def mark(self) -> Mark:
        """Returns what was given, and where in which pass over the source the epoch stands."""
        return self._closed_at or (self._count, self._given, self._goes_on, self._cursor, self._cursor.mark())

    def position_at(self, mark: Mark) -> State:
        """Returns what was given and where the source stood."""
        count, given, goes_on, cursor, place = mark
        return {
            "stage": self.stage,
            "count": count,
            "given": given,
            "goes_on": goes_on,
            "cursor": cursor.position_at(place),
        }

    def go_to(self, position: State) -> None:
        """Goes there."""
        self.check_position(position, count=int, given=int, goes_on=bool, cursor=Mapping)
        if self._goes_on:
            self._start_again()  # the position is one in a pass of its own
        self._cursor.go_to(position["cursor"])
        self._given = position["given"]
        self._goes_on = position["goes_on"]
        self._count = position["count"]


class MaxSamplesRecipe(StageRecipe):
    """Epochs of at most `max_samples` that go on where the one before stopped.

    Of a source of 25 samples, `max_samples(10)` makes epochs of 10, 10 and 5; then the source starts again, newly
    shuffled. An epoch that is given up hands on the rest of the source too. Of several open at once, only the one
    opened last hands on what it leaves.

    Args:
        source_split: gives batches; one that crosses the limit is cut, and its rest comes first in the next epoch.
        max_samples: number of samples.
    """

    def __init__(self, source_split: Recipe, max_samples: int) -> None:
        super().__init__(source_split, max_samples=check_count("max_samples", max_samples))
        self._leftover = Leftover()

    def open_epoch(self, epoch: Epoch) -> SequenceIterator:
        """Opens an epoch over what the one before left of the source."""
        self.check_open()
        source = self.source_split
        return MaxSamplesIterator(
            self._leftover, lambda: source.open_epoch(epoch), self._arguments["max_samples"], self.shared_features
        )

    def kept_state(self) -> State | None:
        """Returns the position in what is left of the source, or None."""
        return self._leftover.position()

    def load_kept_state(self, state: State | None) -> None:
        """Takes it back."""
        self._leftover.replace(state)

    def __len__(self) -> int:
        raise TypeError("the length of max_samples is not known: it depends on where the epoch before stopped")

    def release(self) -> None:
        """Closes what is left of the source, and frees what the stages before own. Idempotent."""
        self._leftover.replace(None)
        super().release()

    def describe_stage(self) -> str:
        """Returns this stage as one line."""
        return f"max_samples({self._arguments['max_samples']})"
