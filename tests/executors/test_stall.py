"""What runs where: on demand, and in one log record when nothing has come for long."""

from __future__ import annotations

import logging
import math
import re
import time

import pytest

from trw_pipeline.executors import waiting
from trw_pipeline.executors.waiting import StallWatch, wait_for_any

LOGGER = "trw_pipeline.executors.waiting"


def waiting_at(gate):
    """Returns a function that waits for a file."""

    def wait_for_gate(x):
        import time

        while not gate.exists():
            time.sleep(0.002)
        return x

    return wait_for_gate


@pytest.fixture
def told(caplog):
    """Returns the texts of the records so far."""
    caplog.set_level(logging.INFO, LOGGER)
    return lambda: [record.getMessage() for record in caplog.records if record.name == LOGGER]


def open_when(gate, executor, condition):
    """Opens the gate while `get` waits: from the log, since nothing else runs here."""

    class Opens(logging.Handler):
        def emit(self, record):
            if condition():
                gate.touch()

    handler = Opens()
    logging.getLogger(LOGGER).addHandler(handler)
    try:
        return executor.get(timeout=30)
    finally:
        logging.getLogger(LOGGER).removeHandler(handler)


def test_a_long_wait_is_told_once_with_what_runs_where(executor_of, tmp_path, told):
    gate = tmp_path / "open"
    executor = executor_of(2, waiting_at(gate), stall_s=0.3, name="load")
    executor.put(1, key=(4,), uid="s7")
    executor.put(2)
    value = open_when(gate, executor, lambda: True).value
    (text,) = told()
    assert value in (1, 2)
    assert "nothing came for 0.3 s" in text
    assert "'load': 2 of any number jobs in flight, 0 of them finished; 2 of 2 workers alive" in text
    assert "job 0, item (4,), sample_uid s7 for" in text
    assert "job 1" in text


@pytest.mark.slow
def test_it_is_not_told_again_within_a_minute(executor_of, tmp_path, told):
    gate = tmp_path / "open"
    executor = executor_of(1, waiting_at(gate), stall_s=0.05)
    executor.put(1)
    for _ in range(5):
        with pytest.raises(Exception, match="no job has finished"):
            executor.get(timeout=0.2)
    gate.touch()
    executor.get(timeout=30)
    assert len(told()) == 1


def test_it_is_told_again_after_a_minute(executor_of, tmp_path, told, monkeypatch):
    monkeypatch.setattr(waiting, "REPEAT_S", 0.1)
    gate = tmp_path / "open"
    executor = executor_of(1, waiting_at(gate), stall_s=0.05)
    executor.put(1)
    open_when(gate, executor, lambda: len(told()) >= 2)
    assert len(told()) >= 3


def test_the_minute_is_sixty_seconds():
    assert waiting.REPEAT_S == 60


def test_a_wait_that_is_not_long_is_not_told(executor_of, told):
    executor = executor_of(1, lambda x: x, stall_s=60.0)
    for i in range(20):
        executor.put(i)
    for _ in range(20):
        executor.get(timeout=30)
    assert told() == []


def test_infinity_is_never(executor_of, tmp_path, told):
    gate = tmp_path / "open"
    executor = executor_of(1, waiting_at(gate), stall_s=math.inf)
    executor.put(1)
    with pytest.raises(Exception, match="no job has finished"):
        executor.get(timeout=0.1)
    gate.touch()
    executor.get(timeout=30)
    assert told() == []


def test_a_wait_for_one_of_several_is_told_with_all_of_them(executor_of, tmp_path, told):
    gate = tmp_path / "open"
    executors = [executor_of(1, waiting_at(gate), stall_s=0.1, name=name) for name in ("first", "second")]
    for executor in executors:
        executor.put(1)
    start = time.monotonic()
    while not told() and time.monotonic() - start < 20:
        wait_for_any(executors, 0.5)
    gate.touch()
    for executor in executors:
        executor.get(timeout=30)
    (text,) = told()
    assert "'first'" in text
    assert "'second'" in text


@pytest.mark.parametrize("wrong", [0, -1.0, math.nan, "1", None, True])
def test_seconds_that_are_none_are_refused(executor_of, wrong):
    with pytest.raises((ValueError, TypeError), match="stall_s"):
        executor_of(1, lambda x: x, stall_s=wrong)


def test_a_watch_waits_no_longer_than_the_caller():
    watch = StallWatch(1000.0)
    watch.begin()
    assert watch.left_s(3.0) == 3.0
    assert 900 < watch.left_s(None) <= 1000
    never = StallWatch(math.inf)
    never.begin()
    assert (never.left_s(None), never.left_s(3.0)) == (None, 3.0)


# The report


def test_a_report_says_what_is_done_and_idle(executor_of):
    executor = executor_of(1, lambda x: x, name="load")
    for i in range(3):
        executor.put(i)
        executor.get(timeout=30)
    first, worker = executor.report().splitlines()
    assert first == "'load': 0 of any number jobs in flight, 0 of them finished; 1 of 1 workers alive"
    assert re.fullmatch(rf"  worker {executor.statistics()['per_worker'][0]['pid']}: idle, 0 waiting, 3 done", worker)


def test_a_report_says_how_full_it_is(executor_of, tmp_path):
    gate = tmp_path / "open"
    executor = executor_of(1, waiting_at(gate), 5, in_order=True)
    for i in range(3):
        executor.put(i, uid=f"s{i}")
    start = time.monotonic()
    while executor.statistics()["jobs_running"] == 0 and time.monotonic() - start < 20:
        executor.poll()
    first, worker = executor.report().splitlines()
    gate.touch()
    assert "3 of 5 jobs in flight, 0 of them finished" in first
    assert re.search(r"job 0, sample_uid s0 for \d+\.\d s, 2 waiting, 0 done", worker)
    for _ in range(3):
        executor.get(timeout=30)


@pytest.mark.parametrize("backend", ["inline", "thread", "process"])
def test_a_report_can_be_had_at_any_time(executor_of, backend):
    executor = executor_of(0 if backend == "inline" else 1, lambda x: x, backend=backend)
    texts = [executor.report()]
    executor.put(1)
    texts.append(executor.report())
    executor.get(timeout=30)
    executor.reset()
    texts.append(executor.report())
    executor.close()
    texts.append(executor.report())
    assert all("jobs in flight" in text for text in texts)
