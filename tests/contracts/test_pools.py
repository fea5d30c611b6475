"""What every pool promises, seen through the executor: inline, in threads, and in processes."""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time

import numpy as np
import pytest

from trw_pipeline.errors import ClosedError, WouldBlock
from trw_pipeline.executors.job_executor import JobExecutor
from trw_pipeline.executors.waiting import wait_for_any

with_workers = pytest.mark.parametrize("pool_kind", ["thread", "process"])
"""For promises about what happens while a job runs; without workers nothing happens meanwhile."""


def values_of(executor: JobExecutor, nb: int) -> list:
    """Returns the values of the next `nb` results."""
    return [executor.get(timeout=20).value for _ in range(nb)]


# Answers and their order


def test_every_ticket_is_answered_once(pool_of):
    executor = pool_of(lambda x: 10 * x)
    tickets = [executor.put(i) for i in range(50)]
    results = [executor.get(timeout=20) for _ in range(50)]
    assert sorted((r.ticket, r.value) for r in results) == [(t, 10 * i) for i, t in enumerate(tickets)]


def test_nothing_comes_after_the_last_answer(pool_of):
    executor = pool_of(lambda x: x)
    executor.put(1)
    executor.get(timeout=20)
    with pytest.raises(WouldBlock, match="no job is in flight"):
        executor.get()


def test_in_order_gives_results_in_the_order_of_the_tickets(pool_of):
    def uneven(x):
        time.sleep(0.02 if x % 3 == 0 else 0)
        return x

    executor = pool_of(uneven, in_order=True)
    for i in range(30):
        executor.put(i)
    assert values_of(executor, 30) == list(range(30))


def test_out_of_order_gives_each_result_once(pool_of):
    def uneven(x):
        time.sleep(0.02 if x % 3 == 0 else 0)
        return x

    executor = pool_of(uneven, in_order=False)
    for i in range(30):
        executor.put(i)
    assert sorted(values_of(executor, 30)) == list(range(30))


def test_a_slow_job_does_not_hold_up_the_others_out_of_order(executor_of, tmp_path):
    gate = tmp_path / "open"

    def wait_for_gate(x):
        while x == 0 and not gate.exists():
            time.sleep(0.002)
        return x

    executor = executor_of(2, wait_for_gate, in_order=False)
    for i in range(8):
        executor.put(i)
    first = values_of(executor, 4)
    gate.touch()
    assert 0 not in first
    assert sorted(first + values_of(executor, 4)) == list(range(8))


def test_a_list_is_one_result(pool_of):
    executor = pool_of(lambda x: [x, x + 1])
    executor.put(1)
    assert executor.get(timeout=20).value == [1, 2]


def test_an_empty_list_is_a_result(pool_of):
    executor = pool_of(lambda x: [])
    executor.put(1)
    assert executor.get(timeout=20).value == []


def test_functions_of_a_list_are_chained(pool_of):
    executor = pool_of([lambda x: x + 1, lambda x: 10 * x])
    executor.put(1)
    assert executor.get(timeout=20).value == 20


def test_in_place_functions_do_not_alter_the_item(pool_of):
    def in_place(batch):
        batch["x"] *= 2
        batch["list"].append(1)
        return batch

    executor = pool_of(in_place)
    item = {"x": np.arange(3), "list": [0]}
    executor.put(item)
    result = executor.get(timeout=20).value
    assert (item["x"].tolist(), item["list"]) == ([0, 1, 2], [0])
    assert (result["x"].tolist(), result["list"]) == ([0, 2, 4], [0, 1])


def test_a_result_names_who_ran_it(pool_of, pool_kind):
    executor = pool_of(lambda x: os.getpid())
    executor.put(1, key=(4, 2), uid="s7")
    result = executor.get(timeout=20)
    assert (result.key, result.uid, result.attempts, result.error) == ((4, 2), "s7", 1, None)
    assert result.pid == result.value
    assert (result.pid == os.getpid()) == (pool_kind != "process")


def test_a_duration_is_that_of_the_job(pool_of):
    executor = pool_of(lambda x: time.sleep(x) or x)
    executor.put(0.05)
    assert 0.05 <= executor.get(timeout=20).duration_s < 5


# Waiting and bounds


def test_get_without_a_job_in_flight_would_block(pool_of):
    with pytest.raises(WouldBlock):
        pool_of(lambda x: x).get()


@with_workers
def test_get_with_timeout_zero_does_not_wait(executor_of, tmp_path, pool_kind):
    gate = tmp_path / "open"

    def wait_for_gate(x):
        while not gate.exists():
            time.sleep(0.002)
        return x

    executor = executor_of(1, wait_for_gate, backend=pool_kind)
    executor.put(5)
    with pytest.raises(WouldBlock, match="no job has finished"):
        executor.get(timeout=0)
    with pytest.raises(WouldBlock, match="no job has finished"):
        executor.get(timeout=0.01)
    gate.touch()
    assert executor.get(timeout=20).value == 5


@with_workers
def test_put_with_timeout_zero_does_not_wait(executor_of, tmp_path, pool_kind):
    gate = tmp_path / "open"

    def wait_for_gate(x):
        while not gate.exists():
            time.sleep(0.002)
        return x

    executor = executor_of(1, wait_for_gate, 2, backend=pool_kind)
    executor.put(0)
    executor.put(1, timeout=0)
    assert not executor.has_room()
    with pytest.raises(WouldBlock, match="take results"):
        executor.put(2, timeout=0)
    gate.touch()
    assert sorted(values_of(executor, 2)) == [0, 1]


def test_put_waits_for_room(pool_of):
    executor = pool_of(lambda x: x, max_jobs_at_once=2)
    for i in range(20):
        executor.put(i, timeout=20)
    assert sorted(values_of(executor, 20)) == list(range(20))


def test_no_more_jobs_than_max_jobs_at_once_are_unfinished(pool_of):
    executor = pool_of(lambda x: x, max_jobs_at_once=3, output_queue_size=0)
    for i in range(30):
        executor.put(i, timeout=20)
        assert len(executor._table.in_flight) <= 3
    assert sorted(values_of(executor, 30)) == list(range(30))


@pytest.mark.parametrize(("limit", "queue_size", "most"), [(2, 3, 4), (1, 1, 1), (4, None, 7)])
def test_results_that_nobody_takes_bound_the_jobs(pool_of, limit, queue_size, most):
    """At the last `put` fewer than `queue_size` results wait, and `limit` jobs are unfinished: `limit + size - 1`."""
    executor = pool_of(lambda x: x, max_jobs_at_once=limit, output_queue_size=queue_size)
    nb_put = 0
    with contextlib.suppress(WouldBlock):
        while nb_put < 100:
            executor.put(nb_put)
            nb_put += 1
    assert 1 <= nb_put <= most
    assert sorted(values_of(executor, nb_put)) == list(range(nb_put))


def test_an_endless_source_is_read_no_further_than_the_bound(pool_of):
    """MEM-2: whatever the results weigh, what was put and not got stays within the bound."""
    executor = pool_of(lambda x: np.full(10_000, x), max_jobs_at_once=4, output_queue_size=2)
    nb_put = nb_got = 0
    while nb_got < 40:
        while executor.has_room():
            executor.put(nb_put, timeout=0)
            nb_put += 1
            assert nb_put - nb_got <= 4 + 2 - 1
        executor.get(timeout=20)
        nb_got += 1


def test_wait_for_any_returns_when_an_answer_is_there(pool_of):
    executor = pool_of(lambda x: x)
    for i in range(10):
        executor.put(i)
    got = []
    while len(got) < 10:
        wait_for_any([executor])
        while True:
            try:
                got.append(executor.get(timeout=0).value)
            except WouldBlock:
                break
    assert sorted(got) == list(range(10))


# Reset


def test_reset_drops_what_was_in_flight(pool_of):
    executor = pool_of(lambda x: x)
    for i in range(10):
        executor.put(i)
    executor.reset()
    assert executor.nb_in_flight == 0
    executor.put(100)
    assert executor.get(timeout=20).value == 100
    with pytest.raises(WouldBlock):
        executor.get(timeout=0)


@pytest.mark.slow
def test_no_old_result_comes_after_a_reset(pool_of):
    """Rounds of slow jobs, each left in the middle: what comes is always of the newest round."""

    def slow(pair):
        time.sleep(0.005)
        return pair

    executor = pool_of(slow, in_order=False)
    for generation in range(8):
        for i in range(6):
            executor.put((generation, i))
        for _ in range(generation % 4):
            assert executor.get(timeout=20).value[0] == generation
        executor.reset()
    for i in range(6):
        executor.put(("last", i))
    assert sorted(values_of(executor, 6)) == [("last", i) for i in range(6)]


@with_workers
def test_a_running_job_of_before_a_reset_is_not_an_answer(executor_of, tmp_path, pool_kind):
    started, gate = tmp_path / "started", tmp_path / "open"

    def wait_for_gate(x):
        started.touch()
        while not gate.exists():
            time.sleep(0.002)
        return x

    executor = executor_of(1, wait_for_gate, backend=pool_kind)
    executor.put("old")
    while not started.exists():
        executor.poll()
    executor.reset()
    executor.put("new")
    gate.touch()
    assert executor.get(timeout=20).value == "new"


@with_workers
def test_waiting_jobs_of_before_a_reset_are_not_run(executor_of, tmp_path, pool_kind):
    started, gate, log = tmp_path / "started", tmp_path / "open", tmp_path / "log"

    def note(x):
        started.touch()
        while not gate.exists():
            time.sleep(0.002)
        with log.open("a") as file:
            file.write(f"{x} ")
        return x

    executor = executor_of(1, note, backend=pool_kind)
    for i in range(5):
        executor.put(i)
    while not started.exists():
        executor.poll()
    executor.reset()
    executor.put("new")
    time.sleep(0.3)  # what reset has sent travels in the background
    gate.touch()
    executor.get(timeout=20)
    assert log.read_text() == "0 new "


def test_an_attribute_changed_before_a_reset_takes_effect(pool_of):
    class Scale:
        def __init__(self):
            self.factor = 2

        def __call__(self, x):
            return self.factor * x

    scale = Scale()
    executor = pool_of(scale)
    executor.put(10)
    before = executor.get(timeout=20).value
    scale.factor = 3
    executor.reset()
    executor.put(10)
    assert (before, executor.get(timeout=20).value) == (20, 30)


def test_reset_counts_job_sessions(pool_of):
    executor = pool_of(lambda x: x)
    before = executor.job_session_id
    executor.reset()
    assert executor.job_session_id == before + 1


# Close


def test_close_is_idempotent(pool_of):
    executor = pool_of(lambda x: x)
    executor.close()
    executor.close()
    with pytest.raises(ClosedError):
        executor.put(1)


@pytest.mark.parametrize("use", [lambda e: e.put(1), lambda e: e.get(), lambda e: e.reset()])
def test_after_close_every_use_is_an_error(pool_of, use):
    executor = pool_of(lambda x: x)
    executor.close()
    with pytest.raises(ClosedError):
        use(executor)


def test_close_drops_jobs_in_flight_but_still_counts_them(pool_of):
    """Whoever iterates meanwhile must not take the close for the end of the jobs."""
    executor = pool_of(lambda x: x)
    for i in range(3):
        executor.put(i)
    executor.close()
    with pytest.raises(ClosedError):
        executor.get()
    assert executor.nb_in_flight == 3


def test_leaving_a_with_block_closes(pool_kind, nb_workers):
    with JobExecutor(nb_workers, lambda x: x, backend=pool_kind) as executor:
        executor.put(1)
    with pytest.raises(ClosedError):
        executor.get()


def test_a_thread_that_was_busy_at_close_ends_after_its_job(executor_of):
    started, gate, runs = threading.Event(), threading.Event(), []

    def wait_for_gate(x):
        runs.append(x)
        started.set()
        gate.wait()
        return x

    executor = executor_of(1, wait_for_gate, backend="thread")
    for i in range(3):
        executor.put(i)
    while not started.is_set():
        executor.poll()
    (worker,) = [seat.thread for seat in executor.pool._seats.values()]
    executor.close(timeout=0)
    gate.set()
    worker.wait(timeout_s=20)
    assert not worker.is_alive
    assert runs == [0]


# The bare pool


def test_the_pool_answers_every_ticket_that_it_was_sent(pool_of):
    pool = pool_of(lambda x: x + 1).pool
    tickets = random.Random(0).sample(range(1000), 20)
    waiting, answers = list(tickets), {}
    while len(answers) < 20:
        while waiting and pool.can_send:
            ticket = waiting.pop()
            pool.send(ticket, bytes(32), pool.items.encode(ticket))
        for answer in pool.recv(20):
            assert answer.ticket not in answers
            answers[answer.ticket] = pool.results.decode(answer.frames)
    assert answers == {ticket: ticket + 1 for ticket in tickets}


def test_an_inline_job_that_ctrl_c_interrupted_runs_again(executor_of):
    calls = []

    def interrupted_once(x):
        calls.append(x)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return x

    executor = executor_of(0, interrupted_once)
    executor.put(5)
    with pytest.raises(KeyboardInterrupt):
        executor.get()
    assert executor.get().value == 5
    assert calls == [5, 5]
