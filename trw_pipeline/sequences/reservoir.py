"""The engine of `SequenceAsyncReservoir`: results are kept and served again while workers make fresh ones.

    source ──▶ jobs ──▶ workers ──▶ finished ──▶ reservoir (the newest `max_samples` results) ──▶ epoch: a snapshot
               └─────────── only at the start of an epoch ──────────┘

The reservoir belongs to the sequence and outlives epochs; an epoch draws from a snapshot, so it does not change under
it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Unpack

from trw_pipeline.errors import ClosedError, ExecutorError, WouldBlock
from trw_pipeline.executors.failures import Failure, FailureLog
from trw_pipeline.executors.job_executor import JobExecutor
from trw_pipeline.executors.private_copy import private_copy
from trw_pipeline.seeding import job_seed
from trw_pipeline.sequences.iterator import Epoch, KeyedItem, SequenceIterator, next_of, without_signals
from trw_pipeline.sequences.job_options import JobOptions, lender_of
from trw_pipeline.sequences.map import uid_of
from trw_pipeline.sequences.recipe import Recipe
from trw_pipeline.sequences.samplers import Sampler, drawn_rows
from trw_pipeline.sequences.stage import StageRecipe, check_count, check_sampler, order_of
from trw_pipeline.typing import Function, Item


class Reservoir:
    """The newest results of a function over an endless source.

    Args:
        open_source: opens one pass over the source; called again, with the next number, when it ends.
        executor: runs the function.
        max_samples: number of results kept; a new one pushes out the oldest.
        min_samples: number of results without which no epoch starts.
        seed: of the chain.
        number: of the stage in the chain.
    """

    def __init__(
        self,
        open_source: Callable[[int], SequenceIterator],
        executor: JobExecutor,
        max_samples: int,
        min_samples: int,
        seed: int,
        number: int,
    ) -> None:
        self.executor = executor
        self.results: deque[Item] = deque(maxlen=max_samples)
        self._open_source = open_source
        self._min_samples = min_samples
        self._seed = seed
        self._number = number
        self._pass = 0
        self._source = open_source(0)
        self._taken_in_pass = 0
        self._longest_pass = 0
        self.is_closed = False
        self._fruitless = 0  # jobs in a row that failed or gave nothing
        self.begin_epoch()

    def begin_epoch(self) -> None:
        """Starts to count failures anew."""
        self.log = FailureLog(self.executor.log.on_error, self.executor.log.max_failures)
        self._nb_jobs = 0

    def executors(self) -> list[JobExecutor]:
        """Returns ours and those of the source."""
        return [*self._source.executors(), self.executor]

    def refresh(self) -> None:
        """Takes in what has finished, and sends jobs in its place; more than once only below `min_samples`.

        Raises:
            WouldBlock: there are not `min_samples` results yet.
            ValueError: the source is empty.
            ExecutorError: every job of a whole pass over the source failed or gave nothing.
        """
        came = self._receive_all()
        while (self.fill() or came) and len(self.results) < self._min_samples:
            came = self._receive_all()
        if len(self.results) < self._min_samples:
            raise WouldBlock(f"{len(self.results)} of min_reservoir_samples={self._min_samples} results are there")
        self.log.finish(self._nb_jobs)

    def fill(self) -> bool:
        """Sends jobs while there is room and the source has items ready; True if one was sent."""
        sent = False
        while self._has_room():
            try:
                key, item = self._source.advance()
            except WouldBlock:
                break
            except StopIteration:
                self._next_pass()
                continue
            seed = job_seed(self._seed, self._pass, self._number, key)
            self.executor.put(item, timeout=0, key=key, uid=uid_of(item), seed=seed)
            self._taken_in_pass += 1
            sent = True
            if self.executor.max_jobs_at_once == 0 and self.executor.poll():
                break  # without a bound, an endless source would be read for ever
        return sent

    def _has_room(self) -> bool:
        limit = self.executor.max_jobs_at_once  # here it bounds what waits to be taken in too
        return self.executor.has_room() and (limit == 0 or self.executor.nb_in_flight < limit)

    def _next_pass(self) -> None:
        if not self._taken_in_pass:
            raise ValueError("the source of async_reservoir is empty: it gave no item in a whole pass")
        self._longest_pass = max(self._longest_pass, self._taken_in_pass)
        self._taken_in_pass = 0
        self._pass += 1
        self._source.close()
        self._source = self._open_source(self._pass)

    def nb_stages_with_background_jobs(self) -> int:
        """Returns the number of stages of the source with unfinished or undelivered jobs."""
        return self._source.has_background_jobs + self._source.nb_sources_with_background_jobs()

    def _receive_all(self) -> bool:
        came = False
        while self.executor.poll():
            self._receive()
            came = True
        return came

    def _receive(self) -> None:
        result = self.executor.next_result(timeout=0)
        self._nb_jobs += 1
        if result.error is not None:
            self.log.add(result.error)
        if result.error is not None or (isinstance(result.value, list) and not result.value):
            self._fruitless += 1
            if self._longest_pass and self._fruitless >= self._longest_pass:
                raise ExecutorError(
                    f"the last {self._fruitless} jobs of async_reservoir, a whole pass over its source, failed or gave "
                    "nothing"
                ) from result.error
            return
        self._fruitless = 0
        self.results.append(result.value)

    def close(self) -> None:
        """Ends the workers and the pass that is open."""
        self.is_closed = True
        self._source.close()
        self.executor.close()


class ReservoirIterator(SequenceIterator):
    """One epoch: draws from a snapshot of the reservoir.

    Args:
        reservoir: is refreshed before the first item.
        sampler: which results are drawn, and how many at a time; None draws each once, the oldest first.
        collate: called with each list of drawn results, or None.
        max_items: the epoch ends after so many draws of a result, or None.
        epoch: keys the order.
        number: of the stage in the chain.
    """

    stage = "async_reservoir"

    def __init__(
        self,
        reservoir: Reservoir,
        sampler: Sampler | None,
        collate: Callable[[list[Item]], Item] | None,
        max_items: int | None,
        epoch: Epoch,
        number: int,
    ) -> None:
        super().__init__()
        self.can_resume = self.is_reproducible = self.has_stable_keys = False
        self._reservoir = reservoir
        self._sampler = sampler
        self._collate = collate
        self._max_items = max_items
        self._epoch = epoch
        self._number = number
        self._has_begun = False
        self._snapshot: list[Item] = []
        self._order: Iterator[Any] | None = None
        self._nb_drawn = 0
        self._count = 0

    def executors(self) -> list[JobExecutor]:
        """Returns those of the reservoir until the epoch has begun; after that nothing has to be waited for."""
        return self._reservoir.executors() if self._order is None else []

    def fill(self) -> bool:
        """Sends jobs of the reservoir; its source hands them out as far as it can."""
        return self._reservoir.fill()

    @property
    def has_background_jobs(self) -> bool:
        """Whether jobs of the reservoir are in flight."""
        return self._reservoir.executor.nb_in_flight > 0

    def nb_sources_with_background_jobs(self) -> int:
        """Returns the number of stages below with unfinished or undelivered jobs."""
        return self._reservoir.nb_stages_with_background_jobs()

    def advance(self) -> KeyedItem:
        """Returns the next drawn results, copied: what is done to them does not change the reservoir."""
        if self._reservoir.is_closed:
            raise ClosedError("the reservoir was closed before this epoch was over")
        if not self._has_begun:
            self._reservoir.begin_epoch()
            self._has_begun = True
        if self._order is None:
            self._reservoir.refresh()
            self._snapshot = list(self._reservoir.results)
            self._order = self._new_order()
        if self._max_items is not None and self._nb_drawn >= self._max_items:
            raise StopIteration
        indices = drawn_rows("results to draw", next_of(self._order, type(self._sampler).__name__), len(self._snapshot))
        if self._max_items is not None:
            indices = indices[: self._max_items - self._nb_drawn]
        self._nb_drawn += len(indices)
        results = [private_copy(self._snapshot[index]) for index in indices]
        key, self._count = (self._count,), self._count + 1
        return key, results if self._collate is None else without_signals(self._collate, results)

    def _new_order(self) -> Iterator[Any]:
        if self._sampler is None:
            return iter(range(len(self._snapshot)))
        return order_of(self._sampler, self._snapshot, self._epoch.seed, self._epoch.number, self._number, "order")


def as_drawn(result: Item) -> list[list[Item]]:
    """Returns the one draw that a reservoir makes of a result, in a list for `map` to unroll; none of an empty one."""
    return [] if isinstance(result, list) and not result else [[result]]


def remove_nested_list(items: Item) -> Item:
    """Takes one level off a list that holds nothing but one list."""
    return items[0] if isinstance(items, list) and len(items) == 1 and isinstance(items[0], list) else items


class ReservoirRecipe(StageRecipe):
    """The recipe of `SequenceAsyncReservoir`; see there."""

    def __init__(
        self,
        source_split: Recipe,
        max_reservoir_samples: int,
        function_to_run: Function | list[Function],
        min_reservoir_samples: int = 1,
        nb_workers: int = 1,
        max_jobs_at_once: int | None = None,
        reservoir_sampler: Sampler | None = None,
        collate_fn: Callable[..., Item] | None = remove_nested_list,
        maximum_number_of_samples_per_epoch: int | None = None,
        **options: Unpack[JobOptions],
    ) -> None:
        super().__init__(
            source_split,
            max_reservoir_samples=check_count("max_reservoir_samples", max_reservoir_samples),
            function_to_run=function_to_run,
            min_reservoir_samples=check_count("min_reservoir_samples", min_reservoir_samples),
            nb_workers=check_count("nb_workers", nb_workers),
            max_jobs_at_once=max_jobs_at_once,
            reservoir_sampler=reservoir_sampler,
            collate_fn=collate_fn,
            maximum_number_of_samples_per_epoch=maximum_number_of_samples_per_epoch,
            **options,
        )
        if min_reservoir_samples > max_reservoir_samples:
            raise ValueError(
                f"min_reservoir_samples must be at most max_reservoir_samples={max_reservoir_samples}, "
                f"got {min_reservoir_samples}"
            )
        if maximum_number_of_samples_per_epoch is not None:
            check_count("maximum_number_of_samples_per_epoch", maximum_number_of_samples_per_epoch)
        if reservoir_sampler is not None:
            check_sampler("reservoir_sampler", reservoir_sampler)
        options.setdefault("in_order", False)
        bound = nb_workers if max_jobs_at_once is None else max_jobs_at_once
        self._lender = lender_of(nb_workers, function_to_run, bound, None, options)
        self._reservoir: Reservoir | None = None

    def open_epoch(self, epoch: Epoch) -> SequenceIterator:
        """Opens an epoch; with the first one the workers start."""
        self.check_open()
        given, source = self._arguments, self.source_split
        if self._reservoir is None:
            self._reservoir = Reservoir(
                lambda number: source.open_epoch(Epoch(epoch.seed, number)),
                self._lender.borrow(),
                given["max_reservoir_samples"],
                given["min_reservoir_samples"],
                epoch.seed,
                self.number,
            )
        return ReservoirIterator(
            self._reservoir,
            given["reservoir_sampler"],
            given["collate_fn"],
            given["maximum_number_of_samples_per_epoch"],
            epoch,
            self.number,
        )

    def reservoir_size(self) -> int:
        """Returns the number of results in the reservoir now."""
        return 0 if self._reservoir is None else len(self._reservoir.results)

    def __len__(self) -> int:
        raise TypeError("the length of async_reservoir is not known: it serves what its workers have finished")

    @property
    def failures(self) -> list[Failure]:
        """The samples that were skipped, here and in the stages before, in the epoch opened last."""
        return [*super().failures, *([] if self._reservoir is None else self._reservoir.log.failures)]

    def statistics(self) -> dict[str, dict[str, int | float]]:
        """Returns, by the name of each stage with workers, the figures of `JobExecutor.statistics`, and `size`."""
        figures = {**self._lender.statistics(), "size": self.reservoir_size()}
        return {**super().statistics(), f"{self.number}:{self._lender.name}": figures}

    def release(self) -> None:
        """Ends the workers, empties the reservoir, and frees what the stages before own. Idempotent."""
        reservoir, self._reservoir = self._reservoir, None
        if reservoir is not None:
            reservoir.close()
        self._lender.close()
        super().release()

    def describe_stage(self) -> str:
        """Returns this stage as one line."""
        kept = self._arguments["max_reservoir_samples"]
        return f"async_reservoir({kept} results of {self._lender.name}, {self._lender.workers})"
