"""Waiting for one of several executors in an event loop, which runs other tasks meanwhile.

    pools ── sockets, bells, sentinels ──▶ loop.add_reader ─┐
          ── when a job may be late ────▶ loop.call_later ──┴▶ a future that the task awaits

Readers are there while somebody waits, and gone afterwards, whatever ended the wait. A task that takes items which are
ready has nothing to do with them.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import zmq

from trw_pipeline.executors.bell import Bell
from trw_pipeline.executors.job_executor import JobExecutor
from trw_pipeline.executors.protocol import has_message
from trw_pipeline.executors.waiting import StallWatch, ready_to_wait, wait_once


async def async_wait_for_any(
    executors: Sequence[JobExecutor], bells: Sequence[Bell], report: Callable[[], str | None] = lambda: None
) -> float:
    """Does what `wait_for_any` does for a task of an event loop. Cancelled, it leaves everything as it was.

    An event loop that has no `add_reader` (the proactor of Windows) waits by a thread.

    Raises:
        ExecutorError: the workers of one of them can not start.
    """
    if any([bell.hush() for bell in bells] + [executor.take_in() for executor in executors]):
        return 0.0
    start = time.monotonic()
    watch = executors[-1].stall_watch if executors else StallWatch(math.inf)
    watch.begin()
    while not await _wait_once(executors, bells, watch.left_s(None)):
        watch.look(executors, report)
    waited_s = time.monotonic() - start
    for executor in executors:
        executor.note_wait(waited_s)
    return waited_s


async def _wait_once(executors: Sequence[JobExecutor], bells: Sequence[Bell], timeout_s: float | None) -> bool:
    with ready_to_wait(executors, bells) as ready:
        if ready is None:
            await asyncio.sleep(0)
            return True
        waitables, due_s = ready
        try:
            return await _any_readable(waitables, timeout_s, due_s)
        except NotImplementedError:
            pass
    return await _wait_in_thread(executors, bells, timeout_s)


async def _any_readable(waitables: Sequence[Any], timeout_s: float | None, due_s: float | None) -> bool:
    """Waits for one of the waitables, or for `due_s`; False if `timeout_s` passed before.

    Raises:
        NotImplementedError: the event loop can not.
    """
    # The descriptor of a socket becomes readable once for all messages that come until the socket is looked at: who
    # waits for it without having looked, after the last call that touched the socket, may wait for ever.
    sockets = [waitable for waitable in waitables if isinstance(waitable, zmq.Socket)]
    loop = asyncio.get_running_loop()
    woken: asyncio.Future[bool] = loop.create_future()

    def wake(by: bool = True) -> None:
        if not woken.done():
            woken.set_result(by)

    with ExitStack() as undone:
        for waitable in waitables:
            loop.add_reader(waitable, wake)
            undone.callback(loop.remove_reader, waitable)
        for seconds, is_due in ((timeout_s, False), (due_s, True)):
            if seconds is not None:
                undone.callback(loop.call_later(seconds, wake, is_due).cancel)
        if any(map(has_message, sockets)):
            return True
        return await woken


async def _wait_in_thread(executors: Sequence[JobExecutor], bells: Sequence[Bell], timeout_s: float | None) -> bool:
    """Lets a thread wait, which ends at once when this task is cancelled."""
    end = Bell()
    with ThreadPoolExecutor(1, "trw wait") as thread:
        try:
            return await asyncio.wrap_future(thread.submit(wait_once, executors, [*bells, end], timeout_s))
        finally:
            end.ring()
