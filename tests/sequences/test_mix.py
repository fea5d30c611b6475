"""`mix` draws from several sequences: by weight, each item once, and in an order that no speed can change."""

from __future__ import annotations

import itertools
import math
import sys
import threading

import cloudpickle
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trw_pipeline.errors import CheckpointError, WouldBlock
from trw_pipeline.sequences.samplers import SamplerRandom, SamplerSequential
from trw_pipeline.sequences.sequence import SequenceArray, SequenceMix

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # so that workers need not import this file
THREADS = {"nb_workers": 2, "backend": "thread"}


def array(first, nb, sampler=None, seed=5):
    """Numbers from `first` on."""
    source = SequenceArray({"x": np.arange(first, first + nb)}, SamplerSequential() if sampler is None else sampler)
    return source.with_seed(seed)


def numbers(items):
    return [int(x) for item in items for x in item["x"]]


def of_source(order, number):
    """What came of one source: source i has the numbers from 1000 * i on."""
    return [x for x in order if x // 1000 == number]


def identity(batch):
    return batch


def noisy(batch, rng):
    return {"x": batch["x"], "noise": rng.random(1)}


def noise(items):
    return [float(item["noise"][0]) for item in items]


# What is drawn


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=4),
    weights=st.lists(st.floats(0.01, 100), min_size=4, max_size=4),
    seed=st.integers(0, 2**40),
)
def test_each_item_comes_once_and_each_source_in_its_own_order(sizes, weights, seed):
    sources = [array(1000 * i, nb) for i, nb in enumerate(sizes)]
    mix = SequenceMix(sources, weights=weights[: len(sizes)]).with_seed(seed)
    order = numbers(mix)
    for i, nb in enumerate(sizes):
        assert of_source(order, i) == list(range(1000 * i, 1000 * i + nb))
    assert len(order) == len(mix) == sum(sizes)


def test_a_draw_chooses_by_weight():
    nb_draws = 3000
    sources = [array(10_000 * i, 4000) for i in range(3)]
    order = numbers(itertools.islice(SequenceMix(sources, weights=[5, 3, 2]), nb_draws))
    counts = [sum(x // 10_000 == i for x in order) for i in range(3)]
    for count, share in zip(counts, (0.5, 0.3, 0.2), strict=True):
        assert abs(count - nb_draws * share) < 4 * math.sqrt(nb_draws * share * (1 - share))  # four standard deviations


def test_without_weights_all_sources_are_alike():
    order = numbers(itertools.islice(array(0, 900).mix(array(1000, 900)), 800))
    assert abs(len(of_source(order, 0)) - 400) < 4 * math.sqrt(200)


def test_epochs_differ_and_follow_from_the_seed():
    first, second = (array(0, 9).mix(array(1000, 9)) for _ in range(2))
    orders = [numbers(first) for _ in range(3)]
    assert len(set(map(tuple, orders))) == 3
    assert [numbers(second) for _ in range(3)] == orders
    second.set_epoch(1)
    assert numbers(second) == orders[1]


# When it ends


def test_with_first_it_ends_when_a_source_is_drawn_that_has_no_more():
    whole = numbers(array(0, 5).mix(array(1000, 200)))
    begun = numbers(array(0, 5).mix(array(1000, 200), end="first"))
    assert of_source(begun, 0) == [0, 1, 2, 3, 4]
    assert begun == whole[: len(begun)]
    assert len(begun) < len(whole)


def test_with_first_the_workers_of_the_others_are_free_at_the_end():
    with array(0, 3).mix(array(1000, 300).map(identity, **THREADS), end="first") as mix:
        iterator = iter(mix)
        assert of_source(numbers(iterator), 0) == [0, 1, 2]
        assert {figures["jobs_in_flight"] for figures in mix.statistics().values()} == {0}
        assert next(iterator, "over") == "over"


def test_with_repeat_short_sources_come_again_in_another_order_until_all_have_come():
    order = numbers(array(0, 60).mix(array(1000, 7, SamplerRandom()), end="repeat"))
    assert of_source(order, 0) == list(range(60))
    again = of_source(order, 1)
    passes = [again[i : i + 7] for i in range(0, len(again) - 6, 7)]
    assert len(passes) >= 4
    assert all(sorted(one) == list(range(1000, 1007)) for one in passes)
    assert len(set(map(tuple, passes))) == len(passes)


def test_with_repeat_the_weights_hold_to_the_end():
    order = numbers(array(0, 900).mix(array(1000, 10), weights=[3, 1], end="repeat"))
    assert abs(len(of_source(order, 1)) / len(order) - 0.25) < 4 * math.sqrt(0.25 * 0.75 / len(order))


def test_with_repeat_no_two_passes_share_random_numbers():
    drawn = noise(array(0, 60).map(noisy).mix(array(1000, 5).map(noisy), end="repeat"))
    assert len(drawn) > 90
    assert len(set(drawn)) == len(drawn)


def test_an_empty_source_can_not_be_repeated():
    with pytest.raises(ValueError, match="source 1 of mix is empty"):
        list(array(0, 5).mix(array(1000, 5).map(lambda batch: []), end="repeat"))


# Order and speed


@pytest.mark.parametrize("workers", [THREADS, pytest.param({"nb_workers": 2}, marks=pytest.mark.slow)])
def test_items_and_their_numbers_are_the_same_with_and_without_workers(workers):
    def items(**workers):
        mix = array(0, 8).map(noisy, **workers).mix(array(1000, 5).map(noisy, **workers), weights=[2, 1])
        with mix.map(lambda batch, rng: {**batch, "more": rng.random(1)}, **workers) as chain:
            return [(int(i["x"][0]), float(i["noise"][0]), float(i["more"][0])) for i in chain]

    assert items(**workers) == items()


def test_the_source_that_was_drawn_is_waited_for_while_the_others_work():
    opened, ran = threading.Event(), threading.Event()

    def waits(batch):
        opened.wait(20)
        return batch

    def runs(batch):
        ran.set()
        return batch

    expected = numbers(array(0, 6).map(identity).mix(array(1000, 6).map(identity)))
    swapped = expected[0] >= 1000  # the source that is drawn first is the one that is held up
    slow, quick = (runs, waits) if swapped else (waits, runs)
    with array(0, 6).map(slow, **THREADS).mix(array(1000, 6).map(quick, **THREADS)) as mix:
        iterator = iter(mix)
        while not ran.wait(0.001):
            with pytest.raises(WouldBlock):
                iterator.next_item(blocking=False)
        with pytest.raises(WouldBlock):  # though the other has a result
            iterator.next_item(blocking=False)
        opened.set()
        assert numbers(iterator) == expected


def test_a_source_that_is_repeated_works_while_another_is_waited_for():
    gate, begun = threading.Event(), threading.Semaphore(0)

    def waits(batch):
        gate.wait(20)
        return batch

    def runs(batch):
        begun.release()
        return batch

    def mix(seed, waits=identity, runs=identity, **options):
        big, small = array(0, 6).map(waits, **options), array(1000, 2).map(runs, max_jobs_at_once=1, **options)
        return big.mix(small, weights=[1, 5], end="repeat").with_seed(seed)

    def nb_small_first(seed):
        return next(place for place, x in enumerate(numbers(mix(seed))) if x < 1000)

    seed = next(seed for seed in itertools.count() if nb_small_first(seed) in (5, 7))  # one of a later pass is left
    nb_first, nb_all = nb_small_first(seed), len(list(mix(seed)))
    with mix(seed, waits, runs, nb_workers=1, backend="thread") as chain:
        iterator, nb_given = iter(chain), 0
        while not (nb_given == nb_first and begun.acquire(timeout=0.001)):
            try:
                iterator.next_item(blocking=False)
            except WouldBlock:
                continue
            nb_given += 1
            assert begun.acquire(timeout=20)
        gate.set()
        assert len(list(iterator)) + nb_given == nb_all


# Keys and seeds


def test_keys_are_unique():
    iterator = iter(array(0, 20).mix(array(1000, 3), array(2000, 3).map(lambda batch: [batch, batch]), end="repeat"))
    keys = []
    while True:
        try:
            keys.append(iterator.advance()[0])
        except StopIteration:
            break
    assert len(keys) > 30
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("end", ["all", "repeat"])
def test_equal_chains_with_equal_seeds_draw_different_numbers(end):
    one = array(0, 20).map(noisy)
    for mix in (one.mix(array(0, 20).map(noisy), end=end), one.mix(one, end=end), one.mix(one.mix(one), end=end)):
        drawn = noise(mix)
        assert len(set(drawn)) == len(drawn) >= 40


def test_seeds_of_the_sources_decide_unless_the_mix_has_one():
    def mix(*seeds):
        return array(0, 9, SamplerRandom(), seeds[0]).mix(array(1000, 9, SamplerRandom(), seeds[1]))

    assert numbers(mix(1, 2)) == numbers(mix(1, 2))
    assert numbers(mix(1, 2)) != numbers(mix(1, 3))
    assert numbers(mix(1, 2).with_seed(8)) == numbers(mix(3, 4).with_seed(8))
    assert numbers(mix(1, 2).with_seed(8)) != numbers(mix(1, 2).with_seed(9))
    assert numbers(mix(1, 2).map(identity).with_seed(8)) == numbers(mix(1, 2).with_seed(8))


def test_with_seed_gives_workers_of_its_own_and_leaves_the_sources_alone():
    source = array(0, 4).map(identity, **THREADS)
    mix = source.mix(array(1000, 4))
    seeded = mix.with_seed(9)
    list(seeded)
    seeded.close()
    assert source.seed == 5
    with mix:
        assert sorted(numbers(mix)) == [0, 1, 2, 3, 1000, 1001, 1002, 1003]


def test_a_state_carries_the_seed_to_all_sources():
    def mix(seed):
        first, second = (array(start, 9, SamplerRandom(), seed).map(noisy) for start in (0, 1000))
        return first.mix(second).batch(2, collate_fn=None)

    def plain(batches):
        return [[int(item["x"][0]) for item in batch] for batch in batches]

    one, other = mix(1), mix(2)
    iterator = iter(one)
    for _ in range(3):
        next(iterator)
    other.load_state_dict(one.state_dict())
    assert plain(other) == plain(iterator)
    assert plain(other) == plain(one)  # the next epoch too


# What walks the chain walks all branches


def test_each_branch_gets_back_what_it_keeps_between_epochs():
    def mix():
        return array(0, 10).max_samples(4).mix(array(1000, 9).max_samples(3), array(2000, 1)).with_seed(3)

    one, other = mix(), mix()
    list(one)
    other.load_state_dict(one.state_dict())
    assert sorted(numbers(other)) == [4, 5, 6, 7, 1003, 1004, 1005, 2000]


def test_figures_failures_and_reports_are_those_of_all_branches():
    def odd_fails(batch):
        if batch["x"][0] % 2:
            raise ValueError("odd")
        return batch

    with (
        array(0, 4)
        .map(odd_fails, on_error="skip", name="one", **THREADS)
        .mix(array(1000, 3).map(odd_fails, on_error="skip", name="two", **THREADS))
        .map(identity, name="three", **THREADS)
    ) as chain:
        assert sorted(numbers(chain)) == [0, 2, 1000, 1002]
        assert sorted(failure.stage for failure in chain.failures) == ["one", "one", "two"]
        names = ["0/0:SequenceArray", "0/1:one", "1/0:SequenceArray", "1/1:two", "2:mix", "3:three", "consumer"]
        assert list(chain.statistics()) == names
        assert [name for name in ("one", "two", "three") if name in chain.report()] == ["one", "two", "three"]
    assert {figures["workers"] for figures in chain.statistics().values()} == {0}


@pytest.mark.slow
def test_a_function_that_changed_is_sent_to_the_workers_of_all_branches():
    class Adds:
        def __init__(self):
            self.number = 0

        def __call__(self, batch):
            return {"x": batch["x"] + self.number}

    adds = Adds()
    with array(0, 3).map(adds, nb_workers=1).mix(array(1000, 3).map(adds, nb_workers=1)).max_samples(3) as chain:
        first = numbers(chain)
        adds.number = 100
        assert sorted(first + [x - 100 for x in numbers(chain)]) == [0, 1, 2, 1000, 1001, 1002]


# Arguments


@pytest.mark.parametrize("weights", [[1], [1, 0], [1, -2], [1, math.inf], [1, math.nan]])
def test_weights_must_be_above_zero_one_for_each_source(weights):
    with pytest.raises(ValueError, match="weights must"):
        array(0, 3).mix(array(1000, 3), weights=weights)


@pytest.mark.parametrize("weights", [[1, "2"], [True, 1], [1, None]])
def test_weights_must_be_numbers(weights):
    with pytest.raises(TypeError, match="weights must"):
        array(0, 3).mix(array(1000, 3), weights=weights)


def test_an_end_must_be_known():
    with pytest.raises(ValueError, match=r"end must be one of .*'all', 'first', 'repeat'.*got 'last'"):
        array(0, 3).mix(array(1000, 3), end="last")


def test_a_length_is_known_only_if_all_items_come_once():
    assert len(array(0, 3).mix(array(1000, 4))) == 7
    for end in ("first", "repeat"):
        with pytest.raises(TypeError, match="the length of mix is not known"):
            len(array(0, 3).mix(array(1000, 4), end=end))


@pytest.mark.parametrize(("name", "value"), [("nb_draws", -1), ("sources", []), ("sources", [1, 2]), ("seed", None)])
def test_a_damaged_position_is_refused(name, value):
    mix = array(0, 3).mix(array(1000, 4))
    iterator = iter(mix)
    next(iterator)
    state = mix.state_dict()
    state["position"][name] = value
    mix.load_state_dict(state)
    with pytest.raises(CheckpointError):
        iter(mix)


def test_a_smaller_version_has_the_same_samples_in_every_program_without_a_seed_too():
    found = [
        numbers(SequenceArray({"x": np.arange(50)}).mix(SequenceArray({"x": np.arange(50, 99)})).subsample(9))
        for _ in range(2)
    ]
    assert found[0] == found[1]


def test_a_resumed_end_hands_on_what_max_samples_left():
    """Saved when jobs above have read the mix to its end; whoever still holds that epoch holds up nothing."""

    def chain():
        return array(0, 3).mix(array(1000, 9).max_samples(4)).map(identity, max_jobs_at_once=20, **THREADS)

    with chain() as uninterrupted:
        first, second = numbers(uninterrupted), numbers(uninterrupted)
    with chain() as broken_off, chain() as resumed:
        iterator = iter(broken_off)
        assert numbers(next(iterator) for _ in first) == first
        resumed.load_state_dict(broken_off.state_dict())
        held = iter(resumed)
        assert numbers(held) == []
        assert numbers(resumed) == second
