import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from benchmarks import bench_pool, pool_life
from benchmarks.bench_pool import busy_share
from benchmarks.jobs import Payload, Sleeps, Stamped, same

ROOT = Path(__file__).resolve().parents[2]


def squared(index):
    return index * index


@pytest.mark.parametrize(
    ("spans", "share"),
    [
        ([], 0.0),
        ([(1.0, 5.0)], 0.5),  # one of two workers, all the time
        ([(0.0, 9.0), (0.0, 9.0)], 1.0),  # only what lies between start and end
        ([(1.0, 2.0), (4.5, 9.0)], 0.1875),
        ([(0.0, 1.0), (5.0, 6.0)], 0.0),
    ],
)
def test_busy_share_is_the_time_of_jobs_over_the_time_of_workers(spans, share):
    assert busy_share(spans, start=1.0, end=5.0, nb_workers=2) == share


@pytest.mark.slow
@pytest.mark.parametrize(
    "open_it",
    [
        bench_pool.ours,
        bench_pool.chain,
        bench_pool.submitted,
        bench_pool.mapped_in_chunks,
        bench_pool.mapped_in_threads,
    ],
)
def test_a_pool_gives_the_results_in_order_in_every_epoch(open_it):
    with open_it(squared, 100, 2) as epoch:
        assert list(epoch()) == [index * index for index in range(100)]
        assert list(epoch()) == [index * index for index in range(100)]


def test_results_of_other_jobs_stop_the_measurement():
    with pytest.raises(RuntimeError, match="must give their indices in order"):
        bench_pool.measure_stream(bench_pool.mapped_in_threads, squared, 10, 2)


def test_the_share_of_the_ideal_is_that_of_jobs_that_sleep():
    job = Sleeps((0.01,) * 10)

    figures = bench_pool.measure_stream(bench_pool.mapped_in_threads, job, 10, 2, sum_s=0.1)

    assert 0 < figures["share_of_ideal"] <= 1


def test_one_uneven_job_in_twenty_is_slow_and_the_order_is_always_the_same():
    job = Sleeps.uneven(100, 0.002, 0.1, one_in=20)

    assert sorted(job.durations_s) == [0.002] * 95 + [0.1] * 5
    assert list(job.durations_s) != sorted(job.durations_s)
    assert job == Sleeps.uneven(100, 0.002, 0.1, one_in=20)


def test_stamps_are_those_of_the_job():
    before = time.monotonic()
    start, end = Stamped(0.01)(0)

    assert before <= start <= end - 0.01
    assert end <= time.monotonic()


def test_a_payload_has_its_bytes_in_its_arrays():
    message = Payload(8, 4096)()

    assert [array.nbytes for array in message.values()] == [512] * 8
    assert all(array.dtype == np.float32 for array in message.values())


@pytest.mark.slow
def test_memcpy_gives_a_copy_of_every_array():
    from benchmarks.bench_transport import memcpy

    with memcpy(Payload(2, 1024)) as receive:
        copied = receive()

    for name, array in Payload(2, 1024)().items():
        np.testing.assert_array_equal(copied[name], array)
        assert copied[name] is not array


@pytest.mark.slow
def test_a_worker_that_is_killed_is_known_and_replaced():
    assert len(pool_life.times_until_known(1)) == 1
    assert len(pool_life.times_until_again(1)) == 1


@pytest.mark.slow
def test_the_child_that_a_worker_leaves_is_ended():
    assert len(pool_life.times_until_again(1, leaves_child=True)) == 1  # and no process is left after the test


def test_threads_of_a_process_that_rests_are_seen_without_a_switch():
    rests = subprocess.Popen([sys.executable, "-S", "-c", "print(flush=True); input()"], stdin=-1, stdout=-1)
    with rests as process:
        process.stdout.readline()
        deadline = time.monotonic() + 10
        before = pool_life.threads_of([process.pid])
        while (now := pool_life.threads_of([process.pid])) != before and time.monotonic() < deadline:
            before = now

        assert now == before
        assert len(now) == 1
        assert now[0][1] > 0

        process.stdin.write(b"\n")


@pytest.mark.slow
def test_what_workers_import_brings_no_torch():
    code = "import sys, benchmarks.jobs, benchmarks.programs, benchmarks.pool_life; sys.exit('torch' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bench", "only"), [("bench_pool", "round_trip,death,start"), ("bench_transport", "4kb,in_slot")]
)
def test_a_quick_run_measures_and_leaves_nothing(bench, only, tmp_path):
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", f"benchmarks.{bench}", "--quick", "--only", only]

    ended = subprocess.run(command, cwd=ROOT, env=environment, text=True, capture_output=True, timeout=100)

    assert ended.returncode == 0, ended.stderr
    assert [line.partition(":")[0] for line in ended.stdout.splitlines() if " rounds, load " in line] == only.split(",")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_an_idle_program_is_watched_from_outside():
    figures = pool_life.measure_idle("idle_executor_of_python", duration_s=0.1)

    assert figures["switches_main"] >= 0
    assert 0 <= figures["cpu_percent"] < 200


def test_a_program_that_fails_is_an_error():
    with pytest.raises(RuntimeError, match="ended before it said"), pool_life.program("no_such_function") as process:
        pool_life.said_by(process)


def test_same_gives_back_what_came():
    assert same(7) == 7
