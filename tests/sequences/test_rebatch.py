"""`batch` counts items; `rebatch`, `sub_batch` and `max_samples` count samples. None of them loses one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trw_pipeline.sequences.samplers import SamplerRandom, SamplerSequential
from trw_pipeline.sequences.sequence import Sequence, SequenceArray

sizes_of_batches = st.lists(st.integers(0, 7), max_size=12)
size_of_ours = st.integers(1, 9)


class Batches(Sequence):
    """Batches of the given sizes; samples are numbered through."""

    def __init__(self, sizes):
        super().__init__()
        self.sizes = sizes

    def __iter__(self):
        number = 0
        for size in self.sizes:
            x = np.arange(number, number + size)
            number += size
            yield {"x": x, "tensor": torch.from_numpy(x), "list": [f"s{i}" for i in x], "name": "all"}


def array(nb, sampler=None, **options):
    return SequenceArray({"x": np.arange(nb)}, SamplerSequential() if sampler is None else sampler, **options)


def numbers(items):
    return [int(x) for item in items for x in item["x"]]


def sizes(items):
    return [len(item["x"]) for item in items]


def parts_of(total, size):
    """The sizes of `total` samples in parts of `size`."""
    return [size] * (total // size) + ([total % size] if total % size else [])


# batch


def test_batch_joins_items_on_the_first_axis():
    source = SequenceArray({"x": np.arange(10).reshape(5, 2), "name": ["a", "b", "c", "d", "e"]}, SamplerSequential())
    batches = list(source.batch(2))
    assert [batch["x"].tolist() for batch in batches] == [[[0, 1], [2, 3]], [[4, 5], [6, 7]], [[8, 9]]]
    assert [batch["name"] for batch in batches] == [["a", "b"], ["c", "d"], ["e"]]
    assert all(isinstance(batch["x"], torch.Tensor) for batch in batches)


def test_batch_counts_items_whatever_their_size():
    assert sizes(array(10, SamplerSequential(batch_size=3)).batch(2)) == [6, 4]


def test_batch_splices_lists_in():
    class Lists(Sequence):
        def __iter__(self):
            return iter([[{"x": [0]}, {"x": [1]}], [{"x": [2]}], [{"x": [3]}, {"x": [4]}]])

    assert [batch["x"].tolist() for batch in Lists().batch(2)] == [[0, 1, 2], [3, 4]]


def test_batch_without_collate_gives_the_list():
    batches = list(array(3).batch(2, collate_fn=None))
    assert [[item["x"].tolist() for item in batch] for batch in batches] == [[[0], [1]], [[2]]]


def test_batch_takes_a_collate_function_of_the_users():
    assert list(array(3).batch(2, collate_fn=lambda items: numbers(items))) == [[0, 1], [2]]


def test_shared_features_stay_whole_through_batch_and_rebatch():
    source = SequenceArray(
        {"x": np.arange(5), "classes": ["cat", "dog"]}, SamplerSequential(), shared_features=("classes",)
    )
    for chain in (source.batch(2), source.rebatch(2), source.batch(5).sub_batch(2), source.batch(5).max_samples(3)):
        assert [batch["classes"] for batch in chain] == [["cat", "dog"]] * len(sizes(chain))


@pytest.mark.parametrize("verb", ["batch", "rebatch"])
def test_stop_iteration_from_collate_is_an_error(verb):
    def stop(items):
        raise StopIteration

    with pytest.raises(RuntimeError, match="'stop' raised StopIteration"):
        next(iter(getattr(array(4), verb)(2, collate_fn=stop)))


# rebatch


@settings(deadline=None)
@given(sizes_of_batches, size_of_ours, st.booleans())
def test_rebatch_gives_every_sample_once_in_order_in_batches_of_one_size(of_source, size, discard):
    sequence = Batches(of_source).rebatch(size, discard)
    expected = [part for part in parts_of(sum(of_source), size) if part == size or not discard]
    for _ in range(2):  # nothing is left over from the epoch before
        batches = list(sequence)
        assert sizes(batches) == expected
        assert numbers(batches) == list(range(sum(expected)))


@settings(deadline=None)
@given(sizes_of_batches, size_of_ours)
def test_all_features_of_a_rebatched_sample_stay_together(of_source, size):
    for batch in Batches(of_source).rebatch(size):
        assert batch["tensor"].tolist() == batch["x"].tolist()
        assert batch["list"] == [f"s{i}" for i in batch["x"].tolist()]


def test_an_interrupted_epoch_leaves_nothing_for_the_next():
    sequence = Batches([5, 5]).rebatch(3)
    for position in range(4):
        for _ in zip(range(position), sequence, strict=False):
            pass
        assert numbers(sequence) == list(range(10))


def test_rebatch_keeps_batch_wide_values_of_the_source_in_every_batch():
    split = {"x": np.arange(7), "name": "scans", "scale": 2.5, "meta": {"spacing": [1, 2]}}
    source = SequenceArray(split, SamplerSequential(batch_size=2))
    for batch in source.rebatch(3):
        assert (batch["name"], batch["scale"], batch["meta"]) == ("scans", 2.5, {"spacing": [1, 2]})


def test_a_single_value_that_a_function_adds_is_one_for_each_sample_after_rebatch():
    chain = array(5, SamplerSequential(batch_size=2)).map(lambda b: {"x": b["x"], "first": int(b["x"][0])})
    assert [batch["first"].tolist() for batch in chain.rebatch(3)] == [[0, 0, 2], [2, 4]]


def test_rebatch_without_collate_gives_the_parts():
    batches = list(Batches([2, 3]).rebatch(4, collate_fn=None))
    assert [[part["x"].tolist() for part in batch] for batch in batches] == [[[0, 1], [2, 3]], [[4]]]


def test_writing_into_a_rebatched_batch_changes_no_other():
    stored = [{"x": np.arange(5)}]

    class Stored(Sequence):
        def __iter__(self):
            return iter(stored)

    for batch in Stored().rebatch(2):
        batch["x"] += 100
    assert stored[0]["x"].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("verb", ["rebatch", "sub_batch", "max_samples"])
def test_samples_can_only_be_counted_in_batches(verb):
    with pytest.raises(TypeError, match=r"collate\(\) them first"):
        next(iter(getattr(array(4).batch(2, collate_fn=None), verb)(2)))


@pytest.mark.parametrize("verb", ["rebatch", "sub_batch", "max_samples"])
def test_samples_can_not_be_counted_without_a_feature_that_has_them(verb):
    with pytest.raises(ValueError, match="one value for each sample"):
        next(iter(getattr(array(4).map(lambda b: {"name": "none"}), verb)(2)))


@pytest.mark.parametrize("verb", ["rebatch", "sub_batch", "max_samples"])
def test_features_that_do_not_fit_together_are_named(verb):
    with pytest.raises(ValueError, match=r"'x' has 1 and feature 'y' has 2"):
        next(iter(getattr(array(4).map(lambda b: {"x": b["x"], "y": [1, 2]}), verb)(2)))


def test_shapes_that_do_not_fit_together_are_named_with_their_samples():
    chain = array(4).map(lambda b: {"image": np.zeros((1, 3, 4 + int(b["x"][0]) // 2)), "sample_uid": b["sample_uid"]})
    iterator = iter(chain.batch(3))
    with pytest.raises(ValueError, match=r"image.*3, 4\) .*sample_uid 0.*3, 5\) .*sample_uid 2"):
        next(iterator)


# sub_batch


@settings(deadline=None)
@given(sizes_of_batches, size_of_ours, st.booleans())
def test_sub_batch_cuts_each_batch_by_itself(of_source, size, discard):
    batches = list(Batches(of_source).sub_batch(size, discard))
    starts = np.cumsum([0, *of_source])
    expected = [
        list(range(start + first, start + min(first + size, nb)))
        for start, nb in zip(starts, of_source, strict=False)
        for first in range(0, nb, size)
        if nb - first >= size or not discard
    ]
    assert [batch["x"].tolist() for batch in batches] == expected
    assert [batch["list"] for batch in batches] == [[f"s{i}" for i in part] for part in expected]
    assert {batch["name"] for batch in batches} <= {"all"}


# max_samples


@settings(deadline=None)
@given(sizes_of_batches, size_of_ours)
def test_epochs_of_max_samples_together_give_every_sample_once_in_order(of_source, limit):
    total = sum(of_source)
    sequence = Batches(of_source).max_samples(limit)
    for _ in range(2):
        epochs = [numbers(sequence) for _ in parts_of(total, limit)]
        assert [len(epoch) for epoch in epochs] == parts_of(total, limit)
        assert [x for epoch in epochs for x in epoch] == list(range(total))


def test_epochs_of_max_samples_end_where_the_source_ends():
    sequence = array(25, SamplerSequential(batch_size=4)).max_samples(10)
    assert [sum(sizes(sequence)) for _ in range(6)] == [10, 10, 5, 10, 10, 5]


def test_a_limit_that_divides_the_source_makes_no_empty_epoch():
    sequence = array(20, SamplerSequential(batch_size=4)).max_samples(10)
    assert [sum(sizes(sequence)) for _ in range(5)] == [10] * 5


def test_an_empty_source_makes_empty_epochs():
    sequence = array(0).max_samples(3)
    assert [numbers(sequence) for _ in range(3)] == [[]] * 3


def test_each_pass_of_max_samples_is_newly_shuffled_and_whole():
    sequence = array(12, SamplerRandom(batch_size=5)).with_seed(1).max_samples(4)
    passes = [[x for _ in range(3) for x in numbers(sequence)] for _ in range(3)]
    assert [sorted(one) for one in passes] == [list(range(12))] * 3
    assert passes[0] != passes[1] != passes[2]


def test_an_epoch_of_max_samples_that_is_given_up_hands_on_the_rest():
    sequence = array(10, SamplerSequential(batch_size=2)).max_samples(6)
    for _, batch in zip(range(2), sequence, strict=False):
        assert batch["x"][0] in (0, 2)
    assert numbers(sequence) == [4, 5, 6, 7, 8, 9]


def test_of_two_epochs_of_max_samples_the_newer_one_hands_on_its_rest():
    sequence = array(10, SamplerSequential(batch_size=2)).max_samples(4)
    older, newer = iter(sequence), iter(sequence)
    assert numbers([next(older)]) == numbers([next(newer)]) == [0, 1]
    assert numbers(newer) == [2, 3]
    del older
    assert numbers(sequence) == [4, 5, 6, 7]


def test_an_epoch_of_max_samples_may_be_dropped_after_the_next_was_opened():
    sequence = array(10, SamplerSequential(batch_size=2)).max_samples(4)
    iterator = iter(sequence)
    next(iterator)
    iterator = iter(sequence)  # the older one is dropped only now
    assert numbers(iterator) == [0, 1, 2, 3]
    assert numbers(sequence) == [4, 5, 6, 7]


def test_max_samples_over_workers_goes_on_without_making_a_sample_again():
    calls = []

    def count(batch):
        calls.append(int(batch["x"][0]))
        return batch

    with array(10).map(count, nb_workers=2, backend="thread").max_samples(4) as sequence:
        epochs = [numbers(sequence) for _ in range(3)]
    assert epochs == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert sorted(calls) == list(range(10))
