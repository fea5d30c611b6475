"""Watching an epoch: where its time goes, and what each stage gives.

    consumer ──next──▶ outermost iterator ──advance──▶ stage ──advance──▶ stage ...
      away │ inside                └─ of some items, each `advance` below is timed ─┘

A look at the clock costs as much as a small item, so only some items are watched: for the time of one `next`, each
engine of the chain has an `advance` of its own that times the usual one. How many are left out is found such that
watching takes `SHARE` of the time; to find out whether to look costs 40 ns an item, whatever that is. Of items that
take many milliseconds none is left out, of tiny ones up to thousands at a time, never at a regular distance, which
might be that of the bundles in which items come. Waits for workers are all measured, since they take much longer than
to look at the clock.
"""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from trw_pipeline.sequences.description import layout_of
from trw_pipeline.sequences.iterator import KeyedItem, SequenceIterator

SHARE = 0.003
"""So much of the time watching may take."""

TIMED_CALL_S = 4e-7
"""Of that, a call that is timed takes so long."""

TIMED = ("advance", "advance_into")
"""What engines call of each other."""

MOST_LEFT_OUT = 2000
"""Items at a time, at most."""

_STEP = 0.618  # the golden ratio: its multiples lie evenly between whole numbers, and meet no period


class Stage(Protocol):
    """What is asked of a recipe."""

    @property
    def sources(self) -> tuple[Any, ...]:
        """The recipes right below."""
        ...

    def work(self) -> tuple[float, int]:
        """Returns the seconds that jobs of this stage took so far, and their number."""
        ...

    def report(self) -> str:
        """Says what limits, and what runs where."""
        ...


class Clock:
    """Times the calls of one engine.

    Args:
        layout: what the stage gives, in words, if that is known.

    Attributes:
        inside_s: in the engine and those below, of the items that were watched.
        nb_calls: timed.
        item: the first item that was seen, until it is described.
    """

    def __init__(self, layout: list[str] | None = None) -> None:
        self.inside_s = 0.0
        self.nb_calls = 0
        self.item: Any = None
        self.layout = layout
        self._is_inside = False

    def timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Returns `advance` or `advance_into` of an engine, timed; one may call the other."""

        def timed(*arguments: Any) -> Any:
            if self._is_inside:
                return call(*arguments)
            self._is_inside = True
            start = time.perf_counter()
            try:
                given = call(*arguments)
            finally:
                self.inside_s += time.perf_counter() - start
                self.nb_calls += 1
                self._is_inside = False
            if self.layout is None and self.item is None:
                self.item = arguments[0][-1] if arguments else given[1]
            return given

        return timed


class Moment(NamedTuple):
    """How an epoch stood when an item had been watched.

    Attributes:
        at: by `time.perf_counter()`.
        nb_items: that the consumer had.
        waited_s: for workers.
        main_s: by stage, what the main process had spent in it and those below, of the items watched.
        nb_watched: those items.
        work: by stage, what its workers had done.
        nb_given: by stage.
    """

    at: float
    nb_items: int
    waited_s: float
    main_s: dict[int, float]
    nb_watched: int
    work: dict[int, tuple[float, int]]
    nb_given: dict[int, int]


@dataclass(frozen=True, slots=True)
class StageTimes:
    """What one stage did in an epoch.

    Attributes:
        items: that it gave.
        per_s: items a second.
        main_s: the main process spent in it, without the stages below.
        jobs_s: its jobs took together.
        jobs: were answered.
    """

    items: int = 0
    per_s: float = 0.0
    main_s: float = 0.0
    jobs_s: float = 0.0
    jobs: int = 0


@dataclass(frozen=True, slots=True)
class EpochTimes:
    """Where the time of an epoch went, from its first item until its last one, or the last that was watched.

    What came before the first item, such as the start of workers and imports, is not like the rest, and not in it;
    unless there was no other item.

    Attributes:
        elapsed_s: since then.
        items: that the consumer had, the first one too.
        per_s: items a second.
        first_s: the first item took.
        waited_s: the consumer waited for workers, and nothing else was to be done.
        main_s: the main process made items.
        stages: by `id` of the recipe.
    """

    elapsed_s: float = 0.0
    items: int = 0
    per_s: float = 0.0
    first_s: float = 0.0
    waited_s: float = 0.0
    main_s: float = 0.0
    stages: dict[int, StageTimes] | None = None

    @property
    def away_s(self) -> float:
        """The consumer did something else."""
        return max(0.0, self.elapsed_s - self.waited_s - self.main_s)

    def of(self, stage: Stage) -> StageTimes:
        """Returns those of a stage."""
        return (self.stages or {}).get(id(stage), StageTimes())


class Watch:
    """Watches the newest epoch of a recipe.

    Args:
        recipe: on which `iter` was called. Not kept alive, so that it does not outlive its user with its workers.
        before: the watch of the epoch before; what it has seen of the stages is seen.

    Attributes:
        next_at: the number of the item that is watched next.
    """

    def __init__(self, recipe: Stage, before: Watch | None = None) -> None:
        self._recipe = weakref.ref(recipe)
        self._clocks = {key: Clock(layout) for key, layout in ({} if before is None else before.layouts()).items()}
        self._start = Moment(0.0, 0, 0.0, {}, 0, {}, {})
        self._first: Moment | None = None
        self._last: Moment | None = None
        self._nb_watched = 0
        # What it takes to prepare for an item, and to note how things stand then, at the least: the first time takes
        # longer, and so does one in which others had the core.
        self._look_s = self._note_s = math.inf
        self._cost_s = 0.0  # of watching the item at hand, for which it may have been tried several times
        self._spread = 0.0
        self.next_at = 0

    # While the epoch goes on

    def advance(self, iterator: SequenceIterator) -> KeyedItem:
        """Does what `iterator.advance` does, and times it."""
        start = time.perf_counter()
        recipe = self._recipe()
        if recipe is None:  # nobody can ask
            self.next_at = 1 << 62
            return iterator.advance()
        engines = list(_engines(recipe, iterator))
        if not self._start.at:
            given = {id(stage): engine.nb_items for stage, engine in engines}
            self._start = Moment(start, 0, 0.0, {}, 0, {id(stage): stage.work() for stage, _ in engines}, given)
        nb_calls = 0
        for stage, engine in engines:
            clock = self._clocks.setdefault(id(stage), Clock())
            nb_calls -= clock.nb_calls
            # Not by way of `__dict__`: an object of which that was asked for is slower ever after.
            for name in TIMED:
                setattr(engine, name, clock.timed(getattr(engine, name)))
        begun = time.perf_counter()
        try:
            one = iterator.advance()
        finally:
            done = time.perf_counter()
            for stage, engine in engines:
                nb_calls += self._clocks[id(stage)].nb_calls
                for name in TIMED:
                    delattr(engine, name)
            self._describe()
            self._look_s = min(self._look_s, begun - start + time.perf_counter() - done)
            self._cost_s += self._look_s + TIMED_CALL_S * nb_calls
        self._note(iterator, engines)
        return one

    def end(self, iterator: SequenceIterator) -> None:
        """Is called when the epoch is over."""
        recipe = self._recipe()
        if recipe is not None and self._first is not None:
            self._last = self._moment(iterator, list(_engines(recipe, iterator)), iterator.nb_given)

    def _describe(self) -> None:
        for clock in self._clocks.values():
            if clock.item is not None:
                item, clock.item = clock.item, None
                try:
                    clock.layout = layout_of(item)
                except Exception:  # noqa: BLE001 (an object of the user's that is not what it seems must not end the epoch)
                    clock.layout = [f"{type(item).__name__}, which can not be described"]

    def _note(self, iterator: SequenceIterator, engines: list[tuple[Stage, SequenceIterator]]) -> None:
        """Notes that an item came, and chooses the next one to be watched."""
        self._nb_watched += 1
        nb = iterator.nb_given + 1
        begun = time.perf_counter()
        self._last = self._moment(iterator, engines, nb)
        self._first = self._first or self._last
        self._note_s = min(self._note_s, time.perf_counter() - begun)
        cost_s, self._cost_s = self._cost_s + self._note_s, 0.0
        item_s = (self._last.at - self._start.at) / nb
        self._spread = (self._spread + _STEP) % 1.0
        left_out = cost_s / (SHARE * max(item_s, 1e-9)) * (0.5 + self._spread)
        self.next_at = nb + min(MOST_LEFT_OUT, nb, int(left_out))

    def _moment(self, iterator: SequenceIterator, engines: list[tuple[Stage, SequenceIterator]], nb: int) -> Moment:
        return Moment(
            time.perf_counter(),
            nb,
            iterator.waited_s,
            {key: clock.inside_s for key, clock in self._clocks.items()},
            self._nb_watched,
            {id(stage): stage.work() for stage, _ in engines},
            {id(stage): nb if engine is iterator else engine.nb_items for stage, engine in engines},
        )

    # What came of it

    def times(self) -> EpochTimes:
        """Returns where the time went."""
        first, last, recipe = self._first, self._last, self._recipe()
        if first is None or last is None or recipe is None:
            return EpochTimes()
        start = first if last.nb_items > 1 else self._start
        nb_watched = last.nb_watched - start.nb_watched
        elapsed_s = max(1e-9, last.at - start.at)
        waited_s = last.waited_s - start.waited_s
        watched_s = last.main_s.get(id(recipe), 0.0) - start.main_s.get(id(recipe), 0.0)
        # Items that were watched stand for all; together they can not have taken more time than there was.
        factor = (last.nb_items - start.nb_items) / nb_watched if nb_watched else 0.0
        factor = min(factor, (elapsed_s - waited_s) / max(watched_s, 1e-9))
        inside_s = {key: factor * (one_s - start.main_s.get(key, 0.0)) for key, one_s in last.main_s.items()}
        stages: dict[int, StageTimes] = {}
        for stage in each_once(recipe):
            key = id(stage)
            main_s = inside_s.get(key, 0.0) - sum(inside_s.get(id(source), 0.0) for source in stage.sources)
            before, now = start.work.get(key, (0.0, 0)), last.work.get(key, (0.0, 0))
            done = max(0.0, now[0] - before[0]), max(0, now[1] - before[1])
            given = last.nb_given.get(key, 0)
            per_s = max(0, given - start.nb_given.get(key, 0)) / elapsed_s
            stages[key] = StageTimes(given, per_s, max(0.0, main_s), *done)
        return EpochTimes(
            elapsed_s,
            last.nb_items,
            (last.nb_items - start.nb_items) / elapsed_s,
            first.at - self._start.at,
            waited_s,
            inside_s.get(id(recipe), 0.0),
            stages,
        )

    def layouts(self) -> dict[int, list[str]]:
        """Returns, by `id` of the recipe, what each stage gives, in words, of those that have given something."""
        return {key: clock.layout for key, clock in self._clocks.items() if clock.layout is not None}

    def report(self) -> str | None:
        """Returns the report of the recipe, if that is still there."""
        recipe = self._recipe()
        return None if recipe is None else recipe.report()


def each_once(recipe: Any) -> Iterator[Any]:
    """Yields the stages of a chain, from its sources on; one that several read comes once."""
    seen: set[int] = set()

    def walk(stage: Any) -> Iterator[Any]:
        for source in stage.sources:
            yield from walk(source)
        if id(stage) not in seen:
            seen.add(id(stage))
            yield stage

    return walk(recipe)


def _engines(recipe: Stage, iterator: SequenceIterator) -> Iterator[tuple[Stage, SequenceIterator]]:
    """Yields each recipe with its engine, from the sources on; not below one whose engine is not ours."""
    for source, below in zip(recipe.sources, iterator.reads, strict=False):
        yield from _engines(source, below)
    yield recipe, iterator
