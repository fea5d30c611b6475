"""The engine of `SequenceArray`: rows of arrays, tensors and lists, in the order of a sampler."""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self, cast

import numpy as np

from trw_pipeline.batches.length import holds_samples, is_stored, len_batch, per_sample_features
from trw_pipeline.errors import CheckpointError
from trw_pipeline.executors.function import MappedFunction
from trw_pipeline.executors.private_copy import private_copy
from trw_pipeline.seeding import generator, job_seed, seeded_globals
from trw_pipeline.sequences.file_rows import FileRows, file_rows
from trw_pipeline.sequences.iterator import Epoch, KeyedItem, Mark, SequenceIterator, State, next_of, without_signals
from trw_pipeline.sequences.recipe import EngineRecipe
from trw_pipeline.sequences.samplers import Sampler, SamplerRandom, all_drawn_rows, drawn_rows, in_batches
from trw_pipeline.sequences.share import WHOLE, Remainder, Share, share_of
from trw_pipeline.sequences.split_values import Part, check_values, of_one_kind
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
        """Returns the batch of the rows `indices`; see `RowGetter`."""
        return RowGetter(self)(indices)


class RowGetter:
    """Gets rows of a split. Its features are looked at here, once, and not for every batch.

    Args:
        rows: of the split as it is now.

    Attributes:
        samples: the features that have one value for each sample.
        nb_samples: the number of samples.
    """

    def __init__(self, rows: Rows) -> None:
        self.samples = rows.samples
        self.nb_samples = rows.nb_samples
        self._split = dict(rows.split)
        self._use_advanced_indexing = rows.use_advanced_indexing
        self._columns = (
            {name: _column(value) for name, value in self.samples.items()}
            if rows.use_advanced_indexing
            else self.samples
        )
        self._kinds = [(name, column, isinstance(column, np.ndarray)) for name, column in self._columns.items()]

    def leave_unread(self) -> None:
        """Gives rows of files as `UnreadRows` from now on."""
        for column in self._columns.values():
            if isinstance(column, FileRows):
                column.unread = True

    def __call__(self, indices: Any) -> dict[str, Any]:
        """Returns the batch of the rows `indices` (an int, or a list or array of ints); see `drawn_rows`."""
        batch = self._split.copy()
        if type(indices) is int and 0 <= indices < self.nb_samples and self._use_advanced_indexing:
            end = indices + 1
            for name, column, is_array in self._kinds:
                batch[name] = column[indices:end].copy() if is_array else _row_of(column, indices)
            return batch
        rows = drawn_rows("rows to draw", indices, self.nb_samples)
        for name, column in self._columns.items():
            batch[name] = _rows_of(column, rows) if self._use_advanced_indexing else [column[row] for row in rows]
        return batch


def _column(value: Any) -> Any:
    """Returns what rows of a feature are taken from: a plain array, a tensor, a list, or what reads them."""
    in_file = file_rows(value)
    if in_file is not None:
        return in_file
    return np.asarray(value) if isinstance(value, np.ndarray) else value


def _kind_of_row(value: Any) -> str:
    """Returns dtype and shape of a row, in memory or in a file, as array or as tensor; of a list that it is one."""
    if not hasattr(value, "dtype") or not hasattr(value, "shape"):
        return type(value).__name__
    return f"{str(value.dtype).removeprefix('torch.')} {tuple(map(int, value.shape[1:]))}"


def _row_of(column: Any, row: int) -> Any:
    """Returns what `_rows_of` does for one row of a list, a tensor or a file, in a third of the time."""
    if isinstance(column, list):
        return [private_copy(column[row])]
    return column[np.array([row])] if isinstance(column, FileRows) else column[row : row + 1].clone()


def _rows_of(column: Any, rows: np.ndarray) -> Any:
    """Returns a copy of rows of an array, a list or a tensor."""
    return [private_copy(column[row]) for row in rows] if isinstance(column, list) else column[rows]


class ArrayIterator(SequenceIterator):
    """Rows in the order of a sampler.

    Args:
        rows: where the samples are.
        sampler: copied, so that every epoch has its own.
        transforms: applied to each batch in turn, in this process, seeded as a job of a mapped function is.
        epoch: keys the order and the transforms.
        share: which of the samples that the sampler draws are ours.
    """

    stage = "array"

    def __init__(
        self, rows: Rows, sampler: Sampler, transforms: MappedFunction | None, epoch: Epoch, share: Share
    ) -> None:
        super().__init__()
        self.share = share
        self._get = RowGetter(rows)
        self._sampler = sampler
        self._transforms = transforms
        if transforms is not None:
            transforms.begin()
        self._start_at(epoch, 0)

    def _start_at(self, epoch: Epoch, number: int) -> None:
        self._epoch = epoch
        self._number = number
        order = order_of(self._sampler, self._get.samples, epoch.seed, epoch.number, "order")
        if self.share.world_size > 1:
            drawn = all_drawn_rows("rows to draw", order, self._get.nb_samples)
            order = in_batches(self.share.rows(drawn), self._sampler.get_batch_size())
        self._order = itertools.islice(order, number, None)

    @staticmethod
    def length(rows: Rows, sampler: Sampler, share: Share) -> int:
        """Returns the number of batches of an epoch."""
        sampler = copy.copy(sampler)
        sampler.initializer(rows.samples)
        if share.world_size == 1:
            return len(sampler)
        size = sampler.get_batch_size()
        nb_drawn = len(sampler) if size == 1 else sum(map(len, cast("Iterable[Any]", sampler)))
        return -(-share.count(nb_drawn) // size)

    def advance(self) -> KeyedItem:
        """Returns the next batch; its key is its number in the epoch."""
        indices = next_of(self._order, type(self._sampler).__name__)
        key = self.share.key(self._number)
        batch: Batch = self._get(indices)
        if self._transforms is not None:
            seed = job_seed(self._epoch.seed, self._epoch.number, 0, key)
            with seeded_globals(seed):
                batch = without_signals(self._transforms.run_alone, batch, seed)
        self._number += 1
        return key, batch

    @property
    def nb_items(self) -> int:
        """The number of the next item."""
        return self._number

    def leave_unread(self) -> None:
        """Leaves rows of files unread, unless `transforms` want to see them."""
        if self._transforms is None:
            self._get.leave_unread()

    def mark(self) -> Mark:
        """Returns the number of the next batch."""
        return self._number

    @functools.cached_property
    def _features(self) -> str:
        return ", ".join(f"{name!r}: {_kind_of_row(value)}" for name, value in sorted(self._get.samples.items()))

    @property
    def _drawn_by(self) -> str:
        return f"{type(self._sampler).__name__}, batches of {self._sampler.get_batch_size()}"

    def position_at(self, mark: Mark) -> State:
        """Returns seed, epoch and number of the next batch: no sample is needed to go there."""
        return {
            "stage": self.stage,
            "nb_samples": self._get.nb_samples,
            "features": self._features,
            "sampler": self._drawn_by,
            "share": str(self.share),
            "seed": self._epoch.seed,
            "epoch": self._epoch.number,
            "number": mark,
        }

    def go_to(self, position: State) -> None:
        """Draws the order again and skips the indices already used, not the samples."""
        self.check_position(
            position, nb_samples=int, features=str, sampler=str, share=str, seed=int, epoch=int, number=int
        )
        if position["nb_samples"] != self._get.nb_samples:
            raise CheckpointError(
                f"the state was saved in an epoch of {position['nb_samples']} samples, here are {self._get.nb_samples}"
            )
        if position["features"] != self._features:
            raise CheckpointError(
                f"the state was saved in an epoch of samples with {position['features']}, here they have "
                f"{self._features}"
            )
        if position["sampler"] != self._drawn_by:
            raise CheckpointError(
                f"the state was saved in an epoch drawn by {position['sampler']}, here it is {self._drawn_by}: the "
                "number of batches given would be that of other samples. Resume at the start of an epoch instead, with "
                "set_epoch"
            )
        self.check_share(position)
        self._start_at(Epoch(position["seed"], position["epoch"]), position["number"])


class ArrayRecipe(EngineRecipe):
    """Batches of rows of arrays, tensors and lists, in memory or in files.

    Of an `h5py.Dataset`, a `zarr.Array`, a `blosc2.NDArray` or an `np.memmap` the rows of a batch alone are read, each
    chunk once, to an ordinary array. Where the next stage is a `map` (without `preprocess_fn` or `cache`) or a
    reservoir, its worker reads them, through a handle of its own that stays open; rows of a memmap only from 256 KiB
    on. They are read in this process where that is not possible: of arrays in memory, of HDF5 and Blosc2 files that
    were opened to be written or in SWMR mode, of stores of Zarr that are no local folder, and of private memmaps. Files
    are not to be changed while an epoch is open.

    A position is saved by index: no sample is read again to go there.

    Args:
        split: feature name -> array or tensor (N, ...), in memory or in a file, or list of length N; anything else is
            batch-wide. Not modified. A batch holds copies of its rows, but batch-wide values themselves. A list of
            Python's bools, ints and floats together is read as numbers of the widest of these kinds, so that all
            batches have one dtype.
        sampler: which rows make a batch, and in which order; by default each once in random order, one at a time.
        transforms: a function batch -> batch, or a list of them, run in this process. One may take `rng`.
        use_advanced_indexing: rows are copied into the batch. If False, a feature comes as a list of references to its
            rows: nothing is copied, which pays for large rows, but writing into them changes the split.
        sample_uid_name: name of the feature that identifies samples; added as 0..N-1 where missing; None for none.
        shared_features: names of arrays, tensors and lists that belong to the whole split.

    Raises:
        ValueError: a feature has not one row for each sample, or none has; or one that would be batch-wide (a tuple, a
            range, a column of pandas) has as many values as there are samples, and is not in `shared_features`.
        TypeError: `split` is not a mapping.
    """

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
        check_values(split, rows.samples, self.shared_features)
        rows = replace(rows, split={**split, **{name: of_one_kind(value) for name, value in rows.samples.items()}})
        if sample_uid_name is not None and sample_uid_name not in split:
            rows = replace(rows, split={**rows.split, sample_uid_name: np.arange(rows.nb_samples)})
        self.batch_wide_features = tuple(name for name in split if name not in rows.samples)
        self._rows = rows
        self._share = WHOLE
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
        return ArrayIterator(self._rows, self.sampler, self._transforms, epoch, self._share)

    def __len__(self) -> int:
        return ArrayIterator.length(self._rows, self.sampler, self._share)

    @property
    def share(self) -> Share:
        """What this process gets of the samples."""
        return self._share

    def over(self, source: Any, **changes: Any) -> Self:
        """Returns a sequence like this one, with other arguments."""
        other = super().over(source, **changes)
        other._share = self._share
        return other

    def shard(self, rank: int | None = None, world_size: int | None = None, *, remainder: Remainder = "keep") -> Any:
        """Returns the sequence of the samples of one rank; see `Sequence.shard`."""
        other = self.over(None)
        other._seed, other._seed_is_given = self._seed, self._seed_is_given
        other._share = share_of(rank, world_size, remainder, self._share)
        return other

    def subsample(self, nb_samples: int) -> Any:
        """Returns `nb_samples` rows, or all if there are fewer; see `Sequence.subsample`.

        They are the same on all ranks: few samples are not dealt out.
        """
        check_count("nb_samples", nb_samples)
        order = generator(job_seed(self.selection_seed, "subsample")).permutation(self.nb_samples)
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
            split=Part(Rows(self.split, self.shared_features, True).get(rows)),
            sampler=self.sampler.subset(rows) if sampler is None else check_sampler("new_sampler", sampler),
        )
        smaller._share = WHOLE
        return smaller.keep_seed(self)

    def describe_stage(self) -> str:
        """Returns this stage as one line."""
        return (
            f"SequenceArray({self.nb_samples} samples of {', '.join(self.split)}; {self.sampler!r}; state: by index)"
            + (f".shard({self._share})" if self._share.world_size > 1 else "")
        )


def rows_with(batch: Mapping[str, Any], name: str, uids: list[Any]) -> list[int]:
    """Returns the rows of a batch whose feature is one of `uids`, in the order of `uids`."""
    if name not in batch or not holds_samples(batch[name]):
        raise ValueError(f"there is no feature {name!r}, with one value for each sample, among {sorted(batch)}")
    rows: dict[Any, list[int]] = {}
    for row, uid in enumerate(_plain(batch[name])):
        rows.setdefault(uid, []).append(row)
    return [row for uid in dict.fromkeys(_plain(uids)) for row in rows.get(uid, [])]


def _plain(values: Any) -> list[Any]:
    """Returns values as hashable Python objects, whether they came as a list, an array or a tensor."""
    values = values[:] if is_stored(values) else values
    values = values.tolist() if hasattr(values, "tolist") else values
    plain = [value.tolist() if hasattr(value, "tolist") else value for value in cast("list[Any]", values)]
    return [tuple(value) if isinstance(value, list) else value for value in plain]  # of rows of numbers
