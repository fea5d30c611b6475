"""An epoch of a reservoir that is given up: what stands above goes on, and the position can still be saved."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from trw_pipeline.sequences.samplers import SamplerSequential
from trw_pipeline.sequences.sequence import SequenceArray, SequenceIterable

THREADS = {"nb_workers": 2, "backend": "thread"}


def same(item):
    return item


@pytest.fixture(params=["epoch", "continuous"])
def reservoir(request):
    source = SequenceArray({"x": np.arange(9)}, SamplerSequential()).with_seed(3)
    with source.async_reservoir(5, same, 5, replacement=request.param, **THREADS) as sequence:
        yield sequence


ENDS = {
    "zip": lambda one, other: one.collate().zip(other, strict=False),
    "mix": lambda one, other: other.mix(one.collate(), weights=[1, 1e-9], end="first"),
}


@pytest.mark.parametrize("joined", ENDS.values(), ids=ENDS.keys())
def test_jobs_above_a_reservoir_that_was_ended_beside_them_are_done(reservoir, joined):
    has_ended = threading.Event()

    def three():
        yield from ({"y": number} for number in range(3))
        has_ended.set()

    def wait(item):
        assert has_ended.wait(30)
        return item

    with joined(reservoir, SequenceIterable(three)).map(wait, max_jobs_at_once=8, **THREADS) as above:
        for _ in range(2):
            has_ended.clear()
            assert [item["y"][0] for item in above] == [0, 1, 2]


def test_the_position_of_an_epoch_that_was_closed_can_be_saved(reservoir):
    iterator = iter(reservoir)
    next(iterator)
    iterator.close()
    reservoir.load_state_dict(reservoir.state_dict())
    assert len(list(reservoir)) == 4


def test_a_position_can_be_saved_wherever_jobs_above_stand(reservoir):
    short = SequenceIterable([{"y": number} for number in range(3)])
    with reservoir.collate().zip(short, strict=False).map(same, **THREADS) as above:
        iterator = iter(above)
        for nb_left in (3, 2, 1):
            state = above.state_dict()
            other = above.with_seed(3)
            other.load_state_dict(state)
            with other:
                assert len(list(other)) == nb_left
            next(iterator)


def test_the_epoch_after_one_of_which_all_was_taken_is_the_same_on_resume():
    """The jobs above have read the source to its end, and the mix has closed the reservoir, before all is given."""

    def chain():
        numbers = SequenceArray({"x": np.arange(9)}, SamplerSequential()).with_seed(3)
        entering = {"deterministic": True, "max_reservoir_replacement_size": 2}
        drawn = numbers.async_reservoir(4, same, 4, backend="thread", **entering).collate()
        return drawn.mix(numbers.subsample(2)).map(same, max_jobs_at_once=8, **THREADS)

    def given(items):
        return [item["x"].tolist() for item in items]

    with chain() as whole:
        first, second = given(whole), given(whole)
    assert first != second
    with chain() as broken_off, chain() as resumed:
        iterator = iter(broken_off)
        assert given(next(iterator) for _ in first) == first
        resumed.load_state_dict(broken_off.state_dict())
        assert given(resumed) == []
        assert given(resumed) == second
