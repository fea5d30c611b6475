"""Every recipe of the algebra, and the verbs that chain them.

A `Sequence` says how to make the items of an epoch and holds no position; its iterator is a position in one epoch. A
recipe's working parts stand beside its engine, in a file of their own (`map.py`, `batch.py`, ...); here they meet the
verbs, because each needs the other: `map` makes a `SequenceMap`, which is a `Sequence`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Unpack

from trw_pipeline.batches.collate import default_collate_fn, default_collate_list_of_dicts
from trw_pipeline.batches.length import len_batch
from trw_pipeline.batches.parts import take
from trw_pipeline.executors.function import MappedFunction
from trw_pipeline.sequences.array import ArrayRecipe, joined_rows, rows_with
from trw_pipeline.sequences.batch import BatchRecipe
from trw_pipeline.sequences.collate import CollateRecipe
from trw_pipeline.sequences.iterator import Epoch
from trw_pipeline.sequences.job_options import JobOptions
from trw_pipeline.sequences.map import MapRecipe
from trw_pipeline.sequences.max_samples import MaxSamplesRecipe
from trw_pipeline.sequences.rebatch import ReBatchRecipe, SubBatchRecipe
from trw_pipeline.sequences.recipe import EngineRecipe, Recipe
from trw_pipeline.sequences.reservoir import ReservoirRecipe, as_drawn, remove_nested_list
from trw_pipeline.sequences.samplers import Sampler, SamplerSequential
from trw_pipeline.sequences.stage import check_count
from trw_pipeline.typing import Batch, Function, Item


class Sequence(Recipe):
    """A recipe for the batches of an epoch, with the verbs that chain recipes.

        >>> numbers = SequenceArray({"x": [1, 2, 3]}, SamplerSequential())
        >>> [batch["x"].tolist() for batch in numbers.map(lambda batch: {"x": [10 * batch["x"][0]]}).batch(2)]
        [[10, 20], [30]]

    Iterate it as often as you like: every `iter()` opens a new, independent epoch. A class of your own needs
    `__iter__` and then has all verbs.

    Args:
        source_split: the sequence that this one reads, or None.
    """

    def map(
        self,
        function_to_run: Function | list[Function],
        nb_workers: int = 0,
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

    def async_reservoir(
        self,
        max_reservoir_samples: int,
        function_to_run: Function | list[Function],
        min_reservoir_samples: int = 1,
        nb_workers: int = 1,
        max_jobs_at_once: int | None = None,
        reservoir_sampler: Sampler | None = None,
        collate_fn: Callable[..., Item] | None = remove_nested_list,
        maximum_number_of_samples_per_epoch: int | None = None,
        **options: Unpack[JobOptions],
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

    def subsample(self, nb_samples: int) -> Sequence:
        """Returns a sequence of `nb_samples` samples, or of all if there are fewer, made in this process.

        A chain of ours draws them at random at its source, keyed by its seed; any other gives the first of an epoch.
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

    def _an_epoch(self) -> Iterator[Batch]:
        if isinstance(self, EngineRecipe):  # without counting it
            return self.open_epoch(Epoch(self.seed, self._next_epoch))
        return iter(self)

    def _array_of(self, rows: Iterator[tuple[Batch, int]]) -> SequenceArray:
        parts = [take(batch, row, row + 1, self.shared_features) for batch, row in rows]
        split = joined_rows(parts, self.shared_features)
        smaller = SequenceArray(split, SamplerSequential(), sample_uid_name=None, shared_features=self.shared_features)
        smaller._seed = self.seed
        return smaller


class SequenceArray(ArrayRecipe, Sequence):
    """Batches of rows of arrays, tensors and lists.

    Args:
        split: feature name -> array or tensor (N, ...), or list of length N; anything else is batch-wide. Not modified.
            A batch holds copies of its rows, but batch-wide values themselves.
        sampler: which rows make a batch, and in which order; by default each once in random order, one at a time.
        transforms: a function batch -> batch, or a list of them, run in this process. One may take `rng`.
        use_advanced_indexing: rows are copied into the batch. If False, a feature comes as a list of references to its
            rows: nothing is copied, which pays for large rows, but writing into them changes the split.
        sample_uid_name: name of the feature that identifies samples; added as 0..N-1 where missing; None for none.
        shared_features: names of arrays, tensors and lists that belong to the whole split.

    Raises:
        ValueError: a feature has not one row for each sample, or none has.
        TypeError: `split` is not a mapping.
    """


class SequenceMap(MapRecipe, Sequence):
    """Results of a function over the items of a sequence.

    The function returns one item, or a list, each element of which becomes an item (an empty one gives none). None is a
    failure. It receives a copy: what it does in place changes neither the source nor another sample, with workers or
    without. What it returns is a copy too, but from threads, which hand results over as they are: there a function must
    not keep what it returned and write into it again. Before each call `random`, `numpy.random` and torch are seeded
    from the chain's seed, the epoch, the stage and the item's place at its source, so results do not depend on the
    number of workers; in threads the global generators belong to everybody, and only the generator that the function
    may take as `rng` is reproducible. Without workers they are exchanged for the time of a job and then put back as
    they were: two chains without workers that are read by two threads disturb each other, and there too only `rng` is
    reproducible.

    Args:
        source_split: gives the items.
        nb_workers: number of workers; 0 runs the function in this process.
        function_to_run: the function, or a list of functions, each of which gets the result of the one before.
        max_jobs_at_once: how many items may be pulled and not delivered; 0 is no limit, None two for each worker.
        worker_post_process_results_fun: see `JobExecutor`.
        queue_timeout: accepted as documented, without effect: nothing here waits by polling.
        preprocess_fn: `preprocess_fn(item, source=sequence)`, in this process, before the item is sent.
        collate_fn: `collate_fn(item, source=sequence)`, in this process, on every item delivered.
        **options: see `trw_pipeline.JobOptions`.

    Raises:
        ValueError: an argument out of range.
        TypeError: an argument of a wrong kind.
    """


class SequenceBatch(BatchRecipe, Sequence):
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
            is what becomes of samples without a batch axis.
        TypeError: `batch_size` is not an int.
    """


class SequenceReBatch(ReBatchRecipe, Sequence):
    """Batches of one size, split and merged from batches of any size.

    Args:
        source_split: gives batches; those without samples are passed over.
        batch_size: number of samples.
        discard_batch_not_full: whether a smaller last batch is dropped.
        collate_fn: makes the batch of the list of its parts, or None to give the list. By default what is batch-wide in
            the split stays so; a number or text that a function added to a batch becomes one for each sample.
    """


class SequenceSubBatch(SubBatchRecipe, Sequence):
    """Parts of batches; two batches are never merged, so the last part of each may be smaller.

    Args:
        source_split: gives batches.
        batch_size: at most so many samples in a part.
        discard_batch_not_full: whether smaller parts are dropped.
    """


class SequenceMaxSamples(MaxSamplesRecipe, Sequence):
    """Epochs of at most `max_samples` that go on where the one before stopped.

    Of a source of 25 samples, `max_samples(10)` makes epochs of 10, 10 and 5; then the source starts again, newly
    shuffled. An epoch that is given up hands on the rest of the source too. Of several open at once, only the one
    opened last hands on what it leaves.

    Args:
        source_split: gives batches; one that crosses the limit is cut, and its rest comes first in the next epoch.
        max_samples: number of samples.
    """


class SequenceCollate(CollateRecipe, Sequence):
    """Every item as a dict of tensors on a device.

    Args:
        source_split: gives dicts, or lists of dicts, which are joined on axis 0.
        collate_fn: called as `collate_fn(item, device=device)`.
        device: where the tensors go; None is the CPU.
    """


class SequenceAsyncReservoir(ReservoirRecipe, Sequence):
    """Keeps the newest results of a function and serves them again while workers make fresh ones.

    Results enter at the start of an epoch, and jobs are sent in their place; during an epoch the content is constant.
    One epoch is one pass over what is in the reservoir when it starts. The first one starts when
    `min_reservoir_samples` are in: with 1, the default, the first epochs are short, down to a single result. When the
    source ends it starts again, newly shuffled. An epoch that is given up empties nothing. Which results are in at an
    epoch depends on how fast they were made.

    Args:
        source_split: gives the items for the function.
        max_reservoir_samples: number of results kept; a new one pushes out the oldest.
        function_to_run: as in `SequenceMap`; a list is one result.
        min_reservoir_samples: number of results without which no epoch starts; a source with fewer repeats itself.
        nb_workers: at least 1.
        max_jobs_at_once: number of jobs in flight, finished ones included, so the number of results that can be
            replaced between two epochs. 0 is no limit. None is the number of workers, which renews a large reservoir
            slowly: give it a number, such as an eighth of `max_reservoir_samples`.
        reservoir_sampler: which results are drawn, how many at a time; None draws each once, the oldest first.
        collate_fn: called with the list of results of each draw; by default a list of one list loses one level. None
            gives the list.
        maximum_number_of_samples_per_epoch: an epoch ends after so many draws of a result.
        **options: see `trw_pipeline.JobOptions`.

    Raises:
        ValueError: an argument out of range.
    """

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
        options: Any = {name: given[name] for name in JobOptions.__annotations__ if name in given}
        options.update(in_order=True, name=given.get("name") or MappedFunction(functions).name)
        draws = source.map([*functions, as_drawn], **options)
        return draws.batch(1 if sampler is None else sampler.get_batch_size(), collate_fn=given["collate_fn"])
