"""A close that comes while the pool is in use: from another thread, a signal handler, the end of the program."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest
import zmq

from trw_pipeline.errors import ClosedError
from trw_pipeline.executors.job_executor import JobExecutor
from trw_pipeline.executors.waiting import wait_for_any


def close_when_waited_for(executor):
    """Closes the executor from another thread once this one waits for a result."""

    def watch():
        while not executor.pool.is_waiting:
            pass
        executor.close(timeout=0)

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


@pytest.mark.parametrize("backend", ["thread", "process"])
def test_a_close_from_another_thread_ends_the_wait(backend, executor_of):
    gate = threading.Event()
    executor = executor_of(1, gate.wait if backend == "thread" else time.sleep, backend=backend)
    executor.put(60)
    thread = close_when_waited_for(executor)
    with pytest.raises(ClosedError):
        executor.get(timeout=30)
    gate.set()
    thread.join()
    with pytest.raises(ClosedError):
        executor.put(1)


def test_a_close_in_a_signal_handler_ends_the_wait(executor_of):
    executor = executor_of(1, lambda x: signal.pause())
    executor.put(0)
    before = signal.signal(signal.SIGUSR1, lambda *_: executor.close(timeout=0))
    threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1)).start()
    try:
        with pytest.raises(ClosedError):
            executor.get(timeout=30)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_an_exception_of_the_handler_that_closed_passes(executor_of):
    executor = executor_of(1, lambda x: signal.pause())
    executor.put(0)

    def close_and_raise(*_):
        executor.close(timeout=0)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, close_and_raise)
    threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1)).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            executor.get(timeout=30)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert not executor.pool.is_in_use


def test_a_close_ends_the_wait_for_several(executor_of):
    one, other = (executor_of(1, lambda x: signal.pause()) for _ in range(2))
    for executor in (one, other):
        executor.put(0)
        while not all(seat.is_ready for seat in executor.pool._seats.values()):
            executor.poll()
    threading.Timer(0.05, one.close, (0,)).start()
    wait_for_any([one, other], timeout_s=30)
    with pytest.raises(ClosedError):
        one.get(timeout=0)


def use_for_ever(executor):
    while True:
        executor.put(1)
        executor.get(timeout=30)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["thread", "process"])
def test_a_close_at_any_moment_is_a_closed_error(backend):
    """A close that comes among sends and receives, not while they wait."""
    for delay in range(15):
        executor = JobExecutor(2, lambda x: x, backend=backend)
        closer = threading.Timer(0.001 * delay, executor.close)
        closer.start()
        with pytest.raises(ClosedError):
            use_for_ever(executor)
        closer.join()


@pytest.mark.parametrize("backend", ["thread", "process"])
def test_a_program_ends_in_peace_while_a_daemon_thread_uses_the_pool(backend, program):
    result = program(f"""
        import threading, time
        from trw_pipeline.executors.job_executor import JobExecutor

        begun = threading.Event()

        def use():
            executor = JobExecutor(2, lambda x: x, 8, backend={backend!r})
            while True:
                while executor.has_room():
                    executor.put(1)
                executor.get()
                begun.set()

        threading.Thread(target=use, daemon=True).start()
        begun.wait()
        """).finish(timeout_s=20)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_a_program_may_terminate_the_shared_context(program):
    result = program("""
        import zmq
        from trw_pipeline.executors.job_executor import JobExecutor

        executor = JobExecutor(1, lambda x: x, backend="thread")
        executor.put(1)
        executor.get(timeout=30)
        zmq.Context.instance().term()
        print(executor.put(2))
        executor.close()
        """).finish(timeout_s=20)
    assert result.stdout.split() == ["1"]


def test_the_pool_is_not_on_the_shared_context(executor_of):
    executor = executor_of(1, lambda x: x, backend="thread")
    assert executor.pool._recruiter._context is not zmq.Context.instance()


def test_a_pool_collected_in_its_own_worker_closes_in_silence():
    held = []
    begun, let_go = threading.Event(), threading.Event()

    def drop(x):
        begun.set()
        let_go.wait()
        held.clear()
        return x

    held.append(JobExecutor(1, drop, backend="thread"))
    held[0].put(1)
    pool = held[0].pool
    with pytest.MonkeyPatch.context() as patch:
        unraisable = []
        patch.setattr("sys.unraisablehook", unraisable.append)
        (thread,) = [seat.thread for seat in pool._seats.values()]
        while not begun.is_set():
            held[0].poll()
        let_go.set()
        thread.wait(30)
    assert (unraisable, pool._closed, thread.is_alive) == ([], True, False)


def test_a_reset_from_another_thread_ends_the_wait_and_the_executor_works_on(executor_of):
    executor = executor_of(1, lambda x: signal.pause() if x == 0 else x)
    executor.put(0)

    def watch():
        while not executor.pool.is_waiting:
            pass
        executor.reset()

    thread = threading.Thread(target=watch)
    thread.start()
    with pytest.raises(ClosedError):
        executor.get(timeout=30)
    thread.join()
    executor.reset()
    executor.put(1)
    assert executor.get(timeout=30).value == 1
