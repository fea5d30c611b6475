"""The engine of `SequenceBatch`: so many items of the source become one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from trw_pipeline.batches.collate import default_collate_list_of_dicts
from trw_pipeline.sequences.iterator import Epoch, KeyedItem, SequenceIterator, State, without_signals
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
        self._before: State | None = None  # of the source, when the first of `collected` was not taken yet
        self._count = 0
        self._exhausted = False

    def advance(self) -> KeyedItem:
        """Returns the next group; its key is its number. What was collected when the source would block is kept."""
        while len(self._collected) < self._nb_items and not self._exhausted:
            if not self._collected and self._source.can_resume:
                self._before = self._source.position()
            try:
                self._collected.append(self._source.advance()[1])
            except StopIteration:
                self._exhausted = True
        items, self._collected = self._collected, []
        if not items or (len(items) < self._nb_items and self._discard_not_full):
            raise StopIteration
        key, self._count = (self._count,), self._count + 1
        flat = [one for item in items for one in (cast("list[Item]", item) if isinstance(item, list) else [item])]
        return key, flat if self._collate is None else without_signals(self._collate, flat)

    def position(self) -> State:
        """Returns the number of the next group and where the source stood before it."""
        source: Any = self._before if self._collected else self._source.position()
        return {"stage": self.stage, "count": self._count, "source": source}

    def go_to(self, position: State) -> None:
        """Goes there."""
        self.check_position(position, count=int, source=Mapping)
        self._source.go_to(position["source"])
        self._count = position["count"]


class BatchRecipe(StageRecipe):
    """The recipe of `SequenceBatch`; see there."""

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
