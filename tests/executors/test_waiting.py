"""Waiting for several executors at once: at once when something is there, and without spinning when nothing is."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from trw_pipeline.errors import ExecutorError, WouldBlock
from trw_pipeline.executors.bell import Bell
from trw_pipeline.executors.waiting import wait_for_any

FOR_EVER_S = 40.0


def returns_at_once(executors, bells=()) -> bool:
    start = time.monotonic()
    wait_for_any(executors, FOR_EVER_S, bells)
    return time.monotonic() - start < FOR_EVER_S / 2


def let_arrive(executor, nb: int) -> None:
    """Puts `nb` quick jobs, and returns when the answers of all have arrived at the pool, but not at the executor."""
    for i in range(nb):
        executor.put(i)
    executor.pool.get_ready_to_wait()
    deadline = time.monotonic() + 30
    while len(executor.pool._arrived) < nb and time.monotonic() < deadline:
        executor.pool._read()
        time.sleep(0.001)


def test_what_has_arrived_is_not_waited_for(executor_of):
    executor = executor_of(1, lambda x: x)
    let_arrive(executor, 5)
    assert returns_at_once([executor])


def test_answers_are_waited_for(executor_of, tmp_path):
    gate = tmp_path / "open"

    def wait_for_gate(x):
        while not gate.exists():
            time.sleep(0.002)
        return x

    executor = executor_of(1, wait_for_gate)
    executor.put(3)
    wait_for_any([executor], 0.1)
    before = executor.is_ready()
    gate.touch()
    while not executor.poll():
        wait_for_any([executor], FOR_EVER_S)
    assert (before, executor.get(timeout=0).value) == (False, 3)


def test_answers_that_nobody_takes_do_not_end_the_wait_for_others_again_and_again(executor_of):
    idle = executor_of(2, lambda x: x)
    busy = executor_of(1, lambda x: time.sleep(0.5) or x)
    let_arrive(idle, 50)
    busy.put(1)
    rounds = 0
    while not busy.poll():
        wait_for_any([idle, busy], FOR_EVER_S)
        rounds += 1
    assert rounds < 200  # each answer may end it once; a wait that spins takes tens of thousands of rounds


def test_answers_of_before_a_reset_do_not_end_the_wait_again_and_again(executor_of):
    left = executor_of(1, lambda x: x)
    busy = executor_of(1, lambda x: time.sleep(0.5) or x)
    for i in range(50):
        left.put(i)
    left.get(timeout=30)
    left.reset()
    busy.put(1)
    rounds = 0
    while not busy.poll():
        wait_for_any([left, busy], FOR_EVER_S)
        rounds += 1
    assert rounds < 200  # each answer may end it once; a wait that spins takes tens of thousands of rounds


def test_a_death_ends_the_wait(executor_of):
    executor = executor_of(1, lambda x: time.sleep(x) or os.getpid(), max_retries=0, on_error="return")
    executor.put(0.001)
    pid = executor.get(timeout=30).value
    executor.put(600)
    while executor.statistics()["jobs_running"] == 0:  # one that has not begun would run again
        time.sleep(0.001)
    os.kill(pid, signal.SIGKILL)
    while not executor.poll():
        wait_for_any([executor], FOR_EVER_S)
    assert "SIGKILL" in str(executor.get(timeout=0).error)


def test_without_workers_nothing_is_waited_for(executor_of):
    executor = executor_of(0, lambda x: x)
    executor.put(1)
    assert returns_at_once([executor])


def test_a_closed_executor_ends_the_wait(executor_of):
    closed, idle = executor_of(1, lambda x: x), executor_of(1, lambda x: x)
    closed.close()
    assert returns_at_once([idle, closed])


def test_an_executor_that_can_not_start_is_an_error_of_the_wait(executor_of):
    executor = executor_of(1, lambda x: x, worker_init=lambda: 1 // 0)
    executor.put(1)

    def wait_on():
        while True:
            wait_for_any([executor], FOR_EVER_S)

    with pytest.raises(ExecutorError, match="ZeroDivisionError"):
        wait_on()


def test_waiting_counts_as_time_waited(executor_of):
    executor = executor_of(1, lambda x: time.sleep(0.2) or x)
    executor.put(1)
    while not executor.poll():
        wait_for_any([executor], FOR_EVER_S)
    assert executor.statistics()["wait_s"] >= 0.15


def test_a_timeout_is_for_the_whole_of_a_get_that_skips_failures(executor_of):
    executor = executor_of(1, lambda x: time.sleep(0.1) or 1 // 0, on_error="skip")
    executor.put(0)
    with pytest.raises(WouldBlock, match="no job is in flight"):
        executor.get(timeout=30)  # the worker is there from now on
    for i in range(10):
        executor.put(i)
    with pytest.raises(WouldBlock, match="no job has finished"):
        executor.get(timeout=0.35)
    assert 2 <= len(executor.failures) < 11


def test_a_bell_ends_the_wait_for_executors_and_for_nothing_else(executor_of):
    idle = executor_of(1, lambda x: x)
    for executors in ([], [idle]):
        bell, silent = Bell(), Bell()
        ringing = threading.Timer(0.05, bell.ring)
        ringing.start()
        assert returns_at_once(executors, [silent, bell])
        ringing.join()


def test_a_bell_that_was_rung_ends_the_next_wait_and_no_other(executor_of):
    idle = executor_of(1, lambda x: x)
    bell = Bell()
    for _ in range(5000):  # more than there is room for
        bell.ring()
    assert returns_at_once([idle], [bell])
    start = time.monotonic()
    wait_for_any([], 0.05, [bell])
    assert time.monotonic() - start >= 0.05


def test_a_bell_frees_its_descriptors_when_it_is_dropped():
    bell = Bell()
    number = bell.fileno()
    os.fstat(number)
    del bell
    with pytest.raises(OSError):
        os.fstat(number)
