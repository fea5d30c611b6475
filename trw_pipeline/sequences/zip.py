"""`SequenceZip`: the features of several sequences side by side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Mapping as MappingABC
from typing import Any

import numpy as np

from trw_pipeline.batches.length import per_sample_features
from trw_pipeline.errors import WouldBlock
from trw_pipeline.sequences.iterator import Epoch, KeyedItem, Mark, SequenceIterator, State
from trw_pipeline.sequences.junction import JunctionRecipe
from trw_pipeline.sequences.recipe import Recipe
from trw_pipeline.typing import Batch, Item, default_sample_uid_name

_AWAITED: Any = object()
"""Stands for the item of a source that had none ready."""

_OVER: Any = object()
"""Stands for the item of a source that has no more."""

_FAILED: Any = object()
"""Stands for an item whose error was raised: what is beside it is dropped with it, so that all keep in step."""


class ZipIterator(SequenceIterator):
    """Makes one item of one of each source.

    Args:
        sources: give dicts.
        strict: whether all must end together.
        shared_features: features that belong to the whole split.
    """

    stage = "zip"

    def __init__(self, sources: Sequence[SequenceIterator], strict: bool, shared_features: tuple[str, ...]) -> None:
        super().__init__(*sources)
        self._strict = strict
        self._shared_features = shared_features
        self._count = 0
        self._is_finished = False
        self._begin_row()

    def _begin_row(self) -> None:
        self._row: list[Any] = [_AWAITED] * len(self.sources)
        self._before: tuple[Mark, ...] | None = None  # of the sources, when none of the row was taken yet

    def advance(self) -> KeyedItem:
        """Returns the next row; its key is its number. What came of it is kept if a source has none ready."""
        while not self._is_finished:
            self._take_row()
            row = self._row
            if any(item is _OVER for item in row):
                self._end()
            self._begin_row()
            if not any(item is _FAILED for item in row):
                key, self._count = self.share.key(self._count), self._count + 1
                return key, side_by_side(row, self._shared_features)
        raise StopIteration

    def _take_row(self) -> None:
        """Takes what is missing of each source: one that has none ready keeps no other from going on."""
        blocked: WouldBlock | None = None
        if self._before is None:
            self._before = tuple(source.mark() for source in self.sources)
        for place, source in enumerate(self.sources):
            if self._row[place] is not _AWAITED:
                continue
            try:
                self._row[place] = source.advance()[1]
            except StopIteration:
                self._row[place] = _OVER
                if not self._strict:
                    return
            except WouldBlock as signal:
                blocked = signal
            except Exception:
                self._row[place] = _FAILED
                raise
        if blocked is not None:
            raise blocked

    def _end(self) -> None:
        """Ends the epoch, here and below.

        Raises:
            StopIteration: it is over.
            ValueError: not for all.
        """
        is_over = [item is _OVER for item in self._row]
        if self._strict and not all(is_over):
            raise ValueError(
                f"source {is_over.index(True)} of zip ended after {self._count} items, source {is_over.index(False)} "
                "has more; strict=False ends with the shortest"
            )
        self._is_finished = True
        for source in self.sources:
            source.close()  # workers of one that is not over would go on
        raise StopIteration

    def take_changes(self) -> bool:
        """Asks each of the sources."""
        return any([source.take_changes() for source in self.sources])

    def mark(self) -> Mark:
        """Returns the number of the next row and where the sources stood before it."""
        return self._count, self._before or tuple(source.mark() for source in self.sources)

    def position_at(self, mark: Mark) -> State:
        """Spells that out."""
        count, marks = mark
        positions = [source.position_at(at) for source, at in zip(self.sources, marks, strict=True)]
        return {"stage": self.stage, "count": count, "sources": positions}

    def go_to(self, position: State) -> None:
        """Goes there."""
        self.check_position(position, count=int, sources=list)
        self.check_sources(position["sources"])
        for source, its_position in zip(self.sources, position["sources"], strict=True):
            source.go_to(its_position)
        self._count = position["count"]


def side_by_side(items: Sequence[Item], shared_features: tuple[str, ...]) -> Batch:
    """Returns one batch of the features of several.

    Raises:
        TypeError: one is no dict.
        ValueError: two have a feature of one name, or not as many samples.
    """
    merged: Batch = {}
    for number, item in enumerate(items):
        if not isinstance(item, MappingABC):
            raise TypeError(f"zip joins dicts, but source {number} gave a {type(item).__name__}; collate() it first")
        clashes = [name for name in item if name in merged]
        if clashes == [default_sample_uid_name]:
            uids = [np.asarray(batch[default_sample_uid_name]).tolist() for batch in (merged, item)]
            if uids[0] != uids[1]:
                raise ValueError(
                    f"source {number} of zip gave sample_uid {uids[1]!r:.100} beside {uids[0]!r:.100}: give all "
                    "sources the same order, or name the feature otherwise (sample_uid_name=) where it means another"
                )
        elif clashes:
            raise ValueError(f"features {clashes} come from two sources of zip, source {number} is one; rename them")
        merged.update(item)
    per_sample_features(merged, shared_features)
    return merged


class ZipRecipe(JunctionRecipe):
    """The features of several sequences side by side: one dict of one item of each.

        >>> images = SequenceArray({"image": [10, 20]}, SamplerSequential())
        >>> masks = SequenceArray({"mask": [1, 2]}, SamplerSequential())
        >>> [(item["image"], item["mask"]) for item in images.zip(masks)]
        [([10], [1]), ([20], [2])]

    All sources have the same seed, so that they keep in step: two arrays of one length with samplers of one kind come
    in the same random order, whatever seeds they had, and a random function at the same stage of both draws the same.
    (Where that is not wanted, zip first and map afterwards.) A source that leaves samples out (`on_error="skip"`, an
    empty list) falls out of step. Whether samples belong together is checked as far as both sources have a
    `sample_uid`.

    Args:
        sources: give dicts, with as many samples in each of a row.
        strict: whether a source that ends before another is an error, at the end of the epoch, as nothing shall be lost
            in silence; if False, the epoch ends with the shortest source.

    Raises:
        TypeError: a source is no Sequence; or, while iterating, an item is no dict.
        ValueError: there is no source; or, while iterating, two items of a row have a feature of one name (other than
            an equal `sample_uid`), or not as many samples, or with `strict` one source ends before another.
    """

    def __init__(self, sources: Iterable[Recipe], *, strict: bool = True) -> None:
        super().__init__(sources, strict=strict)

    def open_epoch(self, epoch: Epoch) -> SequenceIterator:
        """Opens an epoch of each source."""
        self.check_open()
        below = [source.open_epoch(epoch) for source in self.sources]
        return ZipIterator(below, self._arguments["strict"], self.shared_features)

    def __len__(self) -> int:
        return min(len(source) for source in self.source_split)

    def describe_stage(self) -> str:
        """Returns this stage as one line."""
        return f"zip(strict={self._arguments['strict']})"
