"""Ends: a pool closes whatever its workers do, a program exits whatever it forgot, and nothing is left of either."""

from __future__ import annotations

import gc
import itertools
import os
import random
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from patience import patience

from trw_pipeline.executors.job_executor import JobExecutor

SECONDS_TO_CLOSE = 5.0
"""Far above what a close takes, far below for ever."""


def closes_soon(executor: JobExecutor, limit_s: float = SECONDS_TO_CLOSE) -> bool:
    start = time.monotonic()
    executor.close()
    return time.monotonic() - start < limit_s * patience()


def pids(executor: JobExecutor) -> list[int]:
    return [seat.pid for seat in executor.pool._seats.values()]


# A consumer that stops while everything is full (HANG-1: each end takes at most 5 s, twenty times)


def full_executor(log: Path, max_arena_bytes: int | None) -> JobExecutor:
    """Takes three results of 5 MB and no more, until no job is accepted and all that were are done."""

    def produce(x):
        with log.open("ab") as file:
            file.write(b"x")
        time.sleep(0.005)  # quicker jobs share messages, and the last ones wait for company until a result is wanted
        return bytes(5_000_000)

    log.touch()
    executor = JobExecutor(4, produce, 8, output_queue_size=8, max_arena_bytes=max_arena_bytes)
    nb_put = 0
    for _ in range(3):
        executor.put(0)
        executor.get(timeout=30)
        nb_put += 1
    deadline = time.monotonic() + 30
    while (executor.has_room() or log.stat().st_size < nb_put) and time.monotonic() < deadline:
        while executor.has_room():
            executor.put(0, timeout=0)
            nb_put += 1
        executor.take_in()  # not `poll`: with a result at hand it would not hear of a worker that has started by now
        time.sleep(0.002)
    assert (executor.has_room(), log.stat().st_size) == (False, nb_put)
    assert nb_put > 8
    return executor


def stop_while_full(tmp_path: Path, end: Callable[[JobExecutor], None]) -> list[str]:
    """Ends twenty full executors, those with results in shared memory and in messages in turn; tells what was wrong."""
    found = []
    for repetition in range(20):
        threads = set(threading.enumerate())
        executor = full_executor(tmp_path / str(repetition), None if repetition % 2 else 0)
        workers = [psutil.Process(pid) for pid in pids(executor)]
        start = time.monotonic()
        end(executor)
        took_s = time.monotonic() - start
        left = [*(set(threading.enumerate()) - threads), *(worker for worker in workers if worker.is_running())]
        if took_s > SECONDS_TO_CLOSE * patience() or left or len(workers) != 4:
            found.append(f"repetition {repetition}: {took_s:.1f} s, left {left} of {workers}")
    return found


@pytest.mark.slow
def test_close_returns_while_all_buffers_are_full(tmp_path):
    assert stop_while_full(tmp_path, lambda executor: executor.close()) == []


@pytest.mark.slow
def test_an_exception_in_the_consumer_ends_the_workers(tmp_path):
    def end(executor):
        with pytest.raises(RuntimeError, match="consumer"), executor:
            raise RuntimeError("consumer")

    assert stop_while_full(tmp_path, end) == []


@pytest.mark.slow
def test_leaving_a_with_block_ends_the_workers(tmp_path):
    def end(executor):
        with executor:
            pass

    assert stop_while_full(tmp_path, end) == []


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


def with_messages_for_nobody(number: int) -> JobExecutor:
    """Its two workers are stopped or dead, and a hundred messages wait for them."""
    executor = JobExecutor(2, lambda x: x)
    executor.put(0)
    executor.get(timeout=30)
    for pid in pids(executor):
        os.kill(pid, number)
    for i in range(100):
        executor.put(i)
    return executor


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_close_with_stopped_or_dead_workers_and_a_hundred_messages_for_them(number):
    """STOP-2."""
    assert closes_soon(with_messages_for_nobody(number), 2.0)


@pytest.mark.parametrize("number", ["SIGSTOP", "SIGKILL"])
def test_exit_with_stopped_or_dead_workers_and_a_hundred_messages_for_them(program, number):
    """STOP-2, at interpreter exit; which has a second for all that is not ours."""
    running = program(f"""
        import os, signal
        from trw_pipeline.executors.job_executor import JobExecutor
        executor = JobExecutor(2, lambda x: x)
        executor.put(0)
        executor.get(timeout=30)
        for seat in executor.pool._seats.values():
            os.kill(seat.pid, signal.{number})
        for i in range(100):
            executor.put(i)
        print("the end", flush=True)
        """)
    assert running.read_line() == "the end"
    start = time.monotonic()
    result = running.finish(timeout_s=20)
    assert time.monotonic() - start < 3.0 * patience()
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_collection_with_stopped_or_dead_workers_and_a_hundred_messages_for_them(number):
    """STOP-2, in garbage collection: it is in a cycle, so that it is the collector that finds it."""
    holder = [with_messages_for_nobody(number)]
    holder.append(holder)
    start = time.monotonic()
    del holder
    gc.collect()
    assert time.monotonic() - start < 2.0 * patience()


def test_a_collected_executor_leaves_no_process(pool_kind):
    """Without a cycle that would have to wait for the collector."""
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
        executor.put(0)
        executor.get()
        print("working", flush=True)
        while True:
            while executor.has_room():
                executor.put(1)
            executor.get()
"""


def random_moments(nb: int, seed: str) -> list[tuple[str, float]]:
    """Returns moments in two halves: while the workers start, and while they work."""
    generator = random.Random(seed)
    return [(word, generator.uniform(0, 0.5)) for word in itertools.islice(itertools.cycle(["begin", "working"]), nb)]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["forkserver", "spawn", "fork"])
def test_ctrl_c_gives_one_traceback_and_leaves_nothing(programs_ended_by, method):
    """STOP-3: at ten random times for each method, start included, to the whole process group as a terminal does it."""
    source = BUSY.format(method=method)
    for ended in programs_ended_by(source, signal.SIGINT, random_moments(10, method), to_group=True):
        assert ended.code == -signal.SIGINT
        assert ended.errors.count("Traceback") == 1, ended.errors
        assert ended.errors.rstrip().endswith("KeyboardInterrupt")
        assert ended.took_s < SECONDS_TO_CLOSE * patience()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["forkserver", "spawn", "fork"])
def test_workers_end_with_a_killed_parent_also_busy_ones(programs_ended_by, method):
    """STOP-4, at seven random times for each method. Workers that know the folder of the sockets remove it, too."""
    folder = tempfile.mkdtemp(prefix="k-")  # of programs that were killed before a worker knew it, nobody removes it
    source = f"""
        import tempfile, time
        tempfile.tempdir = {folder!r}
        from trw_pipeline.executors.job_executor import JobExecutor
        print("begin", flush=True)
        executor = JobExecutor(3, lambda x: time.sleep(x) or 1, start_method={method!r})
        executor.put(600)
        executor.put(0)
        executor.put(0)
        executor.get()
        print("working", executor.pool._recruiter.door.folder, flush=True)
        while True:
            executor.put(0.01)
            executor.get()
    """
    ends = programs_ended_by(source, signal.SIGKILL, random_moments(7, method))
    assert [ended.code for ended in ends] == [-signal.SIGKILL] * 7
    assert max(ended.took_s for ended in ends) < SECONDS_TO_CLOSE * patience()
    known = [Path(line.split()[1]) for ended in ends for line in ended.said.splitlines() if line.startswith("working")]
    assert len(known) >= 3
    assert [path for path in known if path.parent != Path(folder) or path.exists()] == []


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
    """Once a worker runs, which then removes the folder of the sockets."""
    running = program(BUSY.format(method="forkserver"))
    assert [running.read_line() for _ in range(2)] == ["begin", "working"]
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
