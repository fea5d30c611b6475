"""The engine of `SequenceArray`: rows of arrays, tensors and lists, in the order of a sampler."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, cast

import numpy as np

from trw_pipeline.batches.length import holds_samples, len_batch, per_sample_features
from trw_pipeline.errors import CheckpointError
from trw_pipeline.executors.function import MappedFunction
from trw_pipeline.executors.private_copy import private_copy
from trw_pipeline.seeding import generator, job_seed, seeded_globals
from trw_pipeline.sequences.iterator import Epoch, KeyedItem, SequenceIterator, State, next_of, without_signals
from trw_pipeline.sequences.recipe import EngineRecipe
from trw_pipeline.sequences.samplers import Sampler, SamplerRandom, drawn_rows
from trw_pipeline.sequences.stage import check_count, check_sampler, order_of
from trw_pipeline.typing import Batch, Function, default_sample_uid_name


@dataclass(frozen=True)
class Rows:
    """Rows of a split.

    Attributes:
        split: feature name -> array, tensor or list with the samples on axis 0, or a batch-wide value.
        shared_features: arrays and lists that belong to the whole split.
        use_advanced_indexing: rows are copied; else a feature comes as a list of references to its rows.
    """

    split: Mapping[str, Any]
    shared_features: tuple[str, ...]
    use_advanced_indexing: bool

    @property
    def samples(self) -> dict[str, Any]:
        """The features that have one value for each sample."""
        return {name: self.split[name] for name in per_sample_features(self.split, self.shared_features)}

    @property
    def nb_samples(self) -> int:
        """The number of samples."""
        return len_batch(self.split, shared_features=self.shared_features)

    def get(self, indices: Any) -> dict[str, Any]:
        """Returns the batch of the rows `indices` (an int, or a list or array of ints); see `drawn_rows`."""
        samples = self.samples
        rows = drawn_rows("rows to draw", indices, self.nb_samples)
        return {**self.split, **{name: self._rows_of(value, rows) for name, value in samples.items()}}

    def _rows_of(self, value: Any, rows: np.ndarray) -> Any:
        if not self.use_advanced_indexing:
            return [value[row] for row in rows]
        if isinstance(value, list):
            return [private_copy(value[row]) for row in rows]
        if isinstance(value, np.ndarray):
            return np.asarray(value[rows])  # of a memmap only these rows, as an ordinary array
        return value[rows]


class ArrayIterator(SequenceIterator):
    """Rows in the order of a sampler.

    Args:
        rows: where the samples are.
        sampler: copied, so that every epoch has its own.
        transforms: applied to each batch in turn, in this process, seeded as a job of a mapped function is.
        epoch: keys the order and the transforms.
    """

    stage = "array"

    def __init__(self, rows: Rows, sampler: Sampler, transforms: MappedFunction | None, epoch: Epoch) -> None:
        super().__init__()
        self._rows = rows
        self._sampler = sampler
        self._transforms = transforms
        self._start_at(epoch, 0)

    def _start_at(self, epoch: Epoch, number: int) -> None:
        self._epoch = epoch
        self._number = number
        order = order_of(self._sampler, self._rows.samples, epoch.seed, epoch.number, "order")
        self._order = itertools.islice(order, number, None)

    @staticmethod
    def length(rows: Rows, sampler: Sampler) -> int:
        """Returns the number of batches of an epoch."""
        sampler = copy.copy(sampler)
        sampler.initializer(rows.samples)
        return len(sampler)

    def advance(self) -> KeyedItem:
        """Returns the next batch; its key is its number in the epoch."""
        indices = next_of(self._order, type(self._sampler).__name__)
        key = (self._number,)
        batch: Batch = self._rows.get(indices)
        if self._transforms is not None:
            seed = job_seed(self._epoch.seed, self._epoch.number, 0, key)
            with seeded_globals(seed):
                batch = without_signals(self._transforms, batch, seed)
        self._number += 1
        return key, batch

    def position(self) -> State:
        """Returns seed, epoch and number of the next batch: no sample is needed to go there."""
        return {
            "stage": self.stage,
            "nb_samples": self._rows.nb_samples,
            "seed": self._epoch.seed,
            "epoch": self._epoch.number,
            "number": self._number,
        }

    def go_to(self, position: State) -> None:
        """Draws the order again and skips the indices already used, not the samples."""
        self.check_position(position, nb_samples=int, seed=int, epoch=int, number=int)
        if position["nb_samples"] != self._rows.nb_samples:
            raise CheckpointError(
                f"the state was saved in an epoch of {position['nb_samples']} samples, here are {self._rows.nb_samples}"
            )
        self._start_at(Epoch(position["seed"], position["epoch"]), position["number"])


class ArrayRecipe(EngineRecipe):
    """The recipe of `SequenceArray`; see there."""

    def __init__(
        self,
        split: Mapping[str, Any],
        sampler: Sampler | None = None,
        transforms: Function | list[Function] | None = None,
        use_advanced_indexing: bool = True,
        sample_uid_name: str | None = default_sample_uid_name,
        *,
        shared_features: tuple[str, ...] = (),
    ) -> None:
        if not isinstance(split, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"split must be a mapping of feature names to values, got {type(split).__name__}")
        super().__init__(
            None,
            split=split,
            sampler=sampler,
            transforms=transforms,
            use_advanced_indexing=use_advanced_indexing,
            sample_uid_name=sample_uid_name,
            shared_features=shared_features,
        )
        self.shared_features = tuple(shared_features)
        self.sampler = SamplerRandom() if sampler is None else check_sampler("sampler", sampler)
        rows = Rows(dict(split), self.shared_features, use_advanced_indexing)
        check_values(split, rows.samples)
        if sample_uid_name is not None and sample_uid_name not in split:
            rows = replace(rows, split={**split, sample_uid_name: np.arange(rows.nb_samples)})
        self.batch_wide_features = tuple(name for name in split if name not in rows.samples)
        self._rows = rows
        self._transforms = None if transforms is None else MappedFunction(transforms)

    @property
    def nb_samples(self) -> int:
        """The number of samples."""
        return self._rows.nb_samples

    @property
    def split(self) -> Mapping[str, Any]:
        """The features, with the `sample_uid`."""
        return self._rows.split

    @staticmethod
    def get(
        split: Mapping[str, Any],
        nb_samples: int,
        indices: Any,
        transforms: Function | list[Function] | None,
        use_advanced_indexing: bool,
    ) -> Batch:
        """Returns the batch of the rows `indices` of a split, transformed.

        Raises:
            ValueError: `split` has not `nb_samples` samples.
        """
        if len_batch(split) != nb_samples:
            raise ValueError(f"split has {len_batch(split)} samples, not nb_samples={nb_samples}")
        batch = Rows(split, (), use_advanced_indexing).get(indices)
        return batch if transforms is None else MappedFunction(transforms)(batch, job_seed("get"))

    def get_next(self) -> Batch:
        """Returns the next batch at the sequence's own cursor."""
        return next(self)

    def open_epoch(self, epoch: Epoch) -> SequenceIterator:
        """Opens an epoch."""
        self.check_open()
        return ArrayIterator(self._rows, self.sampler, self._transforms, epoch)

    def __len__(self) -> int:
        return ArrayIterator.length(self._rows, self.sampler)

    def subsample(self, nb_samples: int) -> Any:
        """Returns `nb_samples` rows, or all if there are fewer, at random without replacement, keyed by the seed."""
        check_count("nb_samples", nb_samples)
        order = generator(job_seed(self.seed, "subsample")).permutation(self.nb_samples)
        return self._only(order[:nb_samples], None)

    def subsample_uids(self, uids: Iterable[Any], uids_name: str, new_sampler: Sampler | None = None) -> Any:
        """Returns the rows whose feature `uids_name` is one of `uids`, in the order of `uids`.

        Unknown uids are ignored; rows that share one are all kept. Raises ValueError if there is no such feature.
        """
        rows = np.asarray(rows_with(self.split, uids_name, list(uids)), dtype=np.int64)
        return self._only(rows, new_sampler)

    def _only(self, rows: np.ndarray, sampler: Sampler | None) -> Self:
        smaller = self.over(
            None,
            split=Rows(self.split, self.shared_features, True).get(rows),
            sampler=self.sampler.subset(rows) if sampler is None else check_sampler("new_sampler", sampler),
        )
        smaller._seed = self.seed
        return smaller

    def describe_stage(self) -> str:
        """Returns this stage as one line."""
        return f"SequenceArray({self.nb_samples} samples of {', '.join(self.split)}; {self.sampler!r})"


def check_values(split: Mapping[str, Any], samples: Mapping[str, Any]) -> None:
    """Raises ValueError for values that would be misread, by their names.

    Args:
        split: feature name -> value.
        samples: those of its features that have one value for each sample.
    """
    for name, value in split.items():
        if isinstance(value, np.ma.MaskedArray):
            raise ValueError(
                f"feature {name!r} is a masked array, whose mask would be lost: give {name}.filled(value), and the "
                "mask as a feature of its own"
            )
    if split and not samples:
        tuples = ", ".join(repr(name) for name, value in split.items() if isinstance(value, tuple))
        raise ValueError(
            f"split needs an array, tensor or list with one row for each sample, got {sorted(split)}"
            + (f"; tuples are batch-wide: make lists of {tuples} if they hold one value for each sample" * bool(tuples))
        )


def rows_with(batch: Mapping[str, Any], name: str, uids: list[Any]) -> list[int]:
    """Returns the rows of a batch whose feature is one of `uids`, in the order of `uids`."""
    if name not in batch or not holds_samples(batch[name]):
        raise ValueError(f"there is no feature {name!r}, with one value for each sample, among {sorted(batch)}")
    rows: dict[Any, list[int]] = {}
    for row, uid in enumerate(_plain(batch[name])):
        rows.setdefault(uid, []).append(row)
    return [row for uid in dict.fromkeys(_plain(uids)) for row in rows.get(uid, [])]


def joined_rows(rows: Sequence[Batch], shared_features: tuple[str, ...]) -> dict[str, Any]:
    """Returns a split of batches of one sample: arrays stay arrays, tensors tensors and lists lists.

    A batch-wide value is kept if it is the same object in all of them; else it becomes a list, one for each sample.

    Raises:
        ValueError: two batches have not the same features.
    """
    for row in rows:
        if row.keys() != rows[0].keys():
            raise ValueError(f"all batches must have the same features, got {sorted(rows[0])} and {sorted(row)}")
    return {
        name: rows[0][name] if name in shared_features else _joined([row[name] for row in rows])
        for name in (rows[0] if rows else ())
    }


def _joined(values: list[Any]) -> Any:
    first = values[0]
    if isinstance(first, list):
        return [element for value in values for element in value]
    if isinstance(first, np.ndarray) and first.ndim:
        return np.concatenate(values)
    if holds_samples(first):
        import torch  # noqa: PLC0415 (heavy; there are tensors, so it is loaded already)

        return torch.cat(values)
    return first if all(value is first for value in values) else values


def _plain(values: Any) -> list[Any]:
    """Returns values as hashable Python objects, whether they came as a list, an array or a tensor."""
    values = values.tolist() if hasattr(values, "tolist") else values
    return [value.tolist() if hasattr(value, "tolist") else value for value in cast("list[Any]", values)]
