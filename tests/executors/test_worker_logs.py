"""What workers log and warn of reaches the handlers of the program: once, with worker and sample, as text."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import threading
import time
import warnings

import numpy as np
import pytest

from trw_pipeline.errors import ExecutorError
from trw_pipeline.executors.worker_log import MOST_CHARACTERS, MOST_RECORDS, Levels
from trw_pipeline.sequences.sequence import SequenceArray

NAME = "users.module"


@pytest.fixture
def records(caplog):
    """Returns the records of the user's logger, and of warnings, so far."""
    caplog.set_level(logging.INFO, NAME)
    return lambda *names: [record for record in caplog.records if record.name in (names or (NAME, "py.warnings"))]


@pytest.fixture
def run(executor_of):
    """Runs a function over items in process workers, and returns its executor and the values."""

    def run(function, items, **options):
        executor = executor_of(options.pop("nb_workers", 1), function, **{"name": "load", **options})
        for i, item in enumerate(items):
            executor.put(item, key=(i,), uid=f"s{i}")
        values = [executor.get(timeout=30) for _ in items]
        return executor, values

    return run


def says(text, level=logging.INFO):
    """Returns a function that logs its item."""

    def log(x):
        import logging

        logging.getLogger("users.module").log(level, text, x)
        return x

    return log


@pytest.mark.slow
def test_a_record_comes_once_with_worker_and_sample(run, records):
    executor, _ = run(says("item %s"), [10, 11, 12], nb_workers=2)
    pids = {worker["pid"] for worker in executor.statistics()["per_worker"]}
    seen = sorted(records(), key=lambda record: record.sample_key)
    assert [record.getMessage() for record in seen] == ["item 10", "item 11", "item 12"]
    assert [(record.sample_key, record.sample_uid) for record in seen] == [((0,), "s0"), ((1,), "s1"), ((2,), "s2")]
    assert {record.process for record in seen} <= pids
    assert all(re.fullmatch(r"trw-load-[01]", record.processName) for record in seen)
    assert {(record.stage, record.levelname, record.funcName) for record in seen} == {("load", "INFO", "log")}


def test_each_start_method_says_it_once(run, records, start_method, capfd):
    handler = logging.StreamHandler()  # a forked worker has inherited it, with its stream
    logging.getLogger(NAME).addHandler(handler)
    try:
        run(says("item %s", logging.WARNING), [1, 2], start_method=start_method)
    finally:
        logging.getLogger(NAME).removeHandler(handler)
    assert [record.getMessage() for record in records()] == ["item 1", "item 2"]
    assert capfd.readouterr().err.splitlines() == ["item 1", "item 2"]


@pytest.mark.parametrize("backend", ["thread", "inline"])
def test_where_nothing_travels_it_is_said_once_too(run, records, backend):
    run(says("item %s"), [1, 2], backend=backend)
    assert [record.getMessage() for record in records()] == ["item 1", "item 2"]


def test_a_warning_comes_once_as_logging_captures_it(run, records):
    def warn(x):
        warnings.warn(f"careful with {x}", UserWarning, stacklevel=1)
        return x

    run(warn, [1, 2])
    seen = records("py.warnings")
    assert [(record.levelname, record.sample_uid) for record in seen] == [("WARNING", "s0"), ("WARNING", "s1")]
    assert re.search(r"test_worker_logs\.py:\d+: UserWarning: careful with 1", seen[0].getMessage())


def test_what_nobody_wants_is_not_sent(run, records, caplog):
    run(says("item %s", logging.DEBUG), [1])
    assert records() == []
    assert not logging.getLogger(NAME).isEnabledFor(logging.DEBUG)


def test_a_level_set_later_holds_from_the_next_epoch(caplog):
    caplog.set_level(logging.DEBUG, NAME)
    logging.getLogger(NAME).setLevel(logging.WARNING)
    with SequenceArray({"x": np.arange(3)}).map(says("item"), nb_workers=1, name="load") as chain:

        def epoch():
            caplog.clear()
            list(chain)
            return len([record for record in caplog.records if record.name == NAME])

        counts = [epoch()]
        for level in (logging.INFO, logging.ERROR, logging.NOTSET):
            logging.getLogger(NAME).setLevel(level)
            counts.append(epoch())
        logging.disable(logging.CRITICAL)
        try:
            counts.append(epoch())
        finally:
            logging.disable(logging.NOTSET)
    assert counts == [0, 3, 0, 0, 0]  # NOTSET: the root logger wants warnings


def test_levels_are_those_of_the_program():
    logging.getLogger("levels.one").setLevel(17)
    found = Levels.now()
    logging.getLogger("levels.one").setLevel(logging.NOTSET)
    logging.getLogger("levels.two").setLevel(5)
    found.apply()
    assert (logging.getLogger("levels.one").level, logging.getLogger("levels.two").level) == (17, logging.NOTSET)
    logging.getLogger("levels.one").setLevel(logging.NOTSET)


def test_what_can_not_travel_is_sent_as_text(run, records):
    def log(x):
        class Local:
            def __repr__(self):
                return "<a local>"

        log = logging.getLogger("users.module")
        log.info("lock %s and %s", threading.Lock(), Local(), extra={"patient": Local(), "dose": 1.5})
        try:
            raise Local.__class__("Odd", (Exception,), {})("no such file")
        except Exception:
            log.exception("failed")
        return x

    run(log, [1])
    first, second = records()
    assert re.fullmatch(r"lock <unlocked .*> and <a local>", first.getMessage())
    assert (first.patient, first.dose) == ("<a local>", 1.5)
    assert second.levelname == "ERROR"
    assert second.exc_text.splitlines()[0] == "Traceback (most recent call last):"
    assert second.exc_text.endswith("Odd: no such file")


@pytest.mark.slow
def test_a_flood_is_bounded_and_counted(run, records, caplog):
    def flood(x):
        for i in range(x):
            logging.getLogger("users.module").info("line %d", i)
        return x

    run(flood, [MOST_RECORDS + 500, 3])
    texts = [record.getMessage() for record in records()]
    assert texts == [f"line {i}" for i in [*range(MOST_RECORDS), 0, 1, 2]]
    (told,) = records("trw_pipeline.executors.worker_log")
    assert told.getMessage() == f"500 more log records of this job were left out, after its first {MOST_RECORDS}"
    assert (told.levelname, told.sample_uid) == ("WARNING", "s0")


def test_a_long_text_is_cut(run, records):
    def log(x):
        logging.getLogger("users.module").info("a" * x)
        return x

    run(log, [MOST_CHARACTERS + 7])
    (record,) = records()
    assert record.getMessage() == "a" * MOST_CHARACTERS + "... (7 more characters)"


def test_a_worker_that_dies_has_said_what_it_did_before(run, records, executor_of):
    def die(x):
        log = logging.getLogger("users.module")
        log.info("begun")
        time.sleep(0.1)
        log.info("last words")
        os.kill(os.getpid(), signal.SIGKILL)

    executor = executor_of(1, die, max_retries=0, on_error="return", name="load")
    executor.put(1, uid="s0")
    assert "SIGKILL" in str(executor.get(timeout=30).error)
    assert [record.getMessage() for record in records()] in (["begun"], ["begun", "last words"])


def test_other_threads_of_a_job_log_too(run, records):
    def log(x):
        def say(i):
            logging.getLogger("users.module").info("thread %d", i)

        threads = [threading.Thread(target=say, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return x

    run(log, [1])
    assert sorted(record.getMessage() for record in records()) == [f"thread {i}" for i in range(4)]
    assert {record.sample_uid for record in records()} == {"s0"}


@pytest.mark.slow
def test_an_object_that_logs_as_it_is_freed_does_no_harm(run, records):
    def leave_circles(x):
        class Talks:
            def __init__(self):
                self.me = self

            def __del__(self):
                logging.getLogger("users.module").info("freed")

        for _ in range(20):
            Talks()
        return [[i] for i in range(2000)]  # makes the collector run, wherever that is

    run(leave_circles, range(60))
    assert {record.getMessage() for record in records()} == {"freed"}


@pytest.mark.slow
def test_a_copy_that_a_job_forks_does_not_use_the_socket(run, records, capfd):
    def fork(x):
        pid = os.fork()
        if pid == 0:
            logging.getLogger("users.module").warning("from the copy")
            os._exit(0)
        os.waitpid(pid, 0)
        logging.getLogger("users.module").warning("from the worker")
        return x

    run(fork, [1, 2], start_method="spawn")  # a fork server writes to where this program's errors went at its start
    assert [record.getMessage() for record in records()] == ["from the worker"] * 2
    assert capfd.readouterr().err.splitlines() == ["from the copy"] * 2


def test_worker_init_is_heard_also_where_it_fails(executor_of, records):
    def init():
        logging.getLogger("users.module").error("no such device")
        raise OSError("no device")

    executor = executor_of(1, abs, worker_init=init, name="load")
    executor.put(1)
    with pytest.raises(ExecutorError, match="no device"):
        executor.get(timeout=30)
    (record,) = records()
    assert (record.getMessage(), record.sample_key, record.sample_uid) == ("no such device", None, None)


@pytest.mark.slow
def test_all_are_heard_before_the_epoch_ends(records):
    with SequenceArray({"x": np.arange(40)}).map(says("item"), nb_workers=2, max_jobs_at_once=8) as chain:
        for epoch in range(2):
            list(chain)
            assert len(records()) == 40 * (epoch + 1)


def test_a_handler_that_raises_loses_no_result(executor_of):
    class FullDiskError(Exception):
        pass

    class Raises(logging.Handler):
        def emit(self, record):
            raise FullDiskError

    handler = Raises()
    logging.getLogger(NAME).addHandler(handler)
    executor = executor_of(1, says("item %s", logging.WARNING), in_order=True)
    values = []
    try:
        for i in range(3):
            executor.put(i)
        while len(values) < 3:
            with contextlib.suppress(FullDiskError):
                values.append(executor.get(timeout=30).value)
    finally:
        logging.getLogger(NAME).removeHandler(handler)
    assert values == [0, 1, 2]
