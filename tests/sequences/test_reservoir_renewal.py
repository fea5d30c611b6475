"""What enters a reservoir when an epoch begins and who leaves: counts, policies, bytes, and without any chance."""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections import Counter

import cloudpickle
import numpy as np
import pytest
from scipy import stats

from trw_pipeline.sequences.samplers import SamplerRandom, SamplerSequential
from trw_pipeline.sequences.sequence import SequenceArray

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # so that workers need not import this file
INLINE = {"backend": "inline"}
THREADS = {"nb_workers": 3, "backend": "thread"}
RENEWED = {"deterministic": True, "max_reservoir_replacement_size": 5}


def array(nb=10, sampler=None):
    return SequenceArray({"x": np.arange(nb)}, SamplerSequential() if sampler is None else sampler).with_seed(3)


def numbers(items):
    return [int(x) for drawn in items for result in drawn for x in result["x"]]


def same(batch):
    return batch


def figures(sequence):
    return next(figures for figures in sequence.statistics().values() if "size" in figures)


def uneven(batch, rng):
    time.sleep(float(rng.uniform(0, 0.004)))
    return {**batch, "noise": rng.random(1)}


# Counts


def test_at_most_so_many_results_enter_at_an_epoch_though_more_have_finished():
    with array(100).async_reservoir(
        6, same, 6, max_jobs_at_once=6, max_reservoir_replacement_size=2, **THREADS
    ) as sequence:
        assert len(numbers(sequence)) == 6
        executor = sequence._reservoir.executor
        for _ in range(5):
            while not (executor.take_in() and len(executor._table.finished) == 6):
                threading.Event().wait(0.001)
            before = figures(sequence)["fresh"]
            assert len(numbers(sequence)) == 6
            assert figures(sequence)["fresh"] == before + 2


def test_statistics_tell_what_came_of_the_results():
    with array(100).async_reservoir(4, same, 4, **INLINE) as sequence:
        for _ in range(3):
            numbers(sequence)
        found = figures(sequence)
    assert (found["size"], found["fresh"], found["replaced"], found["served"]) == (4, 6, 2, 12)
    assert found["echo_factor"] == 12 / 6
    assert found["size_bytes"] >= 4 * 16
    assert 0 < found["age_s_mean"] <= found["age_s_max"] < 60
    assert found["waiting"] == 0


# Policies, over many epochs


def service_counts(policy, nb_epochs, **options):
    """How often each result was served, by the number of its draw from the source; epochs draw at random."""
    sampler = SamplerRandom(replacement=True, nb_samples_to_generate=40)
    served = Counter()
    with array(100_000).async_reservoir(
        20, same, 20, reservoir_sampler=sampler, replace_policy=policy, **options
    ) as sequence:
        for _ in range(nb_epochs):
            served.update(numbers(sequence))
        held = {entry.origin.key[0] for entry in sequence._reservoir.entries.by_age()}
    return served, held


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["oldest", "most_served"])
def test_all_that_is_held_is_drawn_evenly(policy):
    """40 draws of 20 results in each of 500 epochs, by slot: chi-square against equal shares."""
    sampler = SamplerRandom(replacement=True, nb_samples_to_generate=40)
    slots = Counter()
    with array(100_000).async_reservoir(
        20, same, 20, reservoir_sampler=sampler, replace_policy=policy, **INLINE
    ) as sequence:
        for _ in range(500):
            epoch = iter(sequence)
            for drawn in epoch:
                held = [entry.origin.key[0] for entry in sequence._reservoir.entries.by_age()]
                slots[held.index(int(drawn[0]["x"][0]))] += 1
    assert stats.chisquare([slots[slot] for slot in range(20)]).pvalue > 1e-4


@pytest.mark.slow
def test_the_oldest_leaves_so_each_result_stays_as_long_and_is_served_as_often():
    """A result is there for 20 epochs of 40 draws among 20: 40 draws each, as chance has it."""
    served, held = service_counts("oldest", 400, **INLINE)
    done = [served[i] for i in range(20, max(held) + 1) if i not in held]
    assert len(done) >= 350
    assert np.mean(done) == pytest.approx(40, rel=0.05)
    assert stats.chisquare(done[::20]).pvalue > 1e-4  # of results that were not there at the same time


@pytest.mark.slow
def test_the_most_served_leaves_so_services_are_more_even_than_chance():
    oldest, held_then = service_counts("oldest", 400, **INLINE)
    even, held = service_counts("most_served", 400, **INLINE)
    spread = {
        name: np.std([counts[i] for i in range(20, max(still) + 1) if i not in still])
        for name, counts, still in [("oldest", oldest, held_then), ("most_served", even, held)]
    }
    assert spread["most_served"] < 0.6 * spread["oldest"]


@pytest.mark.parametrize("policy", ["oldest", "most_served"])
def test_every_sample_of_the_source_gets_in(policy):
    with array(30, SamplerRandom()).async_reservoir(8, same, 8, replace_policy=policy, **INLINE) as sequence:
        seen = {x for _ in range(60) for x in numbers(sequence)}
    assert seen == set(range(30))


# Bytes


def of_bytes(batch):
    return {"x": batch["x"], "data": np.zeros(int(batch["x"][0]) % 3 * 10_000 + 10_000, np.uint8)}


def test_what_is_kept_takes_no_more_than_the_bytes():
    with array(300).async_reservoir(50, of_bytes, 2, max_reservoir_bytes=100_000, max_jobs_at_once=9, **THREADS) as s:
        for _ in range(30):
            nb = len(numbers(s))
            assert 3 <= nb <= 9 or figures(s)["fresh"] < 10
            assert figures(s)["size_bytes"] <= 100_000
        assert figures(s)["size_bytes"] > 60_000
        assert figures(s)["replaced"] > 0


def test_a_result_larger_than_the_bytes_is_an_error_that_names_both():
    with (
        array(10).async_reservoir(5, of_bytes, 1, max_reservoir_bytes=5000, **INLINE) as sequence,
        pytest.raises(ValueError, match=r"max_reservoir_bytes .* got 5000 bytes and a result of 10"),
    ):
        next(iter(sequence))


def test_bytes_that_can_not_hold_the_minimum_are_an_error():
    with (
        array(10).async_reservoir(5, of_bytes, 5, max_reservoir_bytes=50_000, **INLINE) as sequence,
        pytest.raises(ValueError, match="must have room for min_reservoir_samples=5 results, got 50000 bytes"),
    ):
        next(iter(sequence))


# Deterministic


def epochs(nb=6, seed=3, **options):
    chain = array(40, SamplerRandom()).with_seed(seed)
    options = {"min_reservoir_samples": 8, "reservoir_sampler": SamplerRandom(), **RENEWED, **options}
    with chain.async_reservoir(10, uneven, **options) as sequence:
        return [[(int(d[0]["x"][0]), float(d[0]["noise"][0])) for d in sequence] for _ in range(nb)]


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["oldest", "most_served"])
def test_epochs_are_the_same_for_any_workers_and_bounds(policy):
    """SEED-6: Jobs take times that differ; and each has random numbers of its own."""
    expected = epochs(backend="inline", replace_policy=policy)
    assert [len(epoch) for epoch in expected] == [8, 10, 10, 10, 10, 10]
    for options in (
        {"nb_workers": 1, "backend": "thread"},
        {"nb_workers": 4, "backend": "thread", "max_jobs_at_once": 13},
        {"nb_workers": 2, "max_jobs_at_once": 2},
        {"nb_workers": 3, "max_jobs_at_once": 0, "backend": "thread"},
    ):
        assert epochs(replace_policy=policy, **options) == expected
    assert epochs(seed=4, backend="inline", replace_policy=policy) != expected


def test_exactly_so_many_results_are_renewed_at_each_epoch():
    found = [{x for x, _ in epoch} for epoch in epochs(backend="inline", max_reservoir_replacement_size=3)]
    assert [len(new - old) for old, new in itertools.pairwise(found)] == [3] * 5


def test_a_failed_job_is_no_result_and_the_content_is_the_same():
    def some_fail(batch):
        if batch["x"][0] % 4 == 0:
            raise ValueError("bad header")
        return batch

    def found(**options):
        with array(40).async_reservoir(6, some_fail, 6, on_error="skip", **RENEWED, **options) as sequence:
            return [numbers(sequence) for _ in range(4)]

    expected = found(**INLINE)
    assert expected[:2] == [[1, 2, 3, 5, 6, 7], [7, 9, 10, 11, 13, 14]]
    assert found(max_jobs_at_once=7, **THREADS) == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"deterministic": True}, "needs max_reservoir_replacement_size, the number of results"),
        ({**RENEWED, "replacement": "continuous"}, "needs replacement='epoch', got 'continuous': what a draw finds"),
        ({**RENEWED, "in_order": False}, "needs results in order"),
        ({"max_reservoir_replacement_size": 0}, "max_reservoir_replacement_size must be at least 1"),
        ({"max_reservoir_replacement_size": 11}, "must be at most max_reservoir_samples=10, got 11"),
        ({"max_reservoir_bytes": 0}, "max_reservoir_bytes must be at least 1"),
        ({"replacement": "always"}, r"replacement must be one of \('epoch', 'continuous'\), got 'always'"),
        ({"replace_policy": "newest"}, "replace_policy must be one of"),
        ({"compression": "rar"}, "compression must be None, one of"),
        ({"replacement": "continuous", "backend": "inline"}, "needs workers, got backend='inline'"),
        ({"replacement": "continuous", "max_reservoir_replacement_size": 2}, "needs replacement='epoch'"),
    ],
)
def test_what_can_not_be_is_refused_before_work_starts(options, message):
    with pytest.raises(ValueError, match=message):
        array().async_reservoir(10, same, **options)
