"""Which samples an epoch draws, and in which order. Samplers deal in numbers of samples and load no torch."""

from __future__ import annotations

import copy
import inspect
import numbers
import reprlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Self, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from trw_pipeline.batches.length import holds_samples, is_stored, len_batch

Indices: TypeAlias = npt.NDArray[np.int64]
"""Numbers of samples, shape (n,)."""

DataSource: TypeAlias = Mapping[str, Any] | Sequence[Any]
"""A split, feature name -> value with one entry for each sample; or a list of samples."""


class Sampler(ABC):
    """Draws the samples of an epoch: an iterable over their numbers in a data source.

    `initializer` binds a sampler to a source; then each `iter()` is one epoch.

    >>> sampler = SamplerSequential(batch_size=2)
    >>> sampler.initializer({"x": [10, 20, 30]})
    >>> [indices.tolist() for indices in sampler]
    [[0, 1], [2]]

    A sampler of your own has `__iter__` and `__len__`; it finds in `nb_samples` the number of samples of its source,
    and draws from `rng` whatever it draws. `iter()` must fix the order at once and keep nothing of it in the sampler,
    because a sequence uses shallow copies of one sampler for all its epochs, several at a time. Where the sampler knows
    samples by their number, it has `subset` too.

    Attributes:
        batch_size: number of samples in an element: with 1 the elements are ints, else int64 arrays of that length, the
            last one perhaps shorter.
        nb_samples: number of samples of the source, None before `initializer`.
        rng: generator of every random choice.
    """

    batch_size: int = 1
    nb_samples: int | None = None
    rng: np.random.Generator
    _cursor: Iterator[int | Indices] | None = None

    def initializer(self, data_source: DataSource, *, rng: np.random.Generator | None = None) -> None:
        """Binds the sampler to a data source, and puts its own cursor back to the start.

        Iterators that are open go on undisturbed.

        Args:
            data_source: what the samples are numbered in.
            rng: generator of every random choice from now on. By default a fresh one, seeded by the operating system:
                NumPy's global generator is neither used nor changed.

        Raises:
            TypeError: `data_source` holds no samples, or `rng` is not a `numpy.random.Generator`.
        """
        self.rng = _generator(rng)
        self.nb_samples = len_batch(data_source)
        self._cursor = None

    @abstractmethod
    def __iter__(self) -> Iterator[int | Indices]:
        """Starts an epoch: an independent iterator over ints, or over int64 arrays of shape (n,), n <= batch size.

        The order is drawn here, not at the first `next`.

        Raises:
            RuntimeError: the sampler was not initialized.
        """

    @abstractmethod
    def __len__(self) -> int:
        """Counts the elements, ints or arrays, that one iteration returns.

        Raises:
            RuntimeError: the number depends on the source and the sampler was not initialized.
        """

    def get_batch_size(self) -> int:
        """Gives the number of samples in an element (the last one may have fewer), at least 1."""
        return self.batch_size

    def __next__(self) -> int | Indices:
        """Advances the sampler's own cursor, which `iter()` neither uses nor moves.

        Raises:
            StopIteration: at the end, and from then on until the next `initializer`.
        """
        if self._cursor is None:
            self._cursor = iter(self)
        return next(self._cursor)

    def subset(self, kept: npt.ArrayLike) -> Self:
        """Gives the sampler to use when the source is reduced to some of its samples. Initialize it before use.

        Args:
            kept: numbers of the samples that are left, shape (n,): sample j of the new source is sample kept[j] of
                the old.
        """
        del kept  # only samplers that know samples by their number have to look
        return copy.copy(self)

    def __getstate__(self) -> dict[str, Any]:
        # Two copies must not advance one cursor, and a generator can not be pickled.
        return {name: value for name, value in vars(self).items() if name != "_cursor"}

    def __repr__(self) -> str:
        shown = [
            f"{name}={_shown(getattr(self, name))}"
            for name, parameter in inspect.signature(type(self)).parameters.items()
            if hasattr(self, name)
            and (parameter.default is inspect.Parameter.empty or getattr(self, name) != parameter.default)
        ]
        return f"{type(self).__name__}({', '.join(shown)})"

    def _nb_samples(self) -> int:
        if self.nb_samples is None:
            raise RuntimeError(f"{self!r} does not know its data source yet: call initializer(data_source) first")
        return self.nb_samples


class SamplerSequential(Sampler):
    """Draws all samples in the order of the source.

    Args:
        batch_size: number of samples in an element, at least 1, see `Sampler`.

    Raises:
        TypeError, ValueError: `batch_size` is not an integer of at least 1.
    """

    def __init__(self, batch_size: int = 1) -> None:
        self.batch_size = _at_least_one("batch_size", batch_size)

    def __iter__(self) -> Iterator[int | Indices]:
        nb_samples, size = self._nb_samples(), self.batch_size
        if size == 1:
            return iter(range(nb_samples))
        return (np.arange(start, min(start + size, nb_samples), dtype=np.int64) for start in range(0, nb_samples, size))

    def __len__(self) -> int:
        return _nb_batches(self._nb_samples(), self.batch_size)


class SamplerRandom(Sampler):
    """Draws all samples in a new random order at each `iter()`, or draws with replacement.

    Args:
        replacement: whether a sample may be drawn again before all others were.
        nb_samples_to_generate: how many samples an epoch draws, at least 1; only with replacement. None draws as many
            as the source has.
        batch_size: number of samples in an element, at least 1, see `Sampler`.

    Raises:
        TypeError, ValueError: a count is not an integer of at least 1.
        ValueError: `nb_samples_to_generate` is given without replacement.
    """

    def __init__(
        self, replacement: bool = False, nb_samples_to_generate: int | None = None, batch_size: int = 1
    ) -> None:
        if nb_samples_to_generate is not None:
            _at_least_one("nb_samples_to_generate", nb_samples_to_generate)
            if not replacement:
                raise ValueError(
                    "nb_samples_to_generate must be None without replacement, where an epoch draws each sample once, "
                    f"got {nb_samples_to_generate}"
                )
        self.replacement = replacement
        self.nb_samples_to_generate = nb_samples_to_generate
        self.batch_size = _at_least_one("batch_size", batch_size)

    def initializer(self, data_source: DataSource, *, rng: np.random.Generator | None = None) -> None:
        """Binds the sampler to a data source, see `Sampler.initializer`.

        Raises:
            ValueError: samples are to be generated and the source has none.
        """
        if self.nb_samples_to_generate is not None and len_batch(data_source) == 0:
            raise ValueError(
                f"the data source must have samples to generate {self.nb_samples_to_generate} of them, it has none"
            )
        super().initializer(data_source, rng=rng)

    def __iter__(self) -> Iterator[int | Indices]:
        nb_samples = self._nb_samples()
        if self.replacement:
            order = self.rng.integers(nb_samples, size=self._nb_drawn(), dtype=np.int64)
        else:
            order = self.rng.permutation(nb_samples).astype(np.int64, copy=False)
        return in_batches(order, self.batch_size)

    def __len__(self) -> int:
        return _nb_batches(self._nb_drawn(), self.batch_size)

    def _nb_drawn(self) -> int:
        return self._nb_samples() if self.nb_samples_to_generate is None else self.nb_samples_to_generate


class SamplerSubsetRandom(Sampler):
    """Draws the listed samples one by one, in a new random order at each `iter()`.

    Args:
        indices: numbers of samples, shape (n,), integers of at least 0: a list, array or tensor. A number that is
            listed twice is drawn twice.

    Raises:
        TypeError, ValueError: `indices` are not such numbers.
    """

    def __init__(self, indices: npt.ArrayLike | Collection[int]) -> None:
        self.indices = row_numbers("indices", indices)

    def initializer(self, data_source: DataSource, *, rng: np.random.Generator | None = None) -> None:
        """Binds the sampler to a data source, see `Sampler.initializer`.

        Raises:
            ValueError: an index is not below the number of samples; it is named.
        """
        nb_samples = len_batch(data_source)
        outside = self.indices[self.indices >= nb_samples]
        if len(outside):
            raise ValueError(f"indices must be below the number of samples, {nb_samples}, got {outside[0]}")
        super().initializer(data_source, rng=rng)

    def __iter__(self) -> Iterator[int | Indices]:
        self._nb_samples()
        return in_batches(self.rng.permutation(self.indices), 1)

    def __len__(self) -> int:
        return len(self.indices)

    def subset(self, kept: npt.ArrayLike) -> Self:
        """Gives the sampler of the same samples under their new numbers, without those that are gone.

        >>> SamplerSubsetRandom([7, 2, 5]).subset([5, 6, 7])
        SamplerSubsetRandom(indices=[2, 0])
        """
        new_numbers: dict[int, list[int]] = {}
        for new, old in enumerate(row_numbers("kept", kept).tolist()):
            new_numbers.setdefault(old, []).append(new)
        reduced = copy.copy(self)
        still_there = [new for old in self.indices.tolist() for new in new_numbers.get(old, [])]
        reduced.indices = np.array(still_there, dtype=np.int64)
        return reduced


class SamplerClassResampling(Sampler):
    """Draws every class equally often, whatever its share of the data, and the rare ones again and again.

    In an epoch each class is drawn `nb_samples_to_generate // number of classes` times, uniformly with replacement, and
    the draws are shuffled. So an epoch may be a few samples shorter than asked for, and never lacks a class.

    Args:
        class_name: feature of the split with the class of each sample: integers of shape (N,) in a list, array or
            tensor. The classes are the distinct values in it.
        nb_samples_to_generate: about how many samples an epoch draws; at least the number of classes.
        reuse_class_frequencies_across_epochs: sort the samples into their classes once, for this sampler and its
            copies, and again only for a feature that is another object or has another length. False sorts at each
            `initializer`: for classes that are changed in place.
        batch_size: number of samples in an element, at least 1, see `Sampler`.

    Raises:
        TypeError, ValueError: a count is not an integer of at least 1.
    """

    def __init__(
        self,
        class_name: str,
        nb_samples_to_generate: int,
        reuse_class_frequencies_across_epochs: bool = True,
        batch_size: int = 1,
    ) -> None:
        self.class_name = class_name
        self.nb_samples_to_generate = _at_least_one("nb_samples_to_generate", nb_samples_to_generate)
        self.reuse_class_frequencies_across_epochs = reuse_class_frequencies_across_epochs
        self.batch_size = _at_least_one("batch_size", batch_size)
        self._rows_of_classes: list[Indices] | None = None
        # At most one entry, (feature, its length, its rows by class); the dict itself is what copies have in common.
        # The feature, not its id: a dead object's id is given to another.
        self._cache: dict[str, tuple[Any, int, list[Indices]]] = {}

    def initializer(self, data_source: DataSource, *, rng: np.random.Generator | None = None) -> None:
        """Binds the sampler to a split, see `Sampler.initializer`.

        Raises:
            TypeError: `data_source` is not a mapping.
            ValueError: the split has no feature `class_name`, or it does not hold one integer for each sample, or has
                more classes than samples are to be generated, or none.
        """
        rows_of_classes = self._sorted_into_classes(data_source)
        if not 1 <= len(rows_of_classes) <= self.nb_samples_to_generate:
            raise ValueError(
                f"nb_samples_to_generate must be at least the number of classes in {self.class_name!r}, and there must "
                f"be one, got {self.nb_samples_to_generate} for {len(rows_of_classes)} classes"
            )
        super().initializer(data_source, rng=rng)
        self._rows_of_classes = rows_of_classes

    def _sorted_into_classes(self, data_source: Any) -> list[Indices]:
        if not isinstance(data_source, Mapping):
            raise TypeError(
                f"the data source must be a mapping to find {self.class_name!r} in, got {type(data_source).__name__}"
            )
        if self.class_name not in data_source:
            raise ValueError(f"the split must have the feature {self.class_name!r}, it has {list(data_source)}")
        feature: Any = data_source[self.class_name]
        cached = self._cache.get(self.class_name)
        if cached is not None and self.reuse_class_frequencies_across_epochs:
            known, length, rows_of_classes = cached
            if feature is known and len_batch(feature) == length:
                return rows_of_classes
        classes = _integers(self.class_name, feature)
        _, counts = np.unique(classes, return_counts=True)
        # A stable sort lays the rows of each class side by side, classes in the order of `unique`.
        rows_of_classes = np.split(np.argsort(classes, kind="stable"), np.cumsum(counts)[:-1]) if len(counts) else []
        self._cache[self.class_name] = (feature, len(classes), rows_of_classes)
        return rows_of_classes

    def __iter__(self) -> Iterator[int | Indices]:
        rows_of_classes, nb_draws = self._classes(), self._nb_draws_of_class()
        draws = [rows[self.rng.integers(len(rows), size=nb_draws)] for rows in rows_of_classes]
        return in_batches(self.rng.permutation(np.concatenate(draws)), self.batch_size)

    def __len__(self) -> int:
        return _nb_batches(self._nb_draws_of_class() * len(self._classes()), self.batch_size)

    def _nb_draws_of_class(self) -> int:
        return self.nb_samples_to_generate // len(self._classes())

    def _classes(self) -> list[Indices]:
        self._nb_samples()
        assert self._rows_of_classes is not None, "initializer sets both"
        return self._rows_of_classes


def in_batches(order: Indices, batch_size: int) -> Iterator[int | Indices]:
    """Returns the elements of an epoch that draws samples in this order, see `Sampler`."""
    if batch_size == 1:
        return map(int, order)
    return (order[start : start + batch_size] for start in range(0, len(order), batch_size))


def _nb_batches(nb_samples: int, batch_size: int) -> int:
    return -(-nb_samples // batch_size)


def _generator(rng: Any) -> np.random.Generator:
    if rng is None:
        return np.random.default_rng()
    if not isinstance(rng, np.random.Generator):
        raise TypeError(f"rng must be a numpy.random.Generator, got {type(rng).__name__}")
    return rng


def _at_least_one(name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")
    return int(value)


def _integers(name: str, value: Any) -> npt.NDArray[np.integer[Any]]:
    """Reads integers of shape (N,) from a list, array or tensor on any device."""
    if not holds_samples(value):
        raise ValueError(f"feature {name!r} must be a list, array or tensor of integers, got {type(value).__name__}")
    try:
        array = np.asarray(value.cpu() if hasattr(value, "cpu") else value[:] if is_stored(value) else value)
    except ValueError as error:  # lists of different lengths
        raise ValueError(f"feature {name!r} must hold one integer for each sample") from error
    # NumPy makes floats of an empty list
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size > 0):
        raise ValueError(
            f"feature {name!r} must hold one integer for each sample, got shape {array.shape} and dtype {array.dtype}"
        )
    return array


def drawn_rows(name: str, drawn: Any, nb_samples: int) -> Indices:
    """Reads what a sampler has drawn, one number of a sample or several, as an int64 array of shape (n,).

    Raises:
        TypeError: the numbers are not integers; a boolean mask is refused too.
        ValueError: a number is negative or not below `nb_samples`; or the shape is not (n,).
    """
    if type(drawn) is int and 0 <= drawn < nb_samples:
        return np.array([drawn], dtype=np.int64)
    # Many in one pass, where a negative number is a large unsigned one. What comes then tells what is wrong.
    if type(drawn) is np.ndarray and drawn.dtype == np.int64 and drawn.ndim == 1:
        indices = cast("Indices", drawn)
        if indices.view(np.uint64).max(initial=0) < nb_samples:
            return indices
    rows = row_numbers(name, [drawn] if np.ndim(drawn) == 0 else drawn)
    if len(rows) and rows.max() >= nb_samples:
        raise ValueError(f"{name} must be below the number of samples, {nb_samples}, got {rows.max()}")
    return rows


def all_drawn_rows(name: str, elements: Iterable[Any], nb_samples: int) -> Indices:
    """Reads all that a sampler draws in an epoch as one int64 array of shape (n,); raises what `drawn_rows` does."""
    drawn = list(elements)
    if set(map(type, drawn)) <= {int}:
        return drawn_rows(name, np.array(drawn, dtype=np.int64), nb_samples)
    return np.concatenate([drawn_rows(name, element, nb_samples) for element in drawn])


def row_numbers(name: str, value: Any) -> Indices:
    """Reads numbers of samples, shape (n,), from a list, an array or a tensor on any device.

    Raises:
        TypeError: they are not integers.
        ValueError: one is negative, or the shape is not (n,).
    """
    array = np.asarray(value.cpu() if hasattr(value, "cpu") else value)
    if array.ndim != 1:
        raise ValueError(f"{name} must have shape (n,), got {array.shape}")
    if array.dtype.kind not in "iu" and array.size > 0:  # NumPy makes floats of an empty list
        raise TypeError(f"{name} must be integers, got dtype {array.dtype}: {_shown(array)}")
    if array.size > 0 and array.min() < 0:
        raise ValueError(f"{name} must be at least 0, got {array.min()}")
    return array.astype(np.int64)  # a copy: the caller's array may change


def _shown(value: Any) -> str:
    if isinstance(value, np.ndarray):  # its first seven: one more than reprlib shows
        return reprlib.repr(value[:7].tolist())
    return repr(value)
