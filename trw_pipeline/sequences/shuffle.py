"""`SequenceShuffle`: another order, for sources that give their items one after the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple, TypeVar

from trw_pipeline.errors import CheckpointError
from trw_pipeline.seeding import generator, job_seed
from trw_pipeline.sequences.iterator import Epoch, KeyedItem, Mark, SequenceIterator, State
from trw_pipeline.sequences.recipe import Recipe
from trw_pipeline.sequences.stage import StageRecipe, check_count

T = TypeVar("T")


class ShuffleMark(NamedTuple):
    """Where a `ShuffleIterator` stood.

    Attributes:
        nb_drawn: items given.
        nb_taken: items taken from the source.
        source: mark of the source before the oldest item in the buffer, or where it stands if there is none.
        held: what is in the buffer, only where a restored source could not give it again.
    """

    nb_drawn: int
    nb_taken: int
    source: Mark
    held: list[KeyedItem] | None


class Draws:
    """Which place of the buffer each draw empties: follows from the seed and the number of the draw alone.

    Args:
        epoch: keys them, together with `number`.
        number: of the stage in the chain.
    """

    def __init__(self, epoch: Epoch, number: int) -> None:
        self._rng = generator(job_seed(epoch.seed, epoch.number, number, "shuffle"))

    def __call__(self, nb_places: int) -> int:
        """Returns the place of the next draw."""
        return int(self._rng.random() * nb_places)  # `integers` takes four times longer, and might take any number

    def buffer_after(self, nb_draws: int, nb_taken: int, size: int) -> list[int]:
        """Draws so many times without items, and returns the numbers, at the source, of those then in the buffer."""
        places: list[int] = []
        taken = 0
        for share in self._rng.random(nb_draws).tolist():  # the very numbers that it gives one by one
            while len(places) < size and taken < nb_taken:
                places.append(taken)
                taken += 1
            take_out(places, int(share * len(places)))
        return [*places, *range(taken, nb_taken)]


def take_out(places: list[T], place: int) -> T:
    """Takes one out, in whose stead comes the last; so the next to enter is the last again."""
    places[place], places[-1] = places[-1], places[place]
    return places.pop()


class ShuffleIterator(SequenceIterator):
    """Draws from a buffer, which the next item of the source fills again. Keys are the source's.

    Args:
        source: gives the items.
        buffer_size: so many wait to be drawn.
        epoch: keys the order, together with `number`.
        number: of the stage in the chain.
    """

    stage = "shuffle"

    def __init__(self, source: SequenceIterator, buffer_size: int, epoch: Epoch, number: int) -> None:
        super().__init__(source)
        self.has_stable_keys = source.has_stable_keys
        self._source = source
        self._size = buffer_size
        self._number = number
        self._exhausted = False
        self._buffer: list[tuple[int, KeyedItem | None]] = []  # number at the source, and the item, if it is here
        self._numbers: set[int] = set()
        self._taken: deque[tuple[int, Mark]] = deque()  # number of an item, and mark of the source before it
        self._nb_drawn = self._nb_taken = 0
        self._missing: dict[int, int] = {}  # after a restart: number at the source -> place in the buffer
        self._nb_known = 0  # after a restart: so many items of the source had been taken
        self._key_by(epoch)

    def _key_by(self, epoch: Epoch) -> None:
        self._epoch = epoch
        self._draws = Draws(epoch, self._number)

    def advance(self) -> KeyedItem:
        """Returns an item of the full buffer; at the end of the source, of what is left."""
        self._fill()
        if not self._buffer:
            raise StopIteration
        number, drawn = take_out(self._buffer, self._draws(len(self._buffer)))
        assert drawn is not None, "the buffer is filled first"
        self._nb_drawn += 1
        self._numbers.discard(number)
        while self._taken and self._taken[0][0] not in self._numbers:
            self._taken.popleft()
        return drawn

    def _fill(self) -> None:
        """Takes items until the buffer is full. What came is kept if the source then has none ready."""
        while self._nb_taken < self._nb_known or (len(self._buffer) < self._size and not self._exhausted):
            before = self._source.mark()
            try:
                keyed = self._source.advance()
            except StopIteration:
                if self._missing:
                    raise CheckpointError(
                        f"the source of shuffle ended after {self._nb_taken} items; when the state was saved it had "
                        f"given {self._nb_known}"
                    ) from None
                self._exhausted = True
                return
            number, self._nb_taken = self._nb_taken, self._nb_taken + 1
            if number >= self._nb_known:
                self._buffer.append((number, keyed))
            elif number in self._missing:
                self._buffer[self._missing.pop(number)] = number, keyed
            else:
                continue  # after a restart: it was drawn before
            self._numbers.add(number)
            self._taken.append((number, before))

    def mark(self) -> Mark:
        """Returns how many items were drawn and taken, and where the source stood before the oldest of the buffer.

        What else is in the buffer follows from the seed. A source whose results come in any order might give other
        items: there the items themselves.
        """
        nb_taken = max(self._nb_taken, self._nb_known)
        if not self._source.is_reproducible:
            held = [keyed for _, keyed in self._buffer if keyed is not None]
            return ShuffleMark(self._nb_drawn, nb_taken, self._source.mark(), held)
        source = self._taken[0][1] if self._taken else self._source.mark()
        return ShuffleMark(self._nb_drawn, nb_taken, source, None)

    def position_at(self, mark: Mark) -> State:
        """Spells that out."""
        at: ShuffleMark = mark
        return {
            "stage": self.stage,
            "buffer_size": self._size,
            "seed": self._epoch.seed,
            "epoch": self._epoch.number,
            "nb_drawn": at.nb_drawn,
            "nb_taken": at.nb_taken,
            "held": None if at.held is None else [[list(key), item] for key, item in at.held],
            "source": self._source.position_at(at.source),
        }

    def go_to(self, position: State) -> None:
        """Goes there: the source gives what it has given since the oldest item of the buffer once more."""
        counts = dict.fromkeys(("buffer_size", "seed", "epoch", "nb_drawn", "nb_taken"), int)
        self.check_position(position, **counts, held=(list, type(None)), source=Mapping)
        if position["buffer_size"] != self._size:
            raise CheckpointError(
                f"the state was saved with buffer_size={position['buffer_size']}, here it is {self._size}"
            )
        nb_drawn, nb_taken, held = position["nb_drawn"], position["nb_taken"], position["held"]
        if not 0 <= nb_drawn <= nb_taken or (held is not None and len(held) != nb_taken - nb_drawn):
            raise CheckpointError(f"the state of {self.stage!r} is damaged: {nb_drawn} of {nb_taken} items were drawn")
        self._source.go_to(position["source"])
        self._key_by(Epoch(position["seed"], position["epoch"]))
        self._nb_drawn = nb_drawn
        places = self._draws.buffer_after(nb_drawn, nb_taken, self._size)
        if held is not None:
            self._buffer = [(number, (tuple(key), item)) for number, (key, item) in zip(places, held, strict=True)]
            self._nb_taken = nb_taken
            return
        self._buffer = [(number, None) for number in places]
        self._missing = {number: place for place, number in enumerate(places)}
        self._nb_taken, self._nb_known = min(places, default=nb_taken), nb_taken


class ShuffleRecipe(StageRecipe):
    """The items of a source in another order, drawn from a buffer.

    The buffer is filled first; then each item is drawn from it at random, and the next one of the source enters. So an
    item comes at most `buffer_size - 1` places sooner than at its source, and at any place later. Every item comes
    once, in every epoch in another order, which follows from the seed. The order is uniform only if the buffer holds
    all items: of a source that is sorted by class, a small buffer gives batches of one class. For a `SequenceArray` a
    sampler does better: it orders all samples, and holds none.

    The first item comes when the buffer is full. The items of the buffer are in memory: so shuffle what is small
    (paths, say) and map the slow function afterwards. A saved position holds counts, not items; to go on there, the
    source gives once more what it gave since the oldest item of the buffer. Where the source gives its results in any
    order (`in_order=False`), the position holds the items of the buffer instead.

    Args:
        source_split: gives the items.
        buffer_size: number of items; 1 leaves the order as it is.

    Raises:
        ValueError: `buffer_size` is below 1.
        TypeError: `buffer_size` is not an int.
    """

    def __init__(self, source_split: Recipe, buffer_size: int) -> None:
        super().__init__(source_split, buffer_size=check_count("buffer_size", buffer_size))

    def open_epoch(self, epoch: Epoch) -> SequenceIterator:
        """Opens an epoch."""
        return ShuffleIterator(self.open_source(epoch), self._arguments["buffer_size"], epoch, self.number)

    def __len__(self) -> int:
        return len(self.source_split)

    def describe_stage(self) -> str:
        """Returns this stage as one line."""
        return f"shuffle({self._arguments['buffer_size']})"
