"""What a job costs beyond its own work, as a ratio to what the standard library needs for the same."""

from __future__ import annotations

import multiprocessing
import statistics
import time

import pytest

NB_JOBS = 3000
NB_ROUNDS = 5


def same(x):
    return x


def seconds_of_executor(executor):
    start = time.perf_counter()
    for i in range(NB_JOBS):
        executor.put(i)
    total = sum(executor.get(timeout=60).value for _ in range(NB_JOBS))
    assert total == sum(range(NB_JOBS))
    return time.perf_counter() - start


def seconds_of_pool(pool):
    start = time.perf_counter()
    assert sum(pool.imap(same, range(NB_JOBS), chunksize=1)) == sum(range(NB_JOBS))
    return time.perf_counter() - start


@pytest.mark.slow
def test_trivial_jobs_take_at_most_three_times_as_long_as_in_a_pool_of_multiprocessing(executor_of):
    """USE-5: the best rounds of both, taken in turn: what else runs on the machine only makes a round longer."""
    executor = executor_of(4, same, in_order=True)
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        seconds_of_executor(executor), seconds_of_pool(pool)  # everybody is there
        rounds = [(seconds_of_executor(executor), seconds_of_pool(pool)) for _ in range(NB_ROUNDS)]
        pool.close()
        pool.join()
    ours, theirs = (min(side) for side in zip(*rounds, strict=True))
    assert ours < 3 * theirs, rounds


@pytest.mark.slow
def test_a_single_job_of_an_idle_executor_is_answered_about_as_soon_as_in_a_pool(executor_of):
    """USE-5: there is no polling in between; with a generous factor, since both are below a millisecond."""
    executor = executor_of(4, same)

    def of_executor(i):
        start = time.perf_counter()
        executor.put(i)
        assert executor.get(timeout=60).value == i
        return time.perf_counter() - start

    def of_pool(i):
        start = time.perf_counter()
        assert pool.apply(same, (i,)) == i
        return time.perf_counter() - start

    with multiprocessing.get_context("spawn").Pool(4) as pool:
        pairs = [(of_executor(i), of_pool(i)) for i in range(300)][100:]
        pool.close()
        pool.join()
    ours, theirs = (statistics.median(side) for side in zip(*pairs, strict=True))
    assert ours < 5 * theirs, (ours, theirs)
