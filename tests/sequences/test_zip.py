"""`zip` puts side by side what belongs together, and says so where it does not."""

from __future__ import annotations

import itertools
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trw_pipeline.errors import CheckpointError, JobError, WouldBlock
from trw_pipeline.sequences.samplers import SamplerRandom, SamplerSequential
from trw_pipeline.sequences.sequence import Sequence, SequenceArray, SequenceZip

THREADS = {"nb_workers": 2, "backend": "thread"}


def array(name, nb=6, sampler=None, **options):
    return SequenceArray({name: np.arange(nb)}, SamplerSequential() if sampler is None else sampler, **options)


def pairs(items, *names):
    return [tuple(int(item[name][0]) for name in names) for item in items]


def test_features_come_side_by_side():
    zipped = array("a", 3).zip(array("b", 3).map(lambda batch: {"b": batch["b"] * 10, "c": batch["b"] + 1}))
    assert pairs(zipped, "a", "b", "c", "sample_uid") == [(0, 0, 1, 0), (1, 10, 2, 1), (2, 20, 3, 2)]


def test_random_samplers_of_two_arrays_keep_in_step_in_every_epoch():
    zipped = array("a", 20, SamplerRandom()).with_seed(1).zip(array("b", 20, SamplerRandom()).with_seed(2))
    epochs = [pairs(zipped, "a", "b") for _ in range(3)]
    assert all(a == b for epoch in epochs for a, b in epoch)
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_a_sequence_can_be_beside_itself():
    source = array("a", 8, SamplerRandom())
    zipped = source.zip(source.map(lambda batch: {"double": 2 * batch["a"]}))
    assert sorted(pairs(zipped, "a", "double")) == [(a, 2 * a) for a in range(8)]


def test_a_function_at_the_same_stage_of_both_draws_the_same():
    def crop(name):
        return lambda batch, rng: {name: batch[name], f"corner of {name}": rng.integers(10**9, size=1)}

    zipped = array("image").map(crop("image")).zip(array("mask").map(crop("mask")))
    corners = pairs(zipped, "corner of image", "corner of mask")
    assert all(one == other for one, other in corners)
    assert len(set(corners)) == 6


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(lengths=st.lists(st.integers(0, 6), min_size=1, max_size=4))
def test_it_ends_with_the_shortest_or_says_who_ended_first(lengths):
    sources = [array(f"f{i}", nb) for i, nb in enumerate(lengths) if nb] + [Empty() for nb in lengths if not nb]
    given_lengths = [nb for nb in lengths if nb] + [0 for nb in lengths if not nb]
    shortest = min(given_lengths)
    assert sum(1 for _ in SequenceZip(sources, strict=False)) == shortest
    strict, seen = SequenceZip(sources), []
    if len(set(lengths)) == 1:
        assert sum(1 for _ in strict) == shortest
        return
    longer = next(i for i, nb in enumerate(given_lengths) if nb > shortest)
    message = f"source {given_lengths.index(shortest)} of zip ended after {shortest} items, source {longer} has more"
    with pytest.raises(ValueError, match=message):
        seen.extend(strict)


class Empty(Sequence):
    def __iter__(self):
        return iter([])


def test_the_error_of_unequal_lengths_stays():
    iterator = iter(array("a", 1).zip(array("b", 2)))
    next(iterator)
    for _ in range(2):
        with pytest.raises(ValueError, match="strict=False ends with the shortest"):
            next(iterator)


def test_at_the_shortest_end_the_workers_of_the_others_are_free():
    longer = array("b", 50).map(lambda batch: batch, **THREADS)
    with array("a", 2).zip(longer, strict=False) as zipped:
        iterator = iter(zipped)
        assert len(list(iterator)) == 2
        assert {figures["jobs_in_flight"] for figures in zipped.statistics().values()} == {0}
        assert next(iterator, "over") == "over"


def test_features_of_one_name_are_an_error_that_names_them():
    with pytest.raises(ValueError, match=r"features \['a', 'sample_uid'\] come from two sources of zip, source 1"):
        list(array("a").zip(array("a")))


@pytest.mark.parametrize("as_uids", [np.array, list, torch.tensor])
def test_an_equal_sample_uid_is_kept_once_and_another_is_an_error(as_uids):
    uids = SequenceArray({"b": [1, 2], "sample_uid": as_uids([0, 1])}, SamplerSequential())
    assert pairs(array("a", 2).zip(uids), "a", "b", "sample_uid") == [(0, 1, 0), (1, 2, 1)]
    others = SequenceArray({"b": [1, 2], "sample_uid": as_uids([0, 7])}, SamplerSequential())
    with pytest.raises(ValueError, match=r"source 1 of zip gave sample_uid \[7\] beside \[1\]"):
        list(array("a", 2).zip(others))


def test_items_of_different_lengths_are_an_error():
    twos, threes = SamplerSequential(batch_size=2), SamplerSequential(batch_size=3)
    with pytest.raises(ValueError, match="'a' has 2 and feature 'b' has 3"):
        list(array("a", sampler=twos).zip(array("b", sampler=threes, sample_uid_name=None)))


def test_items_that_are_no_dicts_are_an_error():
    lists = array("b").batch(1, collate_fn=None)
    with pytest.raises(TypeError, match=r"source 1 gave a list; collate\(\) it first"):
        list(array("a").zip(lists))


def test_a_sample_that_fails_takes_what_is_beside_it_along():
    def fails_at_2(batch):
        if batch["b"][0] == 2:
            raise ValueError("two")
        return {"b": batch["b"]}

    for zipped in (
        array("a").zip(array("b").map(fails_at_2)),
        array("b").map(fails_at_2).zip(array("a")),
    ):
        iterator, seen = iter(zipped), []
        seen += itertools.islice(iterator, 2)
        with pytest.raises(JobError, match="two"):
            next(iterator)
        seen += iterator
        assert pairs(seen, "a", "b") == [(i, i) for i in (0, 1, 3, 4, 5)]


@pytest.mark.parametrize("workers", [THREADS, pytest.param({"nb_workers": 2}, marks=pytest.mark.slow)])
def test_rows_are_the_same_with_and_without_workers(workers):
    def noisy(batch, rng):
        return {"b": batch["b"], "noise": rng.random(1)}

    def rows(**workers):
        with array("a").with_seed(3).zip(array("b").with_seed(3).map(noisy, **workers)) as zipped:
            return [(int(i["a"][0]), int(i["b"][0]), float(i["noise"][0])) for i in zipped]

    assert rows(**workers) == rows()


def test_one_source_that_is_not_ready_keeps_no_other_waiting():
    opened, ran = threading.Event(), threading.Event()

    def waits(batch):
        opened.wait(20)
        return {"a": batch["a"]}

    def runs(batch):
        ran.set()
        return {"b": batch["b"]}

    with array("a").map(waits, **THREADS).zip(array("b").map(runs, **THREADS)) as zipped:
        iterator = iter(zipped)
        while not ran.wait(0.001):
            with pytest.raises(WouldBlock):
                iterator.next_item(blocking=False)
        opened.set()
        assert pairs(iterator, "a", "b") == [(i, i) for i in range(6)]


def test_length_is_that_of_the_shortest():
    assert len(array("a", 5).zip(array("b", 9), strict=False)) == 5


def test_a_state_of_another_number_of_sources_is_refused():
    one, other = array("a").zip(array("b")), array("a").zip(array("b"))
    iterator = iter(one)
    next(iterator)
    state = one.state_dict()
    state["position"]["sources"].pop()
    other.load_state_dict(state)
    with pytest.raises(CheckpointError, match="saved over 1 sources, here are 2"):
        iter(other)


@pytest.mark.parametrize(
    ("sources", "error", "message"),
    [
        ([], ValueError, "at least one Sequence"),
        (array("a"), TypeError, "got one Sequence"),
        ([array("a"), [1, 2]], TypeError, r"sources\[1\] must be a Sequence, got list"),
    ],
)
def test_sources_must_be_sequences(sources, error, message):
    with pytest.raises(error, match=message):
        SequenceZip(sources)
