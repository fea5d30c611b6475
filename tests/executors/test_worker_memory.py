"""Memory that a job has freed is at hand for the next one, within bounds."""

from __future__ import annotations

import platform
import resource

import numpy as np
import psutil
import pytest

from trw_pipeline.executors.worker_main import KEPT_BYTES

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the allocator of glibc is set up"),
]

MB = 1 << 20


def faults_of_large_array(nb_mb):
    """Makes and frees an array; returns how often the system had to find memory for it."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    assert np.ones(nb_mb * MB, np.uint8)[-1] == 1
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def results(executor, items):
    found = []
    for item in items:
        executor.put(item)
        found.append(executor.get(timeout=60).value)
    return found


@pytest.mark.parametrize("nb_mb", [20, 48, 120])
def test_a_job_does_not_pay_for_the_memory_of_the_one_before(executor_of, start_method, nb_mb):
    first, *others = results(executor_of(1, faults_of_large_array, start_method=start_method), [nb_mb] * 5)
    assert first > 0
    assert sum(others) < first


def test_memory_of_a_very_large_array_is_given_back(executor_of):
    executor = executor_of(1, faults_of_large_array)
    results(executor, [20])
    worker = psutil.Process(executor.pool.workers()[0].pid)
    before = worker.memory_info().rss
    results(executor, [3 * KEPT_BYTES // MB])
    assert worker.memory_info().rss - before < KEPT_BYTES + 20 * MB


def test_one_small_array_that_is_kept_does_not_hold_on_to_all_that_lay_below_it(executor_of):
    kept = []

    def fill(nb_mb):
        import time

        arrays = [np.ones(8 * MB, np.uint8) for _ in range(nb_mb // 8)]
        if arrays:
            kept.append(np.ones(MB, np.uint8))
        time.sleep(0.11)
        return len(arrays)

    executor = executor_of(1, fill)
    results(executor, [0])
    worker = psutil.Process(executor.pool.workers()[0].pid)
    before = worker.memory_info().rss
    results(executor, [3 * KEPT_BYTES // MB, 0])
    assert worker.memory_info().rss - before < KEPT_BYTES + 20 * MB


def test_who_has_set_the_allocator_up_knows_better(executor_of, monkeypatch):
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", str(MB))
    executor = executor_of(1, faults_of_large_array, start_method="spawn")
    assert min(results(executor, [48] * 5)) > 0
