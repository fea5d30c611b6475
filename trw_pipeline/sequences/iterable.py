"""`SequenceIterable`: anything that can be iterated as a source; and what it shares with the adaptor for loaders."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Values
from functools import partial
from typing import Any, Self

from trw_pipeline.sequences.iterable_iterator import IterableIterator, Readable
from trw_pipeline.sequences.iterator import Epoch, SequenceIterator, State, check_parts
from trw_pipeline.sequences.recipe import EngineRecipe, Recipe
from trw_pipeline.sequences.samples import batch_of_one, check_features, named_features
from trw_pipeline.typing import Batch


class ReadableRecipe(EngineRecipe):
    """A source that is read by iterating something else.

    Args:
        readable: what is read.
        arguments: everything that the recipe was made with.
    """

    def __init__(self, readable: Readable, **arguments: Any) -> None:
        super().__init__(None, **arguments)
        self._readable = readable

    def open_epoch(self, epoch: Epoch) -> SequenceIterator:
        """Opens an epoch; reading begins when the first item is asked for."""
        self.check_open()
        return IterableIterator(self._readable, epoch)

    def over(self, source: Any, **changes: Any) -> Self:
        """Returns a sequence that reads the same."""
        other = super().over(source, **changes)
        other._readable = self._readable
        return other

    def kept_state(self) -> State | None:
        """Returns the states of the generators of what is read, if it has any."""
        generators = self._readable.generators()
        return {"generators": generators} if generators else None

    def load_kept_state(self, state: State | None) -> None:
        """Puts them back."""
        if state is not None:
            check_parts(f"the state of {self._readable.name!r}", state, generators=list)
            self._readable.set_generators(state["generators"])

    @property
    def can_be_read_again(self) -> bool:
        """Whether an epoch that somebody opens leaves anything for those after it."""
        return not self._readable.is_read_once

    @property
    def how_saved(self) -> str:
        """How a position is saved, in words."""
        return "its own" if self._readable.has_state else "replayed"


class IterableRecipe(ReadableRecipe):
    """Samples of anything that can be iterated: a generator, an `IterableDataset`, a webdataset.

    It is read in this process alone, so each item comes once, however many workers follow; put what takes time into a
    `map`. Each sample becomes a batch of one: arrays and tensors get an axis 0, all else a list of one. The number of
    the epoch is passed on to an iterable that has `set_epoch`, and for the time of each step `random`, `numpy.random`
    and torch are seeded from the chain's seed, the epoch and the number of the item.

    A position is what the iterable says of itself, where it has `state_dict` and `load_state_dict` (at most 31 items
    are read again, and dropped). Else it is replayed: all items of the epoch up to there are read again and dropped,
    which is exact if the iterable gives the same items in the same order in that epoch, as it does unless it draws
    from a generator of its own. So it is too for a dataset of Hugging Face that shuffles a buffer, which does not save
    what waits in there. `describe_stage` tells which.

    Args:
        iterable: gives dicts, or tuples and lists of features; or a function that returns an iterator for each epoch.
            What can be read only once, as a generator, has one epoch.
        features: names of the features of tuples and lists; by default `feature_0`, `feature_1`, ...
        batched: each item is a batch already, with the samples on axis 0.

    Raises:
        TypeError: `iterable` can not be iterated, or gives no samples (a dict, a text), or is a sequence; or, while
            iterating, an item is neither a dict, a tuple nor a list.
        ValueError: while iterating, an item has not as many features as there are names.
        RuntimeError: while iterating, a second epoch was begun of what can be read only once.
        CheckpointError: while iterating, a restored epoch has fewer items than were seen before.
    """

    def __init__(
        self,
        iterable: Iterable[Any] | Callable[[], Iterable[Any]],
        features: Values[str] | None = None,
        *,
        batched: bool = False,
    ) -> None:
        given: Any = iterable
        kind = type(given).__name__
        if isinstance(given, Recipe):
            raise TypeError(f"iterable must not be a sequence, which needs no other, got {kind}")
        if isinstance(given, (Mapping, str, bytes)) or not (isinstance(given, Iterable) or callable(given)):
            raise TypeError(
                f"iterable must give samples, or be a function that returns an iterator, got {kind}; features of all "
                "samples are for SequenceArray, numbered samples for SequenceDataset"
            )
        names = check_features(features)
        self._kind = kind if isinstance(given, Iterable) else getattr(given, "__name__", kind)
        readable = Readable(given, self._kind, partial(_batch_of, features=names, whose=self._kind, batched=batched))
        super().__init__(readable, iterable=iterable, features=features, batched=batched)

    def __len__(self) -> int:
        iterable: Any = self._arguments["iterable"]
        if not hasattr(iterable, "__len__"):
            raise TypeError(f"the length of {self._kind} is not known: it has to be read to its end")
        return len(iterable)

    def describe_stage(self) -> str:
        """Returns this stage as one line."""
        return f"SequenceIterable({self._kind}; state: {self.how_saved})"


def _batch_of(item: Any, features: list[str] | None, whose: str, batched: bool) -> Batch:
    named = named_features(item, features, whose)
    return named if batched else batch_of_one(named)
