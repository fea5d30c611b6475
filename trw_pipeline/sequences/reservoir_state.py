"""What is saved of a reservoir, and how it is made again.

A result is known by the pass and the key of its item, which also seed its job. So what a reservoir held is saved
without a sample in it: each entry says where the source stood before its item, and is made again from there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from trw_pipeline.errors import CheckpointError
from trw_pipeline.executors.bell import Bell
from trw_pipeline.executors.job import plain_uid
from trw_pipeline.executors.job_executor import JobExecutor
from trw_pipeline.sequences.iterator import State, check_parts
from trw_pipeline.sequences.reservoir_source import OpenPass, Origin, SourceMark, SourcePass
from trw_pipeline.typing import Item, Key

NEIGHBOURS = 16
"""Entries whose items lie so close are made again in one go over the source, though items between them are of no use:
to open a source takes about as long as to get a few items. A number from the air."""


class EntryMark(NamedTuple):
    """What is saved of an entry: where it came from, how often it was served, how many entered after it."""

    origin: Origin
    served: int
    age: int


class ReservoirMark(NamedTuple):
    """What is saved of a reservoir.

    Attributes:
        seed: of the chain.
        entries: what it holds.
        after: where the source stood before the oldest item whose result has not entered.
        is_filled: whether the first epoch has begun.
    """

    seed: int
    entries: list[EntryMark]
    after: SourceMark
    is_filled: bool

    def position(self) -> State:
        """Spells that out."""
        return {
            "seed": self.seed,
            "is_filled": self.is_filled,
            "entries": saved_groups(self.entries),
            "after": self.after.position(),
        }


def position_of(mark: ReservoirMark | State) -> State:
    """Returns what a mark says as plain data."""
    return mark.position() if isinstance(mark, ReservoirMark) else mark


def seed_of(loaded: State) -> int:
    """Returns the seed of a saved reservoir; raises CheckpointError if that is damaged."""
    what = "the state of 'async_reservoir'"
    check_parts(what, loaded, seed=int, is_filled=bool, entries=list, after=Mapping)
    return loaded["seed"]


def saved_groups(marks: Iterable[EntryMark]) -> list[State]:
    """Returns entries as plain data: those that lie close in one pass share the place where the source is opened."""
    marks = list(marks)
    passes = {of: rank for rank, of in enumerate(dict.fromkeys(mark.origin.of for mark in marks))}
    groups: list[State] = []
    last: Origin | None = None
    for origin, served, age in sorted(marks, key=lambda m: (m.origin.of.number, passes[m.origin.of], m.origin.order)):
        if last is None or origin.of is not last.of or origin.order - last.order > NEIGHBOURS:
            position = origin.of.source.position_at(origin.before)
            groups.append({"pass": origin.of.number, "source": position, "entries": []})
        last = origin
        entry = {"key": list(origin.key), "uid": plain_uid(origin.uid), "served": served, "age": age}
        groups[-1]["entries"].append(entry)
    return groups


class SavedItems:
    """Gives the items of saved entries once more.

    Args:
        open_pass: opens the source for the pass of a number.
        groups: of `saved_groups`.

    Raises:
        CheckpointError: `groups` is damaged.
    """

    def __init__(self, open_pass: OpenPass, groups: list[Any]) -> None:
        for group in groups:
            check_parts("a group of entries", group, **{"pass": int}, source=Mapping, entries=list)
            for entry in group["entries"]:
                check_parts("an entry", entry, key=list, served=int, age=int)
        self._open_pass = open_pass
        self._groups = deque(groups)
        self._pass: SourcePass | None = None
        self._wanted: dict[Key, State] = {}

    def executors(self) -> list[JobExecutor]:
        """Returns those of the source."""
        return [] if self._pass is None else self._pass.source.executors()

    def bells(self) -> list[Bell]:
        """Returns those of the source."""
        return [] if self._pass is None else self._pass.source.bells()

    def take(self) -> tuple[Origin, Item, State]:
        """Returns an item, where it came from, and the saved entry.

        Raises:
            StopIteration: all were given.
            WouldBlock: the source has none ready.
            CheckpointError: the source has no such item any more.
        """
        while True:
            if not self._wanted:
                self._begin_group()
            assert self._pass is not None, "a group is open"
            try:
                origin, item = self._pass.take()
            except StopIteration as end:
                missing = [entry["uid"] for entry in self._wanted.values()]
                raise CheckpointError(f"the source does not give the samples of the state again: {missing}") from end
            entry = self._wanted.pop(origin.key, None)
            if entry is None:
                continue
            if entry.get("uid") != plain_uid(origin.uid):
                raise CheckpointError(
                    f"the source gives sample {plain_uid(origin.uid)!r} where the state has {entry.get('uid')!r}"
                )
            return origin, item, entry

    def _begin_group(self) -> None:
        self.close()
        if not self._groups:
            raise StopIteration
        group = self._groups.popleft()
        self._pass = self._open_pass(group["pass"], group["source"])
        self._wanted = {tuple(entry["key"]): entry for entry in group["entries"]}

    def close(self) -> None:
        """Closes the pass that is open."""
        if self._pass is not None:
            self._pass.source.close()
            self._pass = None
