"""A position in one epoch of a sequence: what every engine of the algebra is.

An engine never waits inside `advance`: it takes what is there, hands jobs to workers, and says `WouldBlock` when
nothing is ready. Only the outermost iterator waits, for all executors of the chain at once (and for the bells of stages
that make something in a thread), so that no stage can starve another.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from trw_pipeline.errors import CheckpointError, ClosedError, WouldBlock
from trw_pipeline.executors.bell import Bell
from trw_pipeline.executors.job_executor import JobExecutor
from trw_pipeline.executors.private_copy import private_copy
from trw_pipeline.executors.waiting import wait_for_any
from trw_pipeline.seeding import globals_lent
from trw_pipeline.sequences.share import WHOLE, Share
from trw_pipeline.typing import Item, Key

KeyedItem: TypeAlias = tuple[Key, Item]
State: TypeAlias = dict[str, Any]
Mark: TypeAlias = Any
"""Where an engine stood: small, never changed, and understood by that very engine alone."""
T = TypeVar("T")


class Epoch(NamedTuple):
    """Which epoch is open: all randomness of a chain is keyed by these two."""

    seed: int
    number: int


class Watcher(Protocol):
    """Looks on while an epoch is read.

    Attributes:
        next_at: the number of the item that it wants to see made next.
    """

    next_at: int

    def advance(self, iterator: SequenceIterator) -> KeyedItem:
        """Does what `iterator.advance` does."""
        ...

    def end(self, iterator: SequenceIterator) -> None:
        """Is called once, when the epoch is over."""
        ...

    def report(self) -> str | None:
        """Says what runs where in the whole chain, or None if that is not known any more."""
        ...


class SequenceIterator(Iterator[Item], ABC):
    """One open epoch. Independent of every other iterator of the same sequence.

    After the last item every further call raises StopIteration; after `close` every call raises ClosedError.

    Attributes:
        stage: name of the engine in saved states.
        sources: the iterators that this one reads.
        can_resume: whether `state_dict` is offered.
        is_reproducible: a restored iterator gives the same items in the same order.
        is_over: the end was reached.
        nb_given: items that `next` gave.
        waited_s: seconds that it waited for workers.
        has_stable_keys: a restored iterator gives each item the key that it had before, whatever the order.
        share: what this process gets of the samples at the source.
    """

    stage = "items"
    _count = -1  # of an engine that numbers what it gives, the next number

    def __init__(self, *sources: SequenceIterator) -> None:
        self.sources = sources
        self.can_resume = all(source.can_resume for source in sources)
        self.is_reproducible = all(source.is_reproducible for source in sources)
        self.has_stable_keys = self.is_reproducible
        self.share = next((source.share for source in sources), WHOLE)
        self.is_over = False
        self.nb_given = 0
        self.waited_s = 0.0
        self._closed = False
        self._watcher: Watcher | None = None
        self._watch_at: float = math.inf  # number of the item that is watched next

    @abstractmethod
    def advance(self) -> KeyedItem:
        """Returns the next item and its key, without waiting for a worker.

        Raises:
            StopIteration: the epoch is over, and nothing else.
            WouldBlock: nothing is ready; one of `executors()` will make it so, or one of `bells()` will be rung.
        """

    def advance_into(self, items: list[Item], nb: int) -> None:
        """Appends at least one and at most `nb` items, which takes less time than to get them one by one.

        Raises what `advance` does, and then has appended nothing.
        """
        del nb
        items.append(self.advance()[1])

    def __next__(self) -> Item:
        return self.next_item(blocking=True)

    def next_item(self, blocking: bool) -> Item:
        """Returns the next item.

        Args:
            blocking: whether to wait until it is ready.

        Raises:
            StopIteration: the epoch is over.
            WouldBlock: nothing is ready, and not `blocking`.
            ClosedError: after `close`.
        """
        while True:
            if self._closed:
                raise ClosedError(f"this iterator of {self.stage!r} is closed")
            try:
                item = (self.advance() if self.nb_given < self._watch_at else self._watched())[1]
            except StopIteration:
                self._note_over()
                raise
            except WouldBlock:
                executors, bells = self.executors(), self.bells()
                if not blocking or not (executors or bells):
                    raise
            else:
                self.nb_given += 1
                return item
            with globals_lent():  # a thread below may want them, for a function that this one waits for
                self.waited_s += wait_for_any(executors, bells=bells, report=self.stall_report)

    def watch(self, watcher: Watcher) -> None:
        """Has somebody watch this epoch; to be called on the outermost iterator."""
        self._watcher, self._watch_at = watcher, 0

    def _watched(self) -> KeyedItem:
        assert self._watcher is not None, "it said when"
        one = self._watcher.advance(self)
        self._watch_at = self._watcher.next_at
        return one

    def _note_over(self) -> None:
        if self._watcher is not None and not self.is_over:
            self._watcher.end(self)
        self.is_over = True

    def stall_report(self) -> str | None:
        """Says what limits, and what runs where, if somebody watches this epoch."""
        return None if self._watcher is None else self._watcher.report()

    @property
    def reads(self) -> tuple[SequenceIterator, ...]:
        """The engines that this one reads, also those that it has never to wait for."""
        return self.sources

    @property
    def nb_items(self) -> int:
        """How many items this engine has given; where it does not number them, as many as it has taken."""
        return self._count if self._count >= 0 else sum(engine.nb_items for engine in self.reads)

    @property
    def is_untouched(self) -> bool:
        """Whether no item was taken yet, and no end was reached."""
        return self.nb_given == 0 and not self.is_over

    def leave_unread(self) -> None:
        """Lets items refer to rows of files, which are read where a copy of the item is made.

        For a stage that does no more with an item than to send it to a worker.
        """

    def executors(self) -> list[JobExecutor]:
        """Returns the executors of this stage and below whose answers can end a WouldBlock."""
        return [executor for source in self.sources for executor in source.executors()]

    def bells(self) -> list[Bell]:
        """Returns the bells of this stage and below that are rung when a thread has made what was not ready."""
        return [bell for source in self.sources for bell in source.bells()]

    def take_changes(self) -> bool:
        """Sends functions of this stage and below again that have changed; whether items on their way are of old ones.

        Raises:
            CodecError: one has become one that can not be sent.
        """
        return any([executor.send_function() for executor in self.executors()])

    def fill(self) -> bool:
        """Hands jobs to the workers of this stage, as far as there is room; True if there was one."""
        return False

    def fill_all(self) -> None:
        """Does so for every stage, from the source on."""
        for source in self.sources:
            source.fill_all()
        self.fill()

    @property
    def has_background_jobs(self) -> bool:
        """Whether workers of this very stage have unfinished or undelivered jobs."""
        return False

    def nb_sources_with_background_jobs(self) -> int:
        """Returns the number of stages below with unfinished or undelivered jobs."""
        return sum(s.has_background_jobs + s.nb_sources_with_background_jobs() for s in self.sources)

    def state_dict(self) -> State:
        """Returns the position as plain data that does not change when iteration goes on.

        It is JSON-able, but where samples were regrouped from results that came in any order: there it holds samples.

        Raises:
            TypeError: a stage below has no state to save.
        """
        return private_copy(self.position())

    def position(self) -> State:
        """Returns what `state_dict` copies: it may refer to samples that are on their way."""
        return self.position_at(self.mark())

    def mark(self) -> Mark:
        """Returns where the iterator stands, for `position_at` of this very iterator. Taken for every item: cheap."""
        return None

    def position_at(self, mark: Mark) -> State:
        """Returns what `position` would have returned when the mark was taken, however far the iterator went since.

        Raises:
            TypeError: a stage below has no state to save.
        """
        raise self._can_not_resume()

    def load_state_dict(self, state: State) -> None:
        """Goes to a saved position; the rest of the epoch is then what it would have been.

        Only for an iterator that has not been advanced. Samples already seen are not made again.

        Raises:
            CheckpointError: the state is of another chain.
        """
        self.go_to(private_copy(state))

    def go_to(self, position: State) -> None:
        """Does what `load_state_dict` says with a position that is ours to keep."""
        raise self._can_not_resume()

    def _can_not_resume(self) -> TypeError:
        return TypeError(
            f"{self.stage!r} can not be resumed: its position can not be saved. Resume at the start of an epoch "
            "instead, with set_epoch"
        )

    def check_position(self, position: Any, **kinds: type | tuple[type, ...]) -> None:
        """Raises CheckpointError unless the position is of this kind of engine and holds values of these kinds."""
        found = position.get("stage") if isinstance(position, Mapping) else position
        if found != self.stage:
            raise CheckpointError(
                f"a state of {self.stage!r} was expected, got one of {found!r:.100}; was it saved by another chain?"
            )
        check_parts(f"the state of {self.stage!r}", position, **kinds)

    def check_sources(self, positions: list[Any]) -> None:
        """Raises CheckpointError unless there is a position for each source."""
        if len(positions) != len(self.sources):
            raise CheckpointError(
                f"the state of {self.stage!r} was saved over {len(positions)} sources, here are {len(self.sources)}"
            )
        if not all(isinstance(position, Mapping) for position in positions):
            raise CheckpointError(f"the state of {self.stage!r} is damaged: 'sources' can not be {positions!r:.100}")

    def check_share(self, position: State) -> None:
        """Raises CheckpointError unless the position, whose engine deals out samples, was saved by the same rank."""
        if position["share"] != str(self.share):
            raise CheckpointError(
                f"the state was saved by {position['share']}, this is {self.share}: within an epoch each rank goes on "
                "from the state that it saved itself, among as many ranks. Resume at the start of an epoch instead, "
                "with set_epoch"
            )

    def close(self) -> None:
        """Gives up the epoch here and in every stage below. Idempotent."""
        self._closed = True
        for source in self.sources:
            source.close()

    def __repr__(self) -> str:
        end = ", closed" if self._closed else ", over" if self.is_over else ""
        return f"<{type(self).__name__} of {self.stage!r}: {self.nb_given} items given{end}>"


class PlainIterator(SequenceIterator):
    """Any iterator as a source; the key of an item is its number.

    Args:
        iterator: where the items come from. It may block.
        name: of the sequence that it belongs to, for errors.
        share: of that sequence.
    """

    def __init__(self, iterator: Iterator[Item], name: str, share: Share = WHOLE) -> None:
        super().__init__()
        self.share = share
        self.stage = name
        self.can_resume = self.is_reproducible = self.has_stable_keys = False
        self._numbered = enumerate(iterator)
        self._count = 0

    def advance(self) -> KeyedItem:
        """Returns the next item."""
        number, item = next_of(self._numbered, self.stage)
        self._count = number + 1
        return self.share.key(number), item

    def close(self) -> None:
        """Drops the iterator: its own clean-up decides what that frees."""
        super().close()
        self._numbered = enumerate(itertools.chain())


def without_signals(function: Callable[..., T], *arguments: Any, **keywords: Any) -> T:
    """Calls a function of the user's; a StopIteration or WouldBlock from there is an error, and tells us nothing.

    Raises:
        RuntimeError: the function raised one of them.
    """
    try:
        return function(*arguments, **keywords)
    except (StopIteration, WouldBlock) as signal:
        name = getattr(function, "__name__", function)
        raise RuntimeError(f"{name!r} raised {type(signal).__name__}") from signal


def next_of(iterator: Iterator[T], name: str) -> T:
    """Returns the next of a user's iterator; StopIteration is its end, but a WouldBlock from there is an error.

    Raises:
        RuntimeError: the iterator raised WouldBlock; `name` says whose it is.
    """
    try:
        return next(iterator)
    except WouldBlock as signal:
        raise RuntimeError(f"the iterator of {name!r} raised WouldBlock") from signal


def check_parts(what: str, state: Mapping[str, Any], **kinds: type | tuple[type, ...]) -> None:
    """Raises CheckpointError, which calls the state `what`, unless it holds a value of the kind for each name."""
    for name, kind in kinds.items():
        if name not in state:
            raise CheckpointError(f"{what} is damaged: it has no {name!r}")
        if not isinstance(state[name], kind):
            raise CheckpointError(f"{what} is damaged: {name!r} can not be {state[name]!r:.100}")
