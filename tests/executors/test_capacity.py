"""How many jobs may be unfinished: what is given is kept; what is found keeps the workers busy, and no more."""

from __future__ import annotations

import time

import numpy as np
import pytest

from trw_pipeline.errors import WouldBlock
from trw_pipeline.executors.capacity import JOBS_PER_WORKER, MAX_BYTES_IN_FLIGHT, MOST_JOBS_PER_WORKER, Capacity

KB = 1024


def dry_twice(capacity, dry, waited_s, job_bytes):
    """A worker runs dry and the caller has to wait, two times: once is no reason yet."""
    for _ in range(2):
        capacity.note_dry(**dry)
        capacity.note_wait(waited_s, job_bytes)


# The rule


@pytest.mark.parametrize("nb_workers", [1, 2, 7])
def test_what_is_found_begins_with_two_jobs_for_each_worker(nb_workers):
    assert Capacity(None, nb_workers, None).value == JOBS_PER_WORKER * nb_workers == 2 * nb_workers


def test_without_workers_it_is_one_job():
    assert Capacity(None, 0, None).value == 1


@pytest.mark.parametrize("given", [0, 1, 5])
def test_what_is_given_is_kept(given):
    capacity = Capacity(given, 2, None)
    assert not capacity.may_run_dry(100)
    capacity.note_wait(1.0, 1.0)
    assert capacity.value == given


def test_that_a_worker_runs_dry_matters_only_when_all_places_are_taken():
    capacity = Capacity(None, 2, None)
    assert [capacity.may_run_dry(nb) for nb in (0, 3, 4, 5)] == [False, False, True, True]


def test_it_grows_to_what_the_workers_do_while_the_caller_is_away():
    capacity = Capacity(None, 2, None)
    dry_twice(capacity, dict(idle_s=1.0, job_s=0.1, is_held_up=False), 0.001, 1.0)
    assert capacity.value == 2 * (JOBS_PER_WORKER + 10)


def test_it_becomes_a_fifth_less_after_sixteen_answers_for_each_place_without_need():
    capacity = Capacity(None, 2, None)
    dry_twice(capacity, dict(idle_s=1.0, job_s=0.1, is_held_up=False), 0.001, 1.0)
    found = []
    for nb in (16 * 24 - 1, 1, 16 * 19, 10_000, 10_000, 10_000, 10_000, 10_000, 10_000, 10_000, 10_000):
        capacity.note_answers(nb)
        found.append(capacity.value)
    assert found == [24, 19, 15, 12, 9, 7, 5, 4, 4, 4, 4]


@pytest.mark.parametrize("given", [0, 5])
def test_what_is_given_does_not_become_less(given):
    capacity = Capacity(given, 2, None)
    capacity.note_answers(10_000)
    assert capacity.value == given


def test_it_does_not_grow_before_the_caller_had_to_wait():
    capacity = Capacity(None, 2, None)
    capacity.note_dry(idle_s=1.0, job_s=0.1, is_held_up=False)
    assert capacity.value == 4


@pytest.mark.parametrize(("nb_answers", "expected"), [(0, 4), (1, 4), (2, 14), (100, 14)])
def test_it_grows_at_once_when_a_caller_comes_back_whose_workers_had_all_begun(nb_answers, expected):
    capacity = Capacity(None, 2, None)
    capacity.note_answers(50)
    for _ in range(2):
        capacity.begin()
        capacity.note_answers(nb_answers)
        capacity.note_dry(idle_s=0.5, job_s=0.1, is_held_up=False)
        capacity.note_wait(0.1, 1.0)
        assert capacity.value == expected


def test_the_wait_for_the_workers_to_start_is_no_reason_to_grow():
    capacity = Capacity(None, 2, None)
    capacity.note_wait(60.0, 1.0)
    for _ in range(5):
        capacity.note_answers(1)
        capacity.note_dry(idle_s=1.0, job_s=0.1, is_held_up=False)
        capacity.note_wait(0.0, 1.0)
    assert capacity.value == 4


def test_it_does_not_grow_for_a_wait_alone():
    capacity = Capacity(None, 2, None)
    for _ in range(100):
        capacity.note_wait(1.0, 1.0)
    assert capacity.value == 4


def test_it_grows_step_by_step_when_finished_jobs_wait_for_a_slow_one():
    capacity = Capacity(None, 2, None)
    sizes = [capacity.value]
    for _ in range(5):
        dry_twice(capacity, dict(idle_s=0.0, job_s=10.0, is_held_up=True), 1.0, 1.0)
        sizes.append(capacity.value)
    assert sizes == [4, 5, 9, 15, 24, 38]  # two waits each time, but the first counts only the second time


def test_it_does_not_shrink_for_a_smaller_need():
    capacity = Capacity(None, 2, None)
    dry_twice(capacity, dict(idle_s=1.0, job_s=0.01, is_held_up=False), 0.001, 1.0)
    grown = capacity.value
    dry_twice(capacity, dict(idle_s=0.0, job_s=1.0, is_held_up=False), 0.001, 1.0)
    assert capacity.value == grown > 4


@pytest.mark.parametrize("job_s", [0.0, 1e-9])
def test_it_does_not_grow_beyond_a_number(job_s):
    capacity = Capacity(None, 2, None)
    dry_twice(capacity, dict(idle_s=3600.0, job_s=job_s, is_held_up=True), 1.0, 1.0)
    assert capacity.value == 2 * MOST_JOBS_PER_WORKER


@pytest.mark.parametrize(("limit", "most"), [(None, MAX_BYTES_IN_FLIGHT // 10_000_000), (200_000_000, 20), (1, 4)])
def test_it_does_not_grow_beyond_its_bytes(limit, most):
    capacity = Capacity(None, 2, limit)
    dry_twice(capacity, dict(idle_s=3600.0, job_s=0.001, is_held_up=True), 1.0, 10_000_000.0)
    assert capacity.value == most


@pytest.mark.parametrize("name", ["max_jobs_at_once", "max_bytes_in_flight"])
@pytest.mark.parametrize("wrong", [-1, 1.5, "3", True])
def test_a_bound_that_is_none_is_refused(executor_of, name, wrong):
    with pytest.raises((ValueError, TypeError), match=name):
        executor_of(1, lambda x: x, **{name: wrong})


# In an executor


def epoch(executor, items, between=lambda: None) -> list:
    """Takes a result and fills up at once, as a sequence does; what the caller does with it comes after that."""
    values, left = [], list(items)[::-1]
    while left or executor.nb_in_flight:
        if executor.nb_in_flight:
            values.append(executor.get(timeout=30).value)
        while left and executor.has_room():
            executor.put(left.pop())
        between()
    return values


def test_an_executor_that_chooses_takes_two_jobs_for_each_worker_at_first(executor_of):
    executor = executor_of(2, lambda x: time.sleep(0.3) or x, None)
    for i in range(4):
        executor.put(i, timeout=0)
    assert not executor.has_room()
    with pytest.raises(WouldBlock):
        executor.put(4, timeout=0)
    assert executor.statistics()["capacity"] == executor.max_jobs_at_once == 4


@pytest.mark.slow
def test_a_caller_who_goes_away_for_a_step_finds_more_jobs_done(executor_of):
    """Ten results are one step, which takes as long as a hundred jobs."""
    executor = executor_of(1, lambda x: time.sleep(0.002) or x, None, in_order=True)
    nb = 0

    def step():
        nonlocal nb
        nb += 1
        time.sleep(0.2 if nb % 10 == 0 else 0)

    assert epoch(executor, range(100), step) == list(range(100))
    assert executor.max_jobs_at_once >= 20


@pytest.mark.slow
def test_a_caller_who_is_slower_than_the_workers_never_waits_and_nothing_grows(executor_of):
    executor = executor_of(2, lambda x: x, None, in_order=True)
    executor.put(0)
    executor.get(timeout=30)
    waited_s, start = executor.statistics()["wait_s"], time.monotonic()
    assert epoch(executor, range(40), lambda: time.sleep(0.02)) == list(range(40))
    # On a machine that has no core to spare a worker may be so late that the caller does wait.
    waited_s = executor.statistics()["wait_s"] - waited_s
    assert executor.max_jobs_at_once <= 2 * 4 or waited_s >= 0.01 * (time.monotonic() - start)


@pytest.mark.slow
def test_large_results_keep_it_small(executor_of):
    executor = executor_of(
        1, lambda x: np.full(128 * KB, float(x)), None, in_order=True, max_bytes_in_flight=4 * 1024 * KB
    )
    nb = 0

    def go_away():
        nonlocal nb
        nb += 1
        time.sleep(0.05 if nb % 4 == 0 else 0)

    epoch(executor, range(60), go_away)
    assert executor.max_jobs_at_once <= 4


def test_what_was_found_stays_for_the_next_epoch(executor_of):
    executor = executor_of(1, lambda x: x, None, in_order=True)
    dry_twice(executor._capacity, dict(idle_s=1.0, job_s=0.1, is_held_up=False), 0.1, 1.0)
    found = executor.max_jobs_at_once
    executor.reset()
    assert executor.max_jobs_at_once == found > 2
    assert epoch(executor, range(30)) == list(range(30))


@pytest.mark.parametrize("max_jobs", [None, 1, 3])
def test_no_more_jobs_than_that_are_unfinished(executor_of, max_jobs):
    executor = executor_of(2, lambda x: x, max_jobs)
    values = []
    for i in range(100):
        while not executor.has_room():
            values.append(executor.get(timeout=30).value)
        executor.put(i, timeout=0)
        figures = executor.statistics()
        assert figures["jobs_in_flight"] - figures["jobs_finished"] <= executor.max_jobs_at_once
    values += [executor.get(timeout=30).value for _ in range(executor.nb_in_flight)]
    assert sorted(values) == list(range(100))
