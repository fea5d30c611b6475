"""The words of the package as types."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import Any, Literal, TypeAlias

Batch: TypeAlias = MutableMapping[str, Any]
"""Feature name -> array or tensor of shape (N, ...), or list of length N; anything else is batch-wide."""

Item: TypeAlias = Any
"""What a stage hands to the next: a batch, or (from a reservoir) a list of drawn results."""

Key: TypeAlias = tuple[int, ...]
"""Where an item stands at its source: its index, and one more number for each list it was unrolled from."""

default_sample_uid_name = "sample_uid"
"""Name of the feature that identifies a sample."""

Split: TypeAlias = Iterable[Batch]
"""One epoch of "train", "valid" or "test"."""

Dataset: TypeAlias = Mapping[str, Split]
Datasets: TypeAlias = Mapping[str, Dataset]

Function: TypeAlias = Callable[..., Any]
"""A mapped function: one item in, one result (or a list of results, to be unrolled) out."""

Backend: TypeAlias = Literal["process", "thread", "inline"]
StartMethod: TypeAlias = Literal["forkserver", "spawn", "fork"]
NbWorkers: TypeAlias = int | Literal["auto"]
"""A number of workers, or as many as this machine has room for."""

OnError: TypeAlias = Literal["raise", "skip"]
