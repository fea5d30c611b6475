"""Where chains meet: what `zip` and `mix` have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Self

from trw_pipeline.seeding import job_seed
from trw_pipeline.sequences.recipe import EngineRecipe, Recipe


class JunctionRecipe(EngineRecipe):
    """A recipe over several others.

    It keeps the seed of the chain, for what is above and below: unless one is given by `with_seed` it follows from the
    seeds of all sources. `subsample` and `subsample_uids` read samples of an epoch into memory.

    Args:
        sources: the sequences below, one or more. Two of them may be, or stand on, the same sequence: each reads it for
            itself.
        arguments: everything else that the recipe was made with.
    """

    def __init__(self, sources: Iterable[Recipe], **arguments: Any) -> None:
        if isinstance(sources, Recipe):
            raise TypeError("sources must be a list of Sequences, got one Sequence")
        below = tuple(sources)
        for number, source in enumerate(below):
            if not isinstance(source, Recipe):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise TypeError(f"sources[{number}] must be a Sequence, got {type(source).__name__}")
        if not below:
            raise ValueError("sources must hold at least one Sequence, got none")
        super().__init__(None, **arguments)
        self.source_split = below
        self.shared_features = _names_of(source.shared_features for source in below)
        self.batch_wide_features = _names_of(source.batch_wide_features for source in below)

    @property
    def sources(self) -> tuple[Recipe, ...]:
        """The recipes right below."""
        return self.source_split

    @property
    def seed_keeper(self) -> Recipe:
        """This one, also where it has but one source."""
        return self

    def first_seed(self) -> int:
        """Returns a seed that follows from those of the sources."""
        return seed_of(*(source.seed for source in self.sources))

    @property
    def seed_is_given(self) -> bool:
        """Whether it was, here or to all sources."""
        return self._seed_is_given or all(source.seed_keeper.seed_is_given for source in self.sources)

    def with_seed(self, seed: int) -> Self:
        """Returns a chain like this one, with workers of its own, whose random numbers all follow from `seed`.

        Raises:
            TypeError: `seed` is not an integer.
        """
        other = super().with_seed(seed)
        other.source_split = tuple(source.with_seed(seed) for source in self.sources)
        return other

    def over_each(self, change: Callable[[Any], Any]) -> Self:
        """Returns a sequence like this one, with its seed, over what `change` makes of each of its sources."""
        other = self.over(tuple(change(source) for source in self.sources))
        other._seed, other._seed_is_given = self._seed, self._seed_is_given
        return other


def seed_of(*entropy: object) -> int:
    """Digests ints and strings to the seed of a chain, in [0, 2**63)."""
    return int.from_bytes(job_seed(*entropy)[:8], "little") >> 1


def _names_of(groups: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for group in groups for name in group))
