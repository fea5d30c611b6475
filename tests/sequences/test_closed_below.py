"""A stage below that is closed while an epoch above is open: an error, never a shorter epoch."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from trw_pipeline.errors import ClosedError
from trw_pipeline.sequences.samplers import SamplerSequential
from trw_pipeline.sequences.sequence import SequenceArray

WORKERS = {"inline": {}, "threads": {"nb_workers": 2, "backend": "thread", "max_jobs_at_once": 6}}


def same(batch):
    return batch


def array():
    return SequenceArray({"x": np.arange(6)}, SamplerSequential())


@pytest.fixture(params=WORKERS.values(), ids=WORKERS.keys())
def workers(request):
    return request.param


def test_an_epoch_over_a_closed_stage_does_not_end_in_silence(workers):
    low = array().map(same, **workers)
    with low.batch(1) as high:
        iterator = iter(high)
        next(iterator)
        low.close()
        with pytest.raises(ClosedError):
            list(iterator)


def test_the_last_jobs_of_an_epoch_are_not_forgotten_in_silence():
    all_sent = threading.Event()

    def note(batch):
        if batch["x"][0] == 5:
            all_sent.set()
        return batch

    def wait(batch):
        all_sent.wait(30)
        return batch

    source = SequenceArray({"x": np.arange(6)}, SamplerSequential(), transforms=note)
    low = source.map(wait, nb_workers=2, backend="thread", max_jobs_at_once=6)
    iterator = iter(low.batch(1))
    next(iterator)
    low.close()
    with pytest.raises(ClosedError):
        list(iterator)


def test_a_stage_closed_through_another_chain_is_an_error_too(workers):
    low = array().map(same, **workers)
    one, other = low.batch(1), low.batch(2)
    iterator = iter(other)
    next(iterator)
    one.close()
    with pytest.raises(ClosedError):
        list(iterator)


def test_a_stage_two_floors_below_is_an_error_too(workers):
    low = array().map(same, **workers)
    with low.map(same, nb_workers=1, backend="thread", max_jobs_at_once=1).batch(1) as high:
        iterator = iter(high)
        next(iterator)
        low.close()
        with pytest.raises(ClosedError):
            list(iterator)


@pytest.mark.parametrize("nb_taken", [0, 1])
def test_an_epoch_over_a_closed_reservoir_does_not_end_in_silence(nb_taken):
    low = array().async_reservoir(4, same, 4, backend="thread")
    with low.batch(1) as high:
        iterator = iter(high)
        for _ in range(nb_taken):
            next(iterator)
        low.close()
        with pytest.raises(ClosedError):
            list(iterator)


def test_an_epoch_that_was_over_stays_over(workers):
    low = array().map(same, **workers)
    with low.batch(1) as high:
        iterator = iter(high)
        list(iterator)
        low.close()
        assert list(iterator) == []
