"""Random splits and random chains over them, and a model of what they give: plain lists of row numbers.

A row of a split is known by its `sample_uid`, its number. The model says which rows stand in which batch; what is in
them is then compared with the split, value by value.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from trw_pipeline.sequences.samplers import SamplerRandom, SamplerSequential
from trw_pipeline.sequences.sequence import Sequence, SequenceArray, SequenceShard

SEED = 21

# Splits


def _read_only(array):
    array.flags.writeable = False
    return array


FEATURES: dict[str, Callable[[int], Any]] = {
    "numbers": np.arange,
    "images": lambda nb: np.arange(nb * 6, dtype=np.float32).reshape(nb, 2, 3),
    "without columns": lambda nb: np.zeros((nb, 0), np.int16),
    "every second row": lambda nb: np.arange(4 * nb).reshape(2 * nb, 2)[::2],
    "backwards": lambda nb: np.arange(nb)[::-1],
    "transposed": lambda nb: np.arange(3 * nb, dtype=np.uint8).reshape(3, nb).T,
    "broadcast": lambda nb: np.broadcast_to(np.float16(1.5), (nb, 2)),
    "read-only": lambda nb: _read_only(np.arange(nb) + 0.5),
    "big-endian": lambda nb: np.arange(2 * nb, dtype=">f8").reshape(nb, 2),
    "big-endian ints": lambda nb: np.arange(nb, dtype=">i4"),
    "flags": lambda nb: np.arange(nb) % 2 == 0,
    "texts": lambda nb: np.array([f"t{i}" for i in range(nb)], dtype="<U3"),
    "dates": lambda nb: np.arange(nb).astype("datetime64[D]"),
    "tensor": lambda nb: torch.arange(nb) * 10,
    "bfloat16": lambda nb: torch.arange(2 * nb, dtype=torch.bfloat16).reshape(nb, 2),
    "names": lambda nb: [f"n{i}" for i in range(nb)],
    "list of ints": lambda nb: list(range(nb)),
    "list of floats": lambda nb: [i / 2 for i in range(nb)],
    "ints and floats": lambda nb: [i if i % 3 else i + 0.5 for i in range(nb)],
    "list of bools": lambda nb: [i % 3 == 0 for i in range(nb)],
    "list of arrays": lambda nb: [np.full(2, i, np.uint8) for i in range(nb)],
    "list of none": lambda nb: [None] * nb,
    "ragged": lambda nb: [list(range(i % 4)) for i in range(nb)],
    "tuples": lambda nb: [(i, f"n{i}") for i in range(nb)],
    "dicts": lambda nb: [{"a": i, "b": {"c": [i]}} for i in range(nb)],
    "paths": lambda nb: [Path(f"{i}.png") for i in range(nb)],
}
"""One value for each of `nb` rows."""

OF_THE_SPLIT: dict[str, Any] = {
    "title": "all",
    "number": 7,
    "nothing": None,
    "pair": (1, "b"),
    "nested": {"spacing": np.array([0.5, 2.0]), "scanner": {"name": "S", "year": 2020}},
    "classes": ["cat", "dog"],
    "table": np.arange(3.0),
}
"""Batch-wide values; the last two are shared features."""

SHARED = ("classes", "table")


@st.composite
def splits(draw) -> dict[str, Any]:
    """Splits of 0 to 14 rows."""
    nb = draw(st.integers(0, 3) | st.integers(4, 14) | st.integers(4, 14))
    kinds = draw(st.lists(st.sampled_from(list(FEATURES)), max_size=4, unique=True))
    # A tuple of as many values as there are samples is refused.
    names = [name for name in OF_THE_SPLIT if (name, nb) != ("pair", len(OF_THE_SPLIT["pair"]))]
    wide = draw(st.lists(st.sampled_from(names), max_size=2, unique=True))
    split = {name: FEATURES[name](nb) for name in kinds} | {name: OF_THE_SPLIT[name] for name in wide}
    return {**split, "sample_uid": np.arange(nb)}


def plain(value: Any) -> Any:
    """Any value as something that compares by value alone, whatever holds it."""
    if isinstance(value, Mapping):
        return {name: plain(nested) for name, nested in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind == "M":
        return value.astype(str).tolist()
    return value.tolist() if hasattr(value, "tolist") else value


def kind_of(value: Any) -> Any:
    """What holds the values of a feature, which must be the same in all batches."""
    if isinstance(value, np.ndarray):  # texts are as wide as the longest
        return np.ndarray, value.dtype.kind, value.ndim
    return (torch.Tensor, value.dtype, value.dim()) if isinstance(value, torch.Tensor) else type(value)


# Chains

Rows = list[list[int]]
"""The rows of each item."""


@dataclass(frozen=True)
class Step:
    """A stage, and what it does with the rows of the items that it gets."""

    name: str
    over: Callable[[Any], Sequence]
    model: Callable[[Rows], Rows]

    def __repr__(self):
        return self.name


def in_parts(rows: list[int], size: int) -> Rows:
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def _grouped(items: Rows, size: int, discard: bool) -> Rows:
    groups = [items[start : start + size] for start in range(0, len(items), size)]
    return [list(itertools.chain(*group)) for group in groups if len(group) == size or not discard]


def _full(batches: Rows, size: int, discard: bool) -> Rows:
    return [batch for batch in batches if len(batch) == size or not discard]


def _first(items: Rows, nb_samples: int) -> Rows:
    kept = []
    for item in items:
        if item and nb_samples > 0:
            kept.append(item[:nb_samples])
            nb_samples -= len(kept[-1])
    return kept


def dealt_out(items: list[Any], rank: int, world_size: int, remainder: str) -> list[Any]:
    """Deals like cards: round by round; the last round is as it is, filled up from the start, or left."""
    left = len(items) % world_size
    if left and remainder == "pad":
        items = items + list(itertools.islice(itertools.cycle(items), world_size - left))
    if left and remainder == "drop":
        items = items[:-left]
    return items[rank::world_size]


def rows_of(batch: Mapping[str, Any], rows: list[int]) -> dict[str, Any]:
    """Some rows of a batch, by their place in it."""
    part = {}
    for name, value in batch.items():
        if name in OF_THE_SPLIT:
            part[name] = value
        elif isinstance(value, list):
            part[name] = [value[row] for row in rows]
        else:
            part[name] = value[rows]
    return part


def same(batch):
    return batch


def not_every_third(batch):
    """Some batches are left without a row."""
    return rows_of(batch, [place for place, uid in enumerate(batch["sample_uid"]) if uid % 3])


def one_by_one(batch):
    return [rows_of(batch, [place]) for place in range(len(batch["sample_uid"]))]


def regrouping() -> st.SearchStrategy[Step]:
    """The stages that join and cut batches."""
    size, discard = st.integers(1, 5), st.sampled_from([False, False, True])
    return st.one_of(
        st.builds(
            lambda n, full: Step(f"batch({n}, {full})", lambda s: s.batch(n, full), lambda r: _grouped(r, n, full)),
            size,
            discard,
        ),
        st.builds(
            lambda n, full: Step(
                f"rebatch({n}, {full})",
                lambda s: s.rebatch(n, full),
                lambda r: _full(in_parts(list(itertools.chain(*r)), n), n, full),
            ),
            size,
            discard,
        ),
        st.builds(
            lambda n, full: Step(
                f"sub_batch({n}, {full})",
                lambda s: s.sub_batch(n, full),
                lambda r: _full([part for item in r for part in in_parts(item, n)], n, full),
            ),
            size,
            discard,
        ),
        st.builds(
            lambda n: Step(f"max_samples({n})", lambda s: s.max_samples(n), lambda r: _first(r, n)), st.integers(1, 15)
        ),
    )


def mapping() -> st.SearchStrategy[Step]:
    """The stages that make items of items."""
    return st.sampled_from(
        [
            Step("collate", lambda s: s.collate(), lambda r: r),
            Step("map(same)", lambda s: s.map(same), lambda r: r),
            Step(
                "map(not_every_third)",
                lambda s: s.map(not_every_third),
                lambda r: [[row for row in item if row % 3] for item in r],
            ),
            Step("map(one_by_one)", lambda s: s.map(one_by_one), lambda r: [[row] for item in r for row in item]),
        ]
    )


@st.composite
def shares(draw) -> tuple[int, int, str]:
    """Rank, number of ranks, and what becomes of the remainder."""
    world_size = draw(st.integers(1, 4))
    return draw(st.integers(0, world_size - 1)), world_size, draw(st.sampled_from(["keep", "pad", "drop"]))


@dataclass(frozen=True)
class Chain:
    """A chain that can be made again and again, and the rows of its items.

    Attributes:
        is_copied: `use_advanced_indexing`.
        share: of the samples at the source, by the verb at the end of the chain, or None.
    """

    split: dict[str, Any]
    drawn_at_once: int
    is_random: bool
    is_copied: bool
    steps: list[Step]
    share: tuple[int, int, str] | None

    def source(self) -> SequenceArray:
        sampler = (SamplerRandom if self.is_random else SamplerSequential)(batch_size=self.drawn_at_once)
        shared = tuple(name for name in SHARED if name in self.split)
        return SequenceArray(
            self.split, sampler, use_advanced_indexing=self.is_copied, shared_features=shared
        ).with_seed(SEED)

    def make(self) -> Sequence:
        chain = self.source()
        for step in self.steps:
            chain = step.over(chain)
        if self.share is None:
            return chain
        rank, world_size, remainder = self.share
        return chain.shard(rank, world_size, remainder=remainder)

    def rows(self) -> Rows:
        """The model."""
        order = [uid for batch in self.source() for uid in plain(batch["sample_uid"])]
        if self.share is not None:
            order = dealt_out(order, *self.share)
        rows = in_parts(order, self.drawn_at_once)
        for step in self.steps:
            rows = step.model(rows)
        return rows


@st.composite
def chains(draw) -> Chain:
    """Up to four stages over a random split, of which at most one deals out samples or items to ranks."""
    steps = draw(st.lists(st.one_of(regrouping(), mapping()), max_size=4))
    share = draw(st.none() | shares())
    of_items = share is not None and draw(st.booleans())
    if share is not None and of_items:
        rank, world_size, remainder = share
        steps.insert(
            draw(st.integers(0, len(steps))),
            Step(
                f"SequenceShard{share}",
                lambda s: SequenceShard(s, rank, world_size, remainder=remainder),
                lambda rows: dealt_out(rows, rank, world_size, remainder),
            ),
        )
    return Chain(
        draw(splits()),
        draw(st.integers(1, 4)),
        draw(st.booleans()),
        draw(st.booleans()),
        steps,
        None if of_items else share,
    )
