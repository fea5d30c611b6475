"""A recipe over another one: what all stages but the source have in common."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any, cast

import numpy as np

from trw_pipeline.batches.collate import collate_list_of_dicts, default_collate_fn, default_collate_list_of_dicts
from trw_pipeline.batches.length import holds_samples
from trw_pipeline.seeding import generator, job_seed, seeded_globals
from trw_pipeline.sequences.iterator import Epoch, SequenceIterator
from trw_pipeline.sequences.recipe import EngineRecipe, Recipe
from trw_pipeline.sequences.samplers import Sampler


class StageRecipe(EngineRecipe):
    """A recipe over another.

    Args:
        source_split: the sequence below.
        arguments: everything else that the recipe was made with.

    Attributes:
        when_small: arguments that differ once the source was reduced to a few samples.
    """

    when_small: Mapping[str, Any] = {}

    def __init__(self, source_split: Recipe, **arguments: Any) -> None:
        if not isinstance(source_split, Recipe):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"source_split must be a Sequence, got {type(source_split).__name__}")
        super().__init__(source_split, **arguments)
        self.shared_features = source_split.shared_features
        self.batch_wide_features = source_split.batch_wide_features

    def knowing_batch_wide(self, collate: Any) -> Any:
        """Tells a collate function of ours what is batch-wide in this chain; any other stays as it is."""
        if collate not in (default_collate_fn, default_collate_list_of_dicts, collate_list_of_dicts):
            return collate
        return partial(_joined, collate=collate, batch_wide=self.batch_wide_features, shared=self.shared_features)

    def open_source(self, epoch: Epoch) -> SequenceIterator:
        """Opens an epoch of the stage below; raises ClosedError if this one is closed."""
        self.check_open()
        return self.source_split.open_epoch(epoch)

    def subsample(self, nb_samples: int) -> Any:
        """Returns this chain over `nb_samples` samples of its source, or all if there are fewer, made in this process.

        They are drawn at random without replacement; see `Sequence.subsample`.
        """
        return self.over(self.source_split.subsample(nb_samples), **self.when_small)

    def subsample_uids(self, uids: Iterable[Any], uids_name: str, new_sampler: Sampler | None = None) -> Any:
        """Returns this chain over the samples of its source whose feature `uids_name` is one of `uids`.

        It is made in this process. The samples come in the order of `uids`, as far as the sampler keeps it; unknown
        uids are ignored, samples that share one are all kept. Raises ValueError if the source has no such feature.
        """
        return self.over(self.source_split.subsample_uids(uids, uids_name, new_sampler), **self.when_small)


def check_count(name: str, value: int) -> int:
    """Returns `value`; raises TypeError unless it is an int and ValueError unless it is at least 1."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"{name} must be an int, got {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")
    return int(value)


def check_sampler(name: str, value: Sampler) -> Sampler:
    """Returns `value`; raises TypeError unless it is a sampler."""
    if not isinstance(value, Sampler):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"{name} must be a Sampler, got {value!r}")
    return value


def order_of(sampler: Sampler, data_source: Any, *entropy: object) -> Iterator[Any]:
    """Returns what a sampler draws from a data source in one epoch, keyed by `entropy`. The sampler stays as it is."""
    sampler = copy.copy(sampler)
    seed = job_seed(*entropy)
    if "rng" in inspect.signature(sampler.initializer).parameters:
        # The global generators are left alone: a thread that feeds a reservoir opens passes at any moment.
        sampler.initializer(data_source, rng=generator(seed))
        return iter(sampler)
    # A user's own sampler has the documented `initializer(data_source)`, and draws from the global generators.
    with seeded_globals(seed):
        sampler.initializer(data_source)
        return iter(list(sampler))


def batch_wide_kept(batches: Any, batch_wide: tuple[str, ...], shared_features: tuple[str, ...]) -> tuple[str, ...]:
    """Names the features that are kept once when batches are joined.

    These are the shared ones, and what is batch-wide at the source, unless a mapped function gave it one value for each
    sample, or values that differ.
    """
    if not batch_wide:
        return shared_features
    flat = [one for item in batches for one in (cast("list[Any]", item) if isinstance(item, list) else [item])]

    def is_one_value(name: str) -> bool:
        values = [batch[name] for batch in flat if isinstance(batch, Mapping) and name in batch]
        return not any(map(holds_samples, values)) and all(_is_same(value, values[0]) for value in values)

    return (*shared_features, *(name for name in batch_wide if name not in shared_features and is_one_value(name)))


def _is_same(one: Any, other: Any) -> bool:
    """Compares what can be compared without a surprise; of other objects a worker returns a copy each time."""
    comparable = isinstance(one, (str, bytes, int, float, type(None)))
    return one is other or not comparable or (type(one) is type(other) and one == other)


def _joined(items: Any, collate: Any, batch_wide: tuple[str, ...], shared: tuple[str, ...], **keywords: Any) -> Any:
    kept = batch_wide_kept(items, batch_wide, shared) if isinstance(items, list) else shared
    return collate(items, shared_features=kept, **keywords)
