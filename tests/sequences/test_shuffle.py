"""`shuffle` changes the order, and nothing but the order."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trw_pipeline.errors import CheckpointError, WouldBlock
from trw_pipeline.sequences.samplers import SamplerSequential
from trw_pipeline.sequences.sequence import Sequence, SequenceArray

THREADS = {"nb_workers": 2, "backend": "thread"}


def array(nb=12, seed=5):
    return SequenceArray({"x": np.arange(nb)}, SamplerSequential()).with_seed(seed)


def numbers(items):
    return [int(x) for item in items for x in item["x"]]


class Stream(Sequence):
    """A user's own iterable, which tells how many items were read."""

    def __init__(self, nb):
        super().__init__()
        self.nb, self.nb_read = nb, 0

    def __iter__(self):
        for i in range(self.nb):
            self.nb_read += 1
            yield {"x": np.array([i])}


@settings(max_examples=60, deadline=None)
@given(nb=st.integers(0, 30), size=st.integers(1, 40), seed=st.integers(0, 2**40))
def test_an_epoch_is_a_permutation_in_which_nothing_comes_sooner_than_the_buffer_allows(nb, size, seed):
    order = numbers(array(nb, seed).shuffle(size))
    assert sorted(order) == list(range(nb))
    assert all(number - place < size for place, number in enumerate(order))


def test_a_buffer_of_one_leaves_the_order_as_it_is():
    assert numbers(array().shuffle(1)) == list(range(12))


def chi_square(counts, expected):
    return sum((count - expected) ** 2 / expected for count in counts)


@pytest.mark.slow
def test_a_buffer_that_holds_all_gives_each_order_as_often():
    sequence = array(4).shuffle(4)
    nb_epochs = 2400
    counts = Counter(tuple(numbers(sequence)) for _ in range(nb_epochs))
    assert set(counts) == set(itertools.permutations(range(4)))
    # 49.73 is the 99.9 % quantile of the chi-square distribution with 4! - 1 degrees of freedom.
    assert chi_square(counts.values(), nb_epochs / math.factorial(4)) < 49.73


@pytest.mark.slow
def test_the_first_item_is_each_of_the_buffer_as_often():
    sequence = array(30).shuffle(6)
    counts = Counter(numbers([next(iter(sequence))])[0] for _ in range(600))
    assert set(counts) == set(range(6))
    assert chi_square(counts.values(), 100) < 20.52  # the same quantile with 5 degrees of freedom


def test_epochs_differ_and_follow_from_the_seed():
    first, second = array().shuffle(5), array().shuffle(5)
    orders = [numbers(first) for _ in range(5)]
    assert len(set(map(tuple, orders))) == 5
    assert [numbers(second) for _ in range(5)] == orders
    second.set_epoch(3)
    assert numbers(second) == orders[3]
    assert numbers(array(seed=6).shuffle(5)) != orders[0]


def test_two_shuffles_of_a_chain_share_no_draw():
    once, twice = array(30).shuffle(10), array(30).shuffle(1).shuffle(10)
    assert numbers(once) != numbers(twice)


def test_the_source_is_read_no_further_than_the_buffer():
    source = Stream(100)
    iterator = iter(source.shuffle(7))
    for nb_given in range(1, 20):
        next(iterator)
        assert source.nb_read == 7 + nb_given - 1


@pytest.mark.parametrize("workers", [{}, THREADS, pytest.param({"nb_workers": 2}, marks=pytest.mark.slow)])
def test_the_order_does_not_depend_on_the_workers_below_or_above(workers):
    def noisy(batch, rng):
        return {"x": batch["x"], "noise": rng.random(1)}

    with array().map(noisy, **workers).shuffle(5).map(noisy, **workers) as chain:
        found = [(int(item["x"][0]), float(item["noise"][0])) for item in chain]
    assert found == [(int(i["x"][0]), float(i["noise"][0])) for i in array().map(noisy).shuffle(5).map(noisy)]


def test_a_failing_item_loses_no_other():
    def fails_at_3(batch):
        if batch["x"][0] == 3:
            raise ValueError("three")
        return batch

    chain = array().map(fails_at_3).shuffle(6)
    iterator, seen = iter(chain), []
    with pytest.raises(Exception, match="three"):
        next(iterator)
    seen += numbers(iterator)
    assert sorted(seen) == [0, 1, 2, *range(4, 12)]


def test_it_waits_for_the_next_of_the_source_not_for_any():
    """Were it to draw of a buffer that is not full, the order would depend on the speed of the source."""

    class Stuttering(type(iter(array()))):
        has_stuttered = False

        def advance(self):
            self.has_stuttered = not self.has_stuttered
            if self.has_stuttered:
                raise WouldBlock("not yet")
            return super().advance()

    whole = numbers(array().shuffle(5))
    iterator = iter(array().shuffle(5))
    iterator._source.__class__ = Stuttering
    found, nb_blocked = [], 0
    while True:
        try:
            found.append(iterator.next_item(blocking=False))
        except WouldBlock:
            nb_blocked += 1
        except StopIteration:
            break
    assert numbers(found) == whole
    assert nb_blocked >= 12


def test_a_position_holds_no_samples_and_the_source_gives_only_what_is_not_before_the_oldest_of_the_buffer():
    read = []

    def noted(batch):
        read.append(int(batch["x"][0]))
        return batch

    sequence, restored = array(40).map(noted).shuffle(6), array(40).map(noted).shuffle(6)
    iterator = iter(sequence)
    seen = numbers(itertools.islice(iterator, 20))
    state = sequence.state_dict()
    assert len(repr(state)) < 1000
    oldest = min(set(range(25)) - set(seen))  # 25 were taken: those seen and the five that wait
    read.clear()
    restored.load_state_dict(state)
    assert sorted(seen + numbers(restored)) == list(range(40))
    assert read == list(range(oldest, 40))


def test_a_state_of_another_buffer_size_is_refused():
    sequence, other = array().shuffle(5), array().shuffle(6)
    next(iter(sequence))
    iterator = iter(sequence)
    next(iterator)
    other.load_state_dict(sequence.state_dict())
    with pytest.raises(CheckpointError, match="buffer_size=5, here it is 6"):
        iter(other)


@pytest.mark.parametrize(
    ("name", "value"), [("nb_drawn", 13), ("nb_drawn", -1), ("nb_taken", None), ("held", [[1, 2]])]
)
def test_a_damaged_position_is_refused(name, value):
    sequence = array().shuffle(5)
    iterator = iter(sequence)
    next(iterator)
    state = sequence.state_dict()
    state["position"][name] = value
    sequence.load_state_dict(state)
    with pytest.raises(CheckpointError, match="damaged"):
        iter(sequence)


def test_a_source_that_became_shorter_is_found_out():
    sequence, other = (array().map(f).shuffle(6) for f in (lambda batch: [batch, batch], lambda batch: []))
    next(iter(sequence))
    iterator = iter(sequence)
    next(iterator)
    other.load_state_dict(sequence.state_dict())
    with pytest.raises(CheckpointError, match="ended after 0 items; when the state was saved it had given 6"):
        list(other)


def test_length_is_that_of_the_source():
    assert len(array(17).shuffle(5)) == 17


@pytest.mark.parametrize(("size", "error"), [(0, ValueError), (2.5, TypeError), (True, TypeError)])
def test_a_buffer_size_must_be_an_int_of_at_least_one(size, error):
    with pytest.raises(error, match="buffer_size must be"):
        array().shuffle(size)


def test_it_is_shown_in_the_chain():
    assert repr(array().shuffle(100)).splitlines()[1] == "  .shuffle(100)"
