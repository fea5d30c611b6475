"""`async for item in sequence`: an epoch for the tasks of an event loop."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import AsyncIterator, Awaitable

from trw_pipeline.errors import WouldBlock
from trw_pipeline.executors.async_waiting import async_wait_for_any
from trw_pipeline.sequences.iterator import SequenceIterator, T
from trw_pipeline.typing import Item

TURN_EVERY_S = 0.01
"""Who takes items that are ready, and awaits nothing else, lets other tasks have their turn so often."""


class AsyncEpoch(AsyncIterator[Item]):
    """One open epoch, whose next item a task may await while others run.

    The items are those of the plain loop. While the task waits for workers no thread runs, and the event loop is free.
    What a chain does in this process (a source, `collate`, functions without workers) runs in the thread of the event
    loop, as any code of a task does. Where items are always ready and the loop over them awaits nothing else, other
    tasks get their turn with the first item after each hundredth of a second.

    A task that is cancelled while it waits has taken no item: `anext` goes on where it stopped. One task at a time may
    await an item. An epoch that nobody holds any more (after a `break`, an error, a cancelled task) is closed: jobs
    that wait for a worker are given up; its position can still be saved.

    Args:
        iterator: the epoch. It belongs to this object from now on.
    """

    def __init__(self, iterator: SequenceIterator) -> None:
        self._iterator = iterator
        self._is_waiting = False
        self._turn_at = time.monotonic() + TURN_EVERY_S
        self._close = weakref.finalize(self, iterator.close)
        self._close.atexit = False

    def __aiter__(self) -> AsyncEpoch:
        return self

    async def __anext__(self) -> Item:
        """Returns the next item.

        Raises:
            StopAsyncIteration: the epoch is over.
            RuntimeError: another task waits for an item of this epoch.
            ClosedError: after `aclose`, or after the sequence was closed.
        """
        if self._is_waiting:
            raise RuntimeError("another task waits for an item of this epoch; let each task iterate for itself")
        if time.monotonic() >= self._turn_at:
            await self._wait(asyncio.sleep(0))
        while True:
            try:
                return self._iterator.next_item(blocking=False)
            except StopIteration:
                raise StopAsyncIteration from None
            except WouldBlock:
                executors, bells = self._iterator.executors(), self._iterator.bells()
                if not (executors or bells):
                    raise
            waiting = async_wait_for_any(executors, bells, self._iterator.stall_report)
            self._iterator.waited_s += await self._wait(waiting)

    async def _wait(self, awaitable: Awaitable[T]) -> T:
        self._is_waiting = True
        try:
            return await awaitable
        finally:
            self._is_waiting = False
            self._turn_at = time.monotonic() + TURN_EVERY_S

    async def aclose(self) -> None:
        """Gives up the epoch, as the `close` of its iterator does. Idempotent."""
        self._iterator.close()
