"""The queues and channels of the documented executor: thin doors on its `put` and `get`, and two pipes."""

from __future__ import annotations

import queue
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trw_pipeline.errors import FailedJobError, WouldBlock
from trw_pipeline.executors.start import one_way_pipe

if TYPE_CHECKING:
    from trw_pipeline.executors.job_executor import JobExecutor


class InputQueue:
    """`put(item)` hands an item to the executor."""

    def __init__(self, executor: JobExecutor) -> None:
        self._executor = executor

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """Queues a job.

        Raises:
            queue.Full: no room within `timeout` seconds (None waits), or none now if not `block`.
        """
        try:
            self._executor.put(item, timeout=timeout if block else 0)
        except WouldBlock as error:
            raise queue.Full(str(error)) from error


class OutputQueue:
    """`get()` returns the value of a finished job, or None for a failed one."""

    def __init__(self, executor: JobExecutor) -> None:
        self._executor = executor

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Returns the next result, whatever the executor's `on_error` is: None stands for a failure.

        Raises:
            queue.Empty: nothing came within `timeout` seconds (None waits), or no job is in flight.
        """
        try:
            result = self._executor.next_result(timeout if block else 0)
        except WouldBlock as error:
            raise queue.Empty(str(error)) from error
        return None if isinstance(result.error, FailedJobError) else result.value

    def empty(self) -> bool:
        """Whether no result is ready now."""
        return not self._executor.is_ready()


@dataclass(frozen=True, slots=True)
class Channels:
    """The ends of the two pipes for `worker_post_process_results_fun`, or None where there is no such function.

    Attributes:
        of_main: sends to the workers, and receives from them.
        of_workers: receives from the main process, and sends to it.
    """

    of_main: tuple[Any, Any] = (None, None)
    of_workers: tuple[Any, Any] = (None, None)

    @classmethod
    def open(cls) -> Channels:
        """Makes both pipes."""
        to_worker, from_main = one_way_pipe()
        to_main, from_worker = one_way_pipe()
        return cls((from_main, to_main), (to_worker, from_worker))

    def close(self) -> None:
        """Closes our copies of all ends."""
        for end in (*self.of_main, *self.of_workers):
            if end is not None:
                end.close()
