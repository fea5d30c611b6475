"""Who leaves a reservoir for a fresh result, and what its entries come to."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trw_pipeline.sequences.reservoir_entries import Entries, Entry, size_of
from trw_pipeline.sequences.reservoir_options import ReservoirRules
from trw_pipeline.sequences.reservoir_source import Origin


def entry(value, nb_bytes=10):
    return Entry(Origin(None, value, (value,), value, None), value, nb_bytes)


def entries(max_samples=4, **rules):
    return Entries(ReservoirRules(max_samples, 1, **rules))


def values(of):
    return [one.value for one in of.by_age()]


def in_slots(of):
    return [of.at(slot).value for slot in range(len(of))]


def serve(of, value, times=1):
    one = next(one for one in of.by_age() if one.value == value)
    for _ in range(times):
        of.serve(one)


def test_the_oldest_leaves_and_the_fresh_one_takes_its_slot():
    held = entries(3)
    assert all(held.add(entry(i)) for i in range(5))
    assert values(held) == [2, 3, 4]
    assert in_slots(held) == [3, 4, 2]
    assert (held.fresh, held.replaced) == (5, 2)


def test_the_most_served_leaves_and_of_those_the_oldest():
    held = entries(3, policy="most_served")
    for i in range(3):
        held.add(entry(i))
    serve(held, 1, 2), serve(held, 2, 2), serve(held, 0, 1)
    held.add(entry(3))
    assert values(held) == [0, 2, 3]
    held.add(entry(4))
    assert values(held) == [0, 3, 4]
    held.add(entry(5))
    assert values(held) == [3, 4, 5]


@pytest.mark.parametrize("policy", ["oldest", "most_served"])
def test_where_results_enter_all_the_time_one_that_was_never_served_stays(policy):
    held = entries(3, policy=policy, is_continuous=True)
    for i in range(3):
        held.add(entry(i))
    assert not held.add(entry(3))
    serve(held, 1)
    assert held.add(entry(3))
    assert values(held) == [0, 2, 3]
    assert not held.add(entry(4))


def test_as_many_leave_as_the_bytes_ask_for():
    held = entries(10, max_bytes=100)
    for i in range(4):
        held.add(entry(i, 25))
    held.add(entry(4, 60))
    assert values(held) == [3, 4]
    assert held.nb_bytes == 85
    assert held.replaced == 3
    assert sorted(in_slots(held)) == [3, 4]


def test_a_result_that_is_larger_than_all_may_be_is_an_error_that_names_both():
    with pytest.raises(ValueError, match="got 100 bytes and a result of 101"):
        entries(max_bytes=100).add(entry(7, 101))


def test_nobody_leaves_for_one_that_does_not_fit_all_the_same():
    held = entries(10, max_bytes=100, is_continuous=True)
    for i in range(4):
        held.add(entry(i, 25))
    serve(held, 0)
    assert not held.add(entry(4, 60))
    assert values(held) == [0, 1, 2, 3]


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 6),
    st.sampled_from(["oldest", "most_served"]),
    st.booleans(),
    st.one_of(st.none(), st.integers(20, 80)),
    st.lists(st.tuples(st.booleans(), st.integers(1, 20)), max_size=60),
)
def test_bounds_hold_and_slots_and_figures_agree(nb, policy, is_continuous, most, steps):
    held = entries(nb, policy=policy, is_continuous=is_continuous, max_bytes=most)
    served = Counter()
    for number, (is_draw, size) in enumerate(steps):
        if not is_draw or not len(held):
            held.add(entry(number, size))
        else:
            one = held.at(size)
            held.serve(one)
            served[one.value] += 1
        kept = held.by_age()
        assert 0 <= len(kept) <= nb
        assert held.nb_bytes == sum(one.nb_bytes for one in kept) <= (most or 1000)
        assert [one.value for one in kept] == sorted(one.value for one in kept)
        assert sorted(in_slots(held)) == values(held)
        assert [held.at(one.slot) for one in kept] == kept
        assert all(one.served == served[one.value] for one in kept)
        assert held.fresh - held.replaced == len(kept)
    assert held.served == sum(served.values())


def test_what_is_put_back_keeps_its_age_and_is_not_fresh():
    held = entries()
    for i in range(4):
        held.add(entry(i))
    aged = [(one, held.age(one)) for one in held.by_age()]
    assert [age for _, age in aged] == [3, 2, 1, 0]
    again = entries()
    again.put_back([(entry(one.value), age) for one, age in reversed(aged)])
    assert values(again) == [0, 1, 2, 3]
    assert [again.age(one) for one in again.by_age()] == [3, 2, 1, 0]
    assert again.fresh == 0
    again.add(entry(4))
    assert [again.age(one) for one in again.by_age()] == [3, 2, 1, 0]


def test_the_size_of_a_result_is_that_of_its_arrays_tensors_and_texts():
    result = {"x": np.zeros((10, 100), np.int16), "y": [torch.zeros(50, dtype=torch.float64)], "z": "a" * 5000}
    assert 2000 + 400 + 5000 <= size_of(result) <= 7400 + 600
    assert size_of(np.float32(1)) == 4
