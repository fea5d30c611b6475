"""What every recipe tells of itself: figures, what limits, and what it looks like."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Self

from trw_pipeline.executors.figures import as_dict
from trw_pipeline.sequences.description import Line, as_html, as_text
from trw_pipeline.sequences.lender import ExecutorLender
from trw_pipeline.sequences.report import report_of, statistics_of
from trw_pipeline.sequences.watch import EpochTimes, Watch, each_once
from trw_pipeline.typing import Item


class Watched(ABC):
    """A stage of a chain, which tells of the whole chain up to it."""

    _watch: Watch | None = None  # of the newest epoch

    @abstractmethod
    def __iter__(self) -> Iterator[Item]:
        """Opens the next epoch, independent of every other that is open."""

    @property
    @abstractmethod
    def sources(self) -> tuple[Any, ...]:
        """The recipes right below: none of a source."""

    @property
    @abstractmethod
    def number(self) -> int:
        """Number of the stage in the chain; the source is 0."""

    @abstractmethod
    def like_this(self) -> Self:
        """Returns a chain like this one, with workers of its own."""

    @abstractmethod
    def close(self) -> None:
        """Closes the chain."""

    # Of this stage

    @property
    def stage_name(self) -> str:
        """What figures call this stage: as its function, or what it is."""
        lender = self.own_lender()
        return self.describe_stage().partition("(")[0] if lender is None else lender.name

    def describe_stage(self) -> str:
        """Returns this stage as one line."""
        return type(self).__name__

    def own_statistics(self) -> dict[str, Any]:
        """Returns the figures of this very stage, as `JobExecutor.statistics` has them."""
        lender = self.own_lender()
        return as_dict([]) if lender is None else lender.statistics()

    def own_lender(self) -> ExecutorLender | None:
        """Returns what lends the executors of this very stage, if it has any."""
        return None

    def work(self) -> tuple[float, int]:
        """Returns the seconds that jobs of this stage took so far, and their number."""
        lender = self.own_lender()
        return (0.0, 0) if lender is None else lender.work()

    # Of the chain

    def statistics(self) -> dict[str, dict[str, Any]]:
        """Returns, by the name of each stage, what it did; and last, as "consumer", what was done with the items.

        A name is `"<number>:<name>"`, such as "1:load", counted from the source. Of each stage there is all that
        `JobExecutor.statistics` tells, zero where it has no workers (but `items` and `busy_s` are then of the newest
        epoch), and a reservoir adds to it. Of the newest epoch of this very sequence, from its first item (what comes
        before that is not like the rest) until its end, or the last item that was watched, there are moreover:

        - `epoch_items` that the stage gave, `items_per_s`, and `epoch_jobs` that its workers did;
        - `main_s`: the main process spent in it, estimated from a part of the items (the first, and so many of the
          others that it costs next to nothing);
        - `load`: the share of the time that its workers were in jobs.

        Of the consumer, `busy_s` is the time that it did something else, `wait_s` the time that it waited for items, of
        which `blocked_s` for workers with nothing else to do, `wait_share` the share of the time that it waited, and
        `first_item_s` what the first item took.
        """
        return statistics_of(self, EpochTimes() if self._watch is None else self._watch.times())

    def lenders(self) -> list[ExecutorLender]:
        """Returns what lends the executors of each stage with workers, from the source on."""
        found = [stage.own_lender() for stage in each_once(self)]
        return [lender for lender in found if lender is not None]

    def report(self) -> str:
        """Says what limits, and what to change, in a sentence; then what each stage did, and what runs where.

        That is, of each worker the sample that it is at, and for how long. What limits is judged by the newest epoch of
        this sequence. The same is logged when a consumer has waited for an item for `stall_s`.
        """
        return report_of(self, EpochTimes() if self._watch is None else self._watch.times())

    def describe(self, sample: bool = False) -> str:
        """Shows the chain: each stage, and the features that it gives with shapes, where N is the samples, and dtypes.

        What a stage gives is known once an item has passed through an epoch of this very sequence.

        Args:
            sample: where it is not known, a chain like this one, with workers of its own, makes one item to find out.
        """
        return as_text(self._lines(sample))

    def _repr_html_(self) -> str:
        """Shows the same in a notebook."""
        return as_html(self._lines(sample=False))

    def _lines(self, sample: bool) -> list[Line]:
        layouts = {} if self._watch is None else self._watch.layouts()
        chain = self
        if sample and id(self) not in layouts:
            chain = self.like_this()
            try:
                for _ in chain:
                    break
                layouts = {} if chain._watch is None else chain._watch.layouts()
            finally:
                chain.close()
        return [(stage.describe_stage(), layouts.get(id(stage))) for stage in each_once(chain)]
