"""Dying workers: nothing is lost in silence, nothing waits for ever, and the pool lives on."""

from __future__ import annotations

import ctypes
import os
import signal
import time

import psutil
import pytest
from patience import patience

from trw_pipeline.errors import ExecutorError, WorkerLostError
from trw_pipeline.executors.job import ErrorMaker, Job
from trw_pipeline.executors.job_table import MOST_IN_VAIN, JobTable
from trw_pipeline.executors.protocol import Lost


def dying_once(flag, number=signal.SIGKILL):
    """Returns a function that kills its worker at item 3, the first time only."""

    def die_once(x):
        import os
        import random

        import numpy as np

        if x == 3:
            try:
                os.close(os.open(flag, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                pass
            else:
                os.kill(os.getpid(), number)
        return x, random.random(), np.random.random()

    return die_once


def dying_always():
    """Returns a function that kills its worker at item 3. Made here, it travels by value: quicker than this module."""

    def die_at_3(x):
        import os

        if x == 3:
            os.kill(os.getpid(), 9)
        return x

    return die_at_3


def exiting_below(limit):
    """Returns a function that ends its worker at every item below `limit`."""

    def exit_below(x):
        import os

        if x < limit:
            os._exit(58)
        return x

    return exit_below


def test_killed_worker_gives_its_job_back(start_method, executor_of, tmp_path):
    """DEATH-1: every sample comes once."""
    executor = executor_of(2, dying_once(str(tmp_path / "flag")), start_method=start_method)
    for i in range(20):
        executor.put(i)
    assert sorted(executor.get(timeout=30).value[0] for _ in range(20)) == list(range(20))
    assert executor.statistics()["jobs_retried"] >= 1


SECONDS_TO_NOTICE = 2.0


def test_a_death_is_told_within_two_seconds(start_method, executor_of, tmp_path):
    """DEATH-1, where the job is not tried again; the other worker has nothing to say meanwhile."""
    pid_file = tmp_path / "pid"

    def work_for_ever(x):
        pid_file.write_text(str(os.getpid()))
        pid_file.rename(tmp_path / "written")
        time.sleep(600)

    executor = executor_of(2, work_for_ever, max_retries=0, start_method=start_method)
    executor.put(0, uid="s0")
    while not (tmp_path / "written").exists():
        executor.poll()
    pid = int((tmp_path / "written").read_text())
    start = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(WorkerLostError) as caught:
        executor.get(timeout=30)
    assert time.monotonic() - start < SECONDS_TO_NOTICE * patience()
    assert (caught.value.pid, caught.value.uid) == (pid, "s0")
    assert "SIGKILL" in str(caught.value)


def test_the_job_of_a_dead_worker_is_done_by_another_within_two_seconds(start_method, executor_of, tmp_path):
    """DEATH-1: it does not wait for a new worker to start where an old one has nothing to do."""
    gate = tmp_path / "open"

    def wait_for_gate(x):
        (tmp_path / f"{x} {os.getpid()}").touch()
        while not gate.exists():
            time.sleep(0.002)
        return x

    executor = executor_of(2, wait_for_gate, start_method=start_method, in_order=True)
    for i in range(2):
        executor.put(i)
    while len(running := sorted(path.name.split() for path in tmp_path.iterdir())) < 2:
        executor.poll()
    start = time.monotonic()
    os.kill(int(running[0][1]), signal.SIGKILL)
    gate.touch()
    assert [executor.get(timeout=30).value for _ in range(2)] == [0, 1]
    assert time.monotonic() - start < SECONDS_TO_NOTICE * patience()
    assert executor.statistics()["jobs_retried"] == 1


def test_a_job_that_ran_again_is_the_same_to_the_bit(executor_of, tmp_path):
    undisturbed = executor_of(0, dying_once(str(tmp_path / "flag")), seed=5, in_order=True)
    (tmp_path / "flag").touch()
    killed = executor_of(2, dying_once(str(tmp_path / "other flag")), seed=5, in_order=True)
    drawn = []
    for executor in (undisturbed, killed):
        for i in range(8):
            executor.put(i)
        drawn.append([executor.get(timeout=30).value for _ in range(8)])
    assert killed.statistics()["jobs_lost"] >= 1
    assert drawn[0] == drawn[1]


@pytest.mark.slow
def test_a_death_before_a_job_has_begun_is_no_attempt(executor_of):
    """The worker is frozen when the job comes, and killed before anybody knows."""
    executor = executor_of(1, lambda x: x, max_retries=0)
    for number in range(3):
        executor.put(-1)
        executor.get(timeout=30)
        worker = psutil.Process(executor.pool.workers()[0].pid)
        worker.suspend()
        executor.put(number)
        worker.kill()
        result = executor.get(timeout=30)
        assert (result.value, result.attempts) == (number, 1)


def test_a_job_whose_workers_all_die_before_they_begin_it_is_lost_in_the_end():
    """An item that is too much for a worker to take in, say."""
    table = JobTable(True, 0, ErrorMaker(None, "f"))
    job = Job(7, None, None, b"", attempts=1)
    table.add(job)
    for _ in range(MOST_IN_VAIN):
        assert table.after_loss(Lost(7, False, 1, "died", was_next=True), None) is job
        job.attempts += 1  # it is sent again
    assert table.after_loss(Lost(7, False, 1, "died", was_next=True), None) is None
    _, error = table.take()
    assert isinstance(error, WorkerLostError)
    assert f"{MOST_IN_VAIN + 1} times before it began" in str(error)


@pytest.mark.slow
def test_a_job_behind_others_that_kill_their_workers_is_never_given_up(executor_of):
    """More workers die while it waits there than may die before they begin it."""
    executor = executor_of(1, exiting_below(MOST_IN_VAIN), max_retries=1, in_order=True, on_error="return")
    for number in range(MOST_IN_VAIN + 3):
        executor.put(number)
    results = [executor.get(timeout=60) for _ in range(MOST_IN_VAIN + 3)]
    assert [type(result.error) for result in results] == [WorkerLostError] * MOST_IN_VAIN + [type(None)] * 3
    assert [(result.value, result.attempts) for result in results[MOST_IN_VAIN:]] == [
        (number, 1) for number in range(MOST_IN_VAIN, MOST_IN_VAIN + 3)
    ]


def test_order_is_kept_over_a_death(executor_of, tmp_path):
    executor = executor_of(2, dying_once(str(tmp_path / "flag")), in_order=True)
    for i in range(20):
        executor.put(i)
    assert [executor.get(timeout=30).value[0] for _ in range(20)] == list(range(20))


def test_a_worker_killed_from_outside_is_replaced(executor_of):
    executor = executor_of(2, lambda x: (x, os.getpid()))
    executor.put(0)
    _, pid = executor.get(timeout=30).value
    os.kill(pid, signal.SIGKILL)
    for i in range(20):
        executor.put(i)
    answers = [executor.get(timeout=30).value for _ in range(20)]
    assert sorted(x for x, _ in answers) == list(range(20))
    assert len(executor.pool._seats) == 2


def test_a_job_that_kills_every_worker_is_named_with_pid_and_signal(executor_of):
    executor = executor_of(2, dying_always(), max_retries=1, in_order=True, name="load")
    for i in range(8):
        executor.put(i, key=(i,), uid=f"s{i}")
    results, errors = [], []
    for _ in range(8):
        try:
            results.append(executor.get(timeout=30).value)
        except WorkerLostError as error:
            errors.append(error)
    (error,) = errors
    assert results == [0, 1, 2, 4, 5, 6, 7]
    assert (error.ticket, error.key, error.uid, error.stage, error.attempts) == (3, (3,), "s3", "load", 2)
    assert not psutil.pid_exists(error.pid)
    assert f"2 attempts; the last one, pid {error.pid}, was ended by SIGKILL (often the out-of-memory" in str(error)


@pytest.mark.parametrize("max_retries", [0, 2])
def test_a_job_gets_max_retries_more_attempts(executor_of, tmp_path, max_retries):
    log = tmp_path / "log"

    def note_and_die(x):
        with log.open("a") as file:
            file.write("x")
        os.kill(os.getpid(), signal.SIGKILL)

    executor = executor_of(1, note_and_die, max_retries=max_retries)
    executor.put(0)
    with pytest.raises(WorkerLostError) as caught:
        executor.get(timeout=30)
    assert log.read_text() == "x" * (1 + max_retries)
    assert caught.value.attempts == 1 + max_retries


def test_a_lost_job_is_skipped_like_another_failure(executor_of):
    executor = executor_of(1, dying_always(), max_retries=0, on_error="skip", in_order=True)
    for i in range(5):
        executor.put(i, uid=i)
    assert [executor.get(timeout=30).value for _ in range(4)] == [0, 1, 2, 4]
    assert [type(failure.error) for failure in executor.failures] == [WorkerLostError]


def test_jobs_that_were_done_are_never_blamed_for_a_death(executor_of):
    """Answers that were sent a moment before may die with the worker: those jobs run again, and count no attempt."""
    executor = executor_of(1, lambda x: os.kill(os.getpid(), 9) if x == "die" else x, max_retries=0, on_error="return")
    for round_ in range(10):
        for x in (*range(round_), "die", 99):
            executor.put(x)
    results = [executor.get(timeout=30) for _ in range(45 + 10 + 10)]
    failed = [result.ticket for result in results if result.error is not None]
    assert sorted(failed) == [r + sum(x + 2 for x in range(r)) for r in range(10)]
    assert {result.attempts for result in results} == {1}


def test_a_job_that_kills_its_worker_before_anything_is_heard_of_it_is_named(executor_of):
    executor = executor_of(1, lambda x: os.kill(os.getpid(), 9), max_retries=1)
    for _ in range(3):
        executor.put(0)
        with pytest.raises(WorkerLostError, match="2 attempts"):
            executor.get(timeout=30)


def test_after_a_death_the_pool_is_whole(executor_of):
    """DEATH-2: the same executor then runs a full epoch with the configured number of workers."""

    def meet(x):
        if x == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.02)
        return x, os.getpid()

    executor = executor_of(2, meet, max_retries=0)
    executor.put("die")
    with pytest.raises(WorkerLostError):
        executor.get(timeout=30)
    for i in range(20):
        executor.put(i)
    answers = [executor.get(timeout=30).value for _ in range(20)]
    assert sorted(x for x, _ in answers) == list(range(20))
    assert len({pid for _, pid in answers}) == 2


def test_after_a_death_and_a_reset_the_pool_is_whole(executor_of):
    executor = executor_of(2, dying_always(), max_retries=0)
    executor.put(3)
    with pytest.raises(WorkerLostError):
        executor.get(timeout=30)
    executor.reset()
    for i in (0, 1, 2):
        executor.put(i)
    assert sorted(executor.get(timeout=30).value for _ in range(3)) == [0, 1, 2]


def test_jobs_that_waited_at_a_dead_worker_run_at_others_and_count_no_attempt(executor_of):
    """DEATH-3. All jobs are put before the only worker has said hello, so all of them wait at the one that dies."""
    executor = executor_of(1, dying_always(), max_retries=0, on_error="return", in_order=True)
    for i in [3, *range(10, 40)]:
        executor.put(i)
    results = [executor.get(timeout=30) for _ in range(31)]
    assert isinstance(results[0].error, WorkerLostError)
    assert [result.value for result in results[1:]] == list(range(10, 40))
    assert {result.attempts for result in results[1:]} == {1}


@pytest.mark.slow
def test_no_message_is_dropped_however_many_wait(executor_of, tmp_path):
    """DEATH-3: ZeroMQ's own mark is at 1000 messages."""
    gate = tmp_path / "open"

    def wait_for_gate(x):
        while not gate.exists():
            time.sleep(0.005)
        return x

    executor = executor_of(1, wait_for_gate)
    executor.put(-1)
    while executor.pool._seats and not all(seat.is_ready for seat in executor.pool._seats.values()):
        executor.poll()
    for i in range(5000):
        executor.put(i)
    gate.touch()
    assert sorted(executor.get(timeout=30).value for _ in range(5001)) == list(range(-1, 5000))


@pytest.mark.slow
def test_a_death_is_noticed_while_answers_come_without_a_pause(executor_of):
    """An in-order consumer waits for a job of a dead worker; it must not wait until the other one has nothing to do."""
    executor = executor_of(2, lambda x: (x, os.getpid()), in_order=False)
    for i in range(10_000):
        executor.put(i)
    _, pid = executor.get(timeout=30).value
    os.kill(pid, signal.SIGKILL)
    seen = 1
    while not executor.statistics()["jobs_lost"]:
        executor.get(timeout=30)
        seen += 1
    rest = [executor.get(timeout=30).value[0] for _ in range(10_000 - seen)]
    assert len(rest) > 100


def test_a_crash_names_its_signal_and_shows_the_python_stack(program):
    """DEATH-4."""
    result = program("""
        import ctypes
        from trw_pipeline.errors import ExecutorError, WorkerLostError
        from trw_pipeline.executors.job_executor import JobExecutor

        def crash_in_here(x):
            ctypes.string_at(0)

        with JobExecutor(1, crash_in_here, max_retries=0) as executor:
            executor.put(1)
            try:
                executor.get(timeout=30)
            except WorkerLostError as error:
                print(error)
        """).finish()
    assert "SIGSEGV" in result.stdout
    assert "in crash_in_here" in result.stderr


def test_a_worker_that_exits_names_its_exit_code(executor_of):
    executor = executor_of(1, lambda x: os._exit(7), max_retries=0)
    executor.put(0)
    with pytest.raises(WorkerLostError, match="ended with exit code 7"):
        executor.get(timeout=30)


def test_a_death_is_seen_though_a_grandchild_lives_on(start_method, executor_of, tmp_path):
    """A process that the job started inherits what the worker had open, also the pipe that tells of its end."""
    pid_file = tmp_path / "pid"

    def fork_and_die(x):
        if x == 0 and not pid_file.exists():
            child = os.fork()
            if child == 0:
                time.sleep(60)
                os._exit(0)
            pid_file.write_text(str(child))
            os.kill(os.getpid(), signal.SIGKILL)
        return x

    executor = executor_of(1, fork_and_die, start_method=start_method)
    executor.put(0)
    value = executor.get(timeout=30).value
    grandchild = psutil.Process(int(pid_file.read_text()))
    was_alive = grandchild.status() != psutil.STATUS_ZOMBIE
    grandchild.kill()
    assert value == 0
    assert was_alive


def test_the_children_of_the_program_may_be_reaped_by_others(executor_of):
    """A program that ignores SIGCHLD lets the system forget how its children ended."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        executor = executor_of(1, dying_always(), start_method="fork", max_retries=0)
        executor.put(3)
        with pytest.raises(WorkerLostError):
            executor.get(timeout=30)
        executor.put(4)
        assert executor.get(timeout=30).value == 4
        executor.close()
    finally:
        signal.signal(signal.SIGCHLD, before)


def end_thread(executor):
    """Raises SystemExit in the thread of the only worker, as a program may in any thread."""
    (seat,) = executor.pool._seats.values()
    ident = ctypes.c_ulong(seat.thread._thread.ident)
    assert ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(SystemExit)) == 1


def test_a_thread_that_ends_between_two_jobs_is_replaced(executor_of):
    executor = executor_of(1, lambda x: x, backend="thread", in_order=True)
    executor.put(0)
    executor.get(timeout=30)
    end_thread(executor)
    for i in range(5):
        executor.put(i)
    assert [executor.get(timeout=30).value for _ in range(5)] == list(range(5))


def test_a_thread_that_ends_with_a_job_in_hand_is_one_error(executor_of):
    """Its item can not be given to another worker: it was handed over, and may have been changed."""
    executor = executor_of(1, lambda x: x, backend="thread", in_order=True)
    executor.put("a")
    executor.get(timeout=30)
    executor.pool.results.encode = None  # a fault of ours, between the job and its reply
    executor.put("b")
    with pytest.raises(WorkerLostError, match="ended with TypeError"):
        executor.get(timeout=30)
    del executor.pool.results.encode
    executor.put("c")
    assert executor.get(timeout=30).value == "c"


def test_a_pool_whose_folder_was_removed_is_one_error_when_a_worker_dies(executor_of):
    executor = executor_of(1, dying_always())
    executor.put(0)
    executor.get(timeout=30)
    executor.pool._recruiter.door.remove()
    executor.put(3)
    with pytest.raises(ExecutorError, match="has been removed"):
        executor.get(timeout=30)
    executor.reset()
    executor.put(4)
    assert executor.get(timeout=30).value == 4
