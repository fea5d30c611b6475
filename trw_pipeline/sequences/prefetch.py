"""`SequencePrefetch`: batches are made ready ahead, in a thread, and on the device."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from trw_pipeline.errors import ClosedError, WouldBlock
from trw_pipeline.executors.bell import Bell
from trw_pipeline.executors.job_executor import JobExecutor
from trw_pipeline.sequences.iterator import Epoch, KeyedItem, Mark, SequenceIterator, State
from trw_pipeline.sequences.prefetch_thread import PrefetchThread
from trw_pipeline.sequences.recipe import Recipe
from trw_pipeline.sequences.stage import StageRecipe, check_count
from trw_pipeline.typing import Item

if TYPE_CHECKING:
    from trw_pipeline.batches.device import Device


class PrefetchIterator(SequenceIterator):
    """Hands out what a thread has made of the source; keys and positions are the source's.

    Args:
        source: gives the items. From the first `advance` on it is the thread's.
        nb_items: so many are made ahead at most.
        prepare: called with each item in the thread, or None.
        hand_over: called with what that returned when it is handed out, in the thread that asks for it; or None.
    """

    stage = "prefetch"

    def __init__(
        self,
        source: SequenceIterator,
        nb_items: int,
        prepare: Callable[[Item], Item] | None = None,
        hand_over: Callable[[Item], Item] | None = None,
    ) -> None:
        super().__init__(source)
        self.has_stable_keys = source.has_stable_keys
        self._source = source
        self._hand_over = hand_over
        self._thread = PrefetchThread(source, nb_items, prepare)
        self._has_begun = False
        self._mark: Mark = None  # of the source, after the item handed out last
        weakref.finalize(self, self._thread.close).atexit = False  # threads left then are ended together

    def advance(self) -> KeyedItem:
        """Returns the oldest item that is ready, or raises what the source raised in its place."""
        self._begin()
        made = self._thread.take()
        if made is None:
            raise WouldBlock("no item is ready")
        self._mark = made.mark
        if made.keyed is None:
            error = made.error
            del made
            assert error is not None, "there is an item or an error"
            try:
                raise error
            finally:
                del error  # its traceback leads to this frame: it would hold itself, and the iterator
        key, item = made.keyed
        return key, item if self._hand_over is None else self._hand_over(item)

    def _begin(self) -> None:
        if self._closed:
            raise ClosedError(f"this iterator of {self.stage!r} is closed")
        if not self._has_begun:
            self._mark = self._source.mark()
            self._has_begun = True
        self._thread.begin()

    def executors(self) -> list[JobExecutor]:
        """None: those below are the thread's."""
        return []

    def bells(self) -> list[Bell]:
        """Returns the thread's."""
        return [self._thread.bell]

    def take_changes(self) -> bool:
        """Also whether something was asked for ahead: nobody can tell what has changed of what ran in this process."""
        self._thread.pause()
        is_old = self._source.take_changes()
        return is_old or (self.can_resume and self._has_begun)

    def fill(self) -> bool:
        """Lets the thread begin, which hands jobs to the workers below too."""
        self._begin()
        return False

    def fill_all(self) -> None:
        """Does the same: the stages below are the thread's."""
        self.fill()

    def mark(self) -> Mark:
        """Returns the mark of the source after the item handed out last."""
        return self._mark if self._has_begun else self._source.mark()

    def position_at(self, mark: Mark) -> State:
        """Returns the position of the source."""
        return {"stage": self.stage, "source": self._thread.position_at(mark)}

    def go_to(self, position: State) -> None:
        """Goes there."""
        self.check_position(position, source=Mapping)
        self._source.go_to(position["source"])

    def close(self) -> None:
        """Ends the thread, and gives up the epoch in every stage below."""
        self._closed = True
        self._thread.close()


class PrefetchRecipe(StageRecipe):
    """Batches that are made ready ahead in a thread, and copied to the device while it computes.

    Put it last in a chain, after `collate()`: there it takes over from the loop what is left to do in this process,
    to wait for workers, join samples and copy to the device. Items, their order, errors and positions are those of the
    source, as if it were not there; a saved position is that of the batch handed out last, not of what was made beyond
    it. It takes some tens of microseconds for each batch. (Of a `max_samples` below it, what an epoch that is given up
    had made ahead is not in the next one; put `max_samples` above it there.)

    On a CUDA device the tensors of a batch go through page-locked memory that is used again for every other batch, and
    from there to the device on a stream of its own, beside the kernels of the loop. The stream that is current where
    the batch is taken waits for that batch alone; nothing has to be synchronised, and the tensors are yours for as long
    as you keep them. `collate(device=...)` copies too, but when the batch is asked for, out of pageable memory and on
    the stream of the kernels: leave it on the CPU before a `prefetch(device=...)`.

    Memory: `nb_batches` on the device beside those that the loop holds; on the host, twice the largest batch, rounded
    up to a power of two, is page-locked; and what the stages below have under way.

    What runs without workers (functions of `map` with `nb_workers=0`, `transforms`, collate functions) runs in the
    thread. As without `prefetch`, the global generators of `random`, `numpy.random` and torch's CPU are seeded for a
    mapped function or a transform, and put back as they were after it; but now the loop runs meanwhile. So a loop over
    such a chain must neither draw from them between two batches nor save their state: it would find those of the
    function, disturb it, and get the same numbers again later. With `nb_workers=1` or more, those of this process are
    left alone. CUDA's are never touched.

    An epoch has its own thread, which begins when the first batch is asked for, and ends with the epoch, with
    `close()`, or when the iterator is dropped. What runs without workers at that moment is waited for up to a second;
    after that, the thread ends by itself when that has come to its end. To save a position waits for it too.

    Args:
        source_split: gives the items.
        nb_batches: so many items, at least 1, are ready or in the making beside the one that was handed out.
        device: where tensors and arrays go, those in nested dicts too; lists and all else stay as they are. Items must
            be dicts then. None leaves items as they are, and only makes them ahead; so does "cpu", but for arrays,
            which become tensors.

    Raises:
        ValueError: `nb_batches` is below 1; `device` is none that torch knows; or, when an epoch is opened, it is a
            CUDA device and there is none.
        TypeError: `nb_batches` is not an int, `device` is no device; or, while iterating with a `device`, an item is
            not a dict.
    """

    def __init__(self, source_split: Recipe, nb_batches: int, device: Device = None) -> None:
        if device is not None:
            from trw_pipeline.batches.staging import check_device  # noqa: PLC0415 (imports torch)

            check_device(device)
        super().__init__(source_split, nb_batches=check_count("nb_batches", nb_batches), device=device)

    def open_epoch(self, epoch: Epoch) -> SequenceIterator:
        """Opens an epoch; its thread begins with the first item that is asked for."""
        self.check_open()
        nb_batches, device = self._arguments.values()
        if device is None:
            return PrefetchIterator(self.open_source(epoch), nb_batches)
        from trw_pipeline.batches.staging import ways_to  # noqa: PLC0415 (imports torch)

        prepare, hand_over = ways_to(device)
        return PrefetchIterator(self.open_source(epoch), nb_batches, prepare, hand_over)

    def __len__(self) -> int:
        return len(self.source_split)

    def describe_stage(self) -> str:
        """Returns this stage as one line."""
        nb_batches, device = self._arguments.values()
        return f"prefetch({nb_batches}{'' if device is None else f', device={device}'})"
