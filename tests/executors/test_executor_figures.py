"""`statistics()`: every count is of something that happened, and they add up at any moment."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
import pytest

from trw_pipeline.executors.figures import Figures, JobFigures, as_dict, in_lines
from trw_pipeline.executors.pool import WorkerFigures
from trw_pipeline.executors.protocol import KEY_BYTES
from trw_pipeline.executors.seat import Seat
from trw_pipeline.executors.slate import Slate

SIZE = 8192  # float64 values: 64 KB
SOON_S = 30.0


def values_of(executor, items) -> list:
    """Returns the values of jobs that run one after the other."""
    values = []
    for item in items:
        executor.put(item)
        values.append(executor.get(timeout=SOON_S).value)
    return values


def until(executor, condition) -> dict:
    """Looks until a condition of the statistics holds; returns them."""
    deadline = time.monotonic() + SOON_S
    while not condition(executor.statistics()) and time.monotonic() < deadline:
        executor.take_in()
        time.sleep(0.002)
    figures = executor.statistics()
    assert condition(figures), figures
    return figures


def hanging_at(gate):
    def work(x):
        import time

        while x == "hang" and not gate.exists():
            time.sleep(0.002)
        return x

    return work


# Counts of jobs


def test_a_new_executor_has_done_nothing(pool_of, nb_workers):
    figures = pool_of(lambda x: x).statistics()
    assert figures["workers"] == nb_workers
    counts = [name for name in figures if name.startswith("jobs_")]
    assert {name: figures[name] for name in counts} == dict.fromkeys(counts, 0)
    assert (figures["busy_s"], figures["wait_s"], figures["job_s_p50"], figures["bytes_arena"]) == (0, 0, 0, 0)


def test_done_and_failed_are_what_was_taken(pool_of):
    executor = pool_of(lambda x: 1 // x, on_error="return")
    for x in (0, 1, 0, 2, 3):
        executor.put(x)
        executor.get(timeout=SOON_S)
    figures = executor.statistics()
    assert (figures["jobs_done"], figures["items"], figures["jobs_failed"]) == (3, 3, 2)


@pytest.mark.parametrize("backend", ["process", "thread"])
def test_each_job_in_flight_is_running_or_queued_or_finished(executor_of, tmp_path, backend):
    executor = executor_of(1, hanging_at(tmp_path / "open"), 10, backend=backend)
    for item in ("a", "b", "hang", "c", "d"):
        executor.put(item)
    figures = until(executor, lambda figures: figures["jobs_finished"] == 2 and figures["jobs_running"] == 1)
    (tmp_path / "open").touch()
    assert (figures["jobs_in_flight"], figures["jobs_queued"], figures["capacity"]) == (5, 2, 10)
    for _ in range(5):
        executor.get(timeout=SOON_S)
    figures = executor.statistics()
    assert (figures["jobs_in_flight"], figures["jobs_queued"], figures["jobs_finished"]) == (0, 0, 0)


def test_without_workers_a_job_waits_until_it_is_asked_for(executor_of):
    executor = executor_of(0, lambda x: x)
    executor.put(1)
    figures = executor.statistics()
    assert (figures["jobs_in_flight"], figures["jobs_queued"], figures["jobs_running"]) == (1, 1, 0)


def test_lost_and_retried_are_counted(executor_of, tmp_path):
    def die_once(x):
        if x == "die" and not (tmp_path / "died").exists():
            (tmp_path / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return x

    executor = executor_of(1, die_once)
    values_of(executor, [1, "die", 2])
    figures = executor.statistics()
    assert (figures["jobs_lost"], figures["jobs_retried"], figures["jobs_done"], figures["jobs_failed"]) == (1, 1, 3, 0)


def test_a_job_that_is_given_up_is_lost_and_failed(executor_of):
    executor = executor_of(1, lambda x: os._exit(1), max_retries=1, on_error="return")
    values_of(executor, [1])
    figures = executor.statistics()
    assert (figures["jobs_lost"], figures["jobs_retried"], figures["jobs_done"], figures["jobs_failed"]) == (2, 1, 0, 1)


def test_counts_go_on_over_a_reset(executor_of):
    executor = executor_of(1, lambda x: x)
    values_of(executor, range(3))
    executor.put(1)
    executor.reset()
    values_of(executor, range(2))
    figures = executor.statistics()
    assert (figures["jobs_done"], figures["jobs_in_flight"]) == (5, 0)


def test_statistics_can_be_had_after_a_close(executor_of):
    executor = executor_of(1, lambda x: np.zeros(SIZE))
    values_of(executor, range(5))
    executor.close()
    assert executor.statistics()["jobs_done"] == 5
    assert executor.statistics()["bytes_arena"] > 0


# Times


def test_percentiles_are_of_the_times_of_jobs(executor_of):
    executor = executor_of(1, lambda x: time.sleep(x) or x)
    values_of(executor, [0.0] * 18 + [0.1] * 2)
    figures = executor.statistics()
    assert figures["job_s_p50"] < 0.1 <= figures["job_s_p95"] <= figures["job_s_p99"] < SOON_S


def test_percentiles_are_of_the_nearest_rank():
    def of(durations):
        figures = JobFigures()
        figures.durations_s.extend(durations)
        return as_dict([Figures(figures, 0, 0, 0, 1, 0, 0, 0, [])])

    hundred = of([i / 100 for i in range(1, 101)])
    assert (hundred["job_s_p50"], hundred["job_s_p95"], hundred["job_s_p99"]) == (0.50, 0.95, 0.99)
    one = of([3.0])
    assert (one["job_s_p50"], one["job_s_p99"]) == (3.0, 3.0)
    two = of([1.0, 2.0])
    assert (two["job_s_p50"], two["job_s_p99"]) == (1.0, 2.0)


def test_only_the_newest_jobs_count_for_percentiles():
    figures = JobFigures()
    figures.durations_s.extend([9.0] * 5000)
    figures.durations_s.extend([1.0] * 1024)
    assert as_dict([Figures(figures, 0, 0, 0, 1, 0, 0, 0, [])])["job_s_p99"] == 1.0


@pytest.mark.slow
def test_busy_is_in_jobs_and_idle_is_not(executor_of):
    executor = executor_of(1, lambda x: time.sleep(x) or x)
    values_of(executor, [0.1, 0.1])
    idle_before_s = executor.statistics()["idle_s"]
    time.sleep(0.2)
    figures = executor.statistics()
    (worker,) = figures["per_worker"]
    assert 0.19 <= figures["busy_s"] < SOON_S
    assert 0.19 <= figures["idle_s"] - idle_before_s < SOON_S
    assert (worker["busy_s"], worker["idle_s"]) == (figures["busy_s"], figures["idle_s"])
    assert worker["jobs"] == 2


def test_a_job_that_runs_counts_for_the_busy_time_of_its_worker(executor_of, tmp_path):
    executor = executor_of(1, hanging_at(tmp_path / "open"))
    executor.put("hang")
    figures = until(executor, lambda figures: figures["per_worker"] and figures["per_worker"][0]["busy_s"] > 0.05)
    (tmp_path / "open").touch()
    executor.get(timeout=SOON_S)
    assert figures["jobs_running"] == 1


def test_a_job_whose_answer_has_come_runs_no_more():
    """The worker notes the end after it has sent the answer, which counts its time."""
    seat = Seat(0, bytes(KEY_BYTES), Slate.in_memory(), None)
    seat.slate.begin(3)
    time.sleep(0.002)
    figures = seat.figures()
    assert (figures.ticket, figures.busy_s, figures.nb_waiting) == (None, 0.0, 0)


def test_each_worker_has_its_pid_and_its_jobs(executor_of):
    executor = executor_of(2, lambda x: time.sleep(0.02) or os.getpid())
    for i in range(20):
        executor.put(i)
    pids = [executor.get(timeout=SOON_S).value for _ in range(20)]
    workers = {worker["pid"]: worker["jobs"] for worker in executor.statistics()["per_worker"]}
    assert workers == {pid: pids.count(pid) for pid in workers}
    assert sum(workers.values()) == 20


def test_waiting_for_a_result_counts_as_waited(executor_of):
    executor = executor_of(1, lambda x: time.sleep(x) or x)
    values_of(executor, [0.2])
    assert 0.15 <= executor.statistics()["wait_s"] < SOON_S


# Bytes


def test_bytes_are_counted_by_their_path(executor_of):
    large = executor_of(1, lambda x: np.full(SIZE, float(x)))
    values_of(large, range(10))
    figures = large.statistics()
    nb_bytes = SIZE * 8
    assert figures["bytes_arena"] % nb_bytes == 0
    assert figures["bytes_arena"] >= 8 * nb_bytes
    in_messages = figures["bytes_frames"] - (10 * nb_bytes - figures["bytes_arena"])
    assert 0 < in_messages < 10 * 1000  # the heads
    assert figures["bytes_compressed"] == 0


def test_small_results_come_in_messages(executor_of):
    executor = executor_of(1, lambda x: np.zeros(100))
    values_of(executor, range(10))
    figures = executor.statistics()
    assert figures["bytes_arena"] == 0
    assert 8000 <= figures["bytes_frames"] < 20_000


@pytest.mark.slow
@pytest.mark.parametrize("max_arena_bytes", [None, 0])
def test_compressed_bytes_are_counted_as_they_travel(executor_of, max_arena_bytes):
    executor = executor_of(1, lambda x: np.full(SIZE, float(x)), compression="zstd", max_arena_bytes=max_arena_bytes)
    values = values_of(executor, range(10))
    figures = executor.statistics()
    assert [set(value.tolist()) for value in values] == [{float(i)} for i in range(10)]
    assert 0 < figures["bytes_compressed"] <= figures["bytes_arena"] + figures["bytes_frames"] < SIZE * 8


@pytest.mark.parametrize("backend", ["thread", "inline"])
def test_by_reference_nothing_travels(executor_of, backend):
    executor = executor_of(0 if backend == "inline" else 1, lambda x: np.zeros(SIZE), backend=backend)
    values_of(executor, range(5))
    figures = executor.statistics()
    assert figures["bytes_arena"] == figures["bytes_compressed"] == 0
    assert figures["bytes_frames"] < 1000


# Adding up, and words


def worker(pid: int, ticket: int | None) -> WorkerFigures:
    return WorkerFigures(pid, 3, 1.0, 2.0, ticket, 0.5, 1)


def test_figures_of_executors_with_the_same_function_add_up():
    one = Figures(JobFigures(jobs_done=3, busy_s=1.0), 4, 1, 8, 2, 10, 20, 5, [worker(1, 7), worker(2, None)])
    two = Figures(JobFigures(jobs_done=2, busy_s=0.5), 2, 0, 8, 1, 1, 2, 0, [worker(3, 9)])
    both = as_dict([one, two])
    assert (both["jobs_done"], both["busy_s"], both["idle_s"]) == (5, 1.5, 6.0)
    assert (both["jobs_in_flight"], both["jobs_finished"], both["jobs_running"], both["jobs_queued"]) == (6, 1, 2, 3)
    assert (both["workers_alive"], both["oldest_job_s"]) == (3, 0.5)
    assert (both["capacity"], both["workers"], both["bytes_arena"], both["bytes_frames"]) == (16, 3, 11, 22)
    assert [one["pid"] for one in both["per_worker"]] == [1, 2, 3]


def test_figures_of_nothing_are_zero():
    nothing = as_dict([])
    assert nothing.pop("per_worker") == []
    assert set(nothing.values()) == {0}


def test_words_name_a_job_as_far_as_it_is_known():
    figures = Figures(JobFigures(), 4, 1, 0, 3, 0, 0, 0, [worker(1, 7), worker(2, 8), worker(3, None)])
    assert in_lines("load", figures, {7: "job 7, sample_uid s7"}).splitlines() == [
        "'load': 4 of any number jobs in flight, 1 of them finished; 3 of 3 workers alive",
        "  worker 1: job 7, sample_uid s7 for 0.5 s, 1 waiting, 3 done",
        "  worker 2: job 8 for 0.5 s, 1 waiting, 3 done",
        "  worker 3: idle, 1 waiting, 3 done",
    ]
