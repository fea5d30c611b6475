"""What one rank of several gets of the samples. A rank is one process of a training that many of them share."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

Remainder: TypeAlias = Literal["keep", "pad", "drop"]
"""What becomes of the samples that are left when `world_size` does not divide their number."""


@dataclass(frozen=True)
class Share:
    """Every `world_size`-th of what is dealt out, from the one with number `rank` on.

    Attributes:
        rank: 0 to `world_size - 1`.
        world_size: number of ranks.
        remainder: see `Remainder`.
    """

    rank: int = 0
    world_size: int = 1
    remainder: Remainder = "keep"

    def rows(self, drawn: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Returns those of an epoch's samples, shape (n,), that are of this rank, shape (`count(n)`,)."""
        return np.resize(drawn, self._nb_dealt_out(len(drawn)))[self.rank :: self.world_size]

    def count(self, nb: int) -> int:
        """Returns how many of `nb` are of this rank."""
        return len(range(self.rank, self._nb_dealt_out(nb), self.world_size))

    def _nb_dealt_out(self, nb: int) -> int:
        """Returns `nb`, or the next number above or below it that `world_size` divides."""
        left = nb % self.world_size
        if self.remainder == "keep" or not left:
            return nb
        return nb - left if self.remainder == "drop" else nb - left + self.world_size

    def key(self, number: int) -> tuple[int, ...]:
        """Returns the key of what is the `number`-th at this rank: no other rank has it, nor the seed made of it."""
        return (number * self.world_size + self.rank,)

    def __str__(self) -> str:
        kept = "" if self.remainder == "keep" else f", remainder={self.remainder!r}"
        return f"rank {self.rank} of {self.world_size}{kept}"


WHOLE = Share()
"""What a process gets that shares with nobody."""


def share_of(rank: int | None, world_size: int | None, remainder: Remainder, before: Share) -> Share:
    """Returns the share of a rank; where that is not given, of this process.

    Args:
        rank: 0 to `world_size - 1`, or None for what `torch.distributed` says if it is initialized, else the
            environment (`RANK` and `WORLD_SIZE`, which `torchrun` sets), else rank 0 of 1.
        world_size: number of ranks; given or not as `rank` is.
        remainder: see `Remainder`.
        before: of the samples as they are: they can be dealt out once.

    Raises:
        TypeError: a number is not an int.
        ValueError: a number is out of range, one is given without the other, `remainder` is unknown, or the samples are
            dealt out already.
    """
    if (rank is None) != (world_size is None):
        raise ValueError(f"rank and world_size must be given both or not at all, got {rank!r} and {world_size!r}")
    if rank is None or world_size is None:
        rank, world_size = _of_this_process()
    for name, value in (("rank", rank), ("world_size", world_size)):
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"{name} must be an int, got {value!r}")
    if not 0 <= rank < world_size:
        raise ValueError(f"rank must be at least 0 and below world_size={world_size}, got {rank}")
    if remainder not in get_args(Remainder):
        raise ValueError(f"remainder must be 'keep', 'pad' or 'drop', got {remainder!r}")
    if before.world_size > 1:
        raise ValueError(f"the samples must be dealt out once, they are already: this is {before}")
    return Share(int(rank), int(world_size), remainder)


def _of_this_process() -> tuple[int, int]:
    distributed: Any = sys.modules.get("torch.distributed")  # not loaded, it is not initialized
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    given = {name: os.environ[name] for name in ("RANK", "WORLD_SIZE") if name in os.environ}
    if not given:
        return 0, 1
    try:
        return int(given["RANK"]), int(given["WORLD_SIZE"])
    except (KeyError, ValueError) as error:
        raise ValueError(
            f"the environment must hold RANK and WORLD_SIZE as numbers, or neither, got {given}"
        ) from error
