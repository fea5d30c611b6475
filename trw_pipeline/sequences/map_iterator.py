"""The engine of `SequenceMap`: items go to an executor, results come back as items of the next stage."""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from itertools import chain
from typing import Any, NamedTuple, cast

from trw_pipeline.errors import ClosedError, ExecutorError, FailedJobError, JobError, WouldBlock
from trw_pipeline.executors.bundle import Bundle, BundleMaker, BundleResults
from trw_pipeline.executors.interrupts import interrupts_held
from trw_pipeline.executors.job import uid_of
from trw_pipeline.executors.job_executor import JobExecutor, Result
from trw_pipeline.seeding import JobSeeds
from trw_pipeline.sequences.iterator import Epoch, KeyedItem, Mark, SequenceIterator, State, without_signals
from trw_pipeline.sequences.lender import ExecutorLender
from trw_pipeline.typing import Item, Key

LOOK_EVERY_S = 0.001
"""How often results are looked for while a source takes its time to give items."""


class Pulled(NamedTuple):
    """An item that was taken from the source and is not delivered yet.

    Attributes:
        order: how many items were taken before it.
        key: where it stands at its source.
        before: mark of the source before it gave the item.
        skip: so many elements of its result, a list, were delivered before the position was saved.
        item: the item as it was sent, only where a restored source could not give it again.
    """

    order: int
    key: Key
    before: Mark
    skip: int
    item: Item


class MapMark(NamedTuple):
    """Where a `MapIterator` stood.

    Attributes:
        source: mark of the source before the oldest item not delivered.
        seen: what is delivered of the items that come then: wholly (None), or so many elements.
        items: those on their way that the source could not give again.
        nb_jobs: jobs whose results were delivered.
        nb_failed: of the failures so many.
    """

    source: Mark
    seen: dict[Key, int | None]
    items: list[KeyedItem]
    nb_jobs: int
    nb_failed: int


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
    looks_at_items = False  # whether what an item holds is needed here, and not just where its job runs

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
        self._number = number
        self._key_by(epoch)
        self._in_order = in_order
        self._preprocess = preprocess
        self._collate = collate
        if preprocess is None and not self.looks_at_items:
            source.leave_unread()
        self._exhausted = self._finished = False
        # What the source or `preprocess` raised, and where the source stood, until all items before it are delivered.
        self._deferred: tuple[Exception, Mark] | None = None
        self._nb_taken = self._nb_jobs = 0
        self._nb_more = 0  # items than jobs, since results that are lists came in parts
        self._pulled: dict[int, list[Pulled]] = {}  # ticket -> what is on its way, oldest first
        self._bundles: dict[int, Bundle] = {}  # ticket -> those of them that were sent together
        self._may_bundle = True
        self._gathered, self._maker = list[Pulled](), BundleMaker()  # taken, and to be sent together
        self._alone: tuple[Pulled, Item] | None = None  # taken, and to be sent after them
        self._arrived: deque[tuple[Pulled, Any, FailedJobError | None]] = deque()  # of a bundle: results, or errors
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

    def _key_by(self, epoch: Epoch) -> None:
        self._epoch = epoch
        self._seeds = JobSeeds(epoch.seed, epoch.number, self._number)

    def executors(self) -> list[JobExecutor]:
        """Returns those below, and ours."""
        return [*self._source.executors(), *([] if self._finished else [self._executor])]

    def take_changes(self) -> bool:
        """Also where the last job is done: items may be on their way in a stage above."""
        is_old = self._executor.is_usable and self._executor.send_function()
        return self._source.take_changes() or is_old

    @property
    def nb_items(self) -> int:
        """The jobs delivered, less those that failed, and with each element of a list for itself."""
        return self._nb_jobs - len(self._failed) + self._nb_more

    @property
    def has_background_jobs(self) -> bool:
        """Whether jobs are in flight."""
        return not self._finished and self._executor.nb_in_flight > 0

    # Items in

    def fill(self) -> bool:
        """Sends items until there is no room, the source has none ready, or a result is ready; True if one was sent.

        To look for results costs a system call. So with a bound it is done only where the source takes its time.
        """
        executor = self._executor
        limit = executor.max_jobs_at_once  # here it bounds what waits to be delivered too
        look_at_s = time.monotonic() + LOOK_EVERY_S
        sent = False
        while (limit == 0 or executor.nb_in_flight < limit) and not self._finished and executor.has_room():
            self._take_in(look_at_s)
            if not self._gathered and self._alone is None:
                break
            self._send()
            sent = True
            if limit == 0 or time.monotonic() >= look_at_s:
                look_at_s = time.monotonic() + LOOK_EVERY_S
                if executor.poll():
                    break
        return sent

    def _take_in(self, until: float) -> None:
        """Gathers items for one job: as many as the source has, until it is time to look for results.

        What is gathered outlives an interrupt: it is sent by the next call.
        """
        gathered = self._gathered
        nb = self._executor.items_in_bundle if self._may_bundle else 1
        while self._alone is None and len(gathered) < nb and (not gathered or time.monotonic() < until):
            if self._exhausted or self._deferred is not None:
                break
            before = self._source.mark()
            try:
                key, item = self._again.popleft() if self._again else self._next_of_source()
                skip = self._seen.get(key, 0) if self._seen else 0
            except WouldBlock:
                break
            except StopIteration:
                self._exhausted = True
                break
            except Exception as error:  # noqa: BLE001 (raised when its turn comes, as it would be without workers)
                self._deferred = error, before
                break
            pulled = Pulled(self._nb_taken, key, before, skip or 0, item if self._carries_items else None)
            self._nb_taken += 1
            if skip is None:  # its result was delivered before the position was saved
                del self._seen[key]
                self._note_done(pulled)
            elif nb > 1 and self._maker.add(item):
                gathered.append(pulled)
            else:
                self._may_bundle = self._may_bundle and (nb == 1 or bool(gathered))
                self._alone = pulled, item

    def _next_of_source(self) -> KeyedItem:
        key, item = self._source.advance()
        if self._preprocess is not None and self._seen.get(key, 0) is not None:
            item = without_signals(self._preprocess, item)
        return key, item

    def _send(self) -> None:
        """Sends what is gathered, and then the item that could not travel with it."""
        gathered = self._gathered
        if self._maker.nb != len(gathered):
            raise ExecutorError(f"the stage {self._lender.name!r} was interrupted among its items; open another epoch")
        with interrupts_held() if gathered else nullcontext():
            if gathered:
                bundle = self._maker.made([pulled.key for pulled in gathered], self._seeds)
                items = bundle.items()[:1]
                if len(gathered) == 1:
                    self._send_one(gathered[0], items[0])
                else:
                    ticket = self._executor.put_bundle(bundle, uid_of(items[0]))
                    self._pulled[ticket], self._bundles[ticket] = gathered, bundle
                self._gathered, self._maker = [], BundleMaker()
        if self._alone is not None and self._executor.has_room():
            self._send_one(*self._alone)
            self._alone = None

    def _send_one(self, pulled: Pulled, item: Item) -> None:
        key = pulled.key
        ticket = self._executor.put(item, key=key, uid=uid_of(item), seed=self._seeds(key))
        self._pulled[ticket] = [pulled]

    # Results out

    def advance(self) -> KeyedItem:
        """Returns the next item of the oldest result, or of any result where order is not asked for."""
        one = None
        while not self._elements and one is None:
            self._check_not_closed()
            if self._arrived:
                one = self._take_one(*self._arrived.popleft())
                continue
            if self._finished:
                raise StopIteration
            sent = self.fill()
            if self._executor.nb_in_flight:
                one = self._take(self._executor.next_result(timeout=0))
            elif not sent:
                self._end()
        key, item = one or self._next_element()
        return key, item if self._collate is None else without_signals(self._collate, item)

    def advance_into(self, items: list[Item], nb: int) -> None:
        """Appends an item, and with it those of its bundle that follow it, up to an error."""
        items.append(self.advance()[1])
        arrived, most = self._arrived, len(items) + nb - 1
        if self._collate is None:
            while len(items) < most and arrived and not self._elements and arrived[0][2] is None:
                one = self._take_one(*arrived.popleft())
                if one is not None:
                    items.append(one[1])

    def _next_element(self) -> KeyedItem:
        assert self._open is not None, "elements belong to an open item"
        key = self._open.key
        sub, item = self._elements.popleft()
        self._nb_more += 1
        if not self._elements:
            self._open = None
        return (*key, sub), item

    def _check_not_closed(self) -> None:
        """A closed executor has forgotten its jobs: to go on without them would be an epoch that ends too early."""
        if self._closed or (self._lender.is_closed and not self._finished):
            raise ClosedError(f"the stage {self._lender.name!r} was closed before this epoch was over")

    def _take(self, result: Result) -> KeyedItem | None:
        """Takes in a result and returns it, if it is one item."""
        if result.ticket not in self._bundles:
            return self._take_one(self._pulled.pop(result.ticket)[0], result.value, result.error)
        with interrupts_held():
            self._take_bundle(self._pulled.pop(result.ticket), result)
        return None

    def _take_one(self, pulled: Pulled, value: Any, error: FailedJobError | None) -> KeyedItem | None:
        """Takes in what became of an item, and returns it, if it is one item; a list comes element by element."""
        if self._seen:
            self._seen.pop(pulled.key, None)
        self._nb_jobs += 1
        self._note_done(pulled)
        if error is not None:
            self._add_failure(error)
        elif not isinstance(value, list):
            return pulled.key, value
        else:
            self._nb_more -= 1
            self._elements.extend(list(enumerate(cast("list[Item]", value)))[pulled.skip :])
            self._open = pulled if self._elements else None
        return None

    def _take_bundle(self, all_pulled: list[Pulled], result: Result) -> None:
        """Takes in what became of a bundle; if its worker died, its items are tried again one by one, before others."""
        bundle = self._bundles.pop(result.ticket)
        if result.error is None:
            results: BundleResults = result.value
            for number, (pulled, value) in enumerate(zip(all_pulled, results.values, strict=True)):
                why, error = results.errors.get(number), None
                if why is not None:
                    uid = uid_of(bundle.items()[number])
                    error = self._executor.error_in_bundle(result, pulled.key, uid, why)
                self._arrived.append((pulled, value, error))
            return
        again: dict[int, list[Pulled]] = {}
        for pulled, item in reversed(list(zip(all_pulled, bundle.items(), strict=True))):
            key = pulled.key
            ticket = self._executor.put_first(item, key, uid_of(item), self._seeds(key), result.attempts)
            again[ticket] = [pulled]
        self._pulled = dict(sorted((self._pulled | again).items(), key=lambda one: one[1][0].order))

    def _add_failure(self, error: FailedJobError) -> None:
        self.log.add(error)
        self._failed.append([error.stage, list(error.key or ()), error.uid, error.attempts, str(error)])

    def _note_done(self, pulled: Pulled) -> None:
        """Remembers that an item was delivered before an older one, which is where a saved position will begin."""
        if self._in_order or self._carries_items:
            return
        oldest = self._oldest()
        if oldest is not None and pulled.order > oldest.order:
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

    def mark(self) -> Mark:
        """Returns the mark before the oldest item not delivered, and what was delivered beyond it.

        Where items are regrouped from results that came in any order, a restored source could not give them again:
        there it holds the items that are on their way.
        """
        oldest = self._oldest()
        seen = self._seen | dict.fromkeys(self._done.values())
        if self._open is not None:
            oldest = self._open if oldest is None else min(self._open, oldest)
            seen[self._open.key] = self._elements[0][0]
        if oldest is not None and not self._carries_items:
            source = oldest.before
        else:
            source = self._source.mark() if self._deferred is None else self._deferred[1]
        nb_jobs = self._nb_jobs - (self._open is not None)
        return MapMark(source, seen, [*self._carried(), *self._again], nb_jobs, len(self._failed))

    def _carried(self) -> list[KeyedItem]:
        if not self._carries_items:
            return []
        begun = [] if self._open is None else [self._open]
        arrived = [*(pulled for pulled, _, _ in self._arrived), *self._gathered]
        if self._alone is not None:
            arrived.append(self._alone[0])
        return [
            (pulled.key, pulled.item)
            for pulled in sorted([*begun, *arrived, *chain.from_iterable(self._pulled.values())])
        ]

    def _oldest(self) -> Pulled | None:
        """Returns the oldest item that is taken and not delivered."""
        sent = next(iter(self._pulled.values()), None)
        if self._arrived:
            return self._arrived[0][0] if sent is None else min(sent[0], self._arrived[0][0])
        if sent is not None:
            return sent[0]
        if self._gathered:
            return self._gathered[0]
        return None if self._alone is None else self._alone[0]

    def position_at(self, mark: Mark) -> State:
        """Spells that out."""
        at: MapMark = mark
        return {
            "stage": self.stage,
            "seed": self._epoch.seed,
            "epoch": self._epoch.number,
            "nb_jobs": at.nb_jobs,
            "seen": [[list(key), skip] for key, skip in at.seen.items()],
            "items": [[list(key), item] for key, item in at.items],
            "failed": self._failed[: at.nb_failed],
            "source": self._source.position_at(at.source),
        }

    def go_to(self, position: State) -> None:
        """Goes there: items delivered beyond the oldest open one are skipped, not made again."""
        self.check_position(
            position, seed=int, epoch=int, nb_jobs=int, seen=list, items=list, failed=list, source=Mapping
        )
        self._source.go_to(position["source"])
        self._key_by(Epoch(position["seed"], position["epoch"]))
        self._nb_jobs = position["nb_jobs"]
        self._seen = {tuple(key): skip for key, skip in position["seen"]}
        self._again = deque((tuple(key), item) for key, item in position["items"])
        for stage, key, uid, attempts, text in position["failed"] if self.log.on_error == "skip" else ():
            self._add_failure(JobError(text, stage=stage, key=tuple(key), uid=uid, attempts=attempts))
