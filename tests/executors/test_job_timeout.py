"""A job that takes too long is given up and named; its worker is replaced, and nobody else suffers from it."""

from __future__ import annotations

import math
import threading
import time

import psutil
import pytest

import trw_pipeline
from trw_pipeline.errors import JobTimeoutError
from trw_pipeline.executors.waiting import wait_for_any

pytestmark = pytest.mark.slow

LIMIT_S = 0.3
SOON_S = 30.0


def hanging_at(gate, *items):
    """Returns a function that waits for a file at some items."""

    def work(x):
        import os
        import time

        while x in items and not gate.exists():
            time.sleep(0.005)
        return x, os.getpid()

    return work


@pytest.fixture
def gate(tmp_path):
    """Is opened at the end, for threads that nobody can end."""
    path = tmp_path / "open"
    yield path
    path.touch()
    deadline = time.monotonic() + 10
    while any(thread.name.startswith("trw-") for thread in threading.enumerate()) and time.monotonic() < deadline:
        time.sleep(0.005)


def outcomes(executor, nb: int) -> list:
    """Returns the values, or the kinds of the errors, of `nb` jobs."""
    results = [executor.get(timeout=SOON_S) for _ in range(nb)]
    return [result.value[0] if result.error is None else type(result.error).__name__ for result in results]


with_workers = pytest.mark.parametrize("backend", ["process", "thread"])


@with_workers
def test_a_job_that_takes_too_long_is_one_error_that_names_it(gate, executor_of, backend):
    executor = executor_of(1, hanging_at(gate, 0), backend=backend, job_timeout_s=LIMIT_S, name="load")
    executor.put(0, key=(4,), uid="s7")
    with pytest.raises(JobTimeoutError, match=r"job_timeout_s=0\.3") as caught:
        executor.get(timeout=SOON_S)
    error = caught.value
    assert (error.ticket, error.key, error.uid, error.stage, error.attempts) == (0, (4,), "s7", "load", 1)
    assert "job 0, item (4,), sample_uid s7 of 'load' took " in str(error)


def test_its_worker_is_ended_and_replaced(gate, executor_of):
    executor = executor_of(2, hanging_at(gate, "hang"), job_timeout_s=LIMIT_S, on_error="return")
    executor.put("hang")
    error = executor.get(timeout=SOON_S).error
    for i in range(20):
        executor.put(i)
    pids = {executor.get(timeout=SOON_S).pid for _ in range(20)}
    assert isinstance(error, JobTimeoutError)
    assert not psutil.pid_exists(error.pid)
    assert error.pid not in pids
    assert executor.statistics()["workers"] == len(executor.statistics()["per_worker"]) == 2


@with_workers
def test_it_is_not_tried_again(gate, executor_of, tmp_path, backend):
    log = tmp_path / "log"

    def work(x):
        with log.open("a") as file:
            file.write("x")
        while not gate.exists():
            time.sleep(0.005)
        return x, 0

    executor = executor_of(1, work, backend=backend, job_timeout_s=LIMIT_S, max_retries=5, on_error="return")
    executor.put(0)
    assert outcomes(executor, 1) == ["JobTimeoutError"]
    assert log.read_text() == "x"
    assert executor.statistics()["jobs_retried"] == 0


@with_workers
def test_jobs_that_take_less_are_left_alone(gate, executor_of, backend):
    """Together they take more."""
    executor = executor_of(1, lambda x: time.sleep(0.05) or (x, 0), backend=backend, job_timeout_s=1.0, in_order=True)
    for i in range(30):
        executor.put(i)
    assert outcomes(executor, 30) == list(range(30))


def test_a_long_start_is_no_long_job(executor_of):
    executor = executor_of(1, lambda x: (x, 0), job_timeout_s=LIMIT_S, worker_init=lambda: time.sleep(3 * LIMIT_S))
    executor.put(1)
    assert outcomes(executor, 1) == [1]


@with_workers
def test_short_jobs_behind_it_run_elsewhere_and_count_no_attempt(gate, executor_of, backend):
    """All are put before the worker has said hello, so all of them wait at one that will hang."""
    executor = executor_of(
        1,
        hanging_at(gate, "hang"),
        backend=backend,
        job_timeout_s=LIMIT_S,
        on_error="return",
        max_retries=0,
        in_order=True,
    )
    executor.put("hang")
    for i in range(30):
        executor.put(i)
    results = [executor.get(timeout=SOON_S) for _ in range(31)]
    assert [result.value and result.value[0] for result in results] == [None, *range(30)]
    assert {result.attempts for result in results} == {1}


@with_workers
def test_short_jobs_in_one_message_with_it_run_elsewhere(gate, executor_of, backend):
    executor = executor_of(
        1, hanging_at(gate, "hang"), backend=backend, job_timeout_s=LIMIT_S, on_error="return", in_order=True
    )
    for i in range(100):
        executor.put(i)
    outcomes(executor, 100)  # the pool knows now that they are tiny
    for item in (*range(10), "hang", *range(10, 20)):
        executor.put(item)
    assert outcomes(executor, 21) == [*range(10), "JobTimeoutError", *range(10, 20)]


@with_workers
def test_timeouts_one_after_the_other_are_one_error_each(gate, executor_of, backend):
    executor = executor_of(
        2, hanging_at(gate, *range(0, 24, 3)), backend=backend, job_timeout_s=0.1, on_error="return", in_order=True
    )
    for i in range(24):
        executor.put(i)
    assert outcomes(executor, 24) == ["JobTimeoutError" if i % 3 == 0 else i for i in range(24)]


@with_workers
def test_after_it_the_pool_goes_on(gate, executor_of, backend):
    executor = executor_of(
        1, hanging_at(gate, "hang"), backend=backend, job_timeout_s=LIMIT_S, on_error="return", in_order=True
    )
    for _ in range(3):
        executor.put("hang")
        executor.put(1)
        assert outcomes(executor, 2) == ["JobTimeoutError", 1]
        executor.reset()


def test_a_thread_that_was_given_up_leaves_nothing_when_it_ends(gate, executor_of):
    """Nor is its late answer taken for that of another job."""
    executor = executor_of(1, hanging_at(gate, "hang"), backend="thread", job_timeout_s=LIMIT_S, on_error="return")
    before = threading.active_count()
    executor.put("hang")
    executor.put("waits behind it")
    assert sorted(outcomes(executor, 2)) == ["JobTimeoutError", "waits behind it"]
    gate.touch()
    deadline = time.monotonic() + SOON_S
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.005)
    assert threading.active_count() == before
    for i in range(10):
        executor.put(i)
    assert sorted(outcomes(executor, 10)) == list(range(10))
    assert len(executor.pool.results._waiting) == len(executor.pool.items._waiting) == 0


def test_an_executor_closes_while_a_thread_that_was_given_up_still_runs(gate, executor_of):
    executor = executor_of(1, hanging_at(gate, "hang"), backend="thread", job_timeout_s=LIMIT_S, on_error="return")
    executor.put("hang")
    assert outcomes(executor, 1) == ["JobTimeoutError"]
    start = time.monotonic()
    executor.close()
    assert time.monotonic() - start < SOON_S / 2


def test_a_job_that_begins_while_its_predecessor_is_given_up_is_not_lost(gate, executor_of, monkeypatch):
    """The thread comes to its end in the very moment in which it is given up, and begins the next job."""
    go_on, begun = threading.Event(), threading.Event()

    def work(x):
        if x == "slow":
            go_on.wait(SOON_S)
        elif not begun.is_set():
            begun.set()
            time.sleep(0.05)
        return x, 0

    executor = executor_of(1, work, backend="thread", job_timeout_s=LIMIT_S, on_error="return", in_order=True)
    read = executor.pool._read
    bury = executor.pool._bury

    def read_and_let_go_on():
        read()
        go_on.set()
        begun.wait(SOON_S)

    def bury_late(seat):
        monkeypatch.setattr(executor.pool, "_read", read_and_let_go_on)
        try:
            bury(seat)
        finally:
            monkeypatch.setattr(executor.pool, "_read", read)

    monkeypatch.setattr(executor.pool, "_bury", bury_late)
    for item in ("slow", "a", "b"):
        executor.put(item)
    assert outcomes(executor, 3)[1:] == ["a", "b"]


def test_a_wait_for_several_executors_ends_with_it(gate, executor_of):
    hangs = executor_of(1, hanging_at(gate, 1), job_timeout_s=LIMIT_S, on_error="return")
    idle = executor_of(1, lambda x: x)
    hangs.put(1)
    rounds, deadline = 0, time.monotonic() + SOON_S
    while not hangs.poll() and time.monotonic() < deadline:
        wait_for_any([idle, hangs], SOON_S)
        rounds += 1
    assert outcomes(hangs, 1) == ["JobTimeoutError"]
    assert rounds < 200


def test_it_is_counted_as_failed(gate, executor_of):
    executor = executor_of(1, hanging_at(gate, 0), job_timeout_s=LIMIT_S, on_error="skip")
    executor.put(0)
    executor.put(1)
    assert executor.get(timeout=SOON_S).value[0] == 1
    assert [type(failure.error) for failure in executor.failures] == [JobTimeoutError]
    assert executor.statistics()["jobs_failed"] == 1


@pytest.mark.parametrize("max_jobs", [None, 0, 1, 2])
def test_with_any_bound_on_jobs_nothing_waits_for_ever(gate, executor_of, max_jobs):
    executor = executor_of(2, hanging_at(gate, 0, 1, 7), max_jobs, job_timeout_s=0.1, on_error="return", in_order=True)
    got = []
    for i in range(10):
        while not executor.has_room():
            got += outcomes(executor, 1)
        executor.put(i)
    got += outcomes(executor, executor.nb_in_flight)
    assert got == ["JobTimeoutError" if i in (0, 1, 7) else i for i in range(10)]


@with_workers
def test_a_sequence_skips_the_samples_that_take_too_long(gate, backend):
    def slow_at_3(batch):
        import time

        while batch["i"][0] % 10 == 3 and not gate.exists():
            time.sleep(0.005)
        return batch

    samples = trw_pipeline.SequenceArray({"i": list(range(20))}, sampler=trw_pipeline.SamplerSequential())
    sequence = samples.map(slow_at_3, nb_workers=2, backend=backend, job_timeout_s=LIMIT_S, on_error="skip")
    try:
        seen = [[int(batch["i"][0]) for batch in sequence] for _ in range(2)]
    finally:
        sequence.close()
    assert seen == 2 * [[i for i in range(20) if i % 10 != 3]]


@pytest.mark.parametrize("wrong", [0, -1, math.nan, "1", True])
def test_seconds_that_are_none_are_refused(executor_of, wrong):
    with pytest.raises((ValueError, TypeError), match="job_timeout_s"):
        executor_of(1, lambda x: x, job_timeout_s=wrong)


def test_none_and_infinity_are_no_limit(executor_of):
    for limit_s in (None, math.inf):
        executor = executor_of(1, lambda x: time.sleep(0.05) or (x, 0), job_timeout_s=limit_s)
        executor.put(1)
        assert outcomes(executor, 1) == [1]
