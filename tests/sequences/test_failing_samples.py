"""Failed samples: raised with all that is known, or skipped, counted and named; never a hang, never a silence."""

from __future__ import annotations

import logging
import os
import signal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trw_pipeline.errors import ExecutorError, JobError, WorkerLostError
from trw_pipeline.sequences.samplers import SamplerSequential
from trw_pipeline.sequences.sequence import SequenceArray

WORKERS = {
    "inline": {"nb_workers": 0},
    "threads": {"nb_workers": 2, "backend": "thread"},
    "processes": {"nb_workers": 2},
}


@pytest.fixture(params=WORKERS.values(), ids=WORKERS.keys())
def workers(request):
    return request.param


def array(nb=6):
    uids = [f"scan{i}" for i in range(nb)]
    return SequenceArray({"x": np.arange(nb), "sample_uid": uids}, SamplerSequential())


def numbers(items):
    return [int(x) for item in items for x in item["x"]]


def failing_at(*failing):
    def function(batch):
        if batch["x"][0] in failing:
            raise ValueError(f"bad header in {batch['x'][0]}")
        return batch

    return function


# on_error="raise"


def test_a_failure_names_sample_stage_and_place(workers):
    with array().map(failing_at(2), name="load", **workers) as sequence, pytest.raises(JobError) as caught:
        list(sequence)
    error = caught.value
    assert (error.key, error.uid, error.stage, error.attempts) == ((2,), "scan2", "load", 1)
    assert (error.pid == os.getpid()) == (workers is not WORKERS["processes"])
    assert "scan2" in str(error)
    assert "'load'" in str(error)
    assert isinstance(error.__cause__, ValueError)


def test_a_failure_tells_file_line_and_every_cause(workers):
    def function(batch):
        try:
            raise OSError("disk is gone")
        except OSError as error:
            raise ValueError("no header") from error

    line = function.__code__.co_firstlineno + 4
    with array().map(function, **workers) as sequence, pytest.raises(JobError) as caught:
        list(sequence)
    assert f'{__file__}", line {line}' in str(caught.value)
    assert "disk is gone" in str(caught.value)
    assert "no header" in str(caught.value)


def test_items_before_a_failure_come_first_and_those_after_it_can_be_had(workers):
    with array().map(failing_at(3), **workers) as sequence:
        iterator = iter(sequence)
        assert numbers(next(iterator) for _ in range(3)) == [0, 1, 2]
        with pytest.raises(JobError, match="scan3"):
            next(iterator)
        assert numbers(iterator) == [4, 5]


def test_a_failure_upstream_comes_after_the_items_before_it(workers):
    chain = array().map(failing_at(3), name="first", **workers)
    with chain.map(lambda b: {"x": b["x"] * 10}, nb_workers=2, backend="thread", max_jobs_at_once=8) as sequence:
        iterator = iter(sequence)
        assert numbers(next(iterator) for _ in range(3)) == [0, 10, 20]
        with pytest.raises(JobError) as caught:
            next(iterator)
        assert caught.value.stage == "first"
        assert numbers(iterator) == [40, 50]


@pytest.mark.parametrize("verb", ["batch", "rebatch"])
def test_a_failure_below_a_group_loses_no_other_sample(verb, workers):
    with getattr(array().map(failing_at(3), **workers), verb)(2) as sequence:
        iterator = iter(sequence)
        assert next(iterator)["x"].tolist() == [0, 1]
        with pytest.raises(JobError):
            next(iterator)
        assert [batch["x"].tolist() for batch in iterator] == [[2, 4], [5]]


def test_a_failure_of_the_last_job_is_raised(workers):
    with array().map(failing_at(5), **workers) as sequence, pytest.raises(JobError, match="scan5"):
        list(sequence)


def test_samples_of_a_batch_that_fails_are_all_named(workers):
    chain = SequenceArray({"x": np.arange(4)}, SamplerSequential(batch_size=2)).map(failing_at(2), **workers)
    with chain as sequence, pytest.raises(JobError) as caught:
        list(sequence)
    assert caught.value.uid == [2, 3]


# on_error="skip"


def test_skipped_samples_are_counted_recorded_and_named_in_one_warning(workers, caplog):
    with array().map(failing_at(1, 4), on_error="skip", name="load", **workers) as sequence:
        assert numbers(sequence) == [0, 2, 3, 5]
        failures = sequence.failures
    assert [(f.stage, f.key, f.uid, f.attempts) for f in failures] == [
        ("load", (1,), "scan1", 1),
        ("load", (4,), "scan4", 1),
    ]
    assert all(isinstance(f.error, JobError) and "bad header" in str(f.error) for f in failures)
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "skipped 2 of 6 jobs" in warnings[0]
    assert "scan1" in warnings[0]
    assert "scan4" in warnings[0]


def test_failures_are_those_of_the_newest_epoch(workers):
    with array().map(failing_at(1), on_error="skip", **workers) as sequence:
        list(sequence)
        list(sequence)
        assert [failure.uid for failure in sequence.failures] == ["scan1"]
        iter(sequence)
        assert sequence.failures == []


def test_failures_of_all_stages_are_listed(workers):
    chain = array().map(failing_at(1), on_error="skip", name="first", **workers)
    with chain.map(failing_at(4), on_error="skip", name="second", **workers).batch(3) as sequence:
        assert [batch["x"].tolist() for batch in sequence] == [[0, 2, 3], [5]]
        assert [(f.stage, f.uid) for f in sequence.failures] == [("first", "scan1"), ("second", "scan4")]


def test_if_every_job_fails_the_epoch_is_empty(workers):
    with array().map(failing_at(*range(6)), on_error="skip", **workers) as sequence:
        assert numbers(sequence) == []
        assert len(sequence.failures) == 6


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@given(st.sets(st.integers(0, 14)), st.booleans())
def test_what_is_yielded_and_what_is_reported_is_the_input(failing, in_order):
    for workers in WORKERS.values():
        with array(15).map(failing_at(*failing), on_error="skip", in_order=in_order, **workers) as sequence:
            yielded = numbers(sequence)
            reported = [failure.key[0] for failure in sequence.failures]
        assert sorted(yielded + reported) == list(range(15))
        assert set(reported) == failing


def test_one_failure_more_than_the_limit_is_an_error(workers):
    with array().map(failing_at(1, 2), on_error="skip", max_failures=2, **workers) as sequence:
        assert numbers(sequence) == [0, 3, 4, 5]
    with array().map(failing_at(1, 2), on_error="skip", max_failures=1, **workers) as sequence:
        iterator = iter(sequence)
        assert numbers([next(iterator)]) == [0]
        with pytest.raises(ExecutorError, match=r"more than max_failures=1 .*scan1.*scan2"):
            next(iterator)


def test_a_larger_share_than_the_limit_is_an_error_at_the_end(workers):
    with array().map(failing_at(1, 2, 3), on_error="skip", max_failures=0.5, **workers) as sequence:
        assert numbers(sequence) == [0, 4, 5]
    with array().map(failing_at(1, 2, 3, 4), on_error="skip", max_failures=0.5, **workers) as sequence:
        iterator = iter(sequence)
        assert numbers(next(iterator) for _ in range(2)) == [0, 5]
        with pytest.raises(ExecutorError, match="4 of 6 jobs failed"):
            next(iterator)
        assert list(iterator) == []


# Workers that die


def killing_once_at(number, marker):
    def function(batch):
        if batch["x"][0] == number and not os.path.exists(marker):
            open(marker, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return {"x": batch["x"]}

    return function


@pytest.mark.slow
@pytest.mark.parametrize("in_order", [True, False])
def test_the_job_of_a_killed_worker_is_done_by_another(tmp_path, in_order):
    function = killing_once_at(7, str(tmp_path / "killed"))
    with array(20).map(function, nb_workers=2, in_order=in_order) as sequence:
        assert sorted(numbers(sequence)) == list(range(20))
        assert sorted(numbers(sequence)) == list(range(20))
        figures = sequence.statistics()["1:function"]
    assert figures["jobs_lost"] >= 1
    assert (tmp_path / "killed").exists()


@pytest.mark.slow
def test_a_job_that_kills_every_worker_is_named():
    def function(batch):
        if batch["x"][0] == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return batch

    with array().map(function, nb_workers=2, max_retries=1) as sequence:
        iterator = iter(sequence)
        assert numbers(next(iterator) for _ in range(2)) == [0, 1]
        with pytest.raises(WorkerLostError, match=r"scan2.*2 attempts.*SIGKILL.*out-of-memory"):
            next(iterator)
        assert numbers(iterator) == [3, 4, 5]
