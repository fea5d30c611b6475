"""Executors and forks: a copy of the program leaves the pool alone, and a job may use pools of its own."""

from __future__ import annotations

import os

import pytest

from trw_pipeline.errors import ExecutorError
from trw_pipeline.executors.job_executor import JobExecutor


def run_in_copy(function) -> bytes:
    """Runs a function in a forked copy of this program and returns what it returned."""
    readable, writable = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writable, function())
        finally:
            os._exit(0)
    os.close(writable)
    os.waitpid(pid, 0)
    with open(readable, "rb") as file:
        return file.read()


@pytest.mark.parametrize(
    "use", [lambda e: e.put(1), lambda e: e.get(), lambda e: e.reset()], ids=["put", "get", "reset"]
)
def test_an_executor_in_a_forked_copy_is_one_clear_error(use, executor_of):
    executor = executor_of(1, lambda x: x)

    def try_it() -> bytes:
        try:
            use(executor)
        except ExecutorError as error:
            return str(error).encode()
        return b"nothing was raised"

    assert b"belongs to another process; make one here" in run_in_copy(try_it)


def test_closing_in_a_forked_copy_leaves_the_workers_alone(executor_of):
    executor = executor_of(1, lambda x: os.getpid())
    executor.put(0)
    before = executor.get(timeout=30).value
    run_in_copy(lambda: executor.close() or b"")
    executor.put(0)
    assert executor.get(timeout=30).value == before


def test_a_forked_copy_may_have_executors_of_its_own(executor_of):
    executor = executor_of(1, lambda x: 10 * x)
    executor.put(1)
    executor.get(timeout=30)

    def use_another() -> bytes:
        with JobExecutor(1, lambda x: x + 1) as another:
            another.put(1)
            return str(another.get(timeout=30).value).encode()

    assert run_in_copy(use_another) == b"2"
    executor.put(2)
    assert executor.get(timeout=30).value == 20


def test_a_forked_copy_that_exits_as_usual_leaves_the_workers_alone(program):
    result = program("""
        import os, sys
        from trw_pipeline.executors.job_executor import JobExecutor

        executor = JobExecutor(2, lambda x: os.getpid())
        executor.put(0)
        before = executor.get(timeout=30).value
        if os.fork() == 0:
            del executor
            sys.exit(0)
        os.wait()
        executor.put(0)
        print(executor.get(timeout=30).value in [seat.pid for seat in executor.pool._seats.values()])
        print(executor.statistics()["jobs_lost"])
        executor.close()
        """).finish()
    assert result.stdout.split() == ["True", "0"]


@pytest.mark.slow
def test_jobs_may_have_executors_of_their_own(start_method, executor_of):
    def nested(x):
        from trw_pipeline.executors.job_executor import JobExecutor

        with JobExecutor(1, lambda y: y + 1) as inner:
            inner.put(x)
            return inner.get(timeout=30).value

    executor = executor_of(1, nested, start_method=start_method)
    executor.put(1)
    assert executor.get(timeout=60).value == 2


@pytest.mark.slow
def test_jobs_may_start_processes_of_their_own(executor_of):
    """PLAT-3: workers are not daemons."""

    def pool_of_processes(x):
        import multiprocessing

        with multiprocessing.get_context("fork").Pool(2) as pool:
            return sum(pool.map(abs, [-x, -x]))

    executor = executor_of(1, pool_of_processes)
    executor.put(2)
    assert executor.get(timeout=60).value == 4
