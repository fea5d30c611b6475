"""The engine of `SequenceBatch`: so many items of the source become one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

from trw_pipeline.batches.collate import default_collate_list_of_dicts
from trw_pipeline.sequences.iterator import Epoch, KeyedItem, Mark, SequenceIterator, State, without_signals
from trw_pipeline.sequences.recipe import Recipe
from trw_pipeline.sequences.stage import StageRecipe, check_count
from trw_pipeline.typing import Item


class BatchIterator(SequenceIterator):
    """Groups items.

    Args:
        source: gives the items; a list is spliced in.
        nb_items: so many items of the source make one of ours.
        discard_not_full: whether fewer at the end are dropped.
        collate: makes one item of a list of them, or None to give the list.
    """

    stage = "batch"

    def __init__(
        self,
        source: SequenceIterator,
        nb_items: int,
        discard_not_full: bool,
        collate: Callable[[list[Item]], Item] | None,
    ) -> None:
        super().__init__(source)
        self._source = source
        self._nb_items = nb_items
        self._discard_not_full = discard_not_full
        self._collate = collate
        self._collected: list[Item] = []
        self._before: Mark = None  # of the source, when the first of `collected` was not taken yet
        self._count = 0
        self._exhausted = False

    def advance(self) -> KeyedItem:
        """Returns the next group; its key is its number. What was collected when the source would block is kept."""
        items = self._collected
        try:
            while len(items) < self._nb_items and not self._exhausted:
                if not items:
                    self._before = self._source.mark()
                self._source.advance_into(items, self._nb_items - len(items))
        except StopIteration:
            self._exhausted = True
        self._collected = []
        if not items or (len(items) < self._nb_items and self._discard_not_full):
            raise StopIteration
        key, self._count = self.share.key(self._count), self._count + 1
        flat = [one for item in items for one in (cast("list[Item]", item) if isinstance(item, list) else [item])]
        return key, flat if self._collate is None else without_signals(self._collate, flat)

    def mark(self) -> Mark:
        """Returns the number of the next group and where the source stood before it."""
        return self._count, self._before if self._collected else self._source.mark()

    def position_at(self, mark: Mark) -> State:
        """Spells that out."""
        count, source = mark
        return {"stage": self.stage, "count": count, "source": self._source.position_at(source)}

    def go_to(self, position: State) -> None:
        """Goes there."""
        self.check_position(position, count=int, source=Mapping)
        self._source.go_to(position["source"])
        self._count = position["count"]


class BatchRecipe(StageRecipe):
    """One batch of every `batch_size` items.

    Each item must be a batch itself: a single sample is a batch of one, `{"image": image[None], "target": [target]}`.
    What is batch-wide at the source is kept once, unless a function gave it one value for each sample or values that
    differ.

    Args:
        source_split: gives the items; the elements of one that is a list count as one item, and are all batched.
        batch_size: number of items.
        discard_batch_not_full: whether a smaller last batch is dropped.
        collate_fn: makes the batch of the list of items, or None to give the list. By default the features of the
            dicts become tensors on the CPU, joined on axis 0.

    Raises:
        ValueError: `batch_size` is below 1; or, while iterating, the features joined by default differ in length, which
            is what becomes of samples without a batch axis, unless the first axes of all of them are as long.
        TypeError: `batch_size` is not an int.
    """

    def __init__(
        self,
        source_split: Recipe,
        batch_size: int,
        discard_batch_not_full: bool = False,
        collate_fn: Callable[..., Item] | None = default_collate_list_of_dicts,
    ) -> None:
        super().__init__(
            source_split,
            batch_size=check_count("batch_size", batch_size),
            discard_batch_not_full=discard_batch_not_full,
            collate_fn=collate_fn,
        )

    def open_epoch(self, epoch: Epoch) -> SequenceIterator:
        """Opens an epoch."""
        source = self.open_source(epoch)
        size, discard, collate = self._arguments.values()
        return BatchIterator(source, size, discard, self.knowing_batch_wide(collate))

    def __len__(self) -> int:
        size, discard, _ = self._arguments.values()
        return len(self.source_split) // size if discard else -(-len(self.source_split) // size)

    def describe_stage(self) -> str:
        """Returns this stage as one line."""
        return f"batch({self._arguments['batch_size']})"
