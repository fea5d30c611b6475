"""A position in one epoch of a sequence: what every engine of the algebra is.

An engine never waits inside `advance`: it takes what is there, hands jobs to workers, and says `WouldBlock` when
nothing is ready. Only the outermost iterator waits, for all executors of the chain at once, so that no stage can starve
another.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias, TypeVar

from trw_pipeline.errors import CheckpointError, ClosedError, WouldBlock
from trw_pipeline.executors.job_executor import JobExecutor, wait_for_any
from trw_pipeline.executors.private_copy import private_copy
from trw_pipeline.typing import Item, Key

KeyedItem: TypeAlias = tuple[Key, Item]
State: TypeAlias = dict[str, Any]
T = TypeVar("T")


class Epoch(NamedTuple):
    """Which epoch is open: all randomness of a chain is keyed by these two."""

    seed: int
    number: int


class SequenceIterator(Iterator[Item], ABC):
    """One open epoch. Independent of every other iterator of the same sequence.

    After the last item every further call raises StopIteration; after `close` every call raises ClosedError.

    Attributes:
        stage: name of the engine in saved states.
        sources: the iterators that this one reads.
        can_resume: whether `state_dict` is offered.
        is_reproducible: a restored iterator gives the same items in the same order.
        is_over: the end was reached.
        has_stable_keys: a restored iterator gives each item the key that it had before, whatever the order.
    """

    stage = "items"

    def __init__(self, *sources: SequenceIterator) -> None:
        self.sources = sources
        self.can_resume = all(source.can_resume for source in sources)
        self.is_reproducible = all(source.is_reproducible for source in sources)
        self.has_stable_keys = self.is_reproducible
        self.is_over = False
        self._closed = False
        self._nb_given = 0

    @abstractmethod
    def advance(self) -> KeyedItem:
        """Returns the next item and its key, without waiting for a worker.

        Raises:
            StopIteration: the epoch is over, and nothing else.
            WouldBlock: nothing is ready; one of `executors()` will make it so.
        """

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
                item = self.advance()[1]
            except StopIteration:
                self.is_over = True
                raise
            except WouldBlock:
                executors = self.executors()
                if not blocking or not executors:
                    raise
            else:
                self._nb_given += 1
                return item
            wait_for_any(executors)

    def executors(self) -> list[JobExecutor]:
        """Returns the executors of this stage and below whose answers can end a WouldBlock."""
        return [executor for source in self.sources for executor in source.executors()]

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
        """Returns what `state_dict` copies: it may refer to samples that are on their way. Taken for every item."""
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

    def close(self) -> None:
        """Gives up the epoch here and in every stage below. Idempotent."""
        self._closed = True
        for source in self.sources:
            source.close()

    def __repr__(self) -> str:
        end = ", closed" if self._closed else ", over" if self.is_over else ""
        return f"<{type(self).__name__} of {self.stage!r}: {self._nb_given} items given{end}>"


class PlainIterator(SequenceIterator):
    """Any iterator as a source; the key of an item is its number.

    Args:
        iterator: where the items come from. It may block.
        name: of the sequence that it belongs to, for errors.
    """

    def __init__(self, iterator: Iterator[Item], name: str) -> None:
        super().__init__()
        self.stage = name
        self.can_resume = self.is_reproducible = self.has_stable_keys = False
        self._numbered = enumerate(iterator)

    def advance(self) -> KeyedItem:
        """Returns the next item."""
        number, item = next_of(self._numbered, self.stage)
        return (number,), item

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
