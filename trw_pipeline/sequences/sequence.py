"""Every sequence of the algebra, and the verbs that chain them.

A `Sequence` says how to make the items of an epoch and holds no position; its iterator is a position in one epoch. What
a sequence does, and what its arguments mean, stands with its recipe in a file of its own (`map.py`, `batch.py`, ...);
here the recipes meet the verbs, because each needs the other: `map` makes a `SequenceMap`, which is a `Sequence`.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal, Unpack

from trw_pipeline.batches.collate import default_collate_fn, default_collate_list_of_dicts
from trw_pipeline.batches.length import len_batch
from trw_pipeline.batches.parts import joined_rows, take
from trw_pipeline.executors.compression import CodecName, Compression
from trw_pipeline.executors.function import MappedFunction
from trw_pipeline.sequences.array import ArrayRecipe, rows_with
from trw_pipeline.sequences.async_reservoir import ReservoirRecipe, as_drawn, remove_nested_list
from trw_pipeline.sequences.batch import BatchRecipe
from trw_pipeline.sequences.cache import CacheRecipe
from trw_pipeline.sequences.collate import CollateRecipe
from trw_pipeline.sequences.dataset import DatasetRecipe
from trw_pipeline.sequences.iterable import IterableRecipe
from trw_pipeline.sequences.iterator import Epoch
from trw_pipeline.sequences.job_options import JobOptions
from trw_pipeline.sequences.map import MapRecipe
from trw_pipeline.sequences.max_samples import MaxSamplesRecipe
from trw_pipeline.sequences.mix import End, MixRecipe
from trw_pipeline.sequences.prefetch import PrefetchRecipe
from trw_pipeline.sequences.rebatch import ReBatchRecipe, SubBatchRecipe
from trw_pipeline.sequences.recipe import EngineRecipe, Recipe
from trw_pipeline.sequences.reservoir_options import ReservoirOptions
from trw_pipeline.sequences.samplers import Sampler, SamplerSequential
from trw_pipeline.sequences.shard import ShardRecipe
from trw_pipeline.sequences.share import Remainder
from trw_pipeline.sequences.shuffle import ShuffleRecipe
from trw_pipeline.sequences.split_values import Part
from trw_pipeline.sequences.stage import check_count
from trw_pipeline.sequences.zip import ZipRecipe
from trw_pipeline.typing import Batch, Function, Item, NbWorkers

if TYPE_CHECKING:
    from torch.utils.data import IterableDataset


class Sequence(Recipe):
    """A recipe for the batches of an epoch, with the verbs that chain recipes.

        >>> numbers = SequenceArray({"x": [1, 2, 3]}, SamplerSequential())
        >>> [batch["x"].tolist() for batch in numbers.map(lambda batch: {"x": [10 * batch["x"][0]]}).batch(2)]
        [[10, 20], [30]]

    Iterate it as often as you like: every `iter()` opens a new, independent epoch. Those of this package have
    `state_dict` and `load_state_dict` too, for a position in an epoch. A class of your own needs `__iter__`, and then
    has all verbs.

    Args:
        source_split: the sequence that this one reads, or None.
    """

    def map(
        self,
        function_to_run: Function | list[Function],
        nb_workers: NbWorkers = 0,
        max_jobs_at_once: int | None = None,
        worker_post_process_results_fun: Callable[..., Any] | None = None,
        queue_timeout: float = 0.1,
        preprocess_fn: Callable[..., Item] | None = None,
        collate_fn: Callable[..., Item] | None = None,
        **options: Unpack[JobOptions],
    ) -> SequenceMap:
        """Runs a function over every item; see `SequenceMap` for the arguments."""
        return SequenceMap(
            self,
            nb_workers,
            function_to_run,
            max_jobs_at_once,
            worker_post_process_results_fun,
            queue_timeout,
            preprocess_fn,
            collate_fn,
            **options,
        )

    def batch(
        self,
        batch_size: int,
        discard_batch_not_full: bool = False,
        collate_fn: Callable[..., Item] | None = default_collate_list_of_dicts,
    ) -> SequenceBatch:
        """Makes one batch of every `batch_size` items; see `SequenceBatch` for the arguments."""
        return SequenceBatch(self, batch_size, discard_batch_not_full, collate_fn)

    def rebatch(
        self,
        batch_size: int,
        discard_batch_not_full: bool = False,
        collate_fn: Callable[..., Item] | None = default_collate_list_of_dicts,
    ) -> SequenceReBatch:
        """Splits and merges batches to `batch_size` samples each; see `SequenceReBatch` for the arguments."""
        return SequenceReBatch(self, batch_size, discard_batch_not_full, collate_fn)

    def sub_batch(self, batch_size: int, discard_batch_not_full: bool = False) -> SequenceSubBatch:
        """Splits batches into parts of at most `batch_size` samples; see `SequenceSubBatch` for the arguments."""
        return SequenceSubBatch(self, batch_size, discard_batch_not_full)

    def max_samples(self, max_samples: int) -> SequenceMaxSamples:
        """Ends each epoch after at most `max_samples`, and goes on from there; see `SequenceMaxSamples`."""
        return SequenceMaxSamples(self, max_samples)

    def shuffle(self, buffer_size: int) -> SequenceShuffle:
        """Draws items at random from a buffer of the next `buffer_size`; see `SequenceShuffle`."""
        return SequenceShuffle(self, buffer_size)

    def cache(
        self,
        *,
        folder: str | os.PathLike[str] | None = None,
        compression: CodecName | Literal["auto"] | Compression | None = None,
        max_bytes: int = 4 * 1024**3,
    ) -> SequenceCache:
        """Keeps what this map makes, and serves it in later epochs; see `SequenceCache` for the arguments."""
        return SequenceCache(self, folder=folder, compression=compression, max_bytes=max_bytes)

    def zip(self, *others: Sequence, strict: bool = True) -> SequenceZip:
        """Puts the features of others beside ours; see `SequenceZip`."""
        return SequenceZip([self, *others], strict=strict)

    def mix(self, *others: Sequence, weights: Iterable[float] | None = None, end: End = "all") -> SequenceMix:
        """Draws items of this sequence and of others at random; see `SequenceMix`.

        Weights are in the order of reading: ours first, then those of the others.
        """
        return SequenceMix([self, *others], weights=weights, end=end)

    def async_reservoir(
        self,
        max_reservoir_samples: int,
        function_to_run: Function | list[Function],
        min_reservoir_samples: int = 1,
        nb_workers: NbWorkers = 1,
        max_jobs_at_once: int | None = None,
        reservoir_sampler: Sampler | None = None,
        collate_fn: Callable[..., Item] | None = remove_nested_list,
        maximum_number_of_samples_per_epoch: int | None = None,
        **options: Unpack[ReservoirOptions],
    ) -> SequenceAsyncReservoir:
        """Serves results again while workers make fresh ones; see `SequenceAsyncReservoir` for the arguments.

        Without a `reservoir_sampler` results are drawn one at a time, the oldest first.
        """
        return SequenceAsyncReservoir(
            self,
            max_reservoir_samples,
            function_to_run,
            min_reservoir_samples,
            nb_workers,
            max_jobs_at_once,
            reservoir_sampler,
            collate_fn,
            maximum_number_of_samples_per_epoch,
            **options,
        )

    def collate(self, collate_fn: Callable[..., Item] = default_collate_fn, device: Any = None) -> SequenceCollate:
        """Makes a dict of tensors on `device` of every item; see `SequenceCollate` for the arguments."""
        return SequenceCollate(self, collate_fn, device)

    def prefetch(self, nb_batches: int, device: Any = None) -> SequencePrefetch:
        """Makes batches ready ahead in a thread, and on `device`; see `SequencePrefetch` for the arguments."""
        return SequencePrefetch(self, nb_batches, device)

    def shard(
        self, rank: int | None = None, world_size: int | None = None, *, remainder: Remainder = "keep"
    ) -> Sequence:
        """Deals out the samples of each epoch to several ranks, before any work is done; see `SequenceShard`.

        Wherever it is called, it acts at the source of the chain: each rank makes its own samples alone, batches them
        by itself, and has a reservoir of its own. Over a `SequenceArray` every rank draws the same order of an epoch,
        takes every `world_size`-th sample of it, as `torch.utils.data.DistributedSampler` does, and leaves the other
        rows unread; what its sampler draws as a batch is dealt out sample by sample. A source of your own is read to
        its end by every rank, and every `world_size`-th of its items is kept.

            >>> train = SequenceArray({"x": [1, 2, 3, 4, 5]}, SamplerSequential()).with_seed(0).batch(2)
            >>> [[batch["x"].tolist() for batch in train.shard(rank, 2)] for rank in (0, 1)]
            [[[1, 3], [5]], [[2, 4]]]

        The numbers of samples differ by at most one, or by none with `remainder="pad"` or `"drop"`; so do those of
        batches, unless a function gives none or several items of a sample, one that fails is skipped, or a reservoir
        serves what has come in. Several ranks need one seed, by `with_seed`. Rank and number of ranks come, by default,
        from `torch.distributed` or the environment.
        """
        if not self.sources:
            return SequenceShard(self, rank, world_size, remainder=remainder)
        return self.over_each(lambda source: source.shard(rank, world_size, remainder=remainder))

    def subsample(self, nb_samples: int) -> Sequence:
        """Returns a sequence of `nb_samples` samples, or of all if there are fewer, made in this process.

        A chain of ours draws them at random at its source, any other gives the first of an epoch. Which, follows from
        the seed if it was given before, by `with_seed`; else they are always the same ones. A seed that is given
        afterwards leaves them as they are.
        """
        count = check_count("nb_samples", nb_samples)
        shared = self.shared_features
        rows = ((b, row) for b in self._an_epoch() for row in range(len_batch(b, shared_features=shared)))
        return self._array_of(itertools.islice(rows, count))

    def subsample_uids(self, uids: Iterable[Any], uids_name: str, new_sampler: Sampler | None = None) -> Sequence:
        """Returns a sequence of the samples whose feature `uids_name` is one of `uids`, made in this process.

        Args:
            uids: the order of the samples, as far as the sampler keeps it. Unknown ones are ignored; samples that share
                one are all kept.
            uids_name: name of the feature.
            new_sampler: replaces the sampler of the source.

        Raises:
            ValueError: there is no such feature.
        """
        wanted = list(uids)
        rows = [(batch, row) for batch in self._an_epoch() for row in rows_with(batch, uids_name, wanted)]
        smaller = self._array_of(iter(rows))
        return smaller.subsample_uids(wanted, uids_name, new_sampler) if rows else smaller

    def to_dataset(self) -> IterableDataset[Item]:
        """Returns the items, each once an epoch, as a dataset for `DataLoader(dataset, batch_size=None)`.

        `num_workers` of the loader is best 0: the chain has workers of its own. With more, the chain runs in the first
        worker of the loader, as a copy that begins with epoch 0, and the others give nothing.
        """
        from trw_pipeline.sequences.torch_dataset import ItemDataset  # noqa: PLC0415 (imports torch)

        return ItemDataset(self)

    def _an_epoch(self) -> Iterator[Batch]:
        if isinstance(self, EngineRecipe):  # without counting it
            return self.open_epoch(Epoch(self.selection_seed, self._next_epoch))
        return iter(self)

    def _array_of(self, rows: Iterator[tuple[Batch, int]]) -> SequenceArray:
        parts = [take(batch, row, row + 1, self.shared_features) for batch, row in rows]
        split = joined_rows(parts, self.shared_features)
        smaller = SequenceArray(
            Part(split), SamplerSequential(), sample_uid_name=None, shared_features=self.shared_features
        )
        return smaller.keep_seed(self)


class SequenceArray(ArrayRecipe, Sequence):
    __doc__ = ArrayRecipe.__doc__


class SequenceDataset(DatasetRecipe, Sequence):
    __doc__ = DatasetRecipe.__doc__


class SequenceIterable(IterableRecipe, Sequence):
    __doc__ = IterableRecipe.__doc__


class SequenceMap(MapRecipe, Sequence):
    __doc__ = MapRecipe.__doc__


class SequenceBatch(BatchRecipe, Sequence):
    __doc__ = BatchRecipe.__doc__


class SequenceReBatch(ReBatchRecipe, Sequence):
    __doc__ = ReBatchRecipe.__doc__


class SequenceSubBatch(SubBatchRecipe, Sequence):
    __doc__ = SubBatchRecipe.__doc__


class SequenceMaxSamples(MaxSamplesRecipe, Sequence):
    __doc__ = MaxSamplesRecipe.__doc__


class SequenceShuffle(ShuffleRecipe, Sequence):
    __doc__ = ShuffleRecipe.__doc__


class SequenceZip(ZipRecipe, Sequence):
    __doc__ = ZipRecipe.__doc__


class SequenceMix(MixRecipe, Sequence):
    __doc__ = MixRecipe.__doc__


class SequenceCache(CacheRecipe, Sequence):
    __doc__ = CacheRecipe.__doc__


class SequenceCollate(CollateRecipe, Sequence):
    __doc__ = CollateRecipe.__doc__


class SequencePrefetch(PrefetchRecipe, Sequence):
    __doc__ = PrefetchRecipe.__doc__


class SequenceShard(ShardRecipe, Sequence):
    __doc__ = ShardRecipe.__doc__


class SequenceAsyncReservoir(ReservoirRecipe, Sequence):
    __doc__ = ReservoirRecipe.__doc__

    def subsample(self, nb_samples: int) -> Sequence:
        """Returns a sequence that makes `nb_samples` samples, or all, once in each epoch, in this process.

        Nothing is kept there: of a few samples, each is wanted once, and fresh.
        """
        return self._without_reservoir(self.source_split.subsample(nb_samples))

    def subsample_uids(self, uids: Iterable[Any], uids_name: str, new_sampler: Sampler | None = None) -> Sequence:
        """Returns a sequence that makes the samples with these `uids` once in each epoch, in this process.

        They come in the order in which the source gives them; see `Sequence.subsample_uids` for the arguments.
        """
        return self._without_reservoir(self.source_split.subsample_uids(uids, uids_name, new_sampler))

    def _without_reservoir(self, source: Sequence) -> Sequence:
        given = self._arguments
        function, sampler = given["function_to_run"], given["reservoir_sampler"]
        functions = [function] if callable(function) else list(function)
        # There is nothing to compress: none is kept.
        options: Any = {
            name: given[name] for name in JobOptions.__annotations__ if name in given.keys() - {"compression"}
        }
        options.update(in_order=True, name=given.get("name") or MappedFunction(functions).name)
        draws = source.map([*functions, as_drawn], **options)
        return draws.batch(1 if sampler is None else sampler.get_batch_size(), collate_fn=given["collate_fn"])
