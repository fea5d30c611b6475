"""Start methods, folders, sockets and threads: the program around the pool is left as it was found."""

from __future__ import annotations

import errno
import os
import re
import stat
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import zmq
from multiprocess import process
from zmq.utils.monitor import recv_monitor_message

from trw_pipeline.errors import ExecutorError
from trw_pipeline.executors import pool
from trw_pipeline.executors.door import LONGEST_NAME, short_temp_dir
from trw_pipeline.executors.function import MappedFunction
from trw_pipeline.executors.job_executor import JobExecutor
from trw_pipeline.executors.pool import pool_size
from trw_pipeline.executors.worker_options import PoolOptions
from trw_pipeline.executors.zmq_pool import ZmqPool


def first_value(executor: JobExecutor) -> object:
    executor.put(1)
    return executor.get(timeout=60).value


# PLAT-1; everything passes with `--start-method spawn` and `fork`, too, of which a part is looked at here


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_pools_of_processes_keep_their_contract_under_the_start_methods_that_are_not_the_default(method):
    contract = Path(__file__).parents[1] / "contracts" / "test_pools.py"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "process", str(contract)]
    done = subprocess.run([*command, "--start-method", method], capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout
    assert re.search(r"^\d+ passed", done.stdout.splitlines()[-1])


@pytest.mark.parametrize("package", ["multiprocessing", "multiprocess"])
def test_the_start_method_of_the_program_is_left_alone(program, package):
    result = program(f"""
        import {package} as mp
        from trw_pipeline.executors.job_executor import JobExecutor
        with JobExecutor(1, lambda x: x) as executor:
            executor.put(1)
            executor.get(timeout=30)
            print(mp.get_start_method(allow_none=True))
        mp.set_start_method("spawn")
        print(mp.get_start_method(allow_none=True))
        """).finish()
    assert result.stdout.split() == ["None", "spawn"]


def test_the_default_start_method_warns_of_nothing(program):
    """Forking a program with threads is deprecated since Python 3.12; here every warning is an error."""
    result = program(
        """
        import threading, time
        threading.Thread(target=time.sleep, args=(5,), daemon=True).start()
        from trw_pipeline.executors.job_executor import JobExecutor
        with JobExecutor(2, lambda x: x) as executor:
            executor.put(1)
            print(executor.get(timeout=30).value)
        """,
        "-W",
        "error",
    ).finish()
    assert (result.stdout, result.stderr) == ("1\n", "")


def test_functions_that_multiprocess_looks_up_are_put_back(executor_of):
    from multiprocess import forkserver, spawn

    before = spawn.get_preparation_data, forkserver.connect_to_new_process, tempfile.tempdir
    first_value(executor_of(1, lambda x: x))
    assert (spawn.get_preparation_data, forkserver.connect_to_new_process, tempfile.tempdir) == before


def test_a_fork_server_of_the_program_keeps_its_own_preload(program):
    result = program("""
        import multiprocess
        from trw_pipeline.executors.job_executor import JobExecutor
        if __name__ == "__main__":
            with JobExecutor(1, lambda x: x) as executor:
                executor.put(1)
                executor.get(timeout=30)
            context = multiprocess.get_context("forkserver")
            context.set_forkserver_preload(["xmlrpc"])
            queue = context.SimpleQueue()
            process = context.Process(target=lambda q: q.put("xmlrpc" in __import__("sys").modules), args=(queue,))
            process.start()
            print(queue.get())
            process.join()
            process.close()
        """).finish()
    assert result.stdout == "True\n"


# PLAT-5


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
def test_a_worker_has_as_many_numerical_threads_as_it_should(executor_of, start_method, threads):
    def count(x):
        import os

        import numpy
        import threadpoolctl
        import torch

        numpy.ones((2, 2)) @ numpy.ones((2, 2))
        pools = {pool["num_threads"] for pool in threadpoolctl.threadpool_info()}
        return torch.get_num_threads(), pools, os.environ["OMP_NUM_THREADS"]

    import torch

    before = torch.get_num_threads(), dict(os.environ)
    value = first_value(executor_of(1, count, start_method=start_method, threads_per_worker=threads))
    assert value[:2] == (threads, {threads})
    assert value[2] == str(threads)
    assert (torch.get_num_threads(), dict(os.environ)) == before


# PLAT-7


def test_the_socket_lies_in_a_folder_that_only_its_owner_can_enter(executor_of):
    executor = executor_of(1, lambda x: x)
    folder = Path(executor.pool._recruiter.door.folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert (folder / "pool").is_socket()


def test_nothing_listens_on_a_network_address(executor_of):
    executor = executor_of(2, lambda x: x)
    first_value(executor)
    me = psutil.Process()
    family = [me, *me.children(recursive=True)]
    assert [c for member in family for c in member.net_connections("inet") if c.status == "LISTEN"] == []


@pytest.fixture
def tcp_pool():
    pool = ZmqPool(2, "forkserver", PoolOptions(transport="tcp"))
    pool.set_function(MappedFunction(lambda x: x + 1))
    yield pool
    pool.close(timeout_s=1)


def answers(pool: ZmqPool, tickets: range) -> dict[int, int]:
    for ticket in tickets:
        pool.send(ticket, bytes(32), pool.items.encode(10 * ticket))
    received = []
    while len(received) < len(tickets):
        received += pool.recv(30)
    return {answer.ticket: pool.results.decode(answer.frames) for answer in received}


def test_the_tcp_transport_works(tcp_pool):
    assert answers(tcp_pool, range(20)) == {ticket: 10 * ticket + 1 for ticket in range(20)}


def test_the_tcp_transport_listens_on_the_loopback_interface_only(tcp_pool):
    listening = [c.laddr.ip for c in psutil.Process().net_connections("inet") if c.status == "LISTEN"]
    assert listening == ["127.0.0.1"]


@pytest.mark.parametrize("key", ["none", "wrong"])
def test_a_stranger_without_the_key_is_not_heard(tcp_pool, key):
    answers(tcp_pool, range(2))
    context = zmq.Context()
    stranger = context.socket(zmq.DEALER)
    stranger.linger = 0
    stranger.routing_id = next(iter(tcp_pool._seats))  # it even takes the name of a worker
    if key == "wrong":
        stranger.curve_serverkey = zmq.curve_keypair()[0]
        stranger.curve_publickey, stranger.curve_secretkey = zmq.curve_keypair()
    monitor = stranger.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED)
    stranger.connect(tcp_pool._recruiter.door.endpoint)
    stranger.send_multipart([b"x" * 21, b"not a pickle"])
    try:
        assert monitor.poll(5000)
        assert recv_monitor_message(monitor)["event"] != zmq.EVENT_HANDSHAKE_SUCCEEDED
        assert tcp_pool.recv(0) == []
        assert answers(tcp_pool, range(5, 9)) == {ticket: 10 * ticket + 1 for ticket in range(5, 9)}
    finally:
        stranger.disable_monitor()
        monitor.close()
        stranger.close()
        context.term()


# FORK-1


@pytest.mark.slow
def test_a_parent_that_used_many_threads_has_working_workers(program):
    result = program("""
        import logging, threading
        import numpy as np, torch
        from trw_pipeline.executors.job_executor import JobExecutor

        torch.set_num_threads(4)
        stop = threading.Event()

        def chatter():
            while not stop.wait(0.001):
                logging.getLogger("x").debug("busy")

        thread = threading.Thread(target=chatter)
        thread.start()
        a = np.random.rand(300, 300)
        b = torch.rand(300, 300)
        a @ a
        b @ b

        def multiply(x):
            import torch
            return float((x @ x).sum()), float((torch.from_numpy(x) @ torch.from_numpy(x)).sum())

        with JobExecutor(2, multiply) as executor:
            for i in range(10):
                executor.put(a)
                b @ b
            results = [executor.get(timeout=60).value for _ in range(10)]
        expected = float((a @ a).sum())
        stop.set()
        thread.join()
        print(all(abs(x - expected) < 1e-3 and abs(y - expected) < 1e-3 for x, y in results))
        """).finish(timeout_s=90)
    assert (result.stdout, result.stderr) == ("True\n", "")


# Folders for temporary files


def test_a_temp_folder_with_a_long_path_works(program, start_method, tmp_path):
    """The address of a socket holds some hundred bytes; batch systems like to make longer folders."""
    long = tmp_path / ("long" * 30)
    long.mkdir()
    result = program(
        f"""
        from trw_pipeline.executors.job_executor import JobExecutor
        with JobExecutor(1, lambda x: x, start_method={start_method!r}) as executor:
            executor.put(1)
            print(executor.get(timeout=30).value)
        """,
        environment={"TMPDIR": str(long)},
    ).finish()
    assert (result.stdout, result.stderr) == ("1\n", "")
    assert list(long.iterdir()) == []


@pytest.mark.parametrize("kind", ["absent", "a file"])
def test_a_temp_folder_that_is_none_works(program, tmp_path, kind):
    path = tmp_path / "tmp"
    if kind == "a file":
        path.touch()
    result = program(
        """
        from trw_pipeline.executors.job_executor import JobExecutor
        with JobExecutor(1, lambda x: x) as executor:
            executor.put(1)
            print(executor.get(timeout=30).value)
        """,
        environment={"TMPDIR": str(path)},
    ).finish()
    assert (result.stdout, result.stderr) == ("1\n", "")


def test_no_usable_temp_folder_is_one_clear_error(monkeypatch):
    """The candidates are replaced, not the system: a folder that is too long, and one that is none."""
    too_long = "/" + "x" * (zmq.IPC_PATH_MAX_LEN - LONGEST_NAME)
    monkeypatch.setattr("trw_pipeline.executors.door._temp_dirs", lambda: [too_long, "/nowhere"])
    with pytest.raises(ExecutorError, match=r"set TMPDIR: .*too long.*/nowhere is not a folder"):
        JobExecutor(1, lambda x: x)


def test_the_usual_temp_folder_is_taken_where_it_will_do():
    assert short_temp_dir() == tempfile.gettempdir()


@pytest.mark.parametrize("nb_started", [0, 2])
def test_a_system_that_starts_no_more_processes_is_one_clear_error(executor_of, monkeypatch, nb_started):
    """Those that were started are ended: the autouse fixture would find them."""
    start = process.BaseProcess.start
    started = []

    def start_a_few(self):
        if len(started) == nb_started:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        start(self)
        started.append(self)

    monkeypatch.setattr(process.BaseProcess, "start", start_a_few)
    with pytest.raises(ExecutorError, match=r"can not be started \(forkserver\): .*temporarily unavailable"):
        executor_of(4, lambda x: x)
    assert len(started) == nb_started


# What shows


def test_processes_and_threads_bear_the_name_of_the_stage(executor_of):
    def who(x):
        import threading

        return threading.current_thread().name

    assert re.fullmatch(r"trw-load-\d+", first_value(executor_of(1, who, backend="thread", name="load")))


def test_a_normal_run_prints_nothing(program):
    """USE-4."""
    result = program("""
        from trw_pipeline.executors.job_executor import JobExecutor
        for backend in ("inline", "thread", "process"):
            with JobExecutor(1, lambda x: x, backend=backend) as executor:
                executor.put(1)
                executor.get(timeout=30)
        """).finish()
    assert (result.stdout, result.stderr) == ("", "")


def test_workers_inherit_no_file_that_the_program_has_open(executor_of, tmp_path):
    """FORK-3, with the default start method."""
    with (tmp_path / "open file").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        names = first_value(
            executor_of(
                1,
                lambda x: [
                    os.readlink(f"/proc/self/fd/{n}") for n in range(3, 64) if os.path.islink(f"/proc/self/fd/{n}")
                ],
            )
        )
    assert not any("open file" in name for name in names)


def test_threads_of_a_parent_go_on_while_workers_run(executor_of):
    beats = []
    stop = threading.Event()

    def beat():
        while not stop.is_set():
            beats.append(time.monotonic())
            stop.wait(0.01)

    thread = threading.Thread(target=beat)
    thread.start()
    executor = executor_of(1, lambda x: time.sleep(0.2) or np.zeros(3))
    first_value(executor)
    stop.set()
    thread.join()
    assert len(beats) >= 3


# PLAT-6


def test_more_workers_than_a_system_can_wait_for_are_capped_with_a_warning(monkeypatch, caplog):
    monkeypatch.setattr(pool, "MOST_WORKERS", 60)
    assert [pool_size(nb) for nb in (0, 60, 61, 1000)] == [0, 60, 60, 60]
    told = [record.getMessage() for record in caplog.records]
    assert told == [f"{nb} workers were asked for, this system can wait for 60; so many are used" for nb in (61, 1000)]
