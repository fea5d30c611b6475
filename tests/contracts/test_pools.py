"""What every pool promises, seen through the executor: inline, in threads, and in processes."""

from __future__ import annotations

import contextlib
import os
import queue
import random
import threading
import time

import numpy as np
import pytest

from trw_pipeline.errors import ClosedError, ExecutorError, FailedJobError, JobError, WouldBlock
from trw_pipeline.executors.job_executor import JobExecutor, wait_for_any

WORKERS = {"inline": 0, "thread": 2, "process": 2}

with_workers = pytest.mark.parametrize("pool_kind", ["thread", "process"])
"""For promises about what happens while a job runs; without workers nothing happens meanwhile."""


@pytest.fixture
def make(pool_kind, executor_of):
    """Makes an executor of this kind of pool; the function comes first."""

    def make_one(function, **keywords):
        return executor_of(WORKERS[pool_kind], function, backend=pool_kind, **keywords)

    return make_one


def values(executor: JobExecutor, nb: int) -> list:
    return [executor.get(timeout=20).value for _ in range(nb)]


# Answers and their order


def test_every_ticket_is_answered_once(make):
    executor = make(lambda x: 10 * x)
    tickets = [executor.put(i) for i in range(50)]
    results = [executor.get(timeout=20) for _ in range(50)]
    assert sorted((r.ticket, r.value) for r in results) == [(t, 10 * i) for i, t in enumerate(tickets)]


def test_nothing_comes_after_the_last_answer(make):
    executor = make(lambda x: x)
    executor.put(1)
    executor.get(timeout=20)
    with pytest.raises(WouldBlock, match="no job is in flight"):
        executor.get()


def test_in_order_gives_results_in_the_order_of_the_tickets(make):
    def uneven(x):
        time.sleep(0.02 if x % 3 == 0 else 0)
        return x

    executor = make(uneven, in_order=True)
    for i in range(30):
        executor.put(i)
    assert values(executor, 30) == list(range(30))


def test_out_of_order_gives_each_result_once(make):
    def uneven(x):
        time.sleep(0.02 if x % 3 == 0 else 0)
        return x

    executor = make(uneven, in_order=False)
    for i in range(30):
        executor.put(i)
    assert sorted(values(executor, 30)) == list(range(30))


def test_a_slow_job_does_not_hold_up_the_others_out_of_order(executor_of, tmp_path):
    gate = tmp_path / "open"

    def wait_for_gate(x):
        while x == 0 and not gate.exists():
            time.sleep(0.002)
        return x

    executor = executor_of(2, wait_for_gate, in_order=False)
    for i in range(8):
        executor.put(i)
    first = values(executor, 4)
    gate.touch()
    assert 0 not in first
    assert sorted(first + values(executor, 4)) == list(range(8))


def test_a_list_is_one_result(make):
    executor = make(lambda x: [x, x + 1])
    executor.put(1)
    assert executor.get(timeout=20).value == [1, 2]


def test_an_empty_list_is_a_result(make):
    executor = make(lambda x: [])
    executor.put(1)
    assert executor.get(timeout=20).value == []


def test_functions_of_a_list_are_chained(make):
    executor = make([lambda x: x + 1, lambda x: 10 * x])
    executor.put(1)
    assert executor.get(timeout=20).value == 20


def test_in_place_functions_do_not_alter_the_item(make):
    def in_place(batch):
        batch["x"] *= 2
        batch["list"].append(1)
        return batch

    executor = make(in_place)
    item = {"x": np.arange(3), "list": [0]}
    executor.put(item)
    result = executor.get(timeout=20).value
    assert (item["x"].tolist(), item["list"]) == ([0, 1, 2], [0])
    assert (result["x"].tolist(), result["list"]) == ([0, 2, 4], [0, 1])


def test_a_result_names_who_ran_it(make, pool_kind):
    executor = make(lambda x: os.getpid())
    executor.put(1, key=(4, 2), uid="s7")
    result = executor.get(timeout=20)
    assert (result.key, result.uid, result.attempts, result.error) == ((4, 2), "s7", 1, None)
    assert result.pid == result.value
    assert (result.pid == os.getpid()) == (pool_kind != "process")


def test_a_duration_is_that_of_the_job(make):
    executor = make(lambda x: time.sleep(x) or x)
    executor.put(0.05)
    assert 0.05 <= executor.get(timeout=20).duration_s < 5


# Waiting and bounds


def test_get_without_a_job_in_flight_would_block(make):
    with pytest.raises(WouldBlock):
        make(lambda x: x).get()


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
    assert sorted(values(executor, 2)) == [0, 1]


def test_put_waits_for_room(make):
    executor = make(lambda x: x, max_jobs_at_once=2)
    for i in range(20):
        executor.put(i, timeout=20)
    assert sorted(values(executor, 20)) == list(range(20))


def test_no_more_jobs_than_max_jobs_at_once_are_unfinished(make):
    executor = make(lambda x: x, max_jobs_at_once=3, output_queue_size=0)
    for i in range(30):
        executor.put(i, timeout=20)
        assert len(executor._jobs) <= 3
    assert sorted(values(executor, 30)) == list(range(30))


@pytest.mark.parametrize(("limit", "queue_size", "most"), [(2, 3, 4), (1, 1, 1), (4, None, 7)])
def test_results_that_nobody_takes_bound_the_jobs(make, limit, queue_size, most):
    """At the last `put` fewer than `queue_size` results wait, and `limit` jobs are unfinished: `limit + size - 1`."""
    executor = make(lambda x: x, max_jobs_at_once=limit, output_queue_size=queue_size)
    nb_put = 0
    with contextlib.suppress(WouldBlock):
        while nb_put < 100:
            executor.put(nb_put)
            nb_put += 1
    assert 1 <= nb_put <= most
    assert sorted(values(executor, nb_put)) == list(range(nb_put))


def test_an_endless_source_is_read_no_further_than_the_bound(make):
    """MEM-2: whatever the results weigh, what was put and not got stays within the bound."""
    executor = make(lambda x: np.full(10_000, x), max_jobs_at_once=4, output_queue_size=2)
    nb_put = nb_got = 0
    while nb_got < 40:
        while executor.has_room():
            executor.put(nb_put, timeout=0)
            nb_put += 1
            assert nb_put - nb_got <= 4 + 2 - 1
        executor.get(timeout=20)
        nb_got += 1


def test_wait_for_any_returns_when_an_answer_is_there(make):
    executor = make(lambda x: x)
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


# The documented queues


def test_the_queues_carry_items_in_and_values_out(make):
    executor = make(lambda x: 2 * x)
    for i in range(5):
        executor.input_queue.put(i)
    assert sorted(executor.output_queue.get(timeout=20) for _ in range(5)) == [0, 2, 4, 6, 8]


def test_a_failed_job_is_none_at_the_output_queue(make):
    executor = make(lambda x: 1 // x, in_order=True)
    executor.input_queue.put(0)
    executor.input_queue.put(1)
    assert [executor.output_queue.get(timeout=20) for _ in range(2)] == [None, 1]


def test_an_empty_output_queue_says_so(make):
    executor = make(lambda x: x)
    assert executor.output_queue.empty()
    with pytest.raises(queue.Empty):
        executor.output_queue.get(block=False)


def test_a_full_input_queue_says_so(make):
    executor = make(lambda x: x, max_jobs_at_once=1, output_queue_size=1)
    executor.input_queue.put(1)
    while not executor.is_ready():
        executor.poll()
    with pytest.raises(queue.Full):
        executor.input_queue.put(2, timeout=20)


# Failures


def test_a_failed_job_raises_by_default(make):
    executor = make(lambda x: 1 // x, name="halve")
    ticket = executor.put(0, key=(3,), uid="s3")
    with pytest.raises(JobError, match="ZeroDivisionError") as caught:
        executor.get(timeout=20)
    error = caught.value
    assert (error.ticket, error.key, error.uid, error.stage, error.attempts) == (ticket, (3,), "s3", "halve", 1)
    assert isinstance(error.__cause__, ZeroDivisionError)


def test_the_executor_works_on_after_a_failure(make):
    executor = make(lambda x: 1 // x, in_order=True)
    executor.put(0)
    executor.put(1)
    with pytest.raises(JobError):
        executor.get(timeout=20)
    assert executor.get(timeout=20).value == 1


def test_none_is_a_failure(make):
    executor = make(lambda x: None)
    executor.put(1)
    with pytest.raises(JobError, match="returned None; return an empty list"):
        executor.get(timeout=20)


def test_stop_iteration_is_a_failure(make):
    executor = make(lambda x: next(iter([])))
    executor.put(1)
    with pytest.raises(JobError, match="StopIteration"):
        executor.get(timeout=20)


def test_skip_passes_over_failures_and_records_them(make):
    executor = make(lambda x: 6 // x, on_error="skip", in_order=True, name="six")
    for x in (1, 0, 3, 0, 2):
        executor.put(x, key=(x,), uid=f"u{x}")
    assert values(executor, 3) == [6, 2, 3]
    assert [(f.stage, f.key, f.uid, f.attempts) for f in executor.failures] == [("six", (0,), "u0", 1)] * 2
    assert all("ZeroDivisionError" in str(f.error) for f in executor.failures)


def test_return_gives_the_error_in_the_result(make):
    executor = make(lambda x: 1 // x, on_error="return")
    executor.put(0)
    result = executor.get(timeout=20)
    assert result.value is None
    assert isinstance(result.error, JobError)


def test_one_failure_more_than_max_failures_is_an_error(make):
    executor = make(lambda x: 1 // x, on_error="skip", max_failures=2, in_order=True)
    for x in (0, 0, 1, 0):
        executor.put(x)
    assert executor.get(timeout=20).value == 1
    with pytest.raises(ExecutorError, match="max_failures=2") as caught:
        executor.get(timeout=20)
    assert not isinstance(caught.value, FailedJobError)
    assert isinstance(caught.value.__cause__, JobError)


def test_reset_forgets_failures(make):
    executor = make(lambda x: 1 // x, on_error="skip", in_order=True)
    executor.put(0)
    executor.put(1)
    executor.get(timeout=20)
    old = executor.failures
    executor.reset()
    assert (len(old), executor.failures) == (1, [])


@pytest.mark.parametrize(
    ("keywords", "kind"),
    [
        ({"backend": "cluster"}, ValueError),
        ({"nb_workers": -1}, ValueError),
        ({"nb_workers": 1.5}, TypeError),
        ({"nb_workers": True}, TypeError),
        ({"function_to_run": 3}, TypeError),
        ({"function_to_run": []}, ValueError),
        ({"function_to_run": [len, "len"]}, TypeError),
        ({"max_jobs_at_once": -1}, ValueError),
        ({"output_queue_size": "2"}, TypeError),
        ({"max_retries": -2}, ValueError),
        ({"threads_per_worker": 0}, ValueError),
        ({"start_method": "clone"}, ValueError),
        ({"on_error": "ignore"}, ValueError),
        ({"max_failures": -1}, ValueError),
        ({"max_failures": 1.5}, ValueError),
        ({"max_failures": "1"}, TypeError),
        ({"worker_init": 1}, TypeError),
        ({"worker_post_process_results_fun": 1}, TypeError),
        ({"seed": "7"}, TypeError),
    ],
)
def test_wrong_arguments_are_refused_before_anything_starts(keywords, kind):
    with pytest.raises(kind):
        JobExecutor(**{"nb_workers": 1, "function_to_run": len, **keywords})


# Reset


def test_reset_drops_what_was_in_flight(make):
    executor = make(lambda x: x)
    for i in range(10):
        executor.put(i)
    executor.reset()
    assert executor.nb_in_flight == 0
    executor.put(100)
    assert executor.get(timeout=20).value == 100
    with pytest.raises(WouldBlock):
        executor.get(timeout=0)


@pytest.mark.slow
def test_no_old_result_comes_after_a_reset(make):
    """Rounds of slow jobs, each left in the middle: what comes is always of the newest round."""

    def slow(pair):
        time.sleep(0.005)
        return pair

    executor = make(slow, in_order=False)
    for generation in range(8):
        for i in range(6):
            executor.put((generation, i))
        for _ in range(generation % 4):
            assert executor.get(timeout=20).value[0] == generation
        executor.reset()
    for i in range(6):
        executor.put(("last", i))
    assert sorted(values(executor, 6)) == [("last", i) for i in range(6)]


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
    gate.touch()
    executor.get(timeout=20)
    assert log.read_text() == "0 new "


def test_an_attribute_changed_before_a_reset_takes_effect(make):
    class Scale:
        def __init__(self):
            self.factor = 2

        def __call__(self, x):
            return self.factor * x

    scale = Scale()
    executor = make(scale)
    executor.put(10)
    before = executor.get(timeout=20).value
    scale.factor = 3
    executor.reset()
    executor.put(10)
    assert (before, executor.get(timeout=20).value) == (20, 30)


def test_reset_counts_job_sessions(make):
    executor = make(lambda x: x)
    before = executor.job_session_id
    executor.reset()
    assert executor.job_session_id == before + 1


# Close


def test_close_is_idempotent(make):
    executor = make(lambda x: x)
    executor.close()
    executor.close()


@pytest.mark.parametrize("use", [lambda e: e.put(1), lambda e: e.get(), lambda e: e.reset()])
def test_after_close_every_use_is_an_error(make, use):
    executor = make(lambda x: x)
    executor.close()
    with pytest.raises(ClosedError):
        use(executor)


def test_close_drops_jobs_in_flight(make):
    executor = make(lambda x: x)
    for i in range(20):
        executor.put(i)
    executor.close()
    assert executor.nb_in_flight == 0


def test_leaving_a_with_block_closes(pool_kind):
    with JobExecutor(WORKERS[pool_kind], lambda x: x, backend=pool_kind) as executor:
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
    worker.join(timeout=20)
    assert not worker.is_alive()
    assert runs == [0]


# Post-processing, random numbers, start


def test_post_processing_makes_the_result(make):
    def post(results, channel_main_to_worker, channel_worker_to_main):
        return results + 0.5

    executor = make(lambda x: x, worker_post_process_results_fun=post)
    executor.put(1)
    assert executor.get(timeout=20).value == 1.5


def test_channels_carry_messages_both_ways(make):
    def post(results, channel_main_to_worker, channel_worker_to_main):
        order = channel_main_to_worker.recv()
        channel_worker_to_main.send(("done", results, order))
        return results * order

    executor = make(lambda x: x, worker_post_process_results_fun=post)
    executor.channel_main_to_worker.send(7)
    executor.put(6)
    assert executor.get(timeout=20).value == 42
    assert executor.channel_worker_to_main.recv() == ("done", 6, 7)


def test_a_function_may_take_a_generator_of_its_own(make):
    def draw(x, rng):
        return rng.integers(1 << 62)

    drawn = []
    for _ in range(2):
        executor = make(draw, seed=3, in_order=True)
        for i in range(6):
            executor.put(i)
        drawn.append(values(executor, 6))
    assert drawn[0] == drawn[1]
    assert len(set(drawn[0])) == 6


def test_worker_init_runs_once_in_each_worker_before_its_first_job(make, pool_kind, tmp_path):
    log = tmp_path / "log"

    def init():
        with log.open("a") as file:
            file.write("x")

    executor = make(lambda x: log.read_text() != "", worker_init=init)
    for i in range(10):
        executor.put(i)
    assert values(executor, 10) == [True] * 10
    executor.reset()
    executor.put(0)
    executor.get(timeout=20)
    assert 1 <= len(log.read_text()) <= max(1, WORKERS[pool_kind])


def test_a_worker_init_that_raises_is_one_error(make):
    def init():
        raise OSError("no such database")

    def use():
        executor = make(lambda x: x, worker_init=init)
        executor.put(1)
        executor.get(timeout=20)

    with pytest.raises(ExecutorError, match="no such database"):
        use()


# Figures


def test_statistics_have_the_documented_keys(make):
    keys = "items jobs_done jobs_failed jobs_retried jobs_lost jobs_in_flight capacity workers"
    assert {*keys.split(), "wait_s", "busy_s", "bytes_arena", "bytes_frames"} <= set(make(lambda x: x).statistics())


def test_statistics_count(make, pool_kind):
    executor = make(lambda x: 1 // x, on_error="skip", in_order=True, max_jobs_at_once=9)
    for x in (1, 0, 1):
        executor.put(x)
    values(executor, 2)
    executor.put(1)
    figures = executor.statistics()
    counts = {key: figures[key] for key in ("items", "jobs_done", "jobs_failed", "jobs_retried", "jobs_lost")}
    assert counts == {"items": 2, "jobs_done": 2, "jobs_failed": 1, "jobs_retried": 0, "jobs_lost": 0}
    assert (figures["jobs_in_flight"], figures["capacity"], figures["workers"]) == (1, 9, WORKERS[pool_kind])


def test_busy_time_is_that_of_all_jobs_together(make):
    executor = make(lambda x: time.sleep(x) or x)
    for _ in range(4):
        executor.put(0.03)
    values(executor, 4)
    assert executor.statistics()["busy_s"] >= 4 * 0.03


# The bare pool


def test_the_pool_answers_every_ticket_that_it_was_sent(make):
    pool = make(lambda x: x + 1).pool
    tickets = random.Random(0).sample(range(1000), 20)
    waiting, answers = list(tickets), {}
    while len(answers) < 20:
        while waiting and pool.can_send:
            ticket = waiting.pop()
            pool.send(ticket, bytes(32), pool.items.encode(ticket))
        answer = pool.recv(20)
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
