"""Where the items of a reservoir come from: passes over its source without end, with places that can be saved."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from trw_pipeline.executors.job import uid_of
from trw_pipeline.seeding import JobSeed, JobSeeds
from trw_pipeline.sequences.iterator import Mark, SequenceIterator, State, check_parts
from trw_pipeline.typing import Item, Key


class SourcePass:
    """One pass over the source.

    Args:
        source: the iterator.
        number: of the pass.
        seeds: of its jobs.
        is_whole: whether it begins at the start of the source.

    Attributes:
        nb_taken: items so far.
    """

    def __init__(self, source: SequenceIterator, number: int, seeds: JobSeeds, is_whole: bool) -> None:
        source.leave_unread()  # items are sent on as they are
        self.source = source
        self.number = number
        self.is_whole = is_whole
        self.nb_taken = 0
        self._seeds = seeds

    def take(self) -> tuple[Origin, Item]:
        """Returns the next item; raises what `advance` of the source does."""
        before = self.source.mark()
        key, item = self.source.advance()
        origin = Origin(self, self.nb_taken, key, uid_of(item), before)
        self.nb_taken += 1
        return origin, item

    def seed(self, key: Key) -> JobSeed:
        """Returns the seed of a job."""
        return self._seeds(key)


class Origin(NamedTuple):
    """Where an item came from.

    Attributes:
        of: the pass.
        order: how many items of that were taken before it.
        key: where it stands at its source.
        uid: its `sample_uid`, as it stands there.
        before: mark of the source before it gave the item.
    """

    of: SourcePass
    order: int
    key: Key
    uid: Any
    before: Mark

    @property
    def name(self) -> tuple[int, Key]:
        """Pass and key: two items with the same are the same item."""
        return self.of.number, self.key


class SourceMark(NamedTuple):
    """Where an endless source stood.

    Attributes:
        of: the pass.
        mark: of its iterator.
        done: names of items that come after it and are not wanted again.
        longest_pass: see `EndlessSource`.
    """

    of: SourcePass
    mark: Mark
    done: list[tuple[int, Key]]
    longest_pass: int

    def position(self) -> State:
        """Spells that out."""
        done = [[number, list(key)] for number, key in self.done]
        return {
            "pass": self.of.number,
            "source": self.of.source.position_at(self.mark),
            "done": done,
            "longest_pass": self.longest_pass,
        }


class EndlessSource:
    """Passes over a source, one after the other.

    Args:
        open_pass: opens the source for the pass of a number; the flag says whether it starts there.
        position: of `SourceMark`, to begin in the midst of a pass; None begins with the first.

    Attributes:
        longest_pass: most items of a pass that was read from its start to its end; 0 if there was none.
    """

    def __init__(self, open_pass: OpenPass, position: State | None = None) -> None:
        self._open_pass = open_pass
        self._done: set[tuple[int, Key]] = set()
        self.longest_pass = 0
        if position is None:
            self._pass = open_pass(0, None)
            return
        check_parts(
            "the state of 'async_reservoir'", position, **{"pass": int}, source=Mapping, done=list, longest_pass=int
        )
        self.longest_pass = position["longest_pass"]
        self._pass = open_pass(position["pass"], position["source"])
        self._done = {(number, tuple(key)) for number, key in position["done"]}

    @property
    def iterator(self) -> SequenceIterator:
        """That of the pass that is open."""
        return self._pass.source

    def take(self) -> tuple[Origin, Item]:
        """Returns the next item; at the end of a pass the next one begins.

        Raises:
            WouldBlock: the source has none ready.
            ValueError: the source is empty.
        """
        while True:
            try:
                origin, item = self._pass.take()
            except StopIteration:
                self._begin_next()
                continue
            if origin.name not in self._done:
                return origin, item
            self._done.remove(origin.name)

    def _begin_next(self) -> None:
        if self._pass.is_whole:
            if not self._pass.nb_taken:
                raise ValueError("the source of async_reservoir is empty: it gave no item in a whole pass")
            self.longest_pass = max(self.longest_pass, self._pass.nb_taken)
        self._pass.source.close()
        self._pass = self._open_pass(self._pass.number + 1, None)

    def mark(self, oldest: Origin | None, done: Iterable[tuple[int, Key]]) -> SourceMark:
        """Returns where it stands.

        Args:
            oldest: the item to begin with: the oldest whose result is not there. By default the next one.
            done: what was taken after that, and is not wanted again.
        """
        left = [*done, *sorted(self._done)]
        if oldest is None:
            return SourceMark(self._pass, self._pass.source.mark(), left, self.longest_pass)
        return SourceMark(oldest.of, oldest.before, left, self.longest_pass)

    def close(self) -> None:
        """Closes the pass that is open."""
        self._pass.source.close()


OpenPass = Callable[[int, State | None], SourcePass]
"""Opens the pass of a number, at a position of the source or at its start."""


def open_passes(open_source: Callable[[int], SequenceIterator], seed: int, number: int) -> OpenPass:
    """Returns what opens the passes of the stage of a number in a chain of that seed."""

    def open_pass(of: int, position: State | None) -> SourcePass:
        source = open_source(of)
        if position is not None:
            source.go_to(position)
        return SourcePass(source, of, JobSeeds(seed, of, number), is_whole=position is None)

    return open_pass
