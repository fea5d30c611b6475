"""Ends: a pool closes whatever its workers do, a program exits whatever it forgot, and nothing is left of either."""

from __future__ import annotations

import gc
import os
import random
import signal
import threading
import time

import psutil
import pytest

from trw_pipeline.executors.job_executor import JobExecutor

SECONDS_TO_CLOSE = 5.0
"""Far above what a close takes, far below for ever."""


def closes_soon(executor: JobExecutor, limit_s: float = SECONDS_TO_CLOSE) -> bool:
    start = time.monotonic()
    executor.close()
    return time.monotonic() - start < limit_s


def pids(executor: JobExecutor) -> list[int]:
    return [seat.pid for seat in executor.pool._seats.values()]


# A consumer that stops while everything is full (HANG-1)


def full_executor() -> JobExecutor:
    executor = JobExecutor(4, lambda x: bytes(5_000_000), 8)
    for i in range(8):
        executor.put(i)
    for _ in range(3):
        executor.get(timeout=30)
        executor.put(0)
    deadline = time.monotonic() + 30
    while executor.is_ready() is False and time.monotonic() < deadline:
        executor.poll()
    return executor


@pytest.mark.slow
def test_close_returns_while_all_buffers_are_full():
    assert all(closes_soon(full_executor()) for _ in range(5))


@pytest.mark.slow
def test_an_exception_in_the_consumer_ends_the_workers():
    for _ in range(5):
        start = time.monotonic()
        with pytest.raises(RuntimeError, match="consumer"), full_executor():
            raise RuntimeError("consumer")
        assert time.monotonic() - start < 2 * SECONDS_TO_CLOSE


@pytest.mark.slow
def test_leaving_a_with_block_ends_the_workers():
    for _ in range(5):
        with full_executor() as executor:
            processes = [psutil.Process(pid) for pid in pids(executor)]
        assert not any(process.is_running() for process in processes)


# Close, whatever the workers do


def test_close_does_not_wait_for_a_job_that_takes_long(executor_of):
    executor = executor_of(2, time.sleep)
    executor.put(600)
    executor.put(600)
    assert closes_soon(executor)


def test_close_does_not_run_the_jobs_that_wait(executor_of, tmp_path):
    """Killed or not: what had not begun when `close` was called does not begin any more."""
    log = tmp_path / "log"
    started, gate = tmp_path / "started", tmp_path / "open"

    def note(x):
        with log.open("a") as file:
            file.write(f"{x} ")
        started.touch()
        while not gate.exists():
            time.sleep(0.002)
        return x

    executor = executor_of(1, note)
    for i in range(50):
        executor.put(i)
    while not started.exists():
        executor.poll()
    threading.Timer(0.3, gate.touch).start()
    executor.close(timeout=30)
    assert log.read_text() == "0 "


@pytest.mark.parametrize("nb_workers", [1, 4])
def test_close_while_workers_are_still_starting(nb_workers, start_method):
    executor = JobExecutor(nb_workers, lambda x: x, start_method=start_method)
    executor.put(1)
    assert closes_soon(executor, 2 + nb_workers)


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_close_with_stopped_or_dead_workers_and_a_hundred_messages_for_them(number):
    """STOP-2."""
    executor = JobExecutor(2, lambda x: x)
    executor.put(0)
    executor.get(timeout=30)
    for pid in pids(executor):
        os.kill(pid, number)
    for i in range(100):
        executor.put(i)
    assert closes_soon(executor, 2.0)


@pytest.mark.parametrize("number", ["SIGSTOP", "SIGKILL"])
def test_exit_with_stopped_or_dead_workers(program, number):
    """STOP-2, at interpreter exit."""
    result = program(f"""
        import os, signal
        from trw_pipeline.executors.job_executor import JobExecutor
        executor = JobExecutor(2, lambda x: x)
        executor.put(0)
        executor.get(timeout=30)
        for seat in executor.pool._seats.values():
            os.kill(seat.pid, signal.{number})
        for i in range(100):
            executor.put(i)
        """).finish(timeout_s=20)
    assert (result.returncode, result.stderr) == (0, "")


def test_a_collected_executor_leaves_no_process(pool_kind):
    """STOP-2, in garbage collection; without a cycle that would have to wait for the collector."""
    gc.disable()
    try:
        executor = JobExecutor(2, lambda x: x, backend=pool_kind)
        executor.put(1)
        executor.get(timeout=30)
        processes = [psutil.Process(pid) for pid in pids(executor)] if pool_kind == "process" else []
        del executor
        assert not any(process.is_running() for process in processes)
    finally:
        gc.enable()


def test_a_collected_executor_with_stopped_workers_is_gone_soon():
    executor = JobExecutor(1, lambda x: x)
    executor.put(0)
    executor.get(timeout=30)
    (process,) = (psutil.Process(pid) for pid in pids(executor))
    process.suspend()
    start = time.monotonic()
    del executor
    gc.collect()
    assert time.monotonic() - start < SECONDS_TO_CLOSE
    assert not process.is_running()


def open_things() -> tuple[int, int]:
    gc.collect()
    return psutil.Process().num_fds(), threading.active_count()


@pytest.mark.slow
def test_a_hundred_executors_leave_no_descriptor_and_no_thread(pool_kind):
    """FD-3. The first one starts what lives as long as the program."""

    def use() -> None:
        def post(results, channel_main_to_worker, channel_worker_to_main):
            return results

        nb_workers = 0 if pool_kind == "inline" else 1
        with JobExecutor(nb_workers, lambda x: x, 0, post, backend=pool_kind) as executor:
            executor.put(1)
            executor.get(timeout=30)

    use()
    before = open_things()
    for _ in range(100):
        use()
    assert open_things() == before


def test_deaths_leave_no_descriptor(start_method):
    def use() -> None:
        with JobExecutor(
            1, lambda x: os._exit(1), max_retries=2, on_error="return", start_method=start_method
        ) as executor:
            executor.put(1)
            executor.get(timeout=60)

    use()
    before = open_things()
    use()
    assert open_things() == before


# Programs that never closed (STOP-1)

HOLDERS = {
    "global": "executor = make()",
    "local": "def main():\n    executor = make()\n    end()\nmain()",
    "cycle": "ring = [make()]\nring.append(ring)",
}
ENDS = {"end": (0, "pass"), "raise": (1, "raise LookupError('the end')"), "exit": (3, "import sys; sys.exit(3)")}


@pytest.mark.slow
@pytest.mark.parametrize("holder", HOLDERS)
@pytest.mark.parametrize("how", ENDS)
def test_a_program_that_forgot_to_close_exits(program, holder, how, pool_kind):
    code, ending = ENDS[how]
    source = (
        "from trw_pipeline.executors.job_executor import JobExecutor\n"
        "def make():\n"
        f"    executor = JobExecutor({0 if pool_kind == 'inline' else 2}, lambda x: x, backend={pool_kind!r})\n"
        "    for i in range(10):\n        executor.put(i)\n"
        "    executor.get(timeout=30)\n    return executor\n"
        f"def end():\n    {ending}\n"
        f"{HOLDERS[holder]}\nend()\n"
    )
    result = program(source).finish(timeout_s=20)
    assert result.returncode == code
    assert ("LookupError: the end" in result.stderr) == (how == "raise")
    assert result.stderr.count("Traceback") == (how == "raise")


@pytest.mark.slow
def test_a_program_with_a_busy_thread_exits(program):
    result = program("""
        import time
        from trw_pipeline.executors.job_executor import JobExecutor
        executor = JobExecutor(1, time.sleep, backend="thread")
        executor.put(600)
        executor.poll()
        """).finish(timeout_s=20)
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["", "executor.close()", "del executor", "executor.reset()"])
@pytest.mark.parametrize("method", ["forkserver", "spawn", "fork"])
def test_nothing_is_said_at_exit(program, method, ending):
    """STOP-7: after a normal run, an early end, an explicit close; unclosed resources would be errors."""
    result = program(f"""
        import numpy as np
        from trw_pipeline.executors.job_executor import JobExecutor
        executor = JobExecutor(2, lambda x: 2 * x, start_method={method!r})
        for i in range(10):
            executor.put(np.full(10_000, i))
        for _ in range(4):
            executor.get(timeout=30)
        {ending}
        """).finish()
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


# Signals

BUSY = """
    import sys, time
    from trw_pipeline.executors.job_executor import JobExecutor

    def work(x):
        time.sleep(0.02)
        return bytes(100_000)

    print("begin", flush=True)
    with JobExecutor(2, work, 8, start_method={method!r}) as executor:
        while True:
            while executor.has_room():
                executor.put(1)
            executor.get()
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", ["forkserver", "spawn", "fork"])
def test_ctrl_c_gives_one_traceback_and_leaves_nothing(program, method):
    """STOP-3: at random times, start included, to the whole process group as a terminal sends it."""
    moments = random.Random(1)
    for _ in range(4):
        running = program(BUSY.format(method=method))
        assert running.read_line() == "begin"
        time.sleep(moments.uniform(0, 0.7))
        running.send(signal.SIGINT, to_group=True)
        result = running.finish(timeout_s=20)
        assert result.returncode == -signal.SIGINT
        assert result.stderr.count("Traceback") == 1, result.stderr
        assert result.stderr.rstrip().endswith("KeyboardInterrupt")


@pytest.mark.slow
@pytest.mark.parametrize("method", ["forkserver", "spawn", "fork"])
def test_workers_end_with_a_killed_parent_also_busy_ones(program, method):
    """STOP-4. `finish` fails if a process is left; the autouse fixture, if the folder of the sockets is."""
    source = """
        import sys, time
        from trw_pipeline.executors.job_executor import JobExecutor
        executor = JobExecutor(3, lambda x: time.sleep(x) or 1, start_method={method!r})
        print("begin", flush=True)
        executor.put(600)
        executor.put(0)
        executor.put(0)
        while True:
            executor.get()
            executor.put(0.01)
    """
    moments = random.Random(2)
    for _ in range(3):
        running = program(source.format(method=method))
        assert running.read_line() == "begin"
        time.sleep(moments.uniform(0, 0.7))
        running.send(signal.SIGKILL)
        running.finish()


@pytest.mark.slow
@pytest.mark.parametrize("stopped", [False, True])
def test_workers_that_can_not_look_end_with_a_killed_parent(program, stopped):
    """A job that holds the interpreter lock keeps its worker from noticing, and a stopped one notices nothing."""
    running = program(f"""
        import os, re, signal, time
        from trw_pipeline.executors.job_executor import JobExecutor

        def work(x):
            if x == "hold":
                re.match(r"(a+)+$", "a" * 32 + "b")
            return os.getpid()

        executor = JobExecutor(2, work, start_method="forkserver")
        for x in range(4):
            executor.put(x)
            executor.get(timeout=30)
        if {stopped}:
            os.kill(next(iter(executor.pool._seats.values())).pid, signal.SIGSTOP)
        else:
            executor.put("hold")
            executor.poll()
        time.sleep(0.3)
        print("begin", flush=True)
        time.sleep(60)
        """)
    assert running.read_line() == "begin"
    running.send(signal.SIGKILL)
    running.finish()


@pytest.mark.slow
def test_workers_end_with_a_killed_parent_though_its_other_children_live_on(program):
    """A process that was forked after the workers has copies of the pipes by which they would notice the end."""
    running = program("""
        import os, signal, time
        from trw_pipeline.executors.job_executor import JobExecutor
        executor = JobExecutor(2, lambda x: x, start_method="fork")
        for i in range(4):
            executor.put(i)
            executor.get(timeout=30)
        pids = [seat.pid for seat in executor.pool._seats.values()]
        bystander = os.fork()
        if bystander == 0:
            time.sleep(60)
        print(bystander, *pids, flush=True)
        time.sleep(60)
        """)
    bystander, *workers = (psutil.Process(int(pid)) for pid in running.read_line().split())
    running.send(signal.SIGKILL)
    running.process.wait()
    _, left = psutil.wait_procs(workers, timeout=5)
    was_alive = bystander.is_running()
    bystander.kill()
    running.finish()
    assert (left, was_alive) == ([], True)


@pytest.mark.slow
def test_a_terminated_program_leaves_nothing(program):
    running = program(BUSY.format(method="forkserver"))
    assert running.read_line() == "begin"
    time.sleep(0.3)
    running.send(signal.SIGTERM)
    assert running.finish().returncode == -signal.SIGTERM


@pytest.mark.slow
def test_a_job_may_start_programs_that_hear_ctrl_c(executor_of):
    """Workers handle the signal; what they start does not inherit that they do."""

    def start(x):
        import subprocess
        import sys

        child = subprocess.Popen(
            [sys.executable, "-c", "import time; print(1, flush=True)\nwhile True: time.sleep(0.05)"],
            stdout=-1,
            stderr=-3,
        )
        child.stdout.readline()
        child.send_signal(2)
        child.communicate()
        return child.returncode

    executor = executor_of(1, start)
    executor.put(0)
    assert executor.get(timeout=30).value == -signal.SIGINT
