"""Waiting for one of several executors, and saying so when it takes long."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import zmq

from trw_pipeline.executors.bell import Bell
from trw_pipeline.executors.pool import milliseconds

if TYPE_CHECKING:
    from trw_pipeline.executors.job_executor import JobExecutor

logger = logging.getLogger(__name__)

STALL_S = 30.0
"""By default, a wait of so long is a stall."""

REPEAT_S = 60.0
"""A stall is told again after so long."""


class StallWatch:
    """Says in one log record what runs where, when a wait has become long; at most once a minute.

    Args:
        stall_s: seconds after which it is; `math.inf` never.
    """

    def __init__(self, stall_s: float) -> None:
        self._stall_s = stall_s
        self._told_at = self._tell_at = -math.inf

    def begin(self) -> None:
        """Is called when a wait begins."""
        self._tell_at = max(time.monotonic() + self._stall_s, self._told_at + REPEAT_S)

    def left_s(self, timeout_s: float | None) -> float | None:
        """Returns how long to wait now: until there is something to tell, or for `timeout_s` if that is sooner."""
        if self._tell_at == math.inf:
            return timeout_s
        until_told_s = max(0.0, self._tell_at - time.monotonic())
        return until_told_s if timeout_s is None else min(timeout_s, until_told_s)

    def look(self, executors: Sequence[JobExecutor], report: Callable[[], str | None] = lambda: None) -> None:
        """Tells, if it is time; for all of the executors, of which none tells within the same minute.

        Args:
            executors: that somebody waits for.
            report: says more than the executors can, if it says anything.
        """
        now = time.monotonic()
        if now >= self._tell_at:
            for executor in executors:
                executor.stall_watch._told_at = now
            self._told_at, self._tell_at = now, now + REPEAT_S
            what = report() or "\n".join(executor.report() for executor in executors)
            logger.warning("nothing came for %.3g s; what runs where:\n%s", self._stall_s, what)


def wait_for_any(
    executors: Sequence[JobExecutor],
    timeout_s: float | None = None,
    bells: Sequence[Bell] = (),
    report: Callable[[], str | None] = lambda: None,
) -> float:
    """Returns when something came in for one of the executors (an answer, a death, a close), or after `timeout_s`.

    It takes in what has arrived for all of them. So one whose results nobody wants at present does not end the wait
    of the others for ever. It returns at once where a bell is rung, or was since the last wait, and hushes all of them.
    When it waits for long it says in a log record what runs where, in the words of `report` if that has any.

    Returns:
        The seconds that it waited.

    Raises:
        ExecutorError: the workers of one of them can not start.
    """
    if any([bell.hush() for bell in bells] + [executor.take_in() for executor in executors]):
        return 0.0
    start = time.monotonic()
    watch = executors[-1].stall_watch if executors else StallWatch(math.inf)
    watch.begin()
    while True:
        left_s = None if timeout_s is None else max(0.0, start + timeout_s - time.monotonic())
        if wait_once(executors, bells, watch.left_s(left_s)) or left_s == 0:
            break
        watch.look(executors, report)
    waited_s = time.monotonic() - start
    for executor in executors:
        executor.note_wait(waited_s)
    return waited_s


@contextlib.contextmanager
def ready_to_wait(
    executors: Sequence[JobExecutor], bells: Sequence[Bell]
) -> Iterator[tuple[list[Any], float | None] | None]:
    """Sends what is held back, and keeps open, for the block, what there is to wait for.

    Yields:
        The sockets and descriptors that become readable when there is something to look at, and the seconds after which
        there is whatever comes (a job may have taken too long), or None. Or None instead: there is no reason to wait,
        since one is to be closed or nobody works in the background.
    """
    waitables: list[Any] = [bell.fileno() for bell in bells]
    due_s: list[float] = []
    with contextlib.ExitStack() as uses:
        for pool in dict.fromkeys(executor.pool for executor in executors):
            uses.enter_context(pool.held_open())
            if pool.must_end:
                waitables = []
                break
            soon_s = pool.get_ready_to_wait()
            due_s += [] if soon_s is None else [soon_s]
            waitables += pool.waitables()
        yield (waitables, min(due_s, default=None)) if waitables else None


def wait_once(executors: Sequence[JobExecutor], bells: Sequence[Bell], timeout_s: float | None) -> bool:
    """Waits for something to look at; False if `timeout_s` passed before."""
    with ready_to_wait(executors, bells) as ready:
        if ready is None:
            return True
        waitables, due_s = ready
        is_due = due_s is not None and (timeout_s is None or due_s <= timeout_s)
        poller = zmq.Poller()
        for waitable in waitables:
            poller.register(waitable, zmq.POLLIN)
        return bool(poller.poll(milliseconds(due_s if is_due else timeout_s))) or is_due
