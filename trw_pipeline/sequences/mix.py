"""`SequenceMix`: items of several sequences in one, at random."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from trw_pipeline.errors import CheckpointError, WouldBlock
from trw_pipeline.seeding import generator, job_seed
from trw_pipeline.sequences.iterator import Epoch, KeyedItem, Mark, SequenceIterator, State, check_parts
from trw_pipeline.sequences.junction import JunctionRecipe, seed_of
from trw_pipeline.sequences.recipe import Recipe

End: TypeAlias = Literal["all", "first", "repeat"]


@dataclass(slots=True)
class Branch:
    """One of the sources of a mix.

    Attributes:
        iterator: the pass over it that is open.
        number: of the pass in this epoch.
        is_over: whether it has ended, once at least.
        has_given: whether this pass has given an item.
    """

    iterator: SequenceIterator
    number: int = 0
    is_over: bool = False
    has_given: bool = False


class BranchMark(NamedTuple):
    """Where a `Branch` stood."""

    iterator: SequenceIterator
    mark: Mark
    number: int
    is_over: bool
    has_given: bool


class MixIterator(SequenceIterator):
    """Takes each item of a source that is drawn at random. The draw decides, never the speed of a source.

    The key of an item is the number of its source, that of the pass over it, and its key there.

    Args:
        open_source: opens a pass over a source: `open_source(number of the source, number of the pass, epoch)`.
        weights: of the draws, one for each source.
        end: see `MixRecipe`.
        epoch: keys the draws, together with `number`.
        number: of the stage in the chain.
    """

    stage = "mix"

    def __init__(
        self,
        open_source: Callable[[int, int, Epoch], SequenceIterator],
        weights: Sequence[float],
        end: End,
        epoch: Epoch,
        number: int,
    ) -> None:
        super().__init__(*(open_source(branch, 0, epoch) for branch in range(len(weights))))
        self.has_stable_keys = all(source.has_stable_keys for source in self.sources)
        self._open_source = open_source
        self._weights = weights
        self._end = end
        self._number = number
        self._branches = [Branch(source) for source in self.sources]
        self._drawn: int | None = None  # the source whose item comes next
        self._is_finished = False
        self._draw_from(epoch, 0)

    def _draw_from(self, epoch: Epoch, nb_draws: int) -> None:
        self._epoch = epoch
        self._nb_draws = nb_draws  # that are done with
        self._rng = generator(job_seed(epoch.seed, epoch.number, self._number, "mix"))
        bits: Any = self._rng.bit_generator
        bits.advance(nb_draws)  # each takes one number

    def advance(self) -> KeyedItem:
        """Returns the next item of the source that was drawn, however long that takes."""
        while not self._is_finished:
            if self._drawn is None:
                self._drawn = self._draw()
            drawn = self._drawn
            branch = self._branches[drawn]
            try:
                key, item = branch.iterator.advance()
            except WouldBlock:
                self._keep_others_busy(branch)
                raise
            except StopIteration:
                self._after_the_last(drawn)
            else:
                branch.has_given = True
                self._next_draw()
                return (drawn, branch.number, *key), item
        raise StopIteration

    def _draw(self) -> int:
        """Returns the number of a source, at random by weight among those that still give."""
        weights = [
            weight if self._still_gives(branch) else 0.0
            for branch, weight in zip(self._branches, self._weights, strict=True)
        ]
        left = self._rng.random() * math.fsum(weights)
        for number, weight in enumerate(weights):
            left -= weight
            if left < 0:
                return number
        return max(number for number, weight in enumerate(weights) if weight)  # it was lost in rounding

    def _still_gives(self, branch: Branch) -> bool:
        return not branch.is_over or self._end == "repeat"

    def _next_draw(self) -> None:
        self._drawn = None
        self._nb_draws += 1

    def _keep_others_busy(self, awaited: Branch) -> None:
        for branch in self._branches:
            if branch is not awaited and self._still_gives(branch):
                branch.iterator.fill_all()
                for executor in branch.iterator.executors():
                    executor.take_in()  # workers that have just started get their first jobs

    def _after_the_last(self, number: int) -> None:
        """Ends the epoch if it is time; else begins the source again, if it is to be repeated."""
        branch = self._branches[number]
        if self._end == "repeat" and not branch.has_given:
            raise ValueError(
                f"source {number} of mix is empty: it gave no item in a whole pass, and can not be repeated"
            )
        branch.is_over = True
        self._next_draw()
        self._finish_if_it_is_time()
        if self._end == "repeat" and not self._is_finished:
            self._open_pass(number, branch.number + 1)

    def _finish_if_it_is_time(self) -> None:
        self._is_finished = (any if self._end == "first" else all)(branch.is_over for branch in self._branches)
        if self._is_finished:
            for source in self.sources:
                source.close()  # workers of one that is not over would go on

    def _open_pass(self, number: int, of_pass: int) -> None:
        branch = self._branches[number]
        branch.iterator.close()
        branch.iterator = self._open_source(number, of_pass, self._epoch)
        branch.number, branch.has_given = of_pass, False
        self.sources = tuple(branch.iterator for branch in self._branches)

    def take_changes(self) -> bool:
        """Asks each of the sources."""
        return any([source.take_changes() for source in self.sources])

    def mark(self) -> Mark:
        """Returns the number of the next draw and where each source stands."""
        branches = [
            BranchMark(one.iterator, one.iterator.mark(), one.number, one.is_over, one.has_given)
            for one in self._branches
        ]
        return self._nb_draws, branches

    def position_at(self, mark: Mark) -> State:
        """Spells that out."""
        nb_draws: int = mark[0]
        branches: list[BranchMark] = mark[1]
        sources = [
            {
                "number": at.number,
                "is_over": at.is_over,
                "has_given": at.has_given,
                "position": at.iterator.position_at(at.mark),
            }
            for at in branches
        ]
        epoch = {"seed": self._epoch.seed, "epoch": self._epoch.number}
        return {"stage": self.stage, **epoch, "nb_draws": nb_draws, "sources": sources}

    def go_to(self, position: State) -> None:
        """Goes there, without drawing from the passes before."""
        self.check_position(position, seed=int, epoch=int, nb_draws=int, sources=list)
        self.check_sources(position["sources"])
        if position["nb_draws"] < 0:
            raise CheckpointError(f"the state of {self.stage!r} is damaged: 'nb_draws' is {position['nb_draws']}")
        self._draw_from(Epoch(position["seed"], position["epoch"]), position["nb_draws"])
        for number, state in enumerate(position["sources"]):
            check_parts(
                f"the state of source {number} of {self.stage!r}",
                state, number=int, is_over=bool, has_given=bool, position=Mapping,
            )  # fmt: skip
            if state["number"]:
                self._open_pass(number, state["number"])
            branch = self._branches[number]
            branch.iterator.go_to(state["position"])
            branch.is_over, branch.has_given = state["is_over"], state["has_given"]
        self._finish_if_it_is_time()


class MixRecipe(JunctionRecipe):
    """The items of several sequences in one, drawn at random.

        >>> healthy = SequenceArray({"x": [0, 0, 0, 0]})
        >>> sick = SequenceArray({"x": [1, 1]})
        >>> sorted(int(item["x"][0]) for item in healthy.mix(sick, weights=[3, 1]))
        [0, 0, 0, 0, 1, 1]

    Each draw chooses a source, and takes its next item. The order follows from the seed and from nothing else: where
    the source that was drawn has no item ready, it is waited for, while the workers of all others go on. The random
    numbers of the sources differ from one another, even if they are equal chains with equal seeds.

    Args:
        sources: give the items, any number at any speed.
        weights: how likely a draw is to choose each of the sources, compared with the others: with [3, 1], three items
            of four come from the first, on average. By default all are alike. With `end="all"`, the weights are those
            among the sources that have not ended, so weights like their lengths mix them evenly to the end.
        end: when the epoch ends. "all" (default): when all have ended, so that every item comes once. "first": when a
            source is drawn that has no more; the rest of the others is left out. "repeat": when each has come wholly,
            once at least; one that ends sooner begins again, in another order and with other random numbers, so that
            the weights hold to the end.

    Raises:
        TypeError: a source is no Sequence, or a weight no number.
        ValueError: there is no source; not one weight, finite and above 0, for each source; no such `end`. Or, while
            iterating, a source that is to be repeated is empty.
    """

    def __init__(self, sources: Iterable[Recipe], *, weights: Iterable[float] | None = None, end: End = "all") -> None:
        given = None if weights is None else list(weights)
        super().__init__(sources, weights=given, end=end)
        if end not in get_args(End):
            raise ValueError(f"end must be one of {get_args(End)}, got {end!r}")
        self._weights = [1.0] * len(self.sources) if given is None else check_weights(given, len(self.sources))

    def open_epoch(self, epoch: Epoch) -> SequenceIterator:
        """Opens an epoch of each source."""
        self.check_open()
        below = self.sources

        def open_source(number: int, of_pass: int, epoch: Epoch) -> SequenceIterator:
            return below[number].open_epoch(Epoch(seed_of(epoch.seed, "source", number, of_pass), epoch.number))

        return MixIterator(open_source, self._weights, self._arguments["end"], epoch, self.number)

    def __len__(self) -> int:
        if self._arguments["end"] != "all":
            raise TypeError(
                f"the length of mix is not known: with end={self._arguments['end']!r} it is up to the draws"
            )
        return sum(len(source) for source in self.source_split)

    def describe_stage(self) -> str:
        """Returns this stage as one line."""
        return f"mix(weights={self._weights}, end={self._arguments['end']!r})"


def check_weights(weights: list[Any], nb_sources: int) -> list[float]:
    """Returns weights as floats; raises TypeError or ValueError unless there is a fit one for each source."""
    if len(weights) != nb_sources:
        raise ValueError(f"weights must hold one number for each of the {nb_sources} sources, got {weights}")
    for weight in weights:
        if isinstance(weight, (bool, str)) or not hasattr(weight, "__float__"):
            raise TypeError(f"weights must be numbers, got {weight!r}")
        if not (0 < weight < math.inf):
            raise ValueError(f"weights must be above 0 and finite, got {weight!r}")
    return [float(weight) for weight in weights]
