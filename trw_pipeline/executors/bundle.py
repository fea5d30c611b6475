"""Several items of a chain that travel as one job.

What an item costs on its way is some 30 us: to be written, sent, run, read and accounted for by itself. Where the
function takes less, a chain sends many at once. Each item still has its own seed, its own error and its own result; all
that they share is a message and a place at a worker.

    items ─▶ columns ──────── Bundle ───────▶ worker: seed, run, seed, run, ... ─── BundleResults ──▶ results
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from trw_pipeline.errors import CodecError
from trw_pipeline.executors.codec import OUT_OF_BAND_BYTES, Codec, Frame, buffer_of, nb_bytes_of
from trw_pipeline.executors.job import uid_of
from trw_pipeline.executors.layout import SCALARS, Columns, batches_of
from trw_pipeline.executors.protocol import ErrorReport
from trw_pipeline.seeding import JobSeed, JobSeeds
from trw_pipeline.typing import Key

BUNDLE_S = 0.001
"""A bundle is worth so many seconds of work."""

MOST_S = 0.004
"""The mean bundle takes no longer."""

MOST_ITEMS, LEAST_ITEMS = 64, 4
"""In a bundle. For fewer it does not pay."""

MEASURE_EVERY = 16
"""So many jobs are measured before the size is changed."""

Packed: TypeAlias = Any
"""Objects that share no memory: plain batches as columns, numbers and texts as the list of them."""


class Bundle:
    """Items for one job. They were copied: whoever gave them may change them.

    Args:
        packed: the items.
        keys: where each of them stands at its source.
        entropy: makes, with its key, the seed of each.
    """

    def __init__(self, packed: Packed, keys: list[Key], entropy: tuple[object, ...]) -> None:
        self.packed = packed
        self.keys = keys
        self.entropy = entropy
        self._at = 0

    def __len__(self) -> int:
        return len(self.keys)

    def __reduce__(self) -> tuple[Any, ...]:
        return Bundle, (_to_send(self.packed), self.keys, self.entropy)

    def items(self) -> list[Any]:
        """Returns the items; each call makes new ones."""
        return _unpacked(self.packed)

    def at_hand(self) -> tuple[Key, Any]:
        """Returns the key of the item that `run` is at, and its uid."""
        return self.keys[self._at], uid_of(self.items()[self._at])

    def run(
        self, function: Callable[[Any, JobSeed], Any], codec: Codec, describe: Callable[[BaseException], ErrorReport]
    ) -> BundleResults:
        """Runs a function over the items, each with its seed.

        Args:
            function: called with an item and its seed.
            codec: for results that are neither plain small batches, nor numbers or texts.
            describe: makes the report of an error.
        """
        seeds = _seeds_of(self.entropy)
        results = _Gathered(codec)
        for number, (item, key) in enumerate(zip(self.items(), self.keys, strict=True)):
            self._at = number
            try:
                value = function(item, seeds(key))
            except BaseException as error:  # noqa: BLE001 (a job may raise SystemExit or KeyboardInterrupt: it failed)
                results.add_error(describe(error))
            else:
                results.add(value)
                value = None
        return results.all_of_them()


class BundleMaker:
    """Gathers items for a bundle, each copied at once: whoever makes them may use the same memory for the next one.

    Attributes:
        nb: how many there are.
    """

    def __init__(self) -> None:
        self._columns = Columns()
        self._scalars: list[Any] = []
        self.nb = 0

    def add(self, item: Any) -> bool:
        """Adds an item; False of one that can not travel with the others: see `Columns`, or else numbers and texts."""
        if type(item) in SCALARS and len(self._scalars) == self.nb:
            self._scalars.append(item)
        elif self._scalars or not self._columns.add(item):
            return False
        self.nb += 1
        return True

    def made(self, keys: list[Key], seeds: JobSeeds) -> Bundle:
        """Returns the bundle."""
        return Bundle(self._scalars or self._columns.written(), keys, seeds.entropy)


class _Gathered:
    """Results that come one by one. Each is copied at once: a function may use the same memory for the next one."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._columns: Columns | None = Columns()  # as long as all are such
        self._values: list[Any] = []
        self._errors: dict[int, ErrorReport] = {}
        self._nb = 0

    def add(self, value: Any) -> None:
        if self._columns is not None and self._columns.add(value):
            self._nb += 1
            return
        self._leave_columns()
        try:
            self._values.append(value if type(value) in SCALARS else self._parcel(value))
        except CodecError as error:
            self.add_error(ErrorReport.of(error, None, of_codec=True))

    def add_error(self, report: ErrorReport) -> None:
        self._leave_columns()
        self._errors[len(self._values)] = report
        self._values.append(None)

    def _leave_columns(self) -> None:
        if self._columns is not None:
            self._values = batches_of(self._columns.written()) if self._nb else []
            self._columns = None

    def _parcel(self, value: Any) -> _Parcel:
        head, *buffers = self._codec.encode(value)
        return _Parcel([bytes(buffer_of(head)), *(bytearray(buffer_of(buffer)) for buffer in buffers)])

    def all_of_them(self) -> BundleResults:
        packed = self._values if self._columns is None else self._columns.written()
        return BundleResults(packed, self._errors)


@dataclass(slots=True)
class BundleResults:
    """What became of the items of a bundle.

    Attributes:
        packed: their results; None for one that failed.
        errors: by number.
        values: the results, once they were opened.
    """

    packed: Packed
    errors: dict[int, Any]
    values: list[Any] = field(default_factory=list[Any])

    def __reduce__(self) -> tuple[Any, ...]:
        return BundleResults, (_to_send(self.packed), self.errors)

    def open(self, codec: Codec) -> None:
        """Makes the values. Of one that can not be made here, the CodecError is its error."""
        self.values = _unpacked(self.packed)
        if self.values is not self.packed:
            return
        for number, value in enumerate(self.values):
            if type(value) is _Parcel:
                try:
                    self.values[number] = codec.decode(value.frames)
                except CodecError as error:
                    self.values[number], self.errors[number] = None, error


@dataclass(slots=True)
class _Parcel:
    """A result that travels by itself."""

    frames: list[Frame]


class BundleSize:
    """Finds how many items a bundle should have: so many that three of four are done in `BUNDLE_S`.

    Not the mean of all, which a job that lost its core for a while would spoil. But where some items do take long, the
    others should not have to wait for many of them, so the mean may be no more than `MOST_S`.

    Attributes:
        value: 1 where a bundle is not worth it.
    """

    def __init__(self) -> None:
        self.value = 1
        self._begin()

    def _begin(self) -> None:
        self._items_s: list[float] = []
        self._nb_items = self._nb_bytes = 0
        self._duration_s = 0.0

    def note(self, duration_s: float, nb_items: int, frames: Sequence[Frame]) -> None:
        """Notes how long a job of so many items took, and what came of it."""
        self._items_s.append(duration_s / nb_items)
        self._nb_items += nb_items
        self._duration_s += duration_s
        if len(frames) > 1:
            self._nb_bytes += nb_bytes_of(frames)
        if len(self._items_s) >= MEASURE_EVERY:
            item_s = max(sorted(self._items_s)[3 * MEASURE_EVERY // 4], 1e-9)
            nb = min(BUNDLE_S / item_s, MOST_S * self._nb_items / max(self._duration_s, 1e-9), MOST_ITEMS)
            is_small = self._nb_bytes < OUT_OF_BAND_BYTES * self._nb_items
            self.value = int(nb) if is_small and nb >= LEAST_ITEMS else 1
            self._begin()


def _unpacked(packed: Packed) -> list[Any]:
    return packed if type(packed) is list else batches_of(packed)


def _to_send(packed: Packed) -> Packed:
    return pickle.PickleBuffer(packed) if isinstance(packed, bytes) else packed


@functools.lru_cache(maxsize=4)
def _seeds_of(entropy: tuple[object, ...]) -> JobSeeds:
    return JobSeeds(*entropy)
