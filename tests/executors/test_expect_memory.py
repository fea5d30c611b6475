"""What data, functions and results cost in memory: once, where they are, and never again with each job or epoch."""

from __future__ import annotations

import gc
import threading
import time
import weakref

import numpy as np
import psutil
import pytest

from trw_pipeline.executors.job_executor import JobExecutor

# What a worker holds


@pytest.mark.slow
@pytest.mark.parametrize("nb_workers", [1, 8])
def test_a_worker_holds_its_samples_and_not_the_data(program, nb_workers):
    """MEM-1: 1 GB of an array and two million strings. In a program of its own, where no memory is left of others."""
    result = program(f"""
        import numpy as np, psutil
        from trw_pipeline.sequences.samplers import SamplerSequential
        from trw_pipeline.sequences.sequence import SequenceArray

        scans = np.ones((2_000_000, 500), np.uint8)
        names = [f"scan {{i}}" for i in range(2_000_000)]

        def look(batch):
            import os
            return {{"pid": np.array([os.getpid()]), "sum": [int(batch["x"].sum())], "last": [batch["name"][-1]]}}

        def private(pids):
            return {{pid: psutil.Process(pid).memory_full_info().uss for pid in pids}}

        # a sample a job would take minutes for all of it; so jobs have a thousand
        data = SequenceArray({{"x": scans, "name": names}}, SamplerSequential(batch_size=1000))
        with data.map(look, nb_workers={nb_workers}) as sequence:
            first = [next(sequence) for _ in range({10 * nb_workers})]
            before = private({{int(batch["pid"][0]) for batch in first}})
            for epoch in range(3):
                results = list(iter(sequence))
                assert [batch["sum"] for batch in results] == [[500_000]] * 2000
                assert results[-1]["last"] == ["scan 1999999"]
            after = private(before)
        print(len(before), max(after[pid] - before[pid] for pid in before) / 1e6)
        """).finish(timeout_s=110)
    assert result.stderr == ""
    nb_seen, grown_mb = result.stdout.split()
    assert 1 <= int(nb_seen) <= nb_workers
    assert float(grown_mb) < 50


@pytest.mark.slow
def test_a_memory_mapped_array_is_read_where_the_jobs_need_it(program, tmp_path):
    """MEM-5: 2 GB in a file, of which each job sees a slice."""
    result = program(f"""
        import numpy as np, psutil
        from trw_pipeline.executors.job_executor import JobExecutor

        volumes = np.memmap({str(tmp_path / "volumes")!r}, np.uint8, "w+", shape=(2000, 1_000_000))
        volumes[::20, 0] = np.arange(100)
        with JobExecutor(2, lambda x: (int(x[0]), x.nbytes), 4, in_order=True) as executor:
            executor.put(volumes[0])
            executor.get(timeout=60)
            before = psutil.Process().memory_info()
            results = []
            for i in range(0, 2000, 20):
                while not executor.has_room():
                    results.append(executor.get(timeout=60).value)
                executor.put(volumes[i])
            while executor.nb_in_flight:
                results.append(executor.get(timeout=60).value)
            after = psutil.Process().memory_info()
        assert results == [(i, 1_000_000) for i in range(100)], results
        # what of the file is mapped is shared with the system's cache, and given back when that is short
        print(((after.rss - after.shared) - (before.rss - before.shared)) / 1e6)
        """).finish(timeout_s=60)
    assert result.stderr == ""
    assert float(result.stdout) < 50


class Table:
    """A transform with a state of 200 MB, which counts how often it is made again."""

    def __init__(self, log):
        self.log = log
        self.values = np.zeros(25_000_000)

    def __setstate__(self, state):
        self.__dict__.update(state)
        with self.log.open("a") as file:
            file.write("x")

    def __call__(self, x):
        import os

        if x == "die":
            os.kill(os.getpid(), 9)
        return float(self.values[x])


@pytest.mark.slow
def test_a_large_function_is_sent_once_to_a_worker_and_again_to_its_replacement(executor_of, tmp_path):
    """MEM-6."""
    log = tmp_path / "log"
    executor = executor_of(1, Table(log), 8, max_retries=0, on_error="return")
    nb_failed = 0
    for i in [*range(400), "die", *range(100)]:
        while not executor.has_room():
            nb_failed += executor.get(timeout=60).error is not None
        executor.put(i)
    while executor.nb_in_flight:
        nb_failed += executor.get(timeout=60).error is not None
    assert nb_failed == 1
    assert log.read_text() == "xx"


# What is left of an epoch


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["process", "thread"])
def test_memory_does_not_rise_from_epoch_to_epoch(program, backend):
    """MEM-4: with results that are dropped, results of before a reset, and failures."""
    result = program(f"""
        import gc
        import numpy as np, psutil
        from trw_pipeline.executors.job_executor import JobExecutor

        def work(x):
            if x % 10 == 9:
                raise ValueError(x)
            return {{"image": np.full(500_000, x % 256, np.uint8), "name": "sample " + str(x)}}

        def rss():
            gc.collect()
            me = psutil.Process()
            return sum(process.memory_info().rss for process in (me, *me.children(recursive=True))) / 1e6

        with JobExecutor(2, work, 8, backend={backend!r}, on_error="skip") as executor:
            measured = []
            for epoch in range(30):
                for i in range(100):
                    while not executor.has_room():
                        executor.get(timeout=60)
                    executor.put(i)
                executor.reset()
                measured.append(rss())
        print(np.polyfit(range(25), measured[5:], 1)[0])
        """).finish(timeout_s=100)
    assert result.stderr == ""
    assert float(result.stdout) < 1.0


@pytest.mark.slow
def test_executors_that_are_dropped_in_the_midst_of_their_work_leave_nothing(pool_kind, nb_workers):
    """MEM-3, without a close, a reset, or a collection of cycles."""

    def make_and_drop():
        executor = JobExecutor(nb_workers, lambda x: np.zeros(20_000), backend=pool_kind)
        for i in range(2 * nb_workers or 1):
            executor.put(i)
        executor.get(timeout=30)

    def what_there_is():
        return threading.active_count(), psutil.Process().num_fds()

    for _ in range(3):
        make_and_drop()
    gc.collect()
    before, memory = what_there_is(), psutil.Process().memory_info().rss
    gc.disable()
    try:
        for _ in range(25):
            make_and_drop()
        # ZeroMQ frees the sockets of threads, whose context goes on, from a thread of its own.
        deadline = time.monotonic() + 5
        while (left := what_there_is()) > before and time.monotonic() < deadline:
            time.sleep(0.01)
        assert left <= before
    finally:
        gc.enable()
    assert psutil.Process().memory_info().rss - memory < 30e6


def test_an_executor_whose_job_failed_is_closed_when_it_is_dropped():
    """At once: whoever handed out the error must not be in a cycle with it."""
    gc.disable()
    try:
        executor = JobExecutor(1, lambda x: 1 // x, on_error="return")
        executor.put(0)
        executor.put(1)
        results = [executor.get(timeout=30) for _ in range(2)]
        worker = psutil.Process(max(result.pid for result in results))
        assert [result.error is None for result in results] == [False, True]
        del executor
        assert not worker.is_running()
    finally:
        gc.enable()
        gc.collect()


def test_an_error_that_is_kept_does_not_keep_what_the_caller_had(executor_of):
    """An epoch that skips failures keeps their errors to its end; the batches that were seen meanwhile must go."""
    executor = executor_of(1, lambda x: 1 // x, on_error="return")
    errors, gone = [], []

    def get_one():
        batch = np.zeros(1000)
        gone.append(weakref.ref(batch))
        errors.append(executor.get(timeout=30).error)

    executor.put(0)
    get_one()
    gc.collect()
    assert "ZeroDivisionError" in str(errors[0])
    assert gone[0]() is None
