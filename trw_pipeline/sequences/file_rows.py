"""Features that lie in files: only the rows of a batch are read, and where a worker wants them, there.

A stage that sends items on as they are asks for `UnreadRows` (`SequenceIterator.leave_unread`): they say which rows of
which file, and whoever copies them gets the array. A pickled copy is read in the process that unpickles it, from a
file that it has opened itself: no handle is shared with another process. A deep copy, which a thread or a stage
without workers makes, is read in this process.
"""

from __future__ import annotations

import atexit
import functools
import mmap
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from trw_pipeline.batches.length import is_stored

Rows = npt.NDArray[np.int64]
"""Numbers of samples, shape (n,)."""

OPEN_AT_MOST = 16
"""Features that a process keeps open for others; of more, those not read for the longest time are closed."""

LARGE_ROW_BYTES = 256 * 1024
"""Rows of a mapped file that take less are copied here: to map the file again in the worker would take longer."""

DROP_AFTER_BYTES = 32 << 20
"""Pages of a mapped file that were read here are let go of after so many bytes: they count as our memory."""

READ_AROUND_BYTES = 128 << 10
"""What the system may map before and behind a row that is read: 64 KiB each, on Linux."""


class FileRows(ABC):
    """One feature that lies in a file.

    Args:
        array: the feature.

    Attributes:
        unread: whether rows are given as `UnreadRows`.
    """

    unread = False

    def __init__(self, array: Any) -> None:
        self.array = array

    @property
    @abstractmethod
    def can_travel(self) -> bool:
        """Whether another process can read rows by itself."""

    @abstractmethod
    def read(self, rows: Rows) -> npt.NDArray[Any]:
        """Reads rows here: an array (n, ...) that is nobody else's."""

    @abstractmethod
    def reader(self, rows: Rows) -> tuple[Any, tuple[Any, ...]]:
        """Returns a function, and its arguments, that reads them in another process."""

    def __getitem__(self, rows: Rows) -> npt.NDArray[Any] | UnreadRows:
        return UnreadRows(self, rows) if self.unread and self.can_travel else self.read(rows)


class UnreadRows:
    """Rows of a file that were not read yet. Each copy is an array: a deep one is read now, a pickled one there."""

    def __init__(self, feature: FileRows, rows: Rows) -> None:
        self._feature = feature
        self._rows = rows

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the array that a copy is."""
        return (len(self._rows), *self._feature.array.shape[1:])

    @property
    def dtype(self) -> Any:
        """Of the array that a copy is."""
        return self._feature.array.dtype

    def __deepcopy__(self, memo: dict[int, Any]) -> npt.NDArray[Any]:
        return self._feature.read(self._rows)

    def __reduce__(self) -> tuple[Any, ...]:
        return self._feature.reader(self._rows)


def file_rows(value: Any) -> FileRows | None:
    """Returns what reads the rows of a feature, if it lies in a file."""
    if is_stored(value):
        return StoredRows(value)
    if isinstance(value, np.memmap) and isinstance(_whole(value).base, mmap.mmap):
        return MappedRows(value)
    return None


# HDF5, Zarr, Blosc2


class Place(NamedTuple):
    """Where a feature is found: `version` tells a file from another one that took its place."""

    library: str
    path: str
    name: str
    version: tuple[int, ...]


class StoredRows(FileRows):
    """Rows of an `h5py.Dataset`, a `zarr.Array` or a `blosc2.NDArray`."""

    def __init__(self, array: Any) -> None:
        super().__init__(array)
        self._place = _place_of(array)

    @property
    def can_travel(self) -> bool:
        """Whether it is in a file or folder of its own that nobody writes to through it."""
        return self._place is not None

    def read(self, rows: Rows) -> npt.NDArray[Any]:
        """Reads them through the handle that we were given."""
        return read_rows(self.array, rows)

    def reader(self, rows: Rows) -> tuple[Any, tuple[Any, ...]]:
        """Returns the function that opens the file by its path."""
        return _read_at, (self._place, *rows.tolist())


def read_rows(array: Any, rows: Rows) -> npt.NDArray[Any]:
    """Reads rows of a stored array, in any order and as often as they are named, and each chunk once.

    Rows that follow each other, or lie in one chunk, are read together, and put in order here: h5py takes only numbers
    that increase, and a hundred times longer to find single rows than to read slices.
    """
    if len(rows) == 1:
        return np.asarray(array[int(rows[0]) : int(rows[0]) + 1])
    wanted, places = np.unique(rows, return_inverse=True)
    if isinstance(array, getattr(sys.modules.get("zarr"), "Array", ())):  # reads its chunks side by side
        return np.asarray(array.oindex[wanted])[places]
    found = np.empty((len(wanted), *array.shape[1:]), array.dtype)
    begin = 0
    for group in _in_one_piece(wanted, array.chunks[0] if array.chunks else 1):
        first = int(group[0])
        found[begin : begin + len(group)] = array[first : int(group[-1]) + 1][group - first]
        begin += len(group)
    return found[places]


def _in_one_piece(rows: Rows, nb_rows_of_chunk: int) -> Iterator[Rows]:
    """Splits increasing numbers of rows where the next one neither follows nor lies in the same chunk."""
    is_apart = (np.diff(rows) > 1) & (np.diff(rows // nb_rows_of_chunk) > 0)
    yield from np.split(rows, np.flatnonzero(is_apart) + 1) if len(rows) else ()


def _place_of(array: Any) -> Place | None:
    """Returns where another process can read an array too, or None.

    It can not where the array is in memory, or behind something else than a path. Nor where the file was opened to be
    written: what is not flushed is known here alone, and HDF5 locks such a file.
    """
    library = type(array).__module__.partition(".")[0]
    if library == "h5py":
        file = array.file
        if file.driver not in ("sec2", "stdio") or file.mode != "r" or file.swmr_mode or array.name is None:
            return None
        return _place(library, file.filename, array.name)
    if library == "zarr":
        is_local = type(array.store).__name__ == "LocalStore"
        return _place(library, str(array.store.root), array.path) if is_local else None
    path: Any = array.schunk.urlpath
    return _place(library, path, "") if path is not None and array.schunk.mode == "r" else None


def _place(library: str, path: str, name: str) -> Place | None:
    try:
        now = os.stat(path)
    except OSError:  # somebody has removed it, and we have it open still
        return None
    return Place(library, os.path.abspath(path), name, (now.st_dev, now.st_ino, now.st_mtime_ns))


def _read_at(place: Place, *rows: int) -> npt.NDArray[Any]:
    """Reads rows in a process that was told where they are."""
    return read_rows(_opened(os.getpid(), place), np.array(rows, np.int64))


@functools.lru_cache(OPEN_AT_MOST)
def _opened(pid: int, place: Place) -> Any:
    """Opens a feature once in each process: a process that was forked has a `pid` of its own."""
    if place.library == "h5py":
        import h5py  # noqa: PLC0415 (optional)

        return h5py.File(place.path, "r")[place.name]  # closed with the last thing that refers to it
    if place.library == "zarr":
        import zarr  # noqa: PLC0415 (optional)

        return zarr.open_array(place.path, path=place.name, mode="r")
    import blosc2  # noqa: PLC0415 (heavy)

    return blosc2.open(place.path, mode="r")


atexit.register(_opened.cache_clear)


# np.memmap


class MappedRows(FileRows):
    """Rows of an `np.memmap`."""

    def __init__(self, array: Any) -> None:
        super().__init__(array)
        self._plain = np.asarray(array)
        self._map: Any = _whole(array).base
        self._read_bytes = 0

    @property
    def can_travel(self) -> bool:
        """Whether rows are large, and what they hold is what the file holds."""
        return self.array.mode != "c" and self._plain[:1].nbytes >= LARGE_ROW_BYTES

    def read(self, rows: Rows) -> npt.NDArray[Any]:
        """Copies rows, and now and then lets go of the pages that were read, which the system keeps in its cache."""
        found = self._plain[rows]
        self._read_bytes += found.nbytes + len(rows) * READ_AROUND_BYTES
        # A private map would lose what was written to it.
        if self._read_bytes > DROP_AFTER_BYTES and self.array.mode != "c" and hasattr(mmap, "MADV_DONTNEED"):
            self._read_bytes = 0
            self._map.madvise(mmap.MADV_DONTNEED)
        return found

    def reader(self, rows: Rows) -> tuple[Any, tuple[Any, ...]]:
        """Leaves it to the pickler, which sends each row as a reference to its part of the file, if it is there."""
        return _joined, tuple(self.array[row : row + 1] for row in rows)


def _joined(*parts: Any) -> npt.NDArray[Any]:
    return np.concatenate([np.asarray(part) for part in parts])


def _whole(array: Any) -> Any:
    """Returns the array that an `np.memmap` is a view of, or itself."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array
