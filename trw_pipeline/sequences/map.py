"""`SequenceMap`: a function over the items of a sequence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Unpack

from trw_pipeline.executors.failures import Failure
from trw_pipeline.executors.function import MappedFunction
from trw_pipeline.sequences.iterator import Epoch
from trw_pipeline.sequences.job_options import JobOptions, lender_of
from trw_pipeline.sequences.lender import ExecutorLender
from trw_pipeline.sequences.map_iterator import MapIterator
from trw_pipeline.sequences.recipe import Recipe
from trw_pipeline.sequences.stage import StageRecipe
from trw_pipeline.typing import Function, Item, NbWorkers


class MapRecipe(StageRecipe):
    """Results of a function over the items of a sequence.

    The function returns one item, or a list, each element of which becomes an item (an empty one gives none). None is a
    failure. It receives a copy: what it does in place changes neither the source nor another sample, with workers or
    without. What it returns is a copy too, but from threads, which hand results over as they are: there a function must
    not keep what it returned and write into it again. Before each call `random`, `numpy.random` and torch are seeded
    from the chain's seed, the epoch, the stage and the item's place at its source, so results do not depend on the
    number of workers; in threads the global generators belong to everybody, and only the generator that the function
    may take as `rng` is reproducible. Without workers they are exchanged for the time of a job and then put back as
    they were: jobs of chains that are read by several threads take turns, but what a thread draws meanwhile outside of
    a job disturbs that job, and is forgotten after it.

    Random transforms of MONAI draw from generators of their own. Those that the function is or refers to (its closure,
    defaults, globals, attributes) get one of each item, as the global generators do; elsewhere, and in threads, say
    `transform.set_random_state(int(rng.integers(2**32)))` yourself.

    Items that take a worker process less than a quarter of a millisecond travel up to 64 at a time and come back
    together; each still has its own seed, error and retries. One by one they travel where they are not arrays, tensors
    and scalars of one layout, where their results take 16 KB or more, and where `max_jobs_at_once`, `job_timeout_s`,
    `max_tasks_per_worker`, `compression` or `max_retries=0` is given.

    Args:
        source_split: gives the items.
        nb_workers: number of workers; 0 runs the function in this process. "auto" is as many as there are usable cores
            (affinity mask, limit of the control group), less one for this process; a log record of level INFO says how
            many. Each stage of a chain counts for itself: who waits takes no core.
        function_to_run: the function, or a list of functions, each of which gets the result of the one before.
        max_jobs_at_once: how many items may be pulled and not delivered; 0 is no limit. None begins with two for each
            worker and finds out whether it takes more to keep them busy (up to 256 each, within `max_bytes_in_flight`).
        worker_post_process_results_fun: see `JobExecutor`.
        queue_timeout: accepted as documented, without effect: nothing here waits by polling.
        preprocess_fn: `preprocess_fn(item, source=sequence)`, in this process, before the item is sent.
        collate_fn: `collate_fn(item, source=sequence)`, in this process, on every item delivered.
        **options: see `trw_pipeline.JobOptions`.

    Raises:
        ValueError: an argument out of range.
        TypeError: an argument of a wrong kind.
    """

    when_small: Mapping[str, Any] = {"nb_workers": 0}

    def __init__(
        self,
        source_split: Recipe,
        nb_workers: NbWorkers,
        function_to_run: Function | list[Function],
        max_jobs_at_once: int | None = None,
        worker_post_process_results_fun: Callable[..., Any] | None = None,
        queue_timeout: float = 0.1,
        preprocess_fn: Callable[..., Item] | None = None,
        collate_fn: Callable[..., Item] | None = None,
        **options: Unpack[JobOptions],
    ) -> None:
        super().__init__(
            source_split,
            nb_workers=nb_workers,
            function_to_run=function_to_run,
            max_jobs_at_once=max_jobs_at_once,
            worker_post_process_results_fun=worker_post_process_results_fun,
            queue_timeout=queue_timeout,
            preprocess_fn=preprocess_fn,
            collate_fn=collate_fn,
            **options,
        )
        self._in_order = options.setdefault("in_order", True)
        self._lender = lender_of(
            nb_workers, function_to_run, max_jobs_at_once, worker_post_process_results_fun, options
        )
        self._failures: list[Failure] = []

    def open_epoch(self, epoch: Epoch) -> MapIterator:
        """Opens an epoch; the workers start now, if they are not there."""
        return self.open_with(MapIterator, epoch)

    def open_with(self, make: Callable[..., MapIterator], epoch: Epoch) -> MapIterator:
        """Does so with an engine that takes what `MapIterator` takes."""
        source = self.open_source(epoch)
        # Bound here, not once for all: a sequence that refers to itself would, with its workers, outlive its users.
        preprocess, collate = (
            None if function is None else partial(function, source=self)
            for function in (self._arguments["preprocess_fn"], self._arguments["collate_fn"])
        )
        iterator = make(source, self._lender, epoch, self.number, self._in_order, preprocess, collate)
        self._failures = iterator.log.failures
        return iterator

    def mapped_function(self) -> MappedFunction:
        """Returns what the workers run."""
        given = self._arguments
        post_process = given["worker_post_process_results_fun"]
        return MappedFunction(given["function_to_run"], post_process, given.get("worker_init"))

    @property
    def is_reproducible(self) -> bool:
        """Whether every pass over an epoch gives the same items in the same order."""
        return self._in_order and super().is_reproducible

    def __len__(self) -> int:
        raise TypeError("the length of map is not known: its function may return any number of items")

    @property
    def failures(self) -> list[Failure]:
        """The samples that were skipped, here and in the stages before, in the epoch opened last."""
        return [*super().failures, *self._failures]

    def own_lender(self) -> ExecutorLender:
        """Returns what lends the executors of this stage."""
        return self._lender

    def release(self) -> None:
        """Ends the workers, here and in the stages before. Idempotent."""
        self._lender.close()
        super().release()

    def describe_stage(self) -> str:
        """Returns this stage as one line."""
        return f"map({self._lender.name}, {self._lender.workers})"
