"""The engine of `SequenceMap`: items go to an executor, results come back as items of the next stage."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Unpack, cast

from trw_pipeline.errors import ClosedError, FailedJobError, JobError, WouldBlock
from trw_pipeline.executors.failures import Failure
from trw_pipeline.executors.job_executor import JobExecutor, Result
from trw_pipeline.seeding import job_seed
from trw_pipeline.sequences.iterator import Epoch, KeyedItem, SequenceIterator, State, without_signals
from trw_pipeline.sequences.job_options import JobOptions, lender_of
from trw_pipeline.sequences.lender import ExecutorLender
from trw_pipeline.sequences.recipe import Recipe
from trw_pipeline.sequences.stage import StageRecipe
from trw_pipeline.typing import Function, Item, Key, default_sample_uid_name


@dataclass(frozen=True, slots=True)
class Pulled:
    """An item that was taken from the source and is not delivered yet.

    Attributes:
        order: how many items were taken before it.
        before: state of the source before it gave the item, or None if the source has none.
        skip: so many elements of its result, a list, were delivered before the position was saved.
        item: the item as it was sent, only where a restored source could not give it again.
    """

    order: int
    key: Key
    before: State | None
    skip: int = 0
    item: Item = None


class MapIterator(SequenceIterator):
    """Runs a function over the items of a source.

    Args:
        source: gives the items.
        lender: lends the executor for this epoch.
        epoch: keys the seeds of the jobs, together with `number`.
        number: of the stage in the chain.
        in_order: results come in the order of the source.
        preprocess: called with each item before it is sent.
        collate: called with each item before it is delivered.
    """

    stage = "map"

    def __init__(
        self,
        source: SequenceIterator,
        lender: ExecutorLender,
        epoch: Epoch,
        number: int,
        in_order: bool,
        preprocess: Callable[[Item], Item] | None = None,
        collate: Callable[[Item], Item] | None = None,
    ) -> None:
        super().__init__(source)
        self._carries_items = source.can_resume and not source.has_stable_keys
        self.has_stable_keys = source.has_stable_keys
        self.is_reproducible = in_order and source.is_reproducible
        self._source = source
        self._epoch = epoch
        self._number = number
        self._in_order = in_order
        self._preprocess = preprocess
        self._collate = collate
        self._exhausted = self._finished = False
        # What the source or `preprocess` raised, and where the source stood, until all items before it are delivered.
        self._deferred: tuple[Exception, State | None] | None = None
        self._nb_taken = self._nb_jobs = 0
        self._pulled: dict[int, Pulled] = {}  # ticket -> what is on its way, oldest first
        self._open: Pulled | None = None  # the item whose result, a list, is being delivered
        self._elements: deque[tuple[int, Item]] = deque()
        self._done: dict[int, Key] = {}  # order -> key of what was delivered while an older item is on its way
        self._seen: dict[Key, int | None] = {}  # after a restart: delivered already, wholly (None) or in part
        self._again: deque[KeyedItem] = deque()  # after a restart: items that the source can not give again
        self._failed: list[list[Any]] = []  # the failures of this epoch as plain data
        self._executor = lender.borrow()
        self.log = self._executor.log
        self._lender = lender
        self._give_back = weakref.finalize(self, lender.give_back, self._executor)
        self._give_back.atexit = False

    def executors(self) -> list[JobExecutor]:
        """Returns those below, and ours."""
        return [*self._source.executors(), *([] if self._finished else [self._executor])]

    @property
    def has_background_jobs(self) -> bool:
        """Whether jobs are in flight."""
        return not self._finished and self._executor.nb_in_flight > 0

    # Items in

    def fill(self) -> bool:
        """Sends items until there is no room, the source has none ready, or a result is ready; True if one was sent."""
        sent = False
        while self._has_room():
            before = self._source.position() if self._source.can_resume else None
            try:
                key, item = self._again.popleft() if self._again else self._take_in()
            except WouldBlock:
                break
            except StopIteration:
                self._exhausted = True
                break
            except Exception as error:  # noqa: BLE001 (raised when its turn comes, as it would be without workers)
                self._deferred = error, before
                break
            pulled = Pulled(self._nb_taken, key, before, self._seen.get(key) or 0)
            self._nb_taken += 1
            if self._seen.pop(key, 0) is None:
                self._note_done(pulled)
                continue
            self._send(replace(pulled, item=item) if self._carries_items else pulled, item)
            sent = True
            if self._executor.poll():
                break
        return sent

    def _take_in(self) -> KeyedItem:
        key, item = self._source.advance()
        if self._preprocess is not None and self._seen.get(key, 0) is not None:
            item = without_signals(self._preprocess, item)
        return key, item

    def _has_room(self) -> bool:
        limit = self._executor.max_jobs_at_once  # here it bounds what waits to be delivered too
        return (
            not self._exhausted
            and not self._finished
            and self._deferred is None
            and self._executor.has_room()
            and (limit == 0 or self._executor.nb_in_flight < limit)
        )

    def _send(self, pulled: Pulled, item: Item) -> None:
        seed = job_seed(self._epoch.seed, self._epoch.number, self._number, pulled.key)
        ticket = self._executor.put(item, timeout=0, key=pulled.key, uid=uid_of(item), seed=seed)
        self._pulled[ticket] = pulled

    # Results out

    def advance(self) -> KeyedItem:
        """Returns the next item of the oldest result, or of any result where order is not asked for."""
        while not self._elements:
            self._check_not_closed()
            if self._finished:
                raise StopIteration
            sent = self.fill()
            if self._executor.nb_in_flight:
                try:
                    self._take(self._executor.next_result(timeout=0))
                except WouldBlock:
                    if not sent:
                        raise
            elif not sent:
                self._end()
        assert self._open is not None, "elements belong to an open item"
        sub, item = self._elements.popleft()
        key = self._open.key if sub < 0 else (*self._open.key, sub)
        if not self._elements:
            self._open = None
        return key, item if self._collate is None else without_signals(self._collate, item)

    def _check_not_closed(self) -> None:
        """A closed executor has forgotten its jobs: to go on without them would be an epoch that ends too early."""
        if self._closed or (self._lender.is_closed and not self._finished):
            raise ClosedError(f"the stage {self._lender.name!r} was closed before this epoch was over")

    def _take(self, result: Result) -> None:
        pulled = self._pulled.pop(result.ticket)
        self._nb_jobs += 1
        self._note_done(pulled)
        if result.error is not None:
            self._add_failure(result.error)
        elif isinstance(result.value, list):
            elements = list(enumerate(cast("list[Item]", result.value)))[pulled.skip :]
            self._open = pulled if elements else None
            self._elements.extend(elements)
        else:
            self._open = pulled
            self._elements.append((-1, result.value))

    def _add_failure(self, error: FailedJobError) -> None:
        self.log.add(error)
        self._failed.append([error.stage, list(error.key or ()), error.uid, error.attempts, str(error)])

    def _note_done(self, pulled: Pulled) -> None:
        """Remembers that an item was delivered before an older one, which is where a saved position will begin."""
        if self._in_order or self._carries_items:
            return
        oldest = next((other.order for other in self._pulled.values()), self._nb_taken)
        if pulled.order > oldest:
            self._done[pulled.order] = pulled.key
        else:
            self._done = {order: key for order, key in self._done.items() if order > pulled.order}

    def _end(self) -> None:
        """Nothing is in flight and nothing was sent: raises what the source raised, or ends the epoch, or waits."""
        self._check_not_closed()
        if self._deferred is not None:
            error, self._deferred = self._deferred[0], None
            raise error
        if not self._exhausted:
            raise WouldBlock("the source has no item ready")
        self._finished = True
        self._give_back()
        self.log.finish(self._nb_jobs)

    def close(self) -> None:
        """Gives the executor back; what it still runs is given up."""
        super().close()
        self._finished = True
        self._give_back()

    # Position

    def position(self) -> State:
        """Returns the position of the oldest item not delivered, and what was delivered beyond it.

        Where items are regrouped from results that came in any order, a restored source could not give them again:
        there the position holds the items that were on their way.
        """
        undelivered = list(self._pulled.values())
        if self._open is not None:
            undelivered = sorted([self._open, *undelivered], key=lambda pulled: pulled.order)
        source: Any = None
        if undelivered and not self._carries_items:
            source = undelivered[0].before
        elif self._deferred is not None:
            source = self._deferred[1]
        seen = {**self._seen, **{pulled.key: pulled.skip for pulled in undelivered if pulled.skip}}
        seen.update(dict.fromkeys(self._done.values()))
        if self._open is not None:
            seen[self._open.key] = max(0, self._elements[0][0])
        again = [(pulled.key, pulled.item) for pulled in undelivered if self._carries_items] + list(self._again)
        return {
            "stage": self.stage,
            "seed": self._epoch.seed,
            "epoch": self._epoch.number,
            "nb_jobs": self._nb_jobs - (self._open is not None),
            "seen": [[list(key), skip] for key, skip in seen.items()],
            "items": [[list(key), item] for key, item in again],
            "failed": list(self._failed),
            "source": self._source.position() if source is None else source,
        }

    def go_to(self, position: State) -> None:
        """Goes there: items delivered beyond the oldest open one are skipped, not made again."""
        self.check_position(
            position, seed=int, epoch=int, nb_jobs=int, seen=list, items=list, failed=list, source=Mapping
        )
        self._source.go_to(position["source"])
        self._epoch = Epoch(position["seed"], position["epoch"])
        self._nb_jobs = position["nb_jobs"]
        self._seen = {tuple(key): skip for key, skip in position["seen"]}
        self._again = deque((tuple(key), item) for key, item in position["items"])
        for stage, key, uid, attempts, text in position["failed"] if self.log.on_error == "skip" else ():
            self._add_failure(JobError(text, stage=stage, key=tuple(key), uid=uid, attempts=attempts))


def uid_of(item: Item) -> Any:
    """Returns the `sample_uid` of an item as plain data: one value for one sample, else a list; None without one."""
    uid: Any = cast("Mapping[str, Any]", item).get(default_sample_uid_name) if isinstance(item, Mapping) else None
    values = _plain(uid)
    return values[0] if isinstance(values, list) and len(cast("list[Any]", values)) == 1 else values


def _plain(value: Any) -> Any:
    """Returns what JSON knows; what it does not know becomes text."""
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in cast("list[Any]", value)]
    plain: Any = value.tolist() if hasattr(value, "tolist") else value
    return str(value) if type(plain) is type(value) else _plain(plain)  # a long double is its own `tolist`


class MapRecipe(StageRecipe):
    """The recipe of `SequenceMap`; see there."""

    when_small: Mapping[str, Any] = {"nb_workers": 0}

    def __init__(
        self,
        source_split: Recipe,
        nb_workers: int,
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
        source = self.open_source(epoch)
        # Bound here, not once for all: a sequence that refers to itself would, with its workers, outlive its users.
        preprocess, collate = (
            None if function is None else partial(function, source=self)
            for function in (self._arguments["preprocess_fn"], self._arguments["collate_fn"])
        )
        iterator = MapIterator(source, self._lender, epoch, self.number, self._in_order, preprocess, collate)
        self._failures = iterator.log.failures
        return iterator

    def __len__(self) -> int:
        raise TypeError("the length of map is not known: its function may return any number of items")

    @property
    def failures(self) -> list[Failure]:
        """The samples that were skipped, here and in the stages before, in the epoch opened last."""
        return [*super().failures, *self._failures]

    def statistics(self) -> dict[str, dict[str, int | float]]:
        """Returns, by the name of each stage with workers, the figures of `JobExecutor.statistics`."""
        return {**super().statistics(), f"{self.number}:{self._lender.name}": self._lender.statistics()}

    def release(self) -> None:
        """Ends the workers, here and in the stages before. Idempotent."""
        self._lender.close()
        super().release()

    def describe_stage(self) -> str:
        """Returns this stage as one line."""
        return f"map({self._lender.name}, {self._lender.workers})"
