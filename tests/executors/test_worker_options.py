"""Names, niceness, initialisers, and workers that are replaced after so many jobs."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

SOON_S = 30.0


def values_of(executor, items, at_once: int = 4) -> list:
    """Returns the values of the jobs, in the order in which they come."""
    values = []
    for item in items:
        if executor.nb_in_flight >= at_once:
            values.append(executor.get(timeout=SOON_S).value)
        executor.put(item)
    while executor.nb_in_flight:
        values.append(executor.get(timeout=SOON_S).value)
    return values


# Names


def name_of(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


@pytest.mark.parametrize(
    ("name", "shown"),
    [("load", "trw-load-0"), ("x", "trw-x-0"), ("a long name of a stage", "me of a stage-0"), (None, "trw-<lambda>-0")],
)
def test_ps_shows_the_name_of_the_stage(executor_of, start_method, name, shown):
    executor = executor_of(1, lambda x: os.getpid(), name=name, start_method=start_method)
    (pid,) = values_of(executor, [1])
    assert name_of(pid) == shown


def test_each_worker_has_a_name_of_its_own(executor_of):
    executor = executor_of(3, lambda x: x, name="load")
    deadline = time.monotonic() + 30  # not until each has had a job: the first one that is there may do them all
    while not all(seat.is_ready for seat in executor.pool._seats.values()) and time.monotonic() < deadline:
        executor.take_in()
        time.sleep(0.001)
    names = {name_of(worker["pid"]) for worker in executor.statistics()["per_worker"]}
    assert names == {"trw-load-0", "trw-load-1", "trw-load-2"}


@pytest.mark.parametrize("name", ["é" * 20, "a/b\\c", " ", "\n"])
def test_a_name_may_be_any_text(executor_of, name):
    assert values_of(executor_of(1, lambda x: x, name=name), [1]) == [1]


def test_the_main_program_keeps_its_name(executor_of):
    before = name_of(os.getpid())
    values_of(executor_of(1, lambda x: x, name="load", start_method="fork"), [1])
    assert name_of(os.getpid()) == before


def test_a_thread_has_the_name_of_the_stage(executor_of):
    executor = executor_of(2, lambda x: threading.current_thread().name, name="load", backend="thread")
    assert set(values_of(executor, range(10))) <= {"trw-load-0", "trw-load-1"}


# Niceness


@pytest.mark.parametrize("niceness", [0, 3])
def test_niceness_is_added_to_that_of_the_program(executor_of, start_method, niceness):
    executor = executor_of(1, lambda x: os.nice(0), niceness=niceness, start_method=start_method)
    before = os.nice(0)
    assert values_of(executor, [1]) == [min(19, before + niceness)]
    assert os.nice(0) == before


def test_a_replaced_worker_is_as_nice(executor_of):
    executor = executor_of(1, lambda x: os._exit(1) if x == "die" else os.nice(0), niceness=2, max_retries=0)
    before = os.nice(0)
    executor.put("die")
    with pytest.raises(Exception, match="exit code 1"):
        executor.get(timeout=SOON_S)
    assert values_of(executor, [1]) == [min(19, before + 2)]


@pytest.mark.parametrize(("option", "wrong"), [("niceness", "3"), ("niceness", -21), ("niceness", 1.5)])
def test_a_niceness_that_is_none_is_refused(executor_of, option, wrong):
    with pytest.raises((ValueError, TypeError), match=option):
        executor_of(1, lambda x: x, **{option: wrong})


# The initialiser


@pytest.mark.parametrize("backend", ["process", "thread"])
def test_the_initialiser_runs_once_in_each_worker_before_its_first_job(executor_of, tmp_path, backend):
    def init():
        (tmp_path / f"{os.getpid()} {threading.get_ident()}").touch(exist_ok=False)

    def was_there(x):
        return (tmp_path / f"{os.getpid()} {threading.get_ident()}").exists()

    executor = executor_of(2, was_there, worker_init=init, backend=backend)
    deadline = time.monotonic() + SOON_S
    while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < deadline:
        assert all(values_of(executor, range(4)))
    assert all(values_of(executor, range(50)))
    assert len(list(tmp_path.iterdir())) == 2


def test_the_initialiser_and_the_function_share_what_it_set_up(executor_of):
    opened = []
    executor = executor_of(1, lambda x: list(opened), worker_init=lambda: opened.append("licence"))
    assert values_of(executor, range(3)) == 3 * [["licence"]]


# Workers that are replaced after so many jobs


@pytest.mark.parametrize("backend", ["process", "thread"])
def test_a_worker_ends_after_so_many_jobs(executor_of, backend):
    executor = executor_of(
        1, lambda x: (x, os.getpid(), threading.get_native_id()), max_tasks_per_worker=3, backend=backend, in_order=True
    )
    values = values_of(executor, range(20))
    workers = [worker for _, *worker in values]
    assert [x for x, *_ in values] == list(range(20))
    assert max(workers.count(worker) for worker in workers) <= 3


def test_the_initialiser_runs_in_every_worker_that_comes(executor_of, tmp_path):
    executor = executor_of(
        1, lambda x: os.getpid(), max_tasks_per_worker=2, worker_init=lambda: (tmp_path / str(os.getpid())).touch()
    )
    pids = set(values_of(executor, range(10)))
    assert {int(path.name) for path in tmp_path.iterdir()} >= pids


@pytest.mark.slow
@pytest.mark.parametrize("nb_values", [10, 10_000, 200_000])
@pytest.mark.parametrize("max_arena_bytes", [None, 0])
def test_no_job_is_lost_when_a_worker_ends(executor_of, nb_values, max_arena_bytes):
    """Its last answers may be large, and it must not go before they are out."""
    executor = executor_of(
        2,
        lambda x: np.full(nb_values, float(x)),
        max_tasks_per_worker=3,
        max_retries=0,
        in_order=True,
        max_arena_bytes=max_arena_bytes,
    )
    values = values_of(executor, range(60))
    assert [float(value[-1]) for value in values] == list(range(60))
    assert executor.statistics()["jobs_lost"] == 0


@pytest.mark.slow
def test_no_job_runs_twice_when_a_worker_ends(executor_of, tmp_path):
    log = tmp_path / "log"

    def note(x):
        with log.open("a") as file:
            file.write(f"{x} ")
        return np.full(100_000, x)

    values_of(executor_of(2, note, max_tasks_per_worker=2), range(40))
    assert sorted(map(int, log.read_text().split())) == list(range(40))


@pytest.mark.slow
def test_there_are_never_many_more_workers_than_wanted(executor_of):
    """However many jobs wait."""
    executor = executor_of(2, lambda x: time.sleep(0.02) or x, max_tasks_per_worker=1)
    for i in range(30):
        executor.put(i)
    most = 0
    values = []
    for _ in range(30):
        most = max(most, len(executor.statistics()["per_worker"]), len(psutil.Process().children(recursive=True)) - 2)
        values.append(executor.get(timeout=SOON_S).value)
    assert sorted(values) == list(range(30))
    assert most <= 4


@pytest.mark.slow
def test_workers_that_have_left_are_gone(executor_of):
    executor = executor_of(1, lambda x: os.getpid(), max_tasks_per_worker=1)
    pids = values_of(executor, range(10), at_once=1)
    deadline = time.monotonic() + 5
    while sum(map(psutil.pid_exists, pids)) > 1 and time.monotonic() < deadline:
        executor.take_in()
        time.sleep(0.005)
    assert sum(map(psutil.pid_exists, pids)) <= 1


def test_a_worker_that_leaves_in_peace_is_not_warned_of(executor_of, caplog):
    values_of(executor_of(1, lambda x: x, max_tasks_per_worker=2), range(20), at_once=1)
    assert caplog.records == []


def test_a_job_that_kills_a_worker_that_was_to_leave_is_one_error(executor_of):
    executor = executor_of(
        1,
        lambda x: os._exit(3) if x == 1 else x,
        max_tasks_per_worker=2,
        max_retries=0,
        on_error="return",
        in_order=True,
    )
    for i in range(6):
        executor.put(i)
    results = [executor.get(timeout=SOON_S) for _ in range(6)]
    assert [result.value for result in results] == [0, None, 2, 3, 4, 5]


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "3", True])
def test_a_number_of_tasks_that_is_none_is_refused(executor_of, wrong):
    with pytest.raises((ValueError, TypeError), match="max_tasks_per_worker"):
        executor_of(1, lambda x: x, max_tasks_per_worker=wrong)
