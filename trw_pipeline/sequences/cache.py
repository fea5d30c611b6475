"""`SequenceCache`: results of a slow function, made once and served in every epoch."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from functools import partial
from typing import Any, Literal, Self

from trw_pipeline.errors import CodecError, FailedJobError
from trw_pipeline.executors.blosc_codec import with_compression
from trw_pipeline.executors.compression import CodecName, Compression, Trial
from trw_pipeline.executors.failures import Failure
from trw_pipeline.executors.function import MappedFunction
from trw_pipeline.executors.job import uid_of
from trw_pipeline.executors.pickle_codec import PickleCodec
from trw_pipeline.sequences.cache_store import FORMAT, FolderStore, MemoryStore, Store, packed, unpacked
from trw_pipeline.sequences.digest import digest_of
from trw_pipeline.sequences.iterator import Epoch, KeyedItem, SequenceIterator
from trw_pipeline.sequences.lender import ExecutorLender
from trw_pipeline.sequences.map import MapRecipe
from trw_pipeline.sequences.map_iterator import MapIterator, Pulled
from trw_pipeline.sequences.recipe import Recipe
from trw_pipeline.sequences.samplers import Sampler
from trw_pipeline.sequences.stage import StageRecipe, check_count
from trw_pipeline.typing import Item

logger = logging.getLogger(__name__)

MIN_RATIO = 1.25  # with compression="auto": what gives less is not worth a millisecond a draw


class Cache:
    """Results of a function by what they were made of.

    Args:
        function: whose results these are, as it is at the start of each epoch.
        store: where they are kept.
        compression: how, or None.
        max_bytes: what they may take.

    Attributes:
        nb_served: how many results were found.
    """

    def __init__(
        self, function: MappedFunction, store: Store, compression: Compression | Trial | None, max_bytes: int
    ) -> None:
        self.store = store
        self.nb_served = 0
        self._function = function
        self._version = ""
        self._codec = with_compression(PickleCodec("result"), compression)
        self._max_bytes = max_bytes
        self._is_full = False

    def learn(self) -> str:
        """Returns the version of the function now; results of others are not served any more."""
        version = digest_of(FORMAT, self._function.functions, self._function.worker_init)
        if version != self._version:
            if self._version:
                name, nb_kept = self._function.name, self.store.nb_kept
                logger.warning("%s has changed: its %d cached results are not served", name, nb_kept)
            self._is_full = False
            self._version = version
        self.store.begin(version)
        return version

    def find(self, version: str, name: str) -> list[Item]:
        """Returns a list of the one result of that name, as new as if it had been made now; or an empty list."""
        blob = self.store.read(name) if version == self._version else None
        if blob is None:
            return []
        try:
            value = self._codec.decode(unpacked(blob))
        except CodecError as error:
            logger.warning("a cached result of %s is made again: %s", self._function.name, error)
            return []
        self.nb_served += 1
        return [value]

    def keep(self, version: str, name: str, value: Item) -> None:
        """Keeps a result, if there is room, and if it is not of a function that has changed since."""
        if version != self._version:
            return
        try:
            blob = packed(self._codec.encode(value))
            if self.store.kept_bytes + len(blob) <= self._max_bytes:
                self.store.write(name, blob)
            elif not self._is_full:
                self._is_full = True
                name, store = self._function.name, self.store
                kept = f"{store.nb_kept} results in {store.kept_bytes} bytes"
                logger.info("the cache of %s is full: %s; others are made again in each epoch", name, kept)
        except (CodecError, OSError) as error:
            logger.warning("a result of %s can not be cached: %s", self._function.name, error)


class CacheIterator(MapIterator):
    """A map whose jobs are not run where their result is known; keys, order and positions are the map's.

    Args:
        cache: what is known.
        given: see `MapIterator`.
    """

    looks_at_items = True  # a result is known by them

    def __init__(self, *given: Any, cache: Cache) -> None:
        super().__init__(*given)
        self._cache = cache
        self._may_bundle = False  # what is worth to be cached is not so short
        self._version = cache.learn()
        self._to_keep: dict[int, tuple[str, str]] = {}  # order of an item whose job runs -> version and name

    def take_changes(self) -> bool:
        """Learns of what changed, too."""
        self._version = self._cache.learn()
        return super().take_changes()

    def _send_one(self, pulled: Pulled, item: Item) -> None:
        # By all that the function gets: two splits may use the same uids, and a folder.
        name = digest_of(item)
        found = self._cache.find(self._version, name)
        if found:
            self._pulled[self._executor.put_result(found[0], pulled.key, uid_of(item))] = [pulled]
        else:
            self._to_keep[pulled.order] = self._version, name
            super()._send_one(pulled, item)

    def _take_one(self, pulled: Pulled, value: Any, error: FailedJobError | None) -> KeyedItem | None:
        of = self._to_keep.pop(pulled.order, None)
        if of is not None and error is None:
            self._cache.keep(*of, value)
        return super()._take_one(pulled, value, error)


class CacheRecipe(StageRecipe):
    """What a map makes, kept from the first epoch on and served in later ones.

    It belongs right behind the map: `.map(load, nb_workers=8).cache()`. The items of the map's source are asked for
    as ever, in the order of each epoch; one whose result is known is served at once, the others go to the workers. So a
    shuffled source stays shuffled, and nothing but the time changes: not the order, nor the keys and random numbers of
    the stages above. A result belongs to the item that it was made of, with all its features and the `sample_uid`
    among them, so a split may change and grow. Several functions belong into one map, `.map([load, crop]).cache()`: of
    two maps in a row only the results of the second are kept, and the first runs in each epoch.

    A changed function serves no stale results: they count by its code, defaults and closure and by the global names
    that it uses, as far as these lead within your own code; installed libraries count by their version. It is looked at
    when an epoch begins, so do not change it within one. Not seen is what it imports within itself, what can not be
    pickled (a TorchScript module, say), and what it reads: delete the folder where files have changed under the same
    path. A function whose own state changes from epoch to epoch (a counter) is another one in each.

    What a function draws at random would be the same in every epoch: one that takes `rng` is refused. Cache first, then
    augment: `.map(load).cache().map(augment)`. What it draws from the global generators can not be known: it is frozen.

    Results are kept as they come, until `max_bytes` is reached; those that came too late are made again in each epoch.
    Failed samples are not kept. What is served is a copy, with tensors on the CPU; write to it as you like.

    Args:
        source_split: a map. It may be on any backend, and have any options but `worker_post_process_results_fun`.
        folder: keep results in files there, for other processes and later runs too, which may use it at the same time;
            by default they are kept in memory, until the sequence is closed. A file that is damaged is made again, and
            told of in the log; files of others, and those of functions that have changed, are left alone. Results are
            unpickled: use no folder that others could write to whom you do not trust.
        compression: None, "lz4", "zstd", "auto", or a `Compression`: keeps more, for a millisecond or so a result.
        max_bytes: what the results of one version of the function may take; 4 GiB by default, in memory or on disk.

    Raises:
        TypeError: the source is no map, or `max_bytes` is no int.
        ValueError: a function takes `rng`, the map has a `worker_post_process_results_fun`, or an argument is out of
            range.
    """

    source_split: MapRecipe

    def __init__(
        self,
        source_split: Recipe,
        *,
        folder: str | os.PathLike[str] | None = None,
        compression: CodecName | Literal["auto"] | Compression | None = None,
        max_bytes: int = 4 * 1024**3,
    ) -> None:
        super().__init__(source_split, folder=folder, compression=compression, max_bytes=max_bytes)
        if not isinstance(source_split, MapRecipe):
            kind = type(source_split).__name__
            raise TypeError(f"cache() keeps what a map makes: put it right behind one, .map(f).cache(), got {kind}")
        function = source_split.mapped_function()
        if function.takes_rng:
            raise ValueError(
                f"{function.name} takes rng: what it draws would be the same in every epoch. Cache first, then "
                "augment: .map(load).cache().map(augment)"
            )
        if function.post_process is not None:
            raise ValueError("a map with worker_post_process_results_fun can not be cached: it is called for each job")
        store = MemoryStore() if folder is None else FolderStore(folder)
        how = Compression.of(compression, min_ratio=MIN_RATIO)
        self._cache = Cache(function, store, how, check_count("max_bytes", max_bytes))

    # The cache has the engine of its map, and stands for both in the chain.

    @property
    def sources(self) -> tuple[Recipe, ...]:
        """Those of the map."""
        return self.source_split.sources

    @property
    def number(self) -> int:
        """That of the map: with a cache or without, the stages above draw the same random numbers."""
        return self.source_split.number

    @property
    def is_reproducible(self) -> bool:
        """Whether every pass over an epoch gives the same items in the same order."""
        return self.source_split.is_reproducible

    def over(self, source: Any, **changes: Any) -> Self:
        """Returns a cache like this one, with nothing in memory, behind a map like its own over another source."""
        return super().over(self.source_split.over(source), **changes)

    def subsample(self, nb_samples: int) -> Any:
        """Returns a cache of its own over `nb_samples` samples, or all if there are fewer, made in this process."""
        return type(self)(self.source_split.subsample(nb_samples), **self._arguments)

    def subsample_uids(self, uids: Iterable[Any], uids_name: str, new_sampler: Sampler | None = None) -> Any:
        """Returns a cache of its own over the samples with these uids, made in this process."""
        return type(self)(self.source_split.subsample_uids(uids, uids_name, new_sampler), **self._arguments)

    def open_epoch(self, epoch: Epoch) -> SequenceIterator:
        """Opens an epoch."""
        self.check_open()
        return self.source_split.open_with(partial(CacheIterator, cache=self._cache), epoch)

    def __len__(self) -> int:
        return len(self.source_split)

    @property
    def failures(self) -> list[Failure]:
        """The samples that were skipped, here and in the stages before, in the epoch opened last."""
        return self.source_split.failures

    def own_lender(self) -> ExecutorLender | None:
        """Returns what lends the executors of the map."""
        return self.source_split.own_lender()

    def own_statistics(self) -> dict[str, Any]:
        """Returns the figures of the map, with `kept`, `kept_bytes` and `served`.

        `kept` is the number of results in the cache, `served` how many were found there since the sequence was made.
        """
        store = self._cache.store
        kept = {"kept": store.nb_kept, "kept_bytes": store.kept_bytes, "served": self._cache.nb_served}
        return {**self.source_split.own_statistics(), **kept}

    def release(self) -> None:
        """Drops what is in memory, and frees what the map and the stages before own. Idempotent."""
        self._cache.store.close()
        self.source_split.release()

    def describe_stage(self) -> str:
        """Returns map and cache as one line."""
        where = "memory" if self._arguments["folder"] is None else self._arguments["folder"]
        return f"{self.source_split.describe_stage()}.cache({where})"
