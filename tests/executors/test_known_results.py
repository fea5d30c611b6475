"""A result that is known before takes its turn among the jobs, and nobody runs it."""

from __future__ import annotations

import threading

import pytest

from trw_pipeline.errors import WouldBlock
from trw_pipeline.executors.job_executor import JobExecutor


@pytest.mark.parametrize("backend", ["inline", "thread"])
def test_in_order_it_waits_for_the_jobs_before_it(backend):
    with JobExecutor(2, lambda x: 10 * x, backend=backend, in_order=True) as executor:
        executor.put(1)
        executor.put_result("known", (1,), uid=7)
        executor.put(2)
        results = [executor.get() for _ in range(3)]
        assert [result.value for result in results] == [10, "known", 20]
        assert (results[1].key, results[1].uid, results[1].pid, results[1].attempts) == ((1,), 7, None, 0)


def test_out_of_order_it_waits_for_nobody():
    gate = threading.Event()
    with JobExecutor(1, lambda x: gate.wait(20) and x, backend="thread") as executor:
        executor.put(1)
        executor.put_result("known", (1,), uid=None)
        assert executor.get(timeout=0).value == "known"
        with pytest.raises(WouldBlock):
            executor.get(timeout=0)
        gate.set()
        assert executor.get().value == 1


def test_it_is_in_flight_until_it_is_taken_and_is_no_job_that_was_done():
    with JobExecutor(0, lambda x: x) as executor:
        executor.put_result("known", (0,), uid=None)
        assert executor.nb_in_flight == 1
        executor.get()
        assert executor.nb_in_flight == executor.statistics()["jobs_done"] == 0
        executor.put_result("forgotten", (1,), uid=None)
        executor.reset()
        assert executor.nb_in_flight == 0
