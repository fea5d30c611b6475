"""What every recipe has besides its verbs: seed and epochs, the documented cursor, a position that can be saved."""

from __future__ import annotations

import copy
import itertools
import operator
import textwrap
import weakref
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self

from trw_pipeline.errors import CheckpointError, ClosedError
from trw_pipeline.executors.failures import Failure
from trw_pipeline.executors.private_copy import private_copy
from trw_pipeline.seeding import fresh_seed
from trw_pipeline.sequences.iterator import Epoch, PlainIterator, SequenceIterator, State, check_parts
from trw_pipeline.sequences.share import WHOLE, Share
from trw_pipeline.sequences.watch import Watch
from trw_pipeline.sequences.watched import Watched
from trw_pipeline.typing import Item

STATE_FORMAT = 2


class Recipe(Watched):
    """A recipe for the items of an epoch, perhaps over another recipe.

    Args:
        source_split: the sequence that this one reads, or None.
    """

    source_split: Any = None
    shared_features: tuple[str, ...] = ()
    batch_wide_features: tuple[str, ...] = ()
    _seed: int | None = None
    _seed_is_given = False
    _next_epoch: int = 0
    _cursor: Iterator[Item] | None = None
    _is_closed = False

    def __init__(self, source_split: Any = None) -> None:
        self.source_split = source_split

    @abstractmethod
    def __iter__(self) -> Iterator[Item]:
        """Opens the next epoch, independent of every other that is open."""

    def __aiter__(self) -> AsyncIterator[Item]:
        """Opens the next epoch for a task of an event loop: `async for item in sequence`; see `AsyncEpoch`."""
        from trw_pipeline.sequences.async_iteration import AsyncEpoch  # noqa: PLC0415 (asyncio is heavy to import)

        iterator = iter(self)
        if not isinstance(iterator, SequenceIterator):
            iterator = PlainIterator(iterator, type(self).__name__)
        return AsyncEpoch(iterator)

    def open_epoch(self, epoch: Epoch) -> SequenceIterator:
        """Opens an epoch for the stage above."""
        self.check_open()
        self.set_epoch(epoch.number)
        return PlainIterator(iter(self), type(self).__name__, self.share)

    @property
    def sources(self) -> tuple[Recipe, ...]:
        """The recipes right below: none of a source, several where chains meet."""
        return (self.source_split,) if isinstance(self.source_split, Recipe) else ()

    @property
    def number(self) -> int:
        """Number of the stage in the chain; a source is 0. It keys the stage's random numbers."""
        return max((source.number + 1 for source in self.sources), default=0)

    @property
    def share(self) -> Share:
        """What this process gets of the samples: all, unless they are dealt out to several ranks."""
        return next((source.share for source in self.sources), WHOLE)

    @property
    def is_reproducible(self) -> bool:
        """Whether every pass over an epoch gives the same items in the same order. A source of a user's is trusted."""
        return all(source.is_reproducible for source in self.sources)

    @property
    def can_be_read_again(self) -> bool:
        """Whether an epoch that somebody opens leaves anything for those after it; that of a generator does not."""
        return all(source.can_be_read_again for source in self.sources)

    # Seed and epochs

    @property
    def seed(self) -> int:
        """Seed of the chain: given by `with_seed`, or drawn when it is first needed.

        Raises:
            ValueError: it was not given, and each of several ranks would draw its own.
        """
        keeper = self.seed_keeper
        if self.share.world_size > 1 and not keeper.seed_is_given:
            raise ValueError(f"all ranks must have one seed, this is {self.share}: give it by with_seed(seed)")
        if keeper._seed is None:
            keeper._seed = keeper.first_seed()
        return keeper._seed

    @property
    def seed_keeper(self) -> Recipe:
        """The recipe that keeps the seed of the chain: its source, or the last place where chains meet."""
        return self.sources[0].seed_keeper if len(self.sources) == 1 else self

    def first_seed(self) -> int:
        """Returns the seed of a chain to which none was given."""
        return fresh_seed()

    @property
    def selection_seed(self) -> int:
        """What keys a choice of samples that is made once, for all epochs: the seed if it was given, else always 0.

        Samples chosen by a seed that nobody knows would be others in a program that is run again, whatever seed the
        chain gets later, and so where a position is loaded.
        """
        seed = self.seed  # several ranks need a given one
        return seed if self.seed_keeper.seed_is_given else 0

    @property
    def seed_is_given(self) -> bool:
        """Whether the seed that this recipe keeps was given, and not drawn."""
        return self._seed_is_given

    def with_seed(self, seed: int) -> Self:
        """Returns a chain like this one, with workers of its own, whose random numbers all follow from `seed`.

        Raises:
            TypeError: `seed` is not an integer.
        """
        seed = check_integer("seed", seed)
        if self.seed_keeper is not self:
            return self.over(self.sources[0].with_seed(seed))
        other = self.over(self.source_split)
        other._seed, other._seed_is_given = seed, True
        return other

    def keep_seed(self, of: Recipe) -> Self:
        """Gives this source the seed of another chain, and returns it."""
        self._seed, self._seed_is_given = of.seed, of.seed_keeper._seed_is_given
        return self

    def like_this(self) -> Self:
        """Returns a chain like this one, with workers of its own."""
        return self.with_seed(self.seed)

    def over(self, source: Any) -> Self:
        """Returns a sequence like this one over another source."""
        other = copy.copy(self)
        other.source_split = source
        other._cursor = other._watch = None
        return other

    def over_each(self, change: Callable[[Any], Any]) -> Self:
        """Returns a sequence like this one over what `change` makes of each of its sources."""
        return self.over(change(self.sources[0]))

    def set_epoch(self, epoch: int) -> None:
        """Sets the number of the epoch that the next `iter()` opens; else it counts up from 0.

        Raises:
            TypeError: `epoch` is not an integer.
            ValueError: it is negative.
        """
        self._next_epoch = check_epoch(epoch)
        for source in self.sources:
            source.set_epoch(epoch)

    # The documented cursor: one position that belongs to the sequence itself

    def __next__(self) -> Item:
        return self.next_item(blocking=True)

    def next_item(self, blocking: bool) -> Item:
        """Advances the sequence's own cursor, which begins an epoch where none is open.

        Raises:
            StopIteration: the epoch is over; the next call begins another.
            WouldBlock: nothing is ready, and not `blocking`.
            ClosedError: after `close`.
        """
        self.check_open()
        if self._cursor is None:
            self.initializer()
        assert self._cursor is not None, "initializer opens it"
        try:
            if isinstance(self._cursor, SequenceIterator):
                return self._cursor.next_item(blocking)
            return next(self._cursor)
        except StopIteration:
            self._cursor = None
            raise

    def initializer(self) -> None:
        """Begins a new epoch at the sequence's own cursor."""
        self._cursor = iter(self)

    def fill_queue(self) -> None:
        """Hands jobs to the workers of this stage, as far as there is room."""
        self._fill(lambda cursor: cursor.fill())

    def fill_queue_all_sequences(self) -> None:
        """Hands jobs to the workers of every stage of the chain."""
        self._fill(lambda cursor: cursor.fill_all())

    def _fill(self, fill: Callable[[SequenceIterator], object]) -> None:
        if self._cursor is None:
            self.initializer()
        if isinstance(self._cursor, SequenceIterator):
            fill(self._cursor)
            for executor in self._cursor.executors():
                executor.take_in()  # a worker that says that it has started gets the jobs that wait for it

    def has_background_jobs(self) -> bool:
        """Whether the own cursor has jobs that are unfinished or not delivered."""
        return isinstance(self._cursor, SequenceIterator) and self._cursor.has_background_jobs

    def has_background_jobs_previous_sequences(self) -> int:
        """Returns the number of stages before this one of which that is true."""
        return self._cursor.nb_sources_with_background_jobs() if isinstance(self._cursor, SequenceIterator) else 0

    # Figures and life

    @property
    def failures(self) -> list[Failure]:
        """The samples that were skipped, here and in the stages before, in the epoch opened last."""
        return [failure for source in self.sources for failure in source.failures]

    def close(self) -> None:
        """Closes the chain: its open epochs end, and what its stages own (workers, a reservoir) is freed. Idempotent.

        A stage with workers that two chains share is closed with either; a source that owns nothing stays usable by
        others.
        """
        self._is_closed = True
        self._cursor = None
        self.release()

    def release(self) -> None:
        """Frees what this stage and those before it own; called when the chain is closed, here or above. Idempotent."""
        for source in self.sources:
            source.release()

    def check_open(self) -> None:
        """Raises ClosedError after `close`."""
        if self._is_closed:
            raise ClosedError(f"this {type(self).__name__} is closed")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def check_integer(name: str, value: int) -> int:
    """Returns `value` as an int; raises TypeError unless it is an integer, Python's or NumPy's."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    return operator.index(value)


def check_epoch(value: int) -> int:
    """Returns the number of an epoch as an int; raises TypeError unless it is an integer, ValueError if negative."""
    epoch = check_integer("epoch", value)
    if epoch < 0:
        raise ValueError(f"epoch must be at least 0, got {epoch}")
    return epoch


class EngineRecipe(Recipe):
    """A recipe that opens an engine of ours, which can tell its position.

    Args:
        source_split: the sequence below, or None at the root.
        arguments: everything else that the recipe was made with.
    """

    _newest: SequenceIterator | None = None
    _newest_epoch: int = 0
    _resume: State | None = None
    _before_newest: tuple[int, State | None] | None = None

    def __init__(self, source_split: Recipe | None, **arguments: Any) -> None:
        super().__init__(source_split)
        self._arguments = arguments
        self._opened: weakref.WeakSet[SequenceIterator] = weakref.WeakSet()

    @abstractmethod
    def open_epoch(self, epoch: Epoch) -> SequenceIterator:
        """Opens the engine, and those of all stages below, for one epoch."""

    def __iter__(self) -> SequenceIterator:
        self.check_open()
        self._abandon_newest()
        self._before_newest = number, resume = self._next_epoch, self._resume
        self._next_epoch, self._resume = number + 1, None
        iterator = self.open_epoch(Epoch(self.seed, number))
        self._opened.add(iterator)
        if resume is not None:
            iterator.go_to(resume)
        self._newest, self._newest_epoch = iterator, number
        self._watch = Watch(self, self._watch)
        iterator.watch(self._watch)
        return iterator

    def _abandon_newest(self) -> None:
        """Drops the newest epoch: if nobody else holds it, its workers are free for the next one.

        If nothing was taken of it either, it does not count: some loops open an epoch to see whether that is possible.
        """
        before, self._before_newest = self._before_newest, None
        newest, self._newest = self._newest, None
        if newest is None or before is None or not newest.is_untouched:
            return
        held = weakref.ref(newest)
        del newest
        if held() is None:
            self._next_epoch, self._resume = before

    def set_epoch(self, epoch: int) -> None:
        """Sets the number of the epoch that the next `iter()` opens; else it counts up from 0.

        A position that was loaded is kept if it is of that epoch, and given up if not.

        Raises:
            TypeError: `epoch` is not an integer.
            ValueError: it is negative.
        """
        epoch = check_epoch(epoch)
        if epoch != self._next_epoch:
            self._resume = None
        self._next_epoch = epoch
        self._before_newest = None

    def over(self, source: Any, **changes: Any) -> Self:
        """Returns a sequence like this one over another source, with workers of its own."""
        other = self.made_of(source, {**self._arguments, **changes})
        other._next_epoch = self._next_epoch
        return other

    @classmethod
    def made_of(cls, source: Any, arguments: Mapping[str, Any]) -> Self:
        """Makes one of what `EngineRecipe` keeps: the sequence below, or None at the root, and everything else."""
        return cls(*(() if source is None else (source,)), **arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        """A deep copy, here or in another process, is a chain like this one, before the same epoch."""
        attributes = {name: getattr(self, name) for name in KEPT_BY_COPIES if hasattr(self, name)}
        return _made_again, (type(self), self.source_split, self._arguments, attributes)

    def state_dict(self) -> State:
        """Returns seed, number of the epoch and position in it, as plain data that stays as it is.

        The epoch is the one opened last, or, where that is over or none was opened, the next one from its start.

        Raises:
            TypeError: a stage of the chain can not save its position.
        """
        newest = None if self._newest is None or self._newest.is_over else self._newest
        state = {
            "format": STATE_FORMAT,
            "chain": self.chain(),
            "seed": self.seed,
            "epoch": self._next_epoch if newest is None else self._newest_epoch,
            "position": self._resume if newest is None else newest.position(),
            "held": self.held_state(),
        }
        return private_copy(state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Makes the next `iter()` go on where the state was saved. Samples already seen are not made again.

        The chain has the seed of the state from now on, whatever it had before.

        Raises:
            CheckpointError: the state is none of a sequence, or of another chain. One that was saved within an epoch of
                another number of samples, or of features of other names, dtypes or shapes, is found out by the next
                `iter()`; other data of the same kind is not, because to compare it all of it would have to be read.
        """
        if not isinstance(state, Mapping) or state.get("format") != STATE_FORMAT:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise CheckpointError(f"a state of a sequence in format {STATE_FORMAT} was expected, got {state!r:.100}")
        if state.get("chain") != self.chain():
            raise CheckpointError(f"the state was saved by the chain {state.get('chain')}, this one is {self.chain()}")
        check_parts("the state", state, seed=int, epoch=int, position=(Mapping, type(None)), held=list)
        held = state["held"]
        if len(held) != len(self.held_state()) or not all(isinstance(kept, (Mapping, type(None))) for kept in held):
            raise CheckpointError(f"the state is damaged: 'held' can not be {held!r:.100}")
        if state["epoch"] < 0:
            raise CheckpointError(f"the state is damaged: 'epoch' can not be {state['epoch']}")
        state = private_copy(dict(state))
        keeper = self.seed_keeper
        keeper._seed, keeper._seed_is_given = state["seed"], True
        self.set_epoch(state["epoch"])
        self._resume = state["position"]
        self._newest = None
        self.load_held_state(state["held"])

    def chain(self) -> list[Any]:
        """Returns the kinds of the stages, from this one down to the source; where chains meet, a list for each."""
        below = [s.chain() if isinstance(s, EngineRecipe) else [type(s).__name__] for s in self.sources]
        return [type(self).__name__, *(below[0] if len(below) == 1 else below)]

    def held_state(self) -> list[State | None]:
        """Returns what each stage keeps between epochs, from this one down to the source, chain after chain."""
        below = [s.held_state() for s in self.sources if isinstance(s, EngineRecipe)]
        return [self.kept_state(), *itertools.chain.from_iterable(below)]

    def load_held_state(self, states: list[State | None]) -> None:
        """Gives each stage back what it kept between epochs."""
        self.load_kept_state(states[0])
        rest = states[1:]
        for source in self.sources:
            if isinstance(source, EngineRecipe):
                nb_stages = len(source.held_state())
                source.load_held_state(rest[:nb_stages])
                rest = rest[nb_stages:]

    def kept_state(self) -> State | None:
        """Returns what this stage keeps between epochs, or None."""
        return None

    def load_kept_state(self, state: State | None) -> None:
        """Takes it back."""

    def close(self) -> None:
        """Closes the chain: its open epochs end, and what its stages own (workers, a reservoir) is freed. Idempotent.

        A stage with workers that two chains share is closed with either; a source that owns nothing stays usable by
        others.
        """
        self._newest = None
        for iterator in list(self._opened):
            iterator.close()
        super().close()

    def __repr__(self) -> str:
        """Shows the chain, one stage a line; what joins it from the side comes after the stage that it joins."""
        first, *others = self.sources or (None,)
        if first is None:
            return self.describe_stage()
        beside = "".join(f"\n{textwrap.indent(repr(other), '    ')}" for other in others)
        return f"{first!r}\n  .{self.describe_stage()}{' with' if others else ''}{beside}"


KEPT_BY_COPIES = ("_seed", "_seed_is_given", "_share", "_next_epoch", "_resume")


def _made_again(
    kind: type[EngineRecipe], source: Any, arguments: dict[str, Any], attributes: dict[str, Any]
) -> EngineRecipe:
    made = kind.made_of(source, arguments)
    vars(made).update(attributes)
    return made
