"""Limits of the system and of time: jobs that hang, few descriptors, little shared memory, objects above 2 GB."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from trw_pipeline.errors import JobTimeoutError

ROOT = Path(__file__).resolve().parents[2]

# Jobs that hang (HANG-3)


def hanging_at(number):
    def wait_for_ever(x):
        import threading

        if x == number:
            threading.Event().wait()
        return x

    return wait_for_ever


@pytest.mark.slow
def test_a_job_that_hangs_is_one_error_and_the_next_epoch_is_whole(executor_of, start_method):
    executor = executor_of(
        2, hanging_at(20), job_timeout_s=1.0, start_method=start_method, on_error="return", in_order=True, name="load"
    )
    for i in range(50):
        executor.put(i, key=(i,), uid=f"s{i}")
    results = [executor.get(timeout=30) for _ in range(50)]
    (failed,) = [result for result in results if result.error is not None]
    error = failed.error
    assert isinstance(error, JobTimeoutError)
    assert (error.ticket, error.key, error.uid, error.stage, error.attempts) == (20, (20,), "s20", "load", 1)
    assert f"pid {error.pid}" in str(error)
    assert "job_timeout_s=1.0" in str(error)
    assert not psutil.pid_exists(error.pid)
    assert [result.value for result in results if result.error is None] == [i for i in range(50) if i != 20]
    executor.reset()
    for i in range(100, 120):
        executor.put(i)
    assert [executor.get(timeout=30).value for _ in range(20)] == list(range(100, 120))


@pytest.mark.slow
def test_a_job_is_late_though_the_others_go_on(executor_of):
    """The consumer never waits long enough for the limit to pass in one wait."""
    executor = executor_of(2, lambda x: time.sleep(600 if x == 0 else 0.02) or x, job_timeout_s=1.0, on_error="return")
    executor.put(0)
    start = time.monotonic()
    errors, i = [], 0
    while not errors and time.monotonic() - start < 30:
        i += 1
        executor.put(i)
        result = executor.get(timeout=30)
        errors += [result.error] if result.error is not None else []
    assert [(type(error), error.ticket) for error in errors] == [(JobTimeoutError, 0)]


# Descriptors (FD-1, FD-3)


@pytest.mark.slow
def test_received_batches_may_be_kept_however_few_descriptors_there_are(program):
    """FD-1: arrays of 40 kB, so that they come through shared memory, and 200 MB in all."""
    result = program("""
        import resource
        import numpy as np, psutil
        from trw_pipeline.executors.job_executor import JobExecutor

        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
        with JobExecutor(4, lambda x: {"x": np.full(40_000, x % 251, np.uint8)}, 16, in_order=True) as executor:
            executor.put(0)
            executor.get(timeout=60)
            before = psutil.Process().num_fds()
            kept = []
            for i in range(5000):
                while not executor.has_room():
                    kept.append(executor.get(timeout=60).value)
                executor.put(i)
            while executor.nb_in_flight:
                kept.append(executor.get(timeout=60).value)
            print(len(kept), psutil.Process().num_fds() - before <= 4 * 8)
        print(all((batch["x"] == i % 251).all() for i, batch in enumerate(kept)))
        """).finish(timeout_s=90)
    assert result.stderr == ""
    assert result.stdout.split() == ["5000", "True", "True"]


@pytest.mark.slow
def test_as_many_workers_as_descriptors_allow_or_one_clear_error(program):
    """Never a program that ends without a word: what ZeroMQ does that can not have its descriptors."""
    result = program("""
        import resource
        from trw_pipeline.errors import ExecutorError
        from trw_pipeline.executors.job_executor import JobExecutor

        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        try:
            with JobExecutor(60, lambda x: x) as executor:
                for i in range(60):
                    executor.put(i)
                print(sorted(executor.get(timeout=60).value for _ in range(60)) == list(range(60)))
        except ExecutorError as error:
            print("descriptors" in str(error) or "open files" in str(error))
        """).finish(timeout_s=90)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "True\n"


def test_a_pool_that_has_too_few_descriptors_is_one_clear_error_and_leaves_none(program):
    result = program("""
        import gc, os, resource
        from trw_pipeline.errors import ExecutorError
        from trw_pipeline.executors.job_executor import JobExecutor

        usual, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        before = os.listdir("/proc/self/fd")
        for nb_free in range(16):
            resource.setrlimit(resource.RLIMIT_NOFILE, (len(before) + nb_free, hard))
            try:
                JobExecutor(1, bytes)
            except ExecutorError as error:
                assert "ulimit -n" in str(error), error
            else:
                print("opened with", nb_free)
            gc.collect()
            resource.setrlimit(resource.RLIMIT_NOFILE, (usual, hard))
            assert os.listdir("/proc/self/fd") == before
        print("done")
        """).finish(timeout_s=90)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "done\n"


# Shared memory (FD-2)


def can_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    command = ["unshare", "-m", "sh", "-c", "mount -t tmpfs -o size=64m tmpfs /dev/shm"]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True).returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("method", ["forkserver", "spawn", "fork"])
def test_results_that_do_not_fit_into_the_shared_memory_file_system_arrive(tmp_path, method):
    """FD-2: 64 MB in /dev/shm, as in a container, and 8 workers that return 32 MB each. Never a bus error."""
    if not can_mount():
        pytest.skip("only root may mount a small /dev/shm in a name space of its own")
    script = tmp_path / "program.py"
    script.write_text(
        textwrap.dedent(f"""
        import os
        import numpy as np
        from trw_pipeline.executors.job_executor import JobExecutor

        system = os.statvfs("/dev/shm")
        assert system.f_blocks * system.f_frsize == 64 << 20
        with JobExecutor(8, lambda x: np.full(32_000_000, x, np.uint8), 16, start_method={method!r}) as executor:
            total = 0
            for i in range(32):
                while not executor.has_room():
                    total += int(executor.get(timeout=60).value[-1])
                executor.put(i)
            while executor.nb_in_flight:
                total += int(executor.get(timeout=60).value[-1])
        print(total == sum(range(32)))
        """)
    )
    command = "mount -t tmpfs -o size=64m tmpfs /dev/shm && exec " + f"{sys.executable} {script}"
    result = subprocess.run(
        ["unshare", "-m", "sh", "-c", command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=90,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert (result.returncode, result.stdout) == (0, "True\n"), result.stderr


# Objects above 2 GB (PKL-4)


@pytest.mark.slow
@pytest.mark.parametrize("compression", [None, "lz4"])
def test_an_array_above_2_gb_goes_there_and_back(program, compression):
    """PKL-4, through `map`. Three copies are alive at once: the program's, the item's on its way, and the result."""
    if psutil.virtual_memory().available < 12e9:
        pytest.skip("needs 12 GB of free memory")
    result = program(f"""
        import numpy as np
        from trw_pipeline.sequences.sequence import Sequence

        STEP = 1_000_003  # no page is like another
        volume = np.empty(2_500_000_000, np.uint8)
        begins = range(0, volume.size, STEP)
        for begin in begins:
            volume[begin : begin + STEP] = begin // STEP % 251

        class One(Sequence):
            def __iter__(self):
                yield {{"volume": volume}}

        def mark(batch):
            batch["volume"][::STEP] = 255
            return batch

        with One().map(mark, nb_workers=1, max_jobs_at_once=1, compression={compression!r}) as sequence:
            (batch,) = list(sequence)
        marked = batch["volume"]
        print(marked.shape, marked.dtype, volume.max(), (marked[::STEP] == 255).all())
        rest = (np.array_equal(marked[b + 1 : b + STEP], volume[b + 1 : b + STEP]) for b in begins)
        print(all(rest))
        """).finish(timeout_s=100)
    assert result.stderr == ""
    assert result.stdout == "(2500000000,) uint8 250 True\nTrue\n"


@pytest.mark.slow
def test_a_dict_of_5_gb_comes_out_of_a_map_and_goes_into_a_reservoir(program):
    """PKL-4. Each array is below 2 GB, and above any limit together; what is made of it is as if it had never moved."""
    if psutil.virtual_memory().available < 16e9:
        pytest.skip("needs 16 GB of free memory")
    result = program("""
        import numpy as np
        from trw_pipeline.sequences.samplers import SamplerSequential
        from trw_pipeline.sequences.sequence import SequenceArray

        def make(batch):
            nb_bytes = 1_000_000_000 if batch["x"][0] == 0 else 1
            return {f"scan {i}": np.full(nb_bytes, i + 1, np.uint8) for i in range(5)}

        def checksums(scans):
            import zlib
            return {name: (scan.size, zlib.adler32(scan)) for name, scan in scans.items()}

        data = SequenceArray({"x": [0, 1]}, SamplerSequential()).map(make, nb_workers=1, max_jobs_at_once=1)
        with data.async_reservoir(1, checksums, nb_workers=1, max_jobs_at_once=1) as sequence:
            ((found,),) = sequence
        print(*(size for size, _ in found.values()))
        print(*(checksum for _, checksum in found.values()))
        """).finish(timeout_s=110)
    assert result.stderr == ""
    sizes, checksums = result.stdout.splitlines()
    assert sizes == "1000000000 1000000000 1000000000 1000000000 1000000000"
    assert [int(checksum) for checksum in checksums.split()] == [
        adler32_of_equal(i, 1_000_000_000) for i in range(1, 6)
    ]


def adler32_of_equal(value: int, nb: int) -> int:
    """Returns the checksum of `nb` bytes that are all `value`, by its formula (RFC 1950, section 8.2)."""
    low = 1 + nb * value
    high = nb + value * nb * (nb + 1) // 2
    return (high % 65521) << 16 | low % 65521
