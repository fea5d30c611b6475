"""`SequenceArray`: rows of a split, copied, transformed, in the order of a sampler."""

from __future__ import annotations

import itertools
import pickle
import random
import warnings

import numpy as np
import pandas as pd
import pytest
import torch

from trw_pipeline.sequences.samplers import Sampler, SamplerClassResampling, SamplerRandom, SamplerSequential
from trw_pipeline.sequences.sequence import SequenceArray


def split_of(nb=6):
    return {
        "array": np.arange(2 * nb, dtype=np.float32).reshape(nb, 2),
        "tensor": torch.arange(nb),
        "list": [[i] for i in range(nb)],
        "name": "six",
        "scale": 2.5,
    }


def numbers(sequence):
    return [int(x) for batch in sequence for x in batch["x"]]


# What a batch is


def test_a_batch_has_the_rows_of_every_feature_and_the_batch_wide_values():
    batch = next(iter(SequenceArray(split_of(), SamplerSequential(batch_size=2))))
    assert batch["array"].tolist() == [[0, 1], [2, 3]]
    assert batch["array"].dtype == np.float32
    assert batch["tensor"].tolist() == [0, 1]
    assert batch["tensor"].dtype == torch.int64
    assert batch["list"] == [[0], [1]]
    assert (batch["name"], batch["scale"]) == ("six", 2.5)
    assert batch["sample_uid"].tolist() == [0, 1]


def test_a_sample_is_a_batch_of_one():
    batch = next(iter(SequenceArray(split_of(), SamplerSequential())))
    assert batch["array"].shape == (1, 2)
    assert batch["tensor"].shape == (1,)
    assert batch["list"] == [[0]]
    assert batch["sample_uid"].shape == (1,)


def test_the_default_order_is_random_and_holds_each_sample_once():
    sequence = SequenceArray({"x": np.arange(50)}).with_seed(1)
    assert numbers(sequence) != list(range(50))
    assert sorted(numbers(sequence)) == list(range(50))


def test_a_split_without_features_has_no_batches():
    assert list(SequenceArray({})) == []


def test_a_split_without_samples_has_no_batches():
    assert list(SequenceArray({"x": []})) == []


def test_rows_of_a_memmap_are_ordinary_arrays(tmp_path):
    mapped = np.memmap(tmp_path / "rows", dtype=np.int16, mode="w+", shape=(4, 3))
    mapped[:] = np.arange(12).reshape(4, 3)
    batch = next(iter(SequenceArray({"x": mapped}, SamplerSequential(batch_size=2))))
    assert type(batch["x"]) is np.ndarray
    assert batch["x"].tolist() == [[0, 1, 2], [3, 4, 5]]


def test_one_sampler_serves_two_arrays():
    sampler = SamplerSequential()
    one, other = (SequenceArray({"x": np.arange(nb)}, sampler) for nb in (3, 5))
    assert [pair for pair in zip(numbers(one), numbers(other), strict=False)] == [(0, 0), (1, 1), (2, 2)]
    assert numbers(other) == list(range(5))


def test_the_callers_sampler_stays_as_it_is():
    sampler = SamplerRandom(batch_size=2)
    list(SequenceArray({"x": np.arange(6)}, sampler))
    assert vars(sampler) == vars(SamplerRandom(batch_size=2))


COLUMNS = {
    "array": lambda: np.arange(24, dtype=np.float32).reshape(4, 3, 2),
    "flat array": lambda: np.arange(4),
    "fortran order": lambda: np.asfortranarray(np.arange(24).reshape(4, 3, 2)),
    "every other row": lambda: np.arange(24).reshape(8, 3)[::2],
    "backwards": lambda: np.arange(12).reshape(4, 3)[::-1],
    "other byte order": lambda: np.arange(4, dtype=">i4"),
    "text": lambda: np.array(["a", "bc", "d", "e"]),
    "objects": lambda: np.array([{1}, "b", None, 3.5], dtype=object),
    "records": lambda: np.array([(1, 2.0)] * 4, dtype=[("a", int), ("b", float)]).view(np.recarray),
    "tensor": lambda: torch.arange(24.0).reshape(4, 3, 2),
    "transposed tensor": lambda: torch.arange(12).reshape(3, 4).T,
    "list": lambda: [[0], {"a": 1}, "text", None],
}


@pytest.mark.parametrize("make", COLUMNS.values(), ids=COLUMNS.keys())
@pytest.mark.parametrize("use_advanced_indexing", [True, False])
def test_one_row_is_what_a_list_of_one_row_is(make, use_advanced_indexing):
    for row in range(4):
        one, listed = (
            SequenceArray.get({"x": make()}, 4, indices, None, use_advanced_indexing)["x"] for indices in (row, [row])
        )
        assert type(one) is type(listed)
        assert len(one) == 1
        if isinstance(one, list):
            assert repr(one) == repr(listed)
        else:
            assert (one.dtype, one.shape) == (listed.dtype, listed.shape)
            assert one.tolist() == listed.tolist()


@pytest.mark.parametrize("make", COLUMNS.values(), ids=COLUMNS.keys())
def test_one_row_shares_no_memory_with_the_split(make):
    column = make()
    row = SequenceArray.get({"x": column}, 4, 1, None, True)["x"]
    if isinstance(column, list):
        assert row[0] is not column[1]
    elif isinstance(column, torch.Tensor):
        assert row.untyped_storage().data_ptr() != column.untyped_storage().data_ptr()
    else:
        assert not np.shares_memory(row, column)
        assert row.flags.writeable


# sample_uid


def test_sample_uid_is_added_to_a_copy_of_the_split():
    split = {"x": [5, 6, 7]}
    sequence = SequenceArray(split, SamplerSequential())
    assert [batch["sample_uid"].tolist() for batch in sequence] == [[0], [1], [2]]
    assert split == {"x": [5, 6, 7]}


def test_a_sample_uid_of_the_callers_is_kept():
    sequence = SequenceArray({"x": [5, 6], "sample_uid": ["a", "b"]}, SamplerSequential())
    assert [batch["sample_uid"] for batch in sequence] == [["a"], ["b"]]


def test_the_name_of_the_sample_uid_is_the_callers_choice():
    batch = next(iter(SequenceArray({"x": [5]}, sample_uid_name="scan")))
    assert batch.keys() == {"x", "scan"}


def test_without_a_name_no_sample_uid_is_added():
    batch = next(iter(SequenceArray({"x": [5]}, sample_uid_name=None)))
    assert batch.keys() == {"x"}


# Memory


def test_writing_into_a_batch_changes_neither_the_split_nor_other_batches():
    split = split_of()
    sequence = SequenceArray(split, SamplerSequential(batch_size=3))
    for batch in sequence:
        batch["array"] *= -1
        batch["tensor"] += 100
        batch["list"][0].append("written")
        batch["sample_uid"][:] = 9
        batch["name"] = "other"
        del batch["scale"]
    again = list(sequence)
    assert np.concatenate([batch["array"] for batch in again]).tolist() == split_of()["array"].tolist()
    assert torch.cat([batch["tensor"] for batch in again]).tolist() == list(range(6))
    assert [batch["list"] for batch in again] == [[[0], [1], [2]], [[3], [4], [5]]]
    assert [batch["sample_uid"].tolist() for batch in again] == [[0, 1, 2], [3, 4, 5]]
    assert split["list"] == split_of()["list"]


def test_batches_of_a_read_only_array_can_be_written_without_a_warning():
    array = np.arange(4)
    array.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        batch = next(iter(SequenceArray({"x": array}, SamplerSequential(batch_size=2)).collate()))
        batch["x"] += 1
    assert batch["x"].tolist() == [1, 2]


def test_without_advanced_indexing_rows_are_references():
    split = {"volume": np.zeros((4, 8, 8)), "x": torch.arange(4)}
    batch = next(iter(SequenceArray(split, SamplerSequential(batch_size=2), use_advanced_indexing=False)))
    assert [volume.shape for volume in batch["volume"]] == [(8, 8), (8, 8)]
    assert all(np.shares_memory(volume, split["volume"]) for volume in batch["volume"])


def test_without_advanced_indexing_collate_stacks_the_rows():
    split = {"volume": np.arange(24.0).reshape(4, 2, 3), "x": torch.arange(4), "y": np.arange(4)}
    source = SequenceArray(split, SamplerSequential(batch_size=2), use_advanced_indexing=False)
    batch = next(iter(source.collate()))
    assert batch["volume"].tolist() == split["volume"][:2].tolist()
    assert batch["x"].tolist() == batch["y"].tolist() == [0, 1]


def test_shared_features_are_handed_out_whole():
    split = {"x": [1, 2, 3], "classes": ["cat", "dog", "cow"], "mean": np.ones(5)}
    sequence = SequenceArray(split, SamplerSequential(), shared_features=("classes", "mean"))
    for batch in sequence:
        assert batch["classes"] == ["cat", "dog", "cow"]
        assert batch["mean"].tolist() == [1] * 5


# Transforms


def test_a_transform_changes_each_batch():
    sequence = SequenceArray({"x": np.arange(3)}, SamplerSequential(), lambda batch: {**batch, "x": batch["x"] * 10})
    assert numbers(sequence) == [0, 10, 20]


def test_transforms_are_applied_one_after_the_other():
    def plus_one(batch):
        return {"x": batch["x"] + 1}

    def times_ten(batch):
        return {"x": batch["x"] * 10}

    sequence = SequenceArray({"x": np.arange(3)}, SamplerSequential(), [plus_one, times_ten])
    assert numbers(sequence) == [10, 20, 30]


def test_transforms_are_applied_once_to_a_smaller_version():
    sequence = SequenceArray({"x": np.arange(5)}, SamplerSequential(), lambda batch: {**batch, "x": batch["x"] + 100})
    assert numbers(sequence.subsample_uids([3, 1], "x")) == [103, 101]


def test_transforms_draw_the_same_numbers_with_the_same_seed():
    def draw(batch, rng):
        return {"x": [rng.random(), random.random(), np.random.rand(), torch.rand(1).item()]}

    first, second, third = (SequenceArray({"x": np.arange(4)}, transforms=draw).with_seed(s) for s in (1, 1, 2))
    drawn = [[batch["x"] for batch in sequence] for sequence in (first, second, third)]
    assert drawn[0] == drawn[1]
    one, other = (set(itertools.chain(*values)) for values in (drawn[0], drawn[2]))
    assert not one & other


def test_stop_iteration_from_a_transform_is_an_error():
    def stop(batch):
        raise StopIteration

    with pytest.raises(RuntimeError, match="raised StopIteration"):
        list(SequenceArray({"x": [1]}, transforms=stop))


def test_a_transform_that_returns_nothing_is_an_error():
    with pytest.raises(ValueError, match="returned None"):
        list(SequenceArray({"x": [1]}, transforms=lambda batch: None))


# Wrong splits


def test_features_of_different_lengths_are_named():
    with pytest.raises(ValueError, match=r"'image' has 4 and feature 'target' has 3"):
        SequenceArray({"image": np.zeros((4, 2)), "target": [1, 2, 3]})


def test_a_split_without_a_feature_of_samples_is_refused():
    with pytest.raises(ValueError, match="one row for each sample"):
        SequenceArray({"name": "nothing"})


@pytest.mark.parametrize("split", [[1, 2], np.arange(3), None])
def test_a_split_that_is_no_mapping_is_refused(split):
    with pytest.raises(TypeError, match="split must be a mapping"):
        SequenceArray(split)


@pytest.mark.parametrize("sampler", [SamplerRandom, [0, 1], "random"])
def test_a_sampler_that_is_none_is_refused(sampler):
    with pytest.raises(TypeError, match="sampler must be a Sampler"):
        SequenceArray({"x": [1]}, sampler)


def test_a_new_sampler_that_is_none_is_refused():
    with pytest.raises(TypeError, match="new_sampler must be a Sampler"):
        SequenceArray({"x": [1]}).subsample_uids([1], "x", SamplerRandom)


@pytest.mark.parametrize("transforms", [3, [], ["flip"]])
def test_a_transform_that_can_not_be_called_is_refused(transforms):
    with pytest.raises((TypeError, ValueError)):
        SequenceArray({"x": [1]}, transforms=transforms)


# Smaller versions


def test_samples_that_share_a_uid_are_all_kept_in_the_order_of_the_uids():
    sequence = SequenceArray({"x": np.arange(5), "patient": ["a", "b", "a", "c", "b"]}, SamplerSequential())
    assert numbers(sequence.subsample_uids(["b", "a"], "patient")) == [1, 4, 0, 2]


def test_a_uid_that_is_named_twice_is_taken_once():
    sequence = SequenceArray({"x": np.arange(3)}, SamplerSequential())
    assert numbers(sequence.subsample_uids([2, 0, 2], "x")) == [2, 0]


def test_a_uid_may_be_several_numbers():
    uids = np.array([[0, 1], [0, 2], [1, 1], [0, 1]])
    sequence = SequenceArray({"uid": uids, "x": np.arange(4)}, sample_uid_name=None)
    smaller = sequence.subsample_uids([(1, 1), (0, 1), (9, 9)], "uid", SamplerSequential())
    assert [x for batch in smaller for x in batch["x"].tolist()] == [2, 0, 3]


def test_a_batch_wide_value_is_no_uid():
    with pytest.raises(ValueError, match="no feature 'name', with one value for each sample"):
        SequenceArray({"x": [1], "name": "m"}).subsample_uids(["m"], "name")


def test_subsample_is_keyed_by_the_seed():
    chosen = [sorted(numbers(SequenceArray({"x": np.arange(99)}).with_seed(s).subsample(9))) for s in (1, 1, 2)]
    assert chosen[0] == chosen[1] != chosen[2]


def test_subsample_chooses_the_same_samples_again_where_no_seed_was_given_before():
    chosen = [SequenceArray({"x": np.arange(99)}).subsample(9) for _ in range(2)]
    assert sorted(numbers(chosen[0])) == sorted(numbers(chosen[1])) != list(range(9))
    first, again, other = (SequenceArray({"x": np.arange(99)}).subsample(9).with_seed(seed) for seed in (1, 1, 2))
    order = numbers(first)
    assert numbers(again) == order != numbers(other)
    assert sorted(numbers(other)) == sorted(order)


def test_a_position_in_a_subsample_without_a_seed_is_one_in_the_same_samples_elsewhere():
    saved, loaded = (SequenceArray({"x": np.arange(99)}).subsample(9).batch(2) for _ in range(2))
    epoch = iter(saved)
    next(epoch)
    loaded.load_state_dict(saved.state_dict())
    assert numbers(loaded) == numbers(epoch)


def test_a_smaller_version_keeps_uids_and_batch_wide_values():
    source = SequenceArray(split_of(), SamplerSequential())
    batches = list(source.subsample_uids([4, 2], "sample_uid"))
    assert [batch["sample_uid"].tolist() for batch in batches] == [[4], [2]]
    assert [batch["name"] for batch in batches] == ["six", "six"]
    assert [batch["list"] for batch in batches] == [[[4]], [[2]]]


def test_a_smaller_version_owns_its_rows():
    split = {"x": np.arange(4), "list": [[0], [1], [2], [3]]}
    smaller = SequenceArray(split, SamplerSequential(), use_advanced_indexing=False).subsample(4)
    for batch in smaller:
        batch["list"][0].append(9)
    assert split["list"] == [[0], [1], [2], [3]]


@pytest.mark.parametrize(
    ("sampler", "expected"),
    [
        (SamplerRandom(batch_size=2), [1, 3, 5]),
        (SamplerClassResampling("target", 4), None),
    ],
)
def test_shuffling_samplers_work_on_a_smaller_version(sampler, expected):
    sequence = SequenceArray({"x": np.arange(6), "target": [0, 0, 0, 1, 1, 1]}, sampler)
    smaller = sequence.subsample_uids([5, 3, 1], "x")
    for _ in range(3):
        found = numbers(smaller)
        if expected is None:
            assert found.count(1) == 2
            assert set(found) <= {1, 3, 5}
        else:
            assert sorted(found) == expected


# A sampler of the user's


class EveryOther(Sampler):
    """Draws from the global generator, which is how samplers were written before there was `rng`."""

    def initializer(self, data_source):
        self.chosen = np.random.permutation(len(data_source["x"]))[::2]

    def __iter__(self):
        return iter(self.chosen.tolist())

    def __len__(self):
        return len(self.chosen)


def test_a_users_sampler_follows_the_seed_and_leaves_the_global_generator_alone():
    np.random.seed(0)
    before = str(np.random.get_state())
    one, same, other = (SequenceArray({"x": np.arange(40)}, EveryOther()).with_seed(s) for s in (1, 1, 2))
    assert numbers(one) == numbers(same) != numbers(other)
    assert str(np.random.get_state()) == before


# The documented ways in


def test_get_returns_rows_transformed():
    batch = SequenceArray.get({"x": np.arange(4), "name": "n"}, 4, [3, 0], lambda batch: {"x": batch["x"] * 2}, True)
    assert batch["x"].tolist() == [6, 0]


def test_get_without_advanced_indexing_gives_references():
    split = {"x": np.zeros((4, 3))}
    batch = SequenceArray.get(split, 4, np.array([1, 2]), None, False)
    assert all(np.shares_memory(row, split["x"]) for row in batch["x"])


def test_get_checks_the_number_of_samples():
    with pytest.raises(ValueError, match="4 samples, not nb_samples=5"):
        SequenceArray.get({"x": np.arange(4)}, 5, [0], None, True)


def test_get_next_advances_the_own_cursor():
    sequence = SequenceArray({"x": [5, 6]}, SamplerSequential())
    assert [sequence.get_next()["x"], next(sequence)["x"]] == [[5], [6]]
    with pytest.raises(StopIteration):
        sequence.get_next()
    assert sequence.get_next()["x"] == [5]


def test_initializer_begins_again():
    sequence = SequenceArray({"x": [5, 6]}, SamplerSequential())
    sequence.get_next()
    sequence.initializer()
    assert sequence.get_next()["x"] == [5]


# Values that would be misread


def test_a_masked_array_is_refused_by_its_name():
    masked = np.ma.masked_array(np.arange(3), [False, True, False])
    with pytest.raises(ValueError, match=r"'image' is a masked array.*filled"):
        SequenceArray({"x": np.arange(3), "image": masked})


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda: ("a", "b", "c"), "tuple"),
        (lambda: range(3), "range"),
        (lambda: {"a": 1, "b": 2, "c": 3}.keys(), "dict_keys"),
        (lambda: pd.Series(["a", "b", "c"]), "Series"),
        (lambda: pd.Series(["a", "b", "c"]).values, "ArrowStringArray|StringArray"),
    ],
    ids=["tuple", "range", "keys", "Series", "values of a Series"],
)
def test_as_many_values_as_samples_that_would_go_to_every_sample_are_refused(make, kind):
    with pytest.raises(ValueError, match=rf"'path' \(({kind}) of 3 values\) would be batch-wide.* a list"):
        SequenceArray({"path": make(), "target": np.arange(3)})


def test_what_is_batch_wide_may_have_as_many_values_as_there_are_samples_if_that_is_said_or_comes_so():
    split = {"x": np.arange(4), "spacing": (1.0, 1.0, 2.0)}
    said = SequenceArray({**split, "x": np.arange(3)}, shared_features=("spacing",))
    three = SequenceArray(split).subsample(3)
    again = pickle.loads(pickle.dumps(three)).with_seed(1)
    zipped = SequenceArray(split).zip(SequenceArray({"y": np.arange(4)})).subsample(3)
    for sequence in (said, three, again, zipped):
        assert [batch["spacing"] for batch in sequence] == [(1.0, 1.0, 2.0)] * 3
    assert len(list(SequenceArray({"x": [5], "names": ("a",)}))) == 1  # of one, the first is right


def test_a_split_of_tuples_says_that_tuples_are_batch_wide():
    with pytest.raises(
        ValueError, match=r"batch-wide are 'x' \(tuple of 2 values\), 'y' \(tuple .*make each a list if"
    ):
        SequenceArray({"x": (1, 2), "y": (3, 4), "name": "numbers"})
