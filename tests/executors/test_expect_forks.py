"""Programs with threads, open files and children of their own: workers do not inherit their troubles."""

from __future__ import annotations

import os
import socket

import pytest

from trw_pipeline.executors.job_executor import JobExecutor

# Threads of libraries (FORK-1, FORK-2)


@pytest.mark.slow
def test_ten_pools_in_a_row_work_while_the_program_has_threads_at_work(program):
    """FORK-1: with BLAS, torch, and a thread that holds the lock of a log."""
    result = program("""
        import logging, threading
        import numpy as np, torch
        from trw_pipeline.executors.job_executor import JobExecutor

        torch.set_num_threads(4)
        stop = threading.Event()
        a = np.random.default_rng(0).random((300, 300))
        expected = float((a @ a).sum())

        def keep_busy():
            while not stop.wait(0.001):
                logging.getLogger("busy").warning("busy")
                a @ a
                torch.from_numpy(a) @ torch.from_numpy(a)

        logging.basicConfig(stream=open("log", "w"))
        threads = [threading.Thread(target=keep_busy, daemon=True) for _ in range(2)]
        for thread in threads:
            thread.start()

        def multiply(x):
            import logging
            logging.getLogger("worker").info("multiply")
            return float((x @ x).sum())

        for repetition in range(10):
            with JobExecutor(2, multiply) as executor:
                for _ in range(6):
                    executor.put(a)
                results = [executor.get(timeout=60).value for _ in range(6)]
                assert all(abs(result - expected) < 1e-3 for result in results), results
        stop.set()
        for thread in threads:
            thread.join()
        logging.root.handlers[0].stream.close()
        print("done")
        """).finish(timeout_s=100)
    assert (result.stdout, result.stderr) == ("done\n", "")


@pytest.mark.slow
@pytest.mark.parametrize("method", ["forkserver", "spawn", "fork"])
def test_program_and_workers_compress_at_the_same_time(program, method):
    """FORK-2. With "fork" a worker must keep to one thread: that blosc's own are gone there is not ours to mend."""
    result = program(f"""
        import blosc2
        import numpy as np
        from trw_pipeline.executors.job_executor import JobExecutor

        nb_threads = 1 if {method!r} == "fork" else 2
        a = np.arange(500_000, dtype=np.int32)

        def round_trip(x, nb_threads=4):
            import blosc2
            import numpy as np
            packed = blosc2.compress2(x, cparams={{"nthreads": nb_threads, "typesize": 4}})
            unpacked = blosc2.decompress2(packed, dparams={{"nthreads": nb_threads}})
            return np.frombuffer(unpacked, np.int32)

        assert (round_trip(a) == a).all()  # has started its threads, before there are workers
        with JobExecutor(2, lambda x: round_trip(x, nb_threads), 8, start_method={method!r}, in_order=True) as executor:
            right = []
            for i in range(100):
                while not executor.has_room():
                    result = executor.get(timeout=60)
                    right.append((result.value == a + result.ticket).all())
                executor.put(a + i)
                right.append((round_trip(a + i) == a + i).all())
            while executor.nb_in_flight:
                result = executor.get(timeout=60)
                right.append((result.value == a + result.ticket).all())
        print(len(right), all(right))
        """).finish(timeout_s=90)
    assert (result.stdout, result.stderr) == ("200 True\n", "")


# What workers inherit (FORK-3)


def test_workers_inherit_no_descriptor_of_the_program(executor_of, tmp_path):
    """FORK-3, with the default start method: not even those that the program lets its children have."""

    def targets(x):
        import os

        return [os.readlink(f"/proc/self/fd/{n}") for n in range(3, 300) if os.path.islink(f"/proc/self/fd/{n}")]

    with (tmp_path / "file").open("w") as file, socket.create_server(("127.0.0.1", 0)) as server:
        readable, writable = os.pipe()
        mine = [file.fileno(), server.fileno(), readable, writable]
        for number in mine:
            os.set_inheritable(number, True)
        ours = {os.readlink(f"/proc/self/fd/{number}") for number in mine}
        executor = executor_of(1, targets)
        executor.put(0)
        inherited = ours & set(executor.get(timeout=30).value)
        os.close(readable)
        os.close(writable)
    assert inherited == set()


def test_a_file_opened_by_worker_init_is_each_workers_own(executor_of, tmp_path):
    """FORK-3: so that nobody moves the position of another."""
    data = tmp_path / "data"
    data.write_bytes(bytes(range(200)))

    def open_it():
        import builtins

        builtins.trw_test_file = data.open("rb")

    def read_at(i):
        import builtins

        builtins.trw_test_file.seek(i)
        return builtins.trw_test_file.read(1)[0]

    executor = executor_of(3, read_at, worker_init=open_it, in_order=True)
    for i in range(200):
        executor.put(i)
    assert [executor.get(timeout=30).value for _ in range(200)] == list(range(200))


# Pools within other pools (PLAT-3)


def squares_in_a_daemon(nb_workers):
    """Uses an executor in a process that may have no children, as data loaders of others start them."""
    from trw_pipeline.errors import TrwError

    try:
        with JobExecutor(nb_workers, lambda x: x * x, in_order=True) as executor:
            values = []
            for i in range(5):
                executor.put(i)
                values.append(executor.get(timeout=30).value)
            return values
    except TrwError as error:
        return str(error)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("nb_workers", [0, 2])
def test_an_executor_works_in_a_daemonic_process_or_says_that_it_can_not(program, method, nb_workers):
    """PLAT-3. Daemons of `multiprocessing` may have no children of its kind; ours are not."""
    result = program(f"""
        import multiprocessing, sys
        sys.path.insert(0, {os.path.dirname(__file__)!r})
        from test_expect_forks import squares_in_a_daemon

        if __name__ == "__main__":
            with multiprocessing.get_context({method!r}).Pool(1) as pool:
                print(pool.apply(squares_in_a_daemon, ({nb_workers},)))
        """).finish(timeout_s=60)
    assert result.stdout == "[0, 1, 4, 9, 16]\n"
    assert result.stderr == ""


@pytest.mark.slow
def test_a_data_loader_of_torch_may_use_an_executor_in_its_workers(program):
    """PLAT-3."""
    result = program("""
        from torch.utils.data import DataLoader, IterableDataset
        from trw_pipeline.executors.job_executor import JobExecutor

        class Squares(IterableDataset):
            def __iter__(self):
                with JobExecutor(1, lambda x: x * x, in_order=True) as executor:
                    for i in range(4):
                        executor.put(i)
                    for _ in range(4):
                        yield executor.get(timeout=30).value

        loader = DataLoader(Squares(), batch_size=None, num_workers=1)
        print([int(x) for x in loader])
        """).finish(timeout_s=60)
    assert result.stdout == "[0, 1, 4, 9]\n", result.stderr


# Systems without POSIX (PLAT-6)


POSIX_ONLY = ("_posixshmem", "_posixsubprocess", "fcntl", "grp", "pty", "pwd", "resource", "syslog", "termios", "tty")


def test_the_workers_path_imports_nothing_that_only_posix_has(program):
    """PLAT-6. That it works there is for a machine of that kind to show; libraries bring what they need there."""
    result = program(f"""
        import sys
        import blosc2, cloudpickle, multiprocess, numpy, psutil, tblib.pickling_support, threadpoolctl, zmq
        from multiprocess import forkserver, resource_tracker, spawn
        assert not [name for name in sys.modules if name.startswith("trw_pipeline")]
        for name in {POSIX_ONLY}:
            sys.modules[name] = None
        import trw_pipeline.executors.job_executor, trw_pipeline.executors.worker_main
        print("imported")
        """).finish()
    assert (result.stdout, result.stderr) == ("imported\n", "")


def test_jobs_run_in_threads_and_inline_where_there_is_nothing_that_only_posix_has(program):
    """PLAT-6: there is nothing there that would be imported late."""
    result = program(f"""
        import sys
        import cloudpickle, multiprocess, numpy, psutil, tblib.pickling_support, threadpoolctl, torch, zmq
        from multiprocess import forkserver, resource_tracker, spawn
        for name in {POSIX_ONLY}:
            sys.modules[name] = None
        import numpy as np
        from trw_pipeline.sequences.sequence import SequenceArray
        from trw_pipeline.sequences.samplers import SamplerSequential
        for backend in ("thread", "inline"):
            numbers = SequenceArray({{"x": np.arange(6)}}, SamplerSequential())
            with numbers.map(lambda batch: {{"x": 2 * batch["x"]}}, nb_workers=2, backend=backend).batch(4) as chain:
                print([batch["x"].tolist() for batch in chain])
        """).finish(timeout_s=60)
    assert (result.stdout, result.stderr) == (2 * "[[0, 2, 4, 6], [8, 10]]\n", "")
