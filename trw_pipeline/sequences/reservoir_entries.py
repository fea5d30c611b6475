"""What a reservoir holds: results in slots, who of them leaves for a fresh one, and what they come to."""

from __future__ import annotations

import heapq
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from trw_pipeline.executors.compressed import Compressed
from trw_pipeline.sequences.reservoir_options import ReservoirRules
from trw_pipeline.sequences.reservoir_source import Origin
from trw_pipeline.typing import Item


@dataclass(slots=True, eq=False)
class Entry:
    """A result that is kept. It is never changed; who draws it gets a copy.

    Attributes:
        origin: the item that it was made of.
        value: the result, perhaps compressed.
        nb_bytes: that it takes.
        served: how often it was drawn.
        number: how many entered before it.
        slot: where it is.
        entered_s: when it entered, by `time.monotonic`.
    """

    origin: Origin
    value: Any
    nb_bytes: int
    served: int = 0
    number: int = 0
    slot: int = 0
    entered_s: float = field(default_factory=time.monotonic)


class Entries:
    """Results in slots. A fresh one takes the slot of the one that leaves for it.

    One thread may add while another draws: each call is whole.

    Args:
        rules: bounds, and who leaves. Where it is continuous, only a result that was served leaves.

    Attributes:
        nb_bytes: what all take together.
        fresh: results taken in.
        served: draws.
        replaced: results that left.
    """

    def __init__(self, rules: ReservoirRules) -> None:
        self._rules = rules
        self._lock = threading.Lock()
        self._slots: list[Entry] = []
        self._by_age: OrderedDict[int, Entry] = OrderedDict()
        self._next_number = 0
        self.nb_bytes = self.fresh = self.served = self.replaced = 0

    def __len__(self) -> int:
        return len(self._slots)

    def by_age(self) -> list[Entry]:
        """Returns the entries, the oldest first."""
        with self._lock:
            return list(self._by_age.values())

    def age(self, entry: Entry) -> int:
        """Returns how many entered after it."""
        return self._next_number - 1 - entry.number

    def add(self, entry: Entry) -> bool:
        """Takes in a fresh result, for which others leave if they must; False if there is no room for it.

        Raises:
            ValueError: it is larger than all of them may be together.
        """
        most = self._rules.max_bytes
        if most is not None and entry.nb_bytes > most:
            raise ValueError(
                f"max_reservoir_bytes must be at least the size of a result, got {most} bytes and a result of "
                f"{entry.nb_bytes} (item {entry.origin.key})"
            )
        with self._lock:
            leaving = self._leaving_for(entry)
            if leaving is None:
                return False
            self.fresh += 1
            self.replaced += len(leaving)
            self._put(entry, leaving[0] if leaving else None)
            for one in leaving[1:]:
                self._remove(one)
        return True

    def put_back(self, aged: Iterable[tuple[Entry, int]]) -> None:
        """Takes in results that were made again, with their age. They are not fresh."""
        with self._lock:
            oldest_first = sorted(aged, key=lambda one: -one[1])
            for entry, age in oldest_first:
                self._next_number = oldest_first[0][1] - age
                self._put(entry, None)

    def at(self, slot: int) -> Entry:
        """Returns what is in a slot now; where the slots have become fewer, they are counted round and round."""
        with self._lock:
            return self._slots[slot % len(self._slots)]

    def serve(self, entry: Entry) -> None:
        """Counts a draw."""
        with self._lock:
            entry.served += 1
            self.served += 1

    def statistics(self) -> dict[str, Any]:
        """Returns what `ReservoirRecipe.statistics` says of them."""
        with self._lock:
            now = time.monotonic()
            ages_s = [now - entry.entered_s for entry in self._slots]
            return {
                "size": len(ages_s),
                "size_bytes": self.nb_bytes,
                "fresh": self.fresh,
                "served": self.served,
                "replaced": self.replaced,
                "echo_factor": self.served / self.fresh if self.fresh else 0.0,
                "age_s_mean": sum(ages_s) / len(ages_s) if ages_s else 0.0,
                "age_s_max": max(ages_s, default=0.0),
            }

    def _put(self, entry: Entry, in_place_of: Entry | None) -> None:
        entry.number = self._next_number
        self._next_number += 1
        self._by_age[entry.number] = entry
        self.nb_bytes += entry.nb_bytes
        if in_place_of is None:
            entry.slot = len(self._slots)
            self._slots.append(entry)
        else:
            entry.slot = in_place_of.slot
            self._slots[entry.slot] = entry
            del self._by_age[in_place_of.number]
            self.nb_bytes -= in_place_of.nb_bytes

    def _remove(self, entry: Entry) -> None:
        """Takes it out; the last one moves to its slot."""
        last = self._slots.pop()
        if last is not entry:
            last.slot = entry.slot
            self._slots[last.slot] = last
        del self._by_age[entry.number]
        self.nb_bytes -= entry.nb_bytes

    def _leaving_for(self, entry: Entry) -> list[Entry] | None:
        """Returns who has to leave, or None if too few may."""
        rules, leaving = self._rules, list[Entry]()
        nb, nb_bytes = len(self._slots) + 1, self.nb_bytes + entry.nb_bytes
        candidates = self._candidates()
        while nb > rules.max_samples or (rules.max_bytes is not None and nb_bytes > rules.max_bytes):
            one = next(candidates, None)
            if one is None:
                return None
            leaving.append(one)
            nb, nb_bytes = nb - 1, nb_bytes - one.nb_bytes
        return leaving

    def _candidates(self) -> Iterator[Entry]:
        """Yields who may leave, in the order of the policy."""
        may_leave = (one for one in self._by_age.values() if one.served or not self._rules.is_continuous)
        if self._rules.policy == "oldest":
            yield from may_leave
            return
        heap = [(-one.served, one.number) for one in may_leave]
        heapq.heapify(heap)
        while heap:
            yield self._by_age[heapq.heappop(heap)[1]]


class View(Sequence[Item]):
    """What an epoch draws from, and what its sampler sees: results by their number.

    Args:
        entries: counts the draws.
        snapshot: the entries that were there when the epoch began; None draws from slots, whatever is in them then.
        length: so many can be drawn.
        opened: makes a result of an entry.
    """

    def __init__(
        self, entries: Entries, snapshot: list[Entry] | None, length: int, opened: Callable[[Entry], Item]
    ) -> None:
        self._entries = entries
        self._snapshot = snapshot
        self._length = length
        self._opened = opened

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            return [self[i] for i in range(*number.indices(len(self)))]
        return self._opened(self._entry(range(len(self))[number]))

    def draw(self, number: int) -> Item:
        """Returns a result, one of its own with each call, and counts that it was served."""
        entry = self._entry(number)
        self._entries.serve(entry)
        return self._opened(entry)

    def _entry(self, number: int) -> Entry:
        return self._entries.at(number) if self._snapshot is None else self._snapshot[number]


def size_of(value: Any) -> int:
    """Returns the bytes that a result takes: of arrays and tensors their elements, of the rest what Python says."""
    if isinstance(value, Compressed):
        return value.nb_bytes
    nb_bytes = getattr(value, "nbytes", None)  # of arrays, tensors and NumPy's numbers
    if isinstance(nb_bytes, int):
        return nb_bytes
    own = sys.getsizeof(value, 64)
    if isinstance(value, Mapping):
        return own + sum(map(size_of, cast("Mapping[Any, Any]", value).values()))
    if isinstance(value, (list, tuple, set, frozenset)):
        return own + sum(map(size_of, cast("Iterable[Any]", value)))
    return own
