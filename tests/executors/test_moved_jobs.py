"""Jobs that wait behind a slow or frozen worker are moved, once, and looking after them costs nothing."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
import psutil
import pytest

from trw_pipeline.executors.result_slot import empty_result
from trw_pipeline.executors.seat import Seat

pytestmark = pytest.mark.slow


def warm(executor):
    """Waits until every worker is there."""
    deadline = time.monotonic() + 30
    while not all(seat.is_ready for seat in executor.pool._seats.values()) and time.monotonic() < deadline:
        executor.take_in()
        time.sleep(0.001)


def test_jobs_behind_a_slow_one_run_elsewhere(executor_of, tmp_path):
    gate = tmp_path / "open"

    def work(x):
        while x == "slow" and not gate.exists():
            time.sleep(0.002)
        return x

    executor = executor_of(2, work)
    warm(executor)
    executor.put("slow")
    for i in range(1, 21):
        executor.put(i)
    assert sorted(executor.get(timeout=30).value for _ in range(20)) == list(range(1, 21))
    gate.touch()
    assert executor.get(timeout=30).value == "slow"


def test_a_job_that_holds_the_interpreter_lock_does_not_keep_the_pool_awake(executor_of, monkeypatch):
    """Answers of the jobs before it are still at the worker then, and there is nothing to take back."""
    recalls = []
    recall = Seat.recall
    monkeypatch.setattr(Seat, "recall", lambda seat, *rest: recalls.append(1) or recall(seat, *rest))
    executor = executor_of(2, lambda x: sum(range(40_000_000)) if x == "hold" else x)
    for i in range(500):
        executor.put(i)
    for _ in range(500):
        executor.get(timeout=30)
    recalls.clear()
    before = time.process_time()
    for i in [*range(40), "hold"]:
        executor.put(i)
    for _ in range(41):
        executor.get(timeout=30)
    assert len(recalls) < 50
    assert time.process_time() - before < 0.5


@pytest.mark.parametrize("nb_jobs", [1, 2, 3, 6, 7])
def test_jobs_of_a_worker_that_is_frozen_between_two_are_moved(executor_of, nb_jobs):
    """Soon, and also the last one, for which nothing else wakes the pool."""
    executor = executor_of(2, lambda x: (x, os.getpid()))
    warm(executor)
    frozen = psutil.Process(executor.pool.workers()[0].pid)
    frozen.suspend()
    try:
        for i in range(nb_jobs):
            executor.put(i)
        results = [executor.get(timeout=5).value for _ in range(nb_jobs)]
    finally:
        frozen.resume()
    assert sorted(x for x, _ in results) == list(range(nb_jobs))
    assert frozen.pid not in {pid for _, pid in results}


def test_workers_that_are_killed_while_they_leave_do_not_hold_up_the_others(executor_of, tmp_path):
    def die_once(x):
        flag = tmp_path / str(x)
        if x % 5 == 0 and not flag.exists():
            flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return x

    executor = executor_of(2, die_once, max_tasks_per_worker=1)
    start = time.monotonic()
    for i in range(20):
        executor.put(i)
    assert sorted(executor.get(timeout=30).value for _ in range(20)) == list(range(20))
    assert time.monotonic() - start < 20


def test_a_result_larger_than_the_arena_does_not_keep_others_out_of_it(executor_of):
    executor = executor_of(1, lambda nb: np.ones(nb), max_arena_bytes=4_000_000, in_order=True)
    for nb in [50_000] * 5 + [1_000_000] + [50_000] * 20:
        executor.put(nb)
        assert executor.get(timeout=30).value.sum() == nb
    assert executor.statistics()["bytes_arena"] >= 20 * 400_000


def test_small_results_do_not_hold_the_room_of_a_large_one(executor_of):
    executor = executor_of(1, lambda nb: np.ones(nb), in_order=True)
    held = []
    for nb in [4_000_000] + [5_000] * 60:
        executor.put(nb)
        held.append(executor.get(timeout=30).value)
    assert executor.pool._recruiter.room.arena.nb_bytes < 4 * 32_000_000
    assert all(array.all() for array in held)


def test_two_arrays_of_a_result_never_share_memory(executor_of):
    def twice(x):
        array = empty_result(10_000)
        array[:] = x
        return {"a": array, "b": array, "c": array[100:9_000]}

    executor = executor_of(1, twice)
    for x in range(4):
        executor.put(x)
        result = executor.get(timeout=30).value
        result["a"][:] = -1
        assert set(result["b"]) == set(result["c"]) == {x}


def test_a_function_may_keep_more_items_than_there_are_descriptors(executor_of):
    kept = []

    def keep(item):
        import resource

        resource.setrlimit(resource.RLIMIT_NOFILE, (128, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        kept.append(item["x"])
        return [float(array[0]) for array in kept]

    executor = executor_of(1, keep, in_order=True)
    for i in range(300):
        executor.put({"x": np.full(10_000, float(i))})
        result = executor.get(timeout=30).value
    assert result == [float(i) for i in range(300)]
