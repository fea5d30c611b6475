"""Does an executor keep its promises while everything around it breaks?

Method: executors of all kinds are opened one after the other and given jobs. Meanwhile workers are killed or stopped,
jobs fail in every way there is, the consumer is interrupted, resets, closes or forgets its executor, holds results for
a while, and has no descriptors and little shared memory left. After each step:

- every job that was put was answered once, or was given up by a reset or a close;
- results came in the order of the tickets, where that is promised, and hold what they should, to the last byte;
- only jobs that fail have failed, each in its own way;
- results that are held have not changed.

After each executor no child, thread, file, or descriptor is left, and in the end no memory.

Result: one line of totals, or a `Violation` that names the seed, the step, what was expected, and the last steps. The
steps follow from the seed alone (`--trace` prints them); at which moment of a step its fault hits does not. A program
that hangs ends by itself with the stacks of its threads; `--verbose` then tells at which step.

Command: `python -m benchmarks.fault_storm --seed 0 --duration 3600`. Where /dev/shm should be full in earnest, as root:
`unshare -m sh -c 'mount -t tmpfs -o size=300m tmpfs /dev/shm && python -m benchmarks.fault_storm --duration 600'`.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import faulthandler
import gc
import logging
import os
import resource
import signal
import statistics
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable
from importlib.util import find_spec
from itertools import islice
from typing import Any

import psutil

from benchmarks.fault_books import Books, Violation
from benchmarks.fault_jobs import Work, item_of, run
from benchmarks.fault_machine import (
    Inventory,
    descriptors,
    few_descriptors,
    filled_shared_memory,
    holders,
    interrupted,
    inventory,
    used_bytes,
    workers,
)
from benchmarks.fault_plan import ENDINGS, Config, Step, plan
from trw_pipeline.errors import WouldBlock
from trw_pipeline.executors.job_executor import JobExecutor
from trw_pipeline.executors.slate import Slate

logger = logging.getLogger(__name__)

STALL_S = 30.0
"""No result for so long is a violation; a step that takes three times as long ends the program with its stacks."""

CLOSE_S = 10.0
"""A close that takes longer is a violation. Busy workers are killed after a second."""

MAX_HELD_BYTES = 100_000_000
MAX_GROWTH_BYTES = 64_000_000
"""The memory of the program may grow so much between the first and the last quarter of the executors."""

MIN_EXECUTORS_FOR_GROWTH = 40
"""With fewer, the memory of the program has not settled yet."""


class Storm:
    """One run.

    Args:
        seed: of the steps.
        folder: for marks that jobs leave; empty.
    """

    def __init__(self, seed: int, folder: str) -> None:
        self.totals: Counter[str] = Counter()
        self._seed = seed
        self._folder = folder
        self._steps: deque[Step] = deque(maxlen=8)
        self._executor: JobExecutor | None = None
        self._books = Books(0, False, None)
        self._held: list[tuple[Work, Any]] = []
        self._stopped: list[psutil.Process] = []
        self._continue_at = 0.0
        self._used_bytes: list[int] = []
        self._before: Inventory | None = None

    def run(self, duration_s: float) -> None:
        """Does steps until the time is over and an executor has ended.

        Raises:
            Violation: a promise was broken.
        """
        for method in ("forkserver", "spawn", "fork", None):  # starts what lives as long as the program
            backend = "thread" if method is None else "process"
            with JobExecutor(1, run, backend=backend, start_method=method) as executor:
                executor.put(item_of(Work(0, "array", 10), self._folder))
                executor.get(timeout=STALL_S)
        self._before = inventory()
        deadline = time.monotonic() + duration_s
        for step in plan(self._seed):
            logger.info("%s", step)
            self._steps.append(step)
            self.totals["steps"] += 1
            faulthandler.dump_traceback_later(3 * STALL_S, exit=True)
            try:
                self._do(step)
            except Exception as error:
                last = "\n".join(str(one) for one in self._steps)
                what = f"{type(error).__name__}: {error}"
                raise Violation(f"seed {self._seed}, step {step.number}: {what}\nThe last steps:\n{last}") from error
            finally:
                faulthandler.cancel_dump_traceback_later()
                self._continue()
            if step.fault in ENDINGS and time.monotonic() > deadline:
                break
        self._check_memory()

    # Steps

    def _do(self, step: Step) -> None:
        if step.config is not None:
            self._open(step.config, step.delay_s)
            return
        if step.release:
            self._release()
        self._books.begin_step(step.hold)
        if step.fault in ENDINGS:
            self._end(step)
        else:
            self._disturb(step)
            self._check_drained()
        self._keep()

    def _open(self, config: Config, interrupt_s: float) -> None:
        """Opens the next executor; if it is interrupted meanwhile, nothing may be left of it."""
        if find_spec("blosc2") is None:
            config = dataclasses.replace(config, compression=None)

        def make() -> None:
            self._executor = JobExecutor(function_to_run=run, on_error="return", **dataclasses.asdict(config))

        if not interrupt_s:
            make()
        elif self._interrupted(interrupt_s, make):
            self._executor = None
            gc.collect()
            self._check_nothing_left()
            make()
        self._books = Books(config.max_retries, config.in_order, config.job_timeout_s)
        self.totals["executors"] += 1

    def _disturb(self, step: Step) -> None:
        """Has the jobs of a step done, and its fault in the midst of it."""
        executor = self._opened()
        if step.fault == "interrupt":
            if self._interrupted(step.delay_s, lambda: self._pump(step.works)):
                self._books.may_miss_one()
                if step.then_reset or executor.is_broken:
                    self._reset()
                self._pump(())
        elif step.fault == "fill shared memory":
            with filled_shared_memory():
                self._pump(step.works)
        elif step.fault == "exhaust descriptors":
            with few_descriptors():
                self._pump(step.works)
        else:
            acts: dict[str, Callable[[], None]] = {
                "none": lambda: None,
                "kill": lambda: self._kill(step),
                "stop": lambda: self._stop(step.choice, step.delay_s),
                "reset": self._reset,
            }
            self._pump(step.works, step.after, acts[step.fault])

    def _end(self, step: Step) -> None:
        self._pump(step.works, step.after, nb_wanted=step.after)
        if step.nb_hit:
            self._stop(step.choice, 3 * STALL_S)
        executor, self._executor = self._opened(), None
        self.totals["retried"] += int(executor.statistics()["jobs_retried"])
        start = time.monotonic()
        if step.fault == "interrupted close":
            self._interrupted(step.delay_s, executor.close)
        if step.fault != "drop":
            executor.close()
        del executor
        gc.collect()  # the error of a job may hold the frames of those who got it, and so the executor
        self._expect(time.monotonic() - start < CLOSE_S, f"an executor that is gone within {CLOSE_S} s")
        self._books.forget()
        self._stopped.clear()
        self.totals[step.fault] += 1
        self._check_nothing_left()

    # Jobs

    def _opened(self) -> JobExecutor:
        assert self._executor is not None, "a plan opens an executor before it uses it"
        return self._executor

    def _pump(
        self,
        works: tuple[Work, ...],
        after: int = -1,
        act: Callable[[], None] = lambda: None,
        nb_wanted: int | None = None,
    ) -> None:
        """Puts the jobs as there is room, and takes results until there are none left, or `nb_wanted` were taken.

        Args:
            works: the jobs.
            after: `act` is called when so many results were taken.
            act: the fault.
            nb_wanted: where to leave off.
        """
        executor, waiting, nb_taken = self._opened(), deque(works), 0
        while waiting or self._books.is_waiting(executor.nb_in_flight):
            if nb_taken == after:
                after = -1
                act()
            elif nb_taken == nb_wanted:
                break
            elif waiting and executor.has_room():
                work = waiting.popleft()
                put_at = time.monotonic()
                self._books.put(executor.put(item_of(work, self._folder), timeout=0), work, put_at)
                self.totals["jobs"] += 1
            else:
                self._take(executor)
                nb_taken += 1

    def _take(self, executor: JobExecutor) -> None:
        deadline = time.monotonic() + STALL_S
        while True:
            try:
                result = executor.get(timeout=0.05 if self._stopped else 1.0)
                break
            except WouldBlock:
                now = time.monotonic()
                self._expect(now < deadline, f"a result within {STALL_S} s; got none: {executor.statistics()}")
                if self._stopped and now > self._continue_at:
                    self._continue()
        nb_late = self._books.nb_late
        self._books.take(result)
        self.totals["late on a busy machine"] += self._books.nb_late - nb_late
        self.totals["results" if result.error is None else type(result.error).__name__] += 1

    def _check_drained(self) -> None:
        executor = self._opened()
        self._expect(executor.nb_in_flight == 0, f"no job in flight, got {executor.statistics()}")
        with contextlib.suppress(WouldBlock):
            self._expect(False, f"no result after the last one, got {executor.get(timeout=0)}")

    def _keep(self) -> None:
        """Takes over what the step wanted to be held, and looks at all that is."""
        kept, self._books.kept = self._books.kept, []
        self._held += kept
        if sum(work.nb_bytes for work, _ in self._held) > MAX_HELD_BYTES:
            self._release()
        for work, value in self._held:
            self._books.check_value(work, value, "held results that stay as they were")
        self.totals["held"] += len(kept)

    def _release(self) -> None:
        for work, value in self._held:
            self._books.check_value(work, value, "held results that stay as they were")
        self._held.clear()

    # Faults

    def _reset(self) -> None:
        self._opened().reset()
        self._books.forget()
        self.totals["resets"] += 1

    def _kill(self, step: Step) -> None:
        """Kills workers that were heard of: a few in a row that never get ready break a pool, as promised."""
        for victim in self._victims(step.choice)[: step.nb_hit]:
            with contextlib.suppress(psutil.NoSuchProcess):
                victim.kill()
                self._books.nb_kills += 1
                self.totals["kills"] += 1

    def _stop(self, choice: float, for_s: float) -> None:
        for victim in self._victims(choice)[:1]:
            with contextlib.suppress(psutil.NoSuchProcess):
                victim.suspend()
                self._stopped.append(victim)
                self._continue_at = time.monotonic() + for_s
                self._books.nb_stops += 1
                self.totals["stops"] += 1

    def _continue(self) -> None:
        for stopped in self._stopped:
            with contextlib.suppress(psutil.NoSuchProcess):
                stopped.resume()
        self._stopped.clear()

    def _victims(self, choice: float) -> list[psutil.Process]:
        """Returns the workers that have given results, beginning with the one chosen."""
        known = sorted((one for one in workers() if one.pid in self._books.pids), key=lambda one: one.pid)
        first = int(choice * len(known))
        return known[first:] + known[:first]

    def _interrupted(self, delay_s: float, act: Callable[[], None]) -> bool:
        was_interrupted = interrupted(delay_s, act)
        self.totals["interrupts"] += was_interrupted
        return was_interrupted

    # What is left

    def _expect(self, holds: bool, what: str) -> None:
        if not holds:
            raise Violation(f"expected {what}")

    def _check_nothing_left(self) -> None:
        _, left = psutil.wait_procs(workers(), timeout=CLOSE_S)
        self._expect(not left, f"no process after the end of an executor, got {left}")
        for thread in threading.enumerate():
            if thread.name.startswith("trw"):
                thread.join(CLOSE_S)  # one that was busy at the close ends after its job
        if self._held or self._books.kept:
            return
        assert self._before is not None, "taken before the first step"
        deadline = time.monotonic() + CLOSE_S
        while (now := inventory()) != self._before:
            if now.nb_descriptors < self._before.nb_descriptors and now[1:] == self._before[1:]:
                self._before = now  # a servant had not yet heard that its child has ended
            elif gc.collect() == 0 and time.monotonic() > deadline:
                raise Violation(
                    f"expected what was open before, {self._before}, got {now}: {descriptors()}; what holds notes of "
                    f"workers: {holders(Slate)}"
                )
        gc.collect()
        self._used_bytes.append(used_bytes())

    def _check_memory(self) -> None:
        if len(self._used_bytes) < MIN_EXECUTORS_FOR_GROWTH:
            return
        quarter = len(self._used_bytes) // 4
        growth = int(statistics.median(self._used_bytes[-quarter:]) - statistics.median(self._used_bytes[:quarter]))
        self.totals["growth_bytes"] = growth
        self._expect(growth < MAX_GROWTH_BYTES, f"no growth of memory, got {growth / 1e6:.0f} MB")


def storm(seed: int, duration_s: float) -> dict[str, int]:
    """Runs a storm.

    It wants the program for itself, and a folder for temporary files where nobody else uses the package.

    Args:
        seed: of the steps.
        duration_s: after this time the executor that is open is still brought to its end.

    Returns:
        What was done: "steps", "executors", "jobs", "results", each kind of error, each fault; "growth_bytes".

    Raises:
        Violation: a promise was broken; the message names the step, and what was expected.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    with tempfile.TemporaryDirectory(prefix="storm-") as folder:
        one = Storm(seed, folder)
        one.run(duration_s)
        return dict(one.totals)


def main(arguments: list[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(description="Breaks everything around executors, and looks whether they hold.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--duration", type=float, default=60.0, help="seconds")
    parser.add_argument("--trace", type=int, metavar="N", help="only print the first N steps")
    parser.add_argument(
        "--verbose", action="store_true", help="log each step: of a program that hangs, to see which it was"
    )
    options = parser.parse_args(arguments)
    if options.trace is not None:
        for step in islice(plan(options.seed), options.trace):
            print(step)
        return 0
    faulthandler.register(signal.SIGUSR1)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has commands in the background ignore it
    if options.verbose:
        logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("trw_pipeline").setLevel(logging.ERROR)  # every death would be told
    with tempfile.TemporaryDirectory(prefix="s-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        try:
            totals = storm(options.seed, options.duration)
        except Violation:
            traceback.print_exc()
            return 1
    print(f"seed {options.seed}:", ", ".join(f"{name} {number}" for name, number in sorted(totals.items())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
