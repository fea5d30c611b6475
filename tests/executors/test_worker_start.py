"""Workers that die while starting: one error that says why, never a wait for ever."""

from __future__ import annotations

import errno
import os
import signal

import pytest
import zmq
from toy_descriptors import nb_descriptors

from trw_pipeline.errors import ExecutorError
from trw_pipeline.executors import recruiter
from trw_pipeline.executors.job_executor import JobExecutor


def test_a_function_that_can_not_be_imported_there_is_one_error_with_the_traceback(executor_of, tmp_path, monkeypatch):
    (tmp_path / "only_here.py").write_text(
        f"import os\nif os.getpid() != {os.getpid()}:\n    raise RuntimeError('not in a worker')\n"
        "def function(x):\n    return x\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    from only_here import function

    executor = executor_of(2, function)
    executor.put(1)
    with pytest.raises(ExecutorError, match="not in a worker") as caught:
        executor.get(timeout=30)
    assert "only_here.py" in str(caught.value)
    assert "line 3" in str(caught.value)


def test_an_exit_in_the_initialiser_is_one_error_with_the_exit_code(executor_of):
    executor = executor_of(2, lambda x: x, worker_init=lambda: os._exit(3))
    executor.put(1)
    with pytest.raises(ExecutorError, match="exit code 3 before they were ready"):
        executor.get(timeout=30)


def test_an_initialiser_that_raises_is_one_error_with_the_traceback(executor_of):
    def init():
        raise LookupError("no such licence")

    executor = executor_of(2, lambda x: x, worker_init=init)
    executor.put(1)
    with pytest.raises(ExecutorError, match="LookupError: no such licence") as caught:
        executor.get(timeout=30)
    assert ", in init" in str(caught.value)


def test_the_error_of_the_start_stays(executor_of):
    executor = executor_of(1, lambda x: x, worker_init=lambda: 1 // 0)
    executor.put(1)
    for _ in range(2):
        with pytest.raises(ExecutorError, match="ZeroDivisionError"):
            executor.get(timeout=30)
    assert executor.is_broken


def test_a_reset_tries_the_start_again(executor_of, tmp_path):
    licence = tmp_path / "licence"
    executor = executor_of(1, lambda x: x, worker_init=lambda: licence.read_text())
    executor.put(1)
    with pytest.raises(ExecutorError):
        executor.get(timeout=30)
    licence.touch()
    executor.reset()
    executor.put(2)
    assert executor.get(timeout=30).value == 2


def test_a_broken_start_always_says_why(executor_of):
    """The report must get out of a worker that ends right after it has sent it."""

    def reason() -> str:
        with JobExecutor(1, lambda x: x, worker_init=lambda: 1 // 0) as executor:
            executor.put(1)
            with pytest.raises(ExecutorError) as caught:
                executor.get(timeout=30)
        return str(caught.value)

    assert all("ZeroDivisionError" in reason() for _ in range(10))


def test_a_replaced_worker_runs_its_initialiser_as_well(executor_of, tmp_path):
    """FORK-3."""
    log = tmp_path / "log"

    def init():
        with log.open("a") as file:
            file.write("x")

    executor = executor_of(1, lambda x: os._exit(1) if x == "die" else log.read_text(), worker_init=init, max_retries=0)
    executor.put(0)
    before = executor.get(timeout=30).value
    executor.put("die")
    with pytest.raises(ExecutorError):
        executor.get(timeout=30)
    executor.put(0)
    assert (before, executor.get(timeout=30).value) == ("x", "xx")


def can_not(*_arguments, **_keywords):
    raise zmq.ZMQError(errno.EMFILE)


def test_a_worker_that_can_not_be_started_leaves_no_descriptor_though_its_error_is_kept(monkeypatch):
    with JobExecutor(1, bytes):
        pass  # what lives as long as the program
    before = nb_descriptors()
    with JobExecutor(1, bytes) as executor:
        executor.put(1)
        os.kill(executor.get(timeout=30).pid, signal.SIGKILL)
        executor.put(1)
        monkeypatch.setattr(recruiter, "WorkerProcess", can_not)
        with pytest.raises(zmq.ZMQError) as kept:
            executor.get(timeout=30)
    assert nb_descriptors() == before
    assert kept.value.__traceback__ is not None  # of frames that know the worker


def test_a_pool_that_can_not_be_opened_leaves_no_descriptor(monkeypatch):
    with JobExecutor(1, bytes):
        pass
    before = nb_descriptors()
    monkeypatch.setattr(zmq.Context, "socket", can_not)
    with pytest.raises(zmq.ZMQError):
        JobExecutor(1, bytes)
    assert nb_descriptors() == before
