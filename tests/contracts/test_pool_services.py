"""What a caller may ask of an executor over every pool: failures, the documented queues, channels, figures."""

from __future__ import annotations

import queue
import time

import numpy as np
import pytest

from trw_pipeline.errors import ExecutorError, FailedJobError, JobError
from trw_pipeline.executors.job_executor import JobExecutor


def values_of(executor: JobExecutor, nb: int) -> list:
    """Returns the values of the next `nb` results."""
    return [executor.get(timeout=20).value for _ in range(nb)]


# The documented queues


def test_the_queues_carry_items_in_and_values_out(pool_of):
    executor = pool_of(lambda x: 2 * x)
    for i in range(5):
        executor.input_queue.put(i)
    assert sorted(executor.output_queue.get(timeout=20) for _ in range(5)) == [0, 2, 4, 6, 8]


def test_a_failed_job_is_none_at_the_output_queue(pool_of):
    executor = pool_of(lambda x: 1 // x, in_order=True)
    executor.input_queue.put(0)
    executor.input_queue.put(1)
    assert [executor.output_queue.get(timeout=20) for _ in range(2)] == [None, 1]


def test_an_empty_output_queue_says_so(pool_of):
    executor = pool_of(lambda x: x)
    assert executor.output_queue.empty()
    with pytest.raises(queue.Empty):
        executor.output_queue.get(block=False)


def test_a_full_input_queue_says_so(pool_of):
    executor = pool_of(lambda x: x, max_jobs_at_once=1, output_queue_size=1)
    executor.input_queue.put(1)
    while not executor.is_ready():
        executor.poll()
    with pytest.raises(queue.Full):
        executor.input_queue.put(2, timeout=20)


# Failures


def test_a_failed_job_raises_by_default(pool_of):
    executor = pool_of(lambda x: 1 // x, name="halve")
    ticket = executor.put(0, key=(3,), uid="s3")
    with pytest.raises(JobError, match="ZeroDivisionError") as caught:
        executor.get(timeout=20)
    error = caught.value
    assert (error.ticket, error.key, error.uid, error.stage, error.attempts) == (ticket, (3,), "s3", "halve", 1)
    assert isinstance(error.__cause__, ZeroDivisionError)


def test_the_executor_works_on_after_a_failure(pool_of):
    executor = pool_of(lambda x: 1 // x, in_order=True)
    executor.put(0)
    executor.put(1)
    with pytest.raises(JobError):
        executor.get(timeout=20)
    assert executor.get(timeout=20).value == 1


def test_none_is_a_failure(pool_of):
    executor = pool_of(lambda x: None)
    executor.put(1)
    with pytest.raises(JobError, match="returned None; return an empty list"):
        executor.get(timeout=20)


def test_stop_iteration_is_a_failure(pool_of):
    executor = pool_of(lambda x: next(iter([])))
    executor.put(1)
    with pytest.raises(JobError, match="StopIteration"):
        executor.get(timeout=20)


def test_skip_passes_over_failures_and_records_them(pool_of):
    executor = pool_of(lambda x: 6 // x, on_error="skip", in_order=True, name="six")
    for x in (1, 0, 3, 0, 2):
        executor.put(x, key=(x,), uid=f"u{x}")
    assert values_of(executor, 3) == [6, 2, 3]
    assert [(f.stage, f.key, f.uid, f.attempts) for f in executor.failures] == [("six", (0,), "u0", 1)] * 2
    assert all("ZeroDivisionError" in str(f.error) for f in executor.failures)


def test_return_gives_the_error_in_the_result(pool_of):
    executor = pool_of(lambda x: 1 // x, on_error="return")
    executor.put(0)
    result = executor.get(timeout=20)
    assert result.value is None
    assert isinstance(result.error, JobError)


def test_one_failure_more_than_max_failures_is_an_error(pool_of):
    executor = pool_of(lambda x: 1 // x, on_error="skip", max_failures=2, in_order=True)
    for x in (0, 0, 1, 0):
        executor.put(x)
    assert executor.get(timeout=20).value == 1
    with pytest.raises(ExecutorError, match="max_failures=2") as caught:
        executor.get(timeout=20)
    assert not isinstance(caught.value, FailedJobError)
    assert isinstance(caught.value.__cause__, JobError)


def test_reset_forgets_failures(pool_of):
    executor = pool_of(lambda x: 1 // x, on_error="skip", in_order=True)
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


def test_bounds_may_be_numpy_numbers(executor_of):
    executor = executor_of(np.int64(1), len, np.int64(3), None, np.int32(2), max_retries=np.int8(1), backend="thread")
    assert (executor.nb_workers, executor.max_jobs_at_once) == (1, 3)


# Post-processing, random numbers, the start of workers


def test_post_processing_makes_the_result(pool_of):
    def post(results, channel_main_to_worker, channel_worker_to_main):
        return results + 0.5

    executor = pool_of(lambda x: x, worker_post_process_results_fun=post)
    executor.put(1)
    assert executor.get(timeout=20).value == 1.5


def test_channels_carry_messages_both_ways(pool_of):
    def post(results, channel_main_to_worker, channel_worker_to_main):
        order = channel_main_to_worker.recv()
        channel_worker_to_main.send(("done", results, order))
        return results * order

    executor = pool_of(lambda x: x, worker_post_process_results_fun=post)
    executor.channel_main_to_worker.send(7)
    executor.put(6)
    assert executor.get(timeout=20).value == 42
    assert executor.channel_worker_to_main.recv() == ("done", 6, 7)


def test_a_function_may_take_a_generator_of_its_own(pool_of):
    def draw(x, rng):
        return rng.integers(1 << 62)

    drawn = []
    for _ in range(2):
        executor = pool_of(draw, seed=3, in_order=True)
        for i in range(6):
            executor.put(i)
        drawn.append(values_of(executor, 6))
    assert drawn[0] == drawn[1]
    assert len(set(drawn[0])) == 6


def test_worker_init_runs_once_in_each_worker_before_its_first_job(pool_of, nb_workers, tmp_path):
    log = tmp_path / "log"

    def init():
        with log.open("a") as file:
            file.write("x")

    executor = pool_of(lambda x: log.read_text() != "", worker_init=init)
    for i in range(10):
        executor.put(i)
    assert values_of(executor, 10) == [True] * 10
    executor.reset()
    executor.put(0)
    executor.get(timeout=20)
    assert 1 <= len(log.read_text()) <= max(1, nb_workers)


def test_a_worker_init_that_raises_is_one_error(pool_of):
    def init():
        raise OSError("no such database")

    def use():
        executor = pool_of(lambda x: x, worker_init=init)
        executor.put(1)
        executor.get(timeout=20)

    with pytest.raises(ExecutorError, match="no such database"):
        use()


# Figures


def test_statistics_have_the_documented_keys(pool_of):
    keys = "items jobs_done jobs_failed jobs_retried jobs_lost jobs_in_flight capacity workers"
    assert {*keys.split(), "wait_s", "busy_s", "bytes_arena", "bytes_frames"} <= set(pool_of(lambda x: x).statistics())


def test_statistics_count(pool_of, nb_workers):
    executor = pool_of(lambda x: 1 // x, on_error="skip", in_order=True, max_jobs_at_once=9)
    for x in (1, 0, 1):
        executor.put(x)
    values_of(executor, 2)
    executor.put(1)
    figures = executor.statistics()
    counts = {key: figures[key] for key in ("items", "jobs_done", "jobs_failed", "jobs_retried", "jobs_lost")}
    assert counts == {"items": 2, "jobs_done": 2, "jobs_failed": 1, "jobs_retried": 0, "jobs_lost": 0}
    assert (figures["jobs_in_flight"], figures["capacity"], figures["workers"]) == (1, 9, nb_workers)


def test_busy_time_is_that_of_all_jobs_together(pool_of):
    executor = pool_of(lambda x: time.sleep(x) or x)
    for _ in range(4):
        executor.put(0.03)
    values_of(executor, 4)
    assert executor.statistics()["busy_s"] >= 4 * 0.03
