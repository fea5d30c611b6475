"""The engine of `SequenceIterable` and `SequenceAdaptorTorch`: what can only be iterated, with a position all the same.

Where an iterable has a `state_dict` of its own, it is asked for it now and then, and a position is the last of those
and the number of items since. Else a position is the number of items since the start of the epoch. They are read again
to go there, and dropped.

That leads back to the same place because the same items come again: the number of the epoch is passed on, the states
of the generators that the iterable was given belong to the position, and for the time of each step the global
generators are seeded from the chain's seed, the epoch and the number of the item.
"""

from __future__ import annotations

import base64
import copy
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from trw_pipeline.errors import CheckpointError
from trw_pipeline.seeding import JobSeeds, job_seed, seeded_globals
from trw_pipeline.sequences.iterator import Epoch, KeyedItem, Mark, SequenceIterator, State, next_of
from trw_pipeline.typing import Batch

ASK_EVERY = 32
"""An iterable is asked for its state after so many items: to copy it takes longer than to read a small one."""


class Snapshot(NamedTuple):
    """What an iterable said of itself after it had given `number` items."""

    number: int
    state: Any


class ReadMark(NamedTuple):
    """Where an `IterableIterator` stood: number of the next item, last snapshot, and the generators at the start."""

    number: int
    snapshot: Snapshot | None
    generators: list[str]


class Readable:
    """An iterable as all epochs of a sequence share it.

    Args:
        what: the iterable, or a function that returns an iterator for each epoch.
        name: of the sequence, for errors.
        to_batch: makes a batch of what it gives.
        parts: what may have a `set_epoch` or a `generator` of its own, such as the sampler of a loader.

    Attributes:
        has_state: whether it tells its position itself.
        is_read_once: whether it has one epoch, as a generator.
    """

    def __init__(self, what: Any, name: str, to_batch: Callable[[Any], Batch], *parts: Any) -> None:
        self.name = name
        self.to_batch = to_batch
        self._what: Any = what
        self._parts = [what, *parts]
        self.has_state = _tells_its_state(what)
        self._is_iterable = isinstance(what, Iterable)
        self.is_read_once = isinstance(what, Iterator)
        self._was_read = False
        self._reader: weakref.ref[IterableIterator] | None = None

    def generators(self) -> list[str]:
        """Returns the states of the generators that it was given, as text."""
        return [base64.b64encode(bytes(one.get_state().numpy())).decode() for one in self._generators()]

    def set_generators(self, states: Sequence[str]) -> None:
        """Puts them back."""
        generators = self._generators()
        if len(generators) != len(states):
            raise CheckpointError(
                f"the state was saved of {self.name!r} with {len(states)} generators, this one has {len(generators)}"
            )
        torch: Any = sys.modules.get("torch")  # loaded, if there are any
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(torch.frombuffer(bytearray(base64.b64decode(state)), dtype=torch.uint8))

    def _generators(self) -> list[Any]:
        kind = getattr(sys.modules.get("torch"), "Generator", ())
        found = [getattr(part, "generator", None) for part in self._parts]
        return list({id(one): one for one in found if isinstance(one, kind)}.values())

    def begin(self, reader: IterableIterator, epoch: int, snapshot: Snapshot | None) -> tuple[Any, Snapshot | None]:
        """Returns the iterable to read, and where it will begin: at the snapshot, or None for the start of the epoch.

        An iterable has one state, that of whoever reads it last. So only who reads it alone can use it.

        Raises:
            RuntimeError: it can be read once, and was.
        """
        other = None if self._reader is None else self._reader()
        is_alone = other is None or other.is_at_end
        if other is not None:
            other.asks_for_state = False
        self._reader = weakref.ref(reader)
        reader.asks_for_state = self.has_state and is_alone
        for part in self._parts:
            set_epoch = getattr(part, "set_epoch", None)
            if set_epoch is not None:
                set_epoch(epoch)
        if not self._is_iterable:
            return self._what(), None
        if self._was_read and self.is_read_once:
            raise RuntimeError(
                f"a {type(self._what).__name__} can be read only once, and was: give a function that returns a new one "
                "for each epoch"
            )
        self._was_read = True
        if snapshot is None or not is_alone:
            if self.has_state and _is_of_hugging_face(self._what):
                # It keeps what it has loaded, and would begin there again whenever that epoch is opened.
                self._what.load_state_dict({"epoch": None})
            return self._what, None
        self._what.load_state_dict(copy.deepcopy(snapshot.state))
        return self._what, snapshot


def _tells_its_state(what: Any) -> bool:
    if not all(callable(getattr(what, name, None)) for name in ("state_dict", "load_state_dict")):
        return False
    return not (_is_of_hugging_face(what) and _shuffles_a_buffer(getattr(what, "_ex_iterable", None)))


def _shuffles_a_buffer(part: Any) -> bool:
    """Whether a part of a dataset of Hugging Face does, or is unknown: its state lacks what waits in the buffer."""
    if part is None or "BufferShuffled" in type(part).__name__:
        return True
    below = [*getattr(part, "ex_iterables", ()), *([part.ex_iterable] if hasattr(part, "ex_iterable") else ())]
    return any(map(_shuffles_a_buffer, below))


def _is_of_hugging_face(what: Any) -> bool:
    return type(what).__module__.partition(".")[0] == "datasets"


class IterableIterator(SequenceIterator):
    """Items of an iterable, read in this process. It may block.

    Args:
        readable: the iterable.
        epoch: keys the global generators; its number is passed on.

    Attributes:
        asks_for_state: whether the iterable's own state is ours.
        is_at_end: whether nothing more will be read.
    """

    stage = "iterable"

    def __init__(self, readable: Readable, epoch: Epoch) -> None:
        super().__init__()
        self._readable = readable
        self.asks_for_state = self.is_at_end = False
        self._what: Any = None
        self._items: Iterator[Any] | None = None
        self._start_at(epoch, 0, None, None)

    def _start_at(self, epoch: Epoch, number: int, snapshot: Snapshot | None, generators: list[str] | None) -> None:
        self._epoch = epoch
        self._seeds = JobSeeds(epoch.seed, epoch.number, 0)
        self._number = number
        self._snapshot = snapshot
        self._generators = generators

    def advance(self) -> KeyedItem:
        """Returns the next item; its key is its number in the epoch."""
        if self._items is None:
            self._begin()
        number, last = self._number, 0 if self._snapshot is None else self._snapshot.number
        if self.asks_for_state and number - last >= ASK_EVERY:
            self._snapshot = Snapshot(number, copy.deepcopy(self._what.state_dict()))
        batch = self._readable.to_batch(self._next(number))
        self._number += 1
        return (number,), batch

    @property
    def nb_items(self) -> int:
        """The number of the next item."""
        return self._number

    def _begin(self) -> None:
        """Opens the iterable and goes to where we stand; to read items that were given already is all that takes."""
        readable, number = self._readable, self._number
        if self._generators is None:
            self._generators = readable.generators()
        else:
            readable.set_generators(self._generators)
        with seeded_globals(job_seed(self._epoch.seed, self._epoch.number, 0, "begin")):
            self._what, self._snapshot = readable.begin(self, self._epoch.number, self._snapshot)
            self._items = iter(self._what)
        for again in range(0 if self._snapshot is None else self._snapshot.number, number):
            try:
                self._next(again)
            except StopIteration as end:
                raise CheckpointError(
                    f"the state was saved after {number} items of {readable.name}, which now gives only {again}"
                ) from end

    def _next(self, number: int) -> Any:
        assert self._items is not None, "somebody has begun"
        with seeded_globals(self._seeds((number,))):
            try:
                return next_of(self._items, self._readable.name)
            except StopIteration:
                self.is_at_end = True
                raise

    def close(self) -> None:
        """Drops the iterable: its own clean-up decides what that frees."""
        super().close()
        self.is_at_end = True
        self.asks_for_state = False
        self._what, self._items = None, iter(())

    def mark(self) -> Mark:
        """Returns the number of the next item, and the last snapshot."""
        generators = self._readable.generators() if self._generators is None else self._generators
        return ReadMark(self._number, self._snapshot, generators)

    def position_at(self, mark: Mark) -> State:
        """Spells that out."""
        at: ReadMark = mark
        return {
            "stage": self.stage,
            "seed": self._epoch.seed,
            "epoch": self._epoch.number,
            "number": at.number,
            "snapshot": None if at.snapshot is None else [at.snapshot.number, at.snapshot.state],
            "generators": at.generators,
        }

    def go_to(self, position: State) -> None:
        """Goes there when the next item is asked for."""
        self.check_position(
            position, seed=int, epoch=int, number=int, snapshot=(list, tuple, type(None)), generators=(list, tuple)
        )
        snapshot = None if position["snapshot"] is None else Snapshot(*position["snapshot"])
        epoch = Epoch(position["seed"], position["epoch"])
        self._start_at(epoch, position["number"], snapshot, list(position["generators"]))
