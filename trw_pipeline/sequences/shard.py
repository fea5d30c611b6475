"""`SequenceShard`: items are dealt out to several ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from trw_pipeline.sequences.iterator import Epoch, KeyedItem, Mark, SequenceIterator, State
from trw_pipeline.sequences.recipe import Recipe
from trw_pipeline.sequences.samplers import Sampler
from trw_pipeline.sequences.share import Remainder, Share, share_of
from trw_pipeline.sequences.stage import StageRecipe


class ShardIterator(SequenceIterator):
    """Reads `world_size` items for each of ours; keys are the source's.

    Args:
        source: gives the same items on all ranks.
        share: which of them are ours.
    """

    stage = "shard"

    def __init__(self, source: SequenceIterator, share: Share) -> None:
        super().__init__(source)
        self.has_stable_keys = source.has_stable_keys
        self.share = share
        self._source = source
        self._nb_given_out = 0
        self._nb_read = 0  # of the round of items, one for each rank, that is being read
        self._ours: KeyedItem | None = None
        self._before: Mark = None  # of the source, before that round
        self._first: list[KeyedItem] = []  # of the epoch: as many as this rank may have to repeat

    def advance(self) -> KeyedItem:
        """Returns our item of the next round; what was read of one when the source would block is kept.

        A round is read to its end first: only then it is known that no rank goes without.
        """
        while self._nb_read < self.share.world_size:
            if not self._nb_read:
                self._before = self._source.mark()
            try:
                self._take(self._source.advance())
            except StopIteration:
                return self._given(self._last())
        assert self._ours is not None, "it is in every round that is whole"
        return self._given(self._ours)

    def _take(self, read: KeyedItem) -> None:
        if self._nb_read == self.share.rank:
            self._ours = read
        elif self.share.remainder == "pad" and not self._nb_given_out and self._nb_read < self.share.rank:
            self._first.append(read)
        self._nb_read += 1

    def _last(self) -> KeyedItem:
        """Returns what this rank gets of a round that is not whole; raises StopIteration if nothing."""
        ours, rank, nb_read = self._ours, self.share.rank, self._nb_read
        self._ours, self._nb_read = None, 0
        if not nb_read or self.share.remainder == "drop":
            raise StopIteration
        if ours is not None:
            return ours
        if self.share.remainder == "keep":
            raise StopIteration
        return self._first[(rank - nb_read) % len(self._first)]

    def _given(self, ours: KeyedItem) -> KeyedItem:
        self._ours, self._nb_read = None, 0
        self._nb_given_out += 1
        return ours

    def mark(self) -> Mark:
        """Returns how many were given, and where the source stood before the round that is being read."""
        return self._nb_given_out, self._before if self._nb_read else self._source.mark()

    def position_at(self, mark: Mark) -> State:
        """Spells that out; with `remainder="pad"` the items that may have to be repeated are part of it."""
        count, source = mark
        return {
            "stage": self.stage,
            "share": str(self.share),
            "count": count,
            "first": [[list(key), item] for key, item in self._first] if count else [],
            "source": self._source.position_at(source),
        }

    def go_to(self, position: State) -> None:
        """Goes there."""
        self.check_position(position, share=str, count=int, first=list, source=Mapping)
        self.check_share(position)
        self._source.go_to(position["source"])
        self._nb_given_out = position["count"]
        self._first = [(tuple(key), item) for key, item in position["first"]]


class ShardRecipe(StageRecipe):
    """Every `world_size`-th item, from the one with number `rank` on.

    What is below gives the same items in the same order on every rank, and does all its work on every rank: of four
    ranks, each makes all items and drops three of four. So the verb `shard` deals out the samples at the source of the
    chain wherever that can be, and this class is for the rest: for a source that is no `SequenceArray`, and on top of
    stages whose items can not be counted before, where all ranks must get equally many.

        >>> items = SequenceArray({"x": [1, 2, 3, 4, 5]}, SamplerSequential()).with_seed(0)
        >>> [[batch["x"] for batch in SequenceShard(items, rank, 2, remainder="pad")] for rank in (0, 1)]
        [[[1], [3], [5]], [[2], [4], [1]]]

    The ranks need one seed, so with several of them an epoch is opened only after `with_seed`. That a source of your
    own, or a loader, gives every rank the same is not checked.

    Args:
        source_split: gives the items.
        rank: 0 to `world_size - 1`; None, with `world_size`, for what `torch.distributed` says if it is initialized,
            else the environment (`RANK` and `WORLD_SIZE`), else rank 0 of 1.
        world_size: number of ranks.
        remainder: of the items that are left at the end: `"keep"` gives the first ranks one more; `"drop"` gives none
            of them; `"pad"` gives the other ranks one of the first of the epoch again. With the last two all ranks
            have equally many. For `"pad"` a rank keeps up to `rank` items, which are part of its saved position.

    Raises:
        TypeError: a number is not an int.
        ValueError: an argument out of range, or only one of `rank` and `world_size` given; the chain is dealt out
            already; or its items come in an order that depends on the speed of workers.
    """

    def __init__(
        self,
        source_split: Recipe,
        rank: int | None = None,
        world_size: int | None = None,
        *,
        remainder: Remainder = "keep",
    ) -> None:
        before = getattr(source_split, "share", Share())  # what is no sequence is refused below
        share = share_of(rank, world_size, remainder, before)
        super().__init__(source_split, rank=share.rank, world_size=share.world_size, remainder=share.remainder)
        if share.world_size > 1 and not source_split.is_reproducible:
            raise ValueError(
                "items that are dealt out must come in the same order on all ranks, those of in_order=False and of a "
                "reservoir do not: use the verb shard, which deals out samples at the source"
            )
        self._share = share

    @property
    def share(self) -> Share:
        """What this process gets."""
        return self._share

    def open_epoch(self, epoch: Epoch) -> SequenceIterator:
        """Opens an epoch."""
        return ShardIterator(self.open_source(epoch), self._share)

    def __len__(self) -> int:
        return self._share.count(len(self.source_split))

    def subsample(self, nb_samples: int) -> Any:
        """Returns what the chain below would, which is the same on all ranks: few samples are not dealt out."""
        return self.source_split.with_seed(self.seed).subsample(nb_samples)

    def subsample_uids(self, uids: Iterable[Any], uids_name: str, new_sampler: Sampler | None = None) -> Any:
        """Returns what the chain below would, which is the same on all ranks: few samples are not dealt out."""
        return self.source_split.subsample_uids(uids, uids_name, new_sampler)

    def describe_stage(self) -> str:
        """Returns this stage as one line."""
        return f"shard({self._share})"
