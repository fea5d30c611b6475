"""A reservoir that is fed all the time, also while its consumer is away for a training step.

    consumer: draws ──▶ Entries ◀── takes results in, sends jobs :a thread of its own
        │                                                            ▲  │
        └────────────── bell: there is room again, an epoch begins ──┘  │
        ◀────────────── news: enough for the first epoch, an error ─────┘

The source, the executor and all stages below belong to the thread. It waits for workers and for its bell at once, and
ends when the sequence is closed, or nobody has the reservoir any more.
"""

from __future__ import annotations

import os
import threading
import weakref

from trw_pipeline.errors import ExecutorError, WouldBlock
from trw_pipeline.executors.bell import Bell
from trw_pipeline.executors.failures import FailureLog
from trw_pipeline.executors.job_executor import JobExecutor
from trw_pipeline.executors.pool import in_owner
from trw_pipeline.executors.waiting import wait_for_any
from trw_pipeline.sequences.iterator import State
from trw_pipeline.sequences.reservoir import Reservoir, Sent
from trw_pipeline.sequences.reservoir_entries import Entry, View
from trw_pipeline.sequences.reservoir_state import ReservoirMark

END_S = 5.0
"""So long the end of the thread is waited for: no longer than a source of the user's that blocks deserves."""


class Feeder:
    """The thread that feeds a reservoir. It knows nothing of who draws, so that it ends when nobody does.

    Args:
        reservoir: is its own, but for the entries, which anyone may draw from.

    Attributes:
        bell: wakes the thread.
        news: wakes the consumer.
        lock: is held while the thread is at the source or the executor; statistics and positions take it too.
    """

    def __init__(self, reservoir: Reservoir) -> None:
        self.reservoir = reservoir
        self.bell, self.news = Bell(), Bell()
        self.lock = threading.Lock()
        self._owner = os.getpid()
        self._thread: threading.Thread | None = None
        self._begins_epoch = False
        self.has_ended = False  # or has to
        self._error: BaseException | None = None

    def begin_epoch(self) -> None:
        """Tells the thread that an epoch begins; it starts with the first one."""
        self.check_owner()
        self._begins_epoch = True
        if self._thread is None:
            # A daemon: one that is at the workers when the program ends sees them closed, and goes no further.
            self._thread = threading.Thread(target=self._run, name="reservoir", daemon=True)
            self._thread.start()
        self.bell.ring()

    def check(self) -> None:
        """Raises, once, what the thread has met; it goes on then."""
        error, self._error = self._error, None
        if error is not None:
            self.bell.ring()
            raise error

    def check_owner(self) -> None:
        """Raises ExecutorError in a forked copy of the program, where there is no thread."""
        if not in_owner(self._owner):
            raise ExecutorError("this reservoir belongs to another process; make one here")

    def end(self) -> None:
        """Ends the thread. Idempotent; does nothing in a forked copy of the program."""
        if not in_owner(self._owner):
            return
        self.has_ended = True
        self.bell.ring()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(END_S)

    def _run(self) -> None:
        while not self.has_ended:
            try:
                self._feed()
            except BaseException as error:  # noqa: BLE001 (the consumer raises it)
                if self.has_ended or self.reservoir.is_closed:
                    break
                self._error = error
                self.news.ring()
            while self._error is not None and not self.has_ended:
                wait_for_any([], bells=[self.bell])
        with self.lock:
            self.reservoir.close_source()
        self.has_ended = True
        self.news.ring()

    def _feed(self) -> None:
        reservoir = self.reservoir
        with self.lock:
            if self._begins_epoch:
                self._begins_epoch = False
                reservoir.begin_epoch()
            was_ready = reservoir.is_ready
            moved = reservoir.step()
            executors, bells = reservoir.executors(), reservoir.bells()
        if reservoir.is_ready and not was_ready:
            self.news.ring()
        if not moved:
            wait_for_any(executors, bells=[self.bell, *bells])


class ContinuousReservoir:
    """What an epoch sees of a reservoir that is fed by a thread. See `Reservoir`; the thread ends with this object.

    Args:
        reservoir: is handed over to the thread.
    """

    def __init__(self, reservoir: Reservoir) -> None:
        self.rules = reservoir.rules
        self.share = reservoir.share
        self.entries = reservoir.entries
        self.can_resume = reservoir.can_resume
        self.executor = reservoir.executor
        self._feeder = Feeder(reservoir)
        self.lock = self._feeder.lock
        weakref.finalize(self, self._feeder.end).atexit = False

    @property
    def is_closed(self) -> bool:
        """Whether the sequence was closed."""
        return self._feeder.has_ended or self._feeder.reservoir.is_closed

    @property
    def log(self) -> FailureLog:
        """What failed since the epoch began that was opened last."""
        return self._feeder.reservoir.log

    @property
    def waiting(self) -> tuple[Entry, Sent] | None:
        """A result for which there is no room yet."""
        return self._feeder.reservoir.waiting

    def begin_epoch(self) -> None:
        """Starts to count failures anew, and sends what has changed of the functions, for the jobs to come."""
        self._feeder.begin_epoch()

    def take_changes(self) -> bool:
        """Sends functions again that have changed; whether items on their way are of old ones."""
        with self.lock:
            return self._feeder.reservoir.take_changes()

    def executors(self) -> list[JobExecutor]:
        """None: all that there are belong to the thread."""
        return []

    def bells(self) -> list[Bell]:
        """Returns what the thread rings."""
        return [self._feeder.news]

    def refresh(self) -> None:
        """Raises what the thread has met, or WouldBlock as long as too few results are in for the first epoch."""
        self._feeder.check_owner()
        self._feeder.check()
        if not self._feeder.reservoir.is_ready:
            raise WouldBlock(f"{len(self.entries)} of min_reservoir_samples={self.rules.min_samples} results are there")

    def make_again(self) -> None:
        """Raises what the thread has met, or WouldBlock until it has made what was loaded."""
        self.refresh()

    def end_epoch(self) -> None:
        """Names what was skipped."""
        self._feeder.reservoir.end_epoch()

    def view(self, length: int | None = None) -> View:
        """Returns slots to draw from: as many as there are, or `length`."""
        return self._feeder.reservoir.view(length)

    def note_draw(self) -> None:
        """Wakes the thread if it waits for room: a result that was served may leave."""
        if self._feeder.reservoir.waiting is not None:
            self._feeder.bell.ring()

    def fill(self) -> bool:
        """Nothing to do: the thread does it."""
        return False

    @property
    def has_background_jobs(self) -> bool:
        """Whether jobs are under way."""
        return self.executor.nb_in_flight > 0

    def nb_stages_with_background_jobs(self) -> int:
        """Returns the number of stages of the source with unfinished or undelivered jobs."""
        with self.lock:
            return self._feeder.reservoir.nb_stages_with_background_jobs()

    def mark(self) -> ReservoirMark | State:
        """Returns what is to be saved, as it is now."""
        with self.lock:
            return self._feeder.reservoir.mark()

    def close_source(self) -> None:
        """Ends the thread, which closes it."""
        self._feeder.end()
