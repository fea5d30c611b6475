"""The engines that count samples, not items: `SequenceReBatch` and `SequenceSubBatch`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

from trw_pipeline.batches.collate import default_collate_list_of_dicts
from trw_pipeline.batches.length import holds_samples, len_batch, per_sample_features
from trw_pipeline.batches.parts import cut
from trw_pipeline.sequences.batch import BatchRecipe
from trw_pipeline.sequences.iterator import (
    Epoch,
    KeyedItem,
    Mark,
    SequenceIterator,
    State,
    check_parts,
    without_signals,
)
from trw_pipeline.sequences.recipe import Recipe
from trw_pipeline.sequences.stage import StageRecipe, batch_wide_kept, check_count
from trw_pipeline.typing import Batch, Item


class SampleCursor:
    """Reads the batches of a source sample by sample.

    Args:
        source: gives batches of any size; those without samples are passed over.
        shared_features: arrays and lists that belong to the whole split, so are not cut.
    """

    def __init__(self, source: SequenceIterator, shared_features: tuple[str, ...]) -> None:
        self.source = source
        self.is_exhausted = False
        self._shared_features = shared_features
        self._use({}, [], 0)
        self._offset = 0
        self._before: Mark = None  # of the source, when `batch` was not taken yet

    def take(self, nb_samples: int) -> tuple[Batch, int]:
        """Returns the next samples, at most `nb_samples` and all of one batch of the source, and their number.

        Raises:
            StopIteration: the source has no more.
            WouldBlock: the source has none ready.
            TypeError: the source gives something else than batches.
        """
        while self._offset >= self._length:
            self._read()
        start = self._offset
        self._offset = min(start + nb_samples, self._length)
        return cut(self._batch, self._names, start, self._offset), self._offset - start

    def _read(self) -> None:
        before = self.source.mark()
        try:
            item = self.source.advance()[1]
        except StopIteration:
            self.is_exhausted = True
            raise
        if not isinstance(item, Mapping):
            raise TypeError(f"samples are counted in batches (dicts), got {type(item).__name__}; collate() them first")
        names = per_sample_features(item, self._shared_features)
        if not names:
            raise ValueError(f"a batch needs a feature with one value for each sample, got only {sorted(item)}")
        # Beyond the end of the batch before: after a restart, so many samples of this one were taken already.
        self._offset -= self._length
        self._before = before
        self._use(cast("Mapping[str, Any]", item), names, len(item[names[0]]))

    def _use(self, batch: Mapping[str, Any], names: list[str], length: int) -> None:
        self._batch = batch
        self._names = names  # of the features that have one value for each sample
        self._length = length

    def mark(self) -> Mark:
        """Returns where the source stood before the batch that is being read, and how much of that was taken.

        A source whose results come in any order might give another batch first: there the rest of the batch itself.
        """
        if self._offset >= self._length:
            return self.source.mark(), self._offset - self._length, None
        if self.source.is_reproducible:
            return self._before, self._offset, None
        rest = cut(self._batch, self._names, self._offset, self._length)
        return self.source.mark(), 0, [rest, self._length - self._offset]

    def position_at(self, mark: Mark) -> State:
        """Spells that out."""
        source, offset, rest = mark
        return {"source": self.source.position_at(source), "offset": offset, "rest": rest}

    def go_to(self, position: State) -> None:
        """Goes there. The batch that was being read is made again, none before it."""
        check_parts("the state of a cursor", position, source=Mapping, offset=int, rest=(list, tuple, type(None)))
        self.source.go_to(position["source"])
        batch, length = position["rest"] or ({}, 0)
        self._use(batch, per_sample_features(batch, self._shared_features), length)
        self._offset = position["offset"]


class ReBatchIterator(SequenceIterator):
    """Splits and merges batches to one size.

    Args:
        source: gives batches.
        batch_size: samples of each of ours.
        discard_not_full: whether a smaller one at the end is dropped.
        collate: makes a batch of the list of its parts, or None to give the list.
        shared_features: features that belong to the whole split.
    """

    stage = "rebatch"

    def __init__(
        self,
        source: SequenceIterator,
        batch_size: int,
        discard_not_full: bool,
        collate: Callable[[list[Batch]], Item] | None,
        shared_features: tuple[str, ...],
    ) -> None:
        super().__init__(source)
        self._cursor = SampleCursor(source, shared_features)
        self._batch_size = batch_size
        self._discard_not_full = discard_not_full
        self._collate = collate
        self._parts: list[Batch] = []
        self._missing = batch_size
        self._before: Mark = None
        self._count = 0

    def advance(self) -> KeyedItem:
        """Returns the next batch; its key is its number. Parts collected when the source would block are kept."""
        while self._missing and not self._cursor.is_exhausted:
            if not self._parts:
                self._before = self._cursor.mark()
            try:
                part, nb_samples = self._cursor.take(self._missing)
            except StopIteration:
                break
            self._parts.append(part)
            self._missing -= nb_samples
        parts, missing = self._parts, self._missing
        self._parts, self._missing = [], self._batch_size
        if not parts or (missing and self._discard_not_full):
            raise StopIteration
        key, self._count = self.share.key(self._count), self._count + 1
        return key, parts if self._collate is None else without_signals(self._collate, parts)

    def mark(self) -> Mark:
        """Returns the number of the next batch and where its first sample is."""
        return self._count, self._before if self._parts else self._cursor.mark()

    def position_at(self, mark: Mark) -> State:
        """Spells that out."""
        count, cursor = mark
        return {"stage": self.stage, "count": count, "cursor": self._cursor.position_at(cursor)}

    def go_to(self, position: State) -> None:
        """Goes there."""
        self.check_position(position, count=int, cursor=Mapping)
        self._cursor.go_to(position["cursor"])
        self._count = position["count"]


class SubBatchIterator(SequenceIterator):
    """Splits batches into smaller ones, without merging: the last part of each may be short.

    Args:
        source: gives batches.
        batch_size: at most so many samples in each of ours.
        discard_not_full: whether shorter parts are dropped.
        shared_features: features that belong to the whole split.
    """

    stage = "sub_batch"

    def __init__(
        self, source: SequenceIterator, batch_size: int, discard_not_full: bool, shared_features: tuple[str, ...]
    ) -> None:
        super().__init__(source)
        self._cursor = SampleCursor(source, shared_features)
        self._batch_size = batch_size
        self._discard_not_full = discard_not_full
        self._count = 0

    def advance(self) -> KeyedItem:
        """Returns the next part; its key is its number."""
        part, nb_samples = self._cursor.take(self._batch_size)
        while self._discard_not_full and nb_samples < self._batch_size:
            part, nb_samples = self._cursor.take(self._batch_size)
        key, self._count = self.share.key(self._count), self._count + 1
        return key, part

    def mark(self) -> Mark:
        """Returns the number of the next part and where it begins."""
        return self._count, self._cursor.mark()

    def position_at(self, mark: Mark) -> State:
        """Spells that out."""
        count, cursor = mark
        return {"stage": self.stage, "count": count, "cursor": self._cursor.position_at(cursor)}

    def go_to(self, position: State) -> None:
        """Goes there."""
        self.check_position(position, count=int, cursor=Mapping)
        self._cursor.go_to(position["cursor"])
        self._count = position["count"]


class ReBatchRecipe(BatchRecipe):
    """Batches of one size, split and merged from batches of any size.

    Args:
        source_split: gives batches; those without samples are passed over.
        batch_size: number of samples.
        discard_batch_not_full: whether a smaller last batch is dropped.
        collate_fn: makes the batch of the list of its parts, or None to give the list. By default what is batch-wide in
            the split stays so; a number or text that a function added to a batch becomes one for each sample.
    """

    def open_epoch(self, epoch: Epoch) -> SequenceIterator:
        """Opens an epoch."""
        source = self.open_source(epoch)
        size, discard, collate = self._arguments.values()
        if collate is default_collate_list_of_dicts:
            collate = partial(_joined_parts, batch_wide=self.batch_wide_features, shared=self.shared_features)
        return ReBatchIterator(source, size, discard, collate, self.shared_features)

    def __len__(self) -> int:
        raise TypeError("the length of rebatch is not known: it depends on the sizes of the batches that it receives")

    def describe_stage(self) -> str:
        """Returns this stage as one line."""
        return f"rebatch({self._arguments['batch_size']})"


class SubBatchRecipe(StageRecipe):
    """Parts of batches; two batches are never merged, so the last part of each may be smaller.

    Args:
        source_split: gives batches.
        batch_size: at most so many samples in a part.
        discard_batch_not_full: whether smaller parts are dropped.
    """

    def __init__(self, source_split: Recipe, batch_size: int, discard_batch_not_full: bool = False) -> None:
        super().__init__(
            source_split,
            batch_size=check_count("batch_size", batch_size),
            discard_batch_not_full=discard_batch_not_full,
        )

    def open_epoch(self, epoch: Epoch) -> SequenceIterator:
        """Opens an epoch."""
        source = self.open_source(epoch)
        return SubBatchIterator(source, *self._arguments.values(), shared_features=self.shared_features)

    def __len__(self) -> int:
        raise TypeError("the length of sub_batch is not known: it depends on the sizes of the batches that it receives")

    def describe_stage(self) -> str:
        """Returns this stage as one line."""
        return f"sub_batch({self._arguments['batch_size']})"


def _joined_parts(parts: list[Batch], batch_wide: tuple[str, ...], shared: tuple[str, ...]) -> Batch:
    """Joins parts of batches on axis 0: what is batch-wide at the source is kept once.

    Any other number, text or object (a function has added it to its batch) is repeated for each sample of its part, so
    that it becomes a feature with one value for each sample.
    """
    kept = batch_wide_kept(parts, batch_wide, shared)

    def is_single(name: str, value: Any) -> bool:
        return not (name in kept or holds_samples(value) or isinstance(value, Mapping) or callable(value))

    spread: list[Batch] = []
    for part in parts:
        nb_samples = len_batch(part, shared_features=kept)
        repeated = {name: [value] * nb_samples for name, value in part.items() if is_single(name, value)}
        spread.append({**part, **repeated})
    return default_collate_list_of_dicts(spread, shared_features=kept)
