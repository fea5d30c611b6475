"""The engine of `SequenceCollate`: a function of the main process over every item."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from trw_pipeline.batches.collate import default_collate_fn
from trw_pipeline.sequences.iterator import Epoch, KeyedItem, Mark, SequenceIterator, State, without_signals
from trw_pipeline.sequences.recipe import Recipe
from trw_pipeline.sequences.stage import StageRecipe
from trw_pipeline.typing import Item


class CollateIterator(SequenceIterator):
    """Calls `collate` with every item of the source; keys and positions are the source's."""

    stage = "collate"

    def __init__(self, source: SequenceIterator, collate: Callable[[Item], Item]) -> None:
        super().__init__(source)
        self.has_stable_keys = source.has_stable_keys
        self._source = source
        self._collate = collate

    def advance(self) -> KeyedItem:
        """Returns the next item, collated."""
        key, item = self._source.advance()
        return key, without_signals(self._collate, item)

    def mark(self) -> Mark:
        """Returns the mark of the source."""
        return self._source.mark()

    def position_at(self, mark: Mark) -> State:
        """Returns the position of the source."""
        return {"stage": self.stage, "source": self._source.position_at(mark)}

    def go_to(self, position: State) -> None:
        """Goes there."""
        self.check_position(position, source=Mapping)
        self._source.go_to(position["source"])


class CollateRecipe(StageRecipe):
    """Every item as a dict of tensors on a device.

    Args:
        source_split: gives dicts, or lists of dicts, which are joined on axis 0.
        collate_fn: called as `collate_fn(item, device=device)`.
        device: where the tensors go; None is the CPU. The batch is copied there when it is asked for, by whoever asks;
            `prefetch(device=...)` after a `collate()` copies while the device computes.

    Raises:
        ValueError: `collate_fn` is the default, and `device` none that torch knows.
    """

    def __init__(
        self, source_split: Recipe, collate_fn: Callable[..., Item] = default_collate_fn, device: Any = None
    ) -> None:
        if device is not None and collate_fn is default_collate_fn:
            from trw_pipeline.batches.staging import check_device  # noqa: PLC0415 (imports torch)

            check_device(device)
        super().__init__(source_split, collate_fn=collate_fn, device=device)

    def open_epoch(self, epoch: Epoch) -> SequenceIterator:
        """Opens an epoch."""
        source = self.open_source(epoch)
        collate, device = self._arguments.values()
        return CollateIterator(source, partial(self.knowing_batch_wide(collate), device=device))

    def __len__(self) -> int:
        return len(self.source_split)

    def describe_stage(self) -> str:
        """Returns this stage as one line."""
        return f"collate(device={self._arguments['device'] or 'cpu'})"
