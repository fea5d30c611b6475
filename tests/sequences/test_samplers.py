"""Every sampler draws what it promises, epoch after epoch, and iterators do not disturb each other."""

from __future__ import annotations

import copy
import itertools
import pickle
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trw_pipeline.sequences.samplers import (
    Sampler,
    SamplerClassResampling,
    SamplerRandom,
    SamplerSequential,
    SamplerSubsetRandom,
)

SPLIT = {"name": "ten", "target": [0, 0, 0, 0, 0, 0, 1, 1, 1, 5], "x": np.arange(10)}

EVERY_SAMPLER = pytest.mark.parametrize(
    "sampler",
    [
        SamplerSequential(),
        SamplerSequential(batch_size=3),
        SamplerRandom(),
        SamplerRandom(batch_size=4),
        SamplerRandom(replacement=True, batch_size=3),
        SamplerRandom(replacement=True, nb_samples_to_generate=17, batch_size=5),
        SamplerSubsetRandom([7, 1, 4]),
        SamplerClassResampling("target", 30),
        SamplerClassResampling("target", 31, batch_size=4),
    ],
    ids=repr,
)
EVERY_RANDOM_SAMPLER = pytest.mark.parametrize(
    "sampler",
    [
        SamplerRandom(),
        SamplerRandom(replacement=True, nb_samples_to_generate=17, batch_size=5),
        SamplerSubsetRandom(range(10)),
        SamplerClassResampling("target", 30),
    ],
    ids=repr,
)


def drawn(sampler):
    """One epoch, as a flat list of sample numbers."""
    return [int(number) for element in sampler for number in np.atleast_1d(element)]


def bound(sampler, source=SPLIT, seed=0):
    sampler.initializer(source, rng=np.random.default_rng(seed))
    return sampler


# --- every sampler


@EVERY_SAMPLER
def test_length_is_the_number_of_elements(sampler):
    bound(sampler)
    assert len(sampler) == len(list(sampler))


@given(st.integers(0, 40), st.integers(1, 10))
def test_length_is_true_for_every_batch_size(nb_samples, batch_size):
    for sampler in (
        SamplerSequential(batch_size),
        SamplerRandom(batch_size=batch_size),
        SamplerRandom(replacement=True, batch_size=batch_size),
    ):
        sampler.initializer([None] * nb_samples)
        assert len(sampler) == len(list(sampler))
        assert len(drawn(sampler)) == nb_samples


@EVERY_SAMPLER
def test_elements_are_ints_or_full_index_arrays(sampler):
    size = sampler.get_batch_size()
    *full, last = bound(sampler)
    if size == 1:
        assert all(type(element) is int for element in (*full, last))
    else:
        assert all(element.dtype == np.int64 and element.shape == (size,) for element in full)
        assert last.dtype == np.int64
        assert 1 <= len(last) <= size


@EVERY_SAMPLER
def test_two_open_iterators_do_not_disturb_each_other(sampler):
    bound(sampler, seed=3)
    undisturbed = [drawn(sampler), drawn(sampler)]
    bound(sampler, seed=3)
    first, second = iter(sampler), iter(sampler)
    interleaved = list(zip(first, second, strict=True))
    assert [drawn(elements) for elements in zip(*interleaved, strict=True)] == undisturbed


@EVERY_SAMPLER
def test_an_open_iterator_survives_a_new_source(sampler):
    expected = drawn(bound(copy.copy(sampler), seed=1))
    iterator = iter(bound(sampler, seed=1))
    bound(sampler, {"target": [0, 0, 0, 1, 1, 1, 5, 5], "x": np.arange(8)}, seed=2)
    assert drawn(iterator) == expected


@EVERY_SAMPLER
def test_the_own_cursor_walks_one_epoch_and_stays_at_its_end(sampler):
    expected = drawn(bound(sampler, seed=4))
    bound(sampler, seed=4)
    assert drawn(next(sampler) for _ in range(len(sampler))) == expected
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(sampler)


def test_initializer_puts_the_own_cursor_back():
    sampler = bound(SamplerSequential())
    assert [next(sampler), next(sampler)] == [0, 1]
    assert next(bound(sampler)) == 0


def test_a_copy_has_its_own_cursor():
    sampler = bound(SamplerSequential())
    next(sampler)
    assert next(copy.copy(sampler)) == 0
    assert next(sampler) == 1


@EVERY_SAMPLER
def test_a_sampler_survives_pickling_with_its_cursor_open(sampler):
    bound(sampler)
    next(sampler)
    twin = pickle.loads(pickle.dumps(sampler))
    assert drawn(bound(twin, seed=5)) == drawn(bound(sampler, seed=5))


@EVERY_SAMPLER
def test_a_sampler_without_a_source_says_what_to_do(sampler):
    sampler = copy.copy(sampler)
    sampler.nb_samples = None
    with pytest.raises(RuntimeError, match=r"call initializer\(data_source\) first"):
        iter(sampler)


@pytest.mark.parametrize("sampler", [SamplerSequential(), SamplerRandom(), SamplerClassResampling("target", 9)])
def test_the_length_needs_a_source(sampler):
    with pytest.raises(RuntimeError, match=r"call initializer\(data_source\) first"):
        len(sampler)


@EVERY_SAMPLER
def test_only_a_generator_of_numpy_is_taken(sampler):
    with pytest.raises(TypeError, match=r"rng must be a numpy\.random\.Generator, got int"):
        sampler.initializer(SPLIT, rng=3)


@pytest.mark.parametrize(
    "source", [[0] * 6, {"name": "six", "x": torch.zeros(6, 2)}, {"x": np.zeros((6, 2))}, {"n": 3, "x": ["a"] * 6}]
)
def test_the_samples_of_every_kind_of_source_are_counted(source):
    assert drawn(bound(SamplerSequential(), source)) == [0, 1, 2, 3, 4, 5]


def test_a_number_is_no_source():
    with pytest.raises(TypeError, match="got int"):
        SamplerSequential().initializer(6)


@pytest.mark.parametrize(
    "make",
    [
        lambda n: SamplerSequential(n),
        lambda n: SamplerRandom(batch_size=n),
        lambda n: SamplerClassResampling("c", 9, batch_size=n),
    ],
)
def test_a_batch_size_below_one_is_refused(make):
    for batch_size in (0, -3):
        with pytest.raises(ValueError, match=f"batch_size must be at least 1, got {batch_size}"):
            make(batch_size)
    for batch_size in (True, 2.0, "2", None):
        with pytest.raises(TypeError, match=f"batch_size must be an integer, got {batch_size!r}"):
            make(batch_size)


@pytest.mark.parametrize(
    ("sampler", "text"),
    [
        (SamplerSequential(), "SamplerSequential()"),
        (SamplerSequential(batch_size=3), "SamplerSequential(batch_size=3)"),
        (SamplerRandom(batch_size=4), "SamplerRandom(batch_size=4)"),
        (SamplerRandom(True, 9), "SamplerRandom(replacement=True, nb_samples_to_generate=9)"),
        (SamplerSubsetRandom([3, 1]), "SamplerSubsetRandom(indices=[3, 1])"),
        (SamplerSubsetRandom(range(10**6)), "SamplerSubsetRandom(indices=[0, 1, 2, 3, 4, 5, ...])"),
        (SamplerClassResampling("c", 9), "SamplerClassResampling(class_name='c', nb_samples_to_generate=9)"),
    ],
)
def test_the_text_shows_what_is_not_default(sampler, text):
    assert repr(sampler) == text


def test_a_sampler_of_ones_own_needs_an_order_and_a_length():
    class Backwards(Sampler):
        def __iter__(self):
            return iter(range(self.nb_samples - 1, -1, -1))

        def __len__(self):
            return self.nb_samples

    sampler = bound(Backwards(), [0] * 3)
    assert (list(sampler), len(sampler), sampler.get_batch_size(), repr(sampler)) == ([2, 1, 0], 3, 1, "Backwards()")


@pytest.mark.slow
def test_samplers_do_not_load_torch():
    code = "import sys, trw_pipeline.sequences.samplers; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- randomness


@EVERY_RANDOM_SAMPLER
def test_a_seed_decides_every_epoch(sampler):
    bound(sampler, seed=7)
    epochs = [drawn(sampler), drawn(sampler)]
    bound(sampler, seed=7)
    assert [drawn(sampler), drawn(sampler)] == epochs


@EVERY_RANDOM_SAMPLER
def test_each_iteration_draws_a_new_order(sampler):
    bound(sampler, seed=0)
    assert drawn(sampler) != drawn(sampler)


@EVERY_RANDOM_SAMPLER
def test_the_global_generators_are_neither_used_nor_changed(sampler):
    np.random.seed(0)
    torch.manual_seed(0)
    before = (np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())
    sampler.initializer(SPLIT)
    first = drawn(sampler)
    assert (np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == before
    sampler.initializer(SPLIT)
    assert drawn(sampler) != first


# --- SamplerSequential, SamplerRandom, SamplerSubsetRandom


def test_sequential_keeps_the_order_of_the_source():
    sampler = bound(SamplerSequential(batch_size=4))
    assert [element.tolist() for element in sampler] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


@pytest.mark.parametrize("batch_size", [1, 3])
def test_random_without_replacement_draws_every_sample_once(batch_size):
    assert sorted(drawn(bound(SamplerRandom(batch_size=batch_size)))) == list(range(10))


def test_random_with_replacement_draws_as_many_as_the_source_has():
    numbers = drawn(bound(SamplerRandom(replacement=True), [0] * 1000))
    assert len(numbers) == 1000
    assert set(numbers) <= set(range(1000))
    # 632 different ones are expected, with a standard deviation of 9.6
    assert 580 < len(set(numbers)) < 690


def test_random_with_replacement_draws_as_many_as_asked():
    assert len(drawn(bound(SamplerRandom(replacement=True, nb_samples_to_generate=25)))) == 25


def test_a_count_without_replacement_is_refused():
    with pytest.raises(ValueError, match=r"nb_samples_to_generate must be None without replacement.*got 5"):
        SamplerRandom(nb_samples_to_generate=5)


@pytest.mark.parametrize(("nb", "error"), [(0, ValueError), (-1, ValueError), (2.5, TypeError), (True, TypeError)])
def test_a_count_below_one_is_refused(nb, error):
    with pytest.raises(error, match=f"nb_samples_to_generate must be .*got {nb}"):
        SamplerRandom(replacement=True, nb_samples_to_generate=nb)
    with pytest.raises(error, match=f"nb_samples_to_generate must be .*got {nb}"):
        SamplerClassResampling("target", nb)


@pytest.mark.parametrize("replacement", [False, True])
def test_an_empty_source_gives_an_empty_epoch(replacement):
    assert drawn(bound(SamplerRandom(replacement=replacement), {"x": []})) == []


def test_nothing_can_be_generated_from_an_empty_source():
    with pytest.raises(ValueError, match="must have samples to generate 5 of them"):
        SamplerRandom(replacement=True, nb_samples_to_generate=5).initializer({"x": []})


@pytest.mark.parametrize(
    "indices", [[7, 1, 4], (7, 1, 4), np.array([7, 1, 4], np.uint8), torch.tensor([7, 1, 4]), range(1, 8, 3)]
)
def test_a_subset_is_drawn_once_each(indices):
    assert sorted(drawn(bound(SamplerSubsetRandom(indices)))) == [1, 4, 7]


def test_a_subset_does_not_change_with_the_list_of_the_caller():
    indices = np.array([3, 2])
    sampler = SamplerSubsetRandom(indices)
    indices[:] = 0
    assert sorted(drawn(bound(sampler))) == [2, 3]


def test_an_empty_subset_is_an_empty_epoch():
    assert drawn(bound(SamplerSubsetRandom([]))) == []


def test_an_index_outside_the_source_is_named():
    with pytest.raises(ValueError, match="indices must be below the number of samples, 10, got 12"):
        SamplerSubsetRandom([3, 12, 4]).initializer(SPLIT)


@pytest.mark.parametrize(
    ("indices", "error", "match"),
    [
        ([1, -2], ValueError, "at least 0, got -2"),
        ([[1, 2]], ValueError, r"shape \(n,\), got \(1, 2\)"),
        ([1.0, 2.0], TypeError, "integers, got dtype float64"),
        ([True, False], TypeError, "integers, got dtype bool"),
        (3, ValueError, r"shape \(n,\), got \(\)"),
    ],
)
def test_indices_that_are_no_sample_numbers_are_refused(indices, error, match):
    with pytest.raises(error, match=match):
        SamplerSubsetRandom(indices)


# --- SamplerClassResampling


def classes_drawn(sampler, targets):
    return Counter(int(targets[number]) for number in drawn(sampler))


@pytest.mark.parametrize("convert", [list, np.array, lambda targets: torch.tensor(targets, dtype=torch.uint8)])
def test_every_class_is_drawn_equally_often(convert):
    split = {"target": convert(SPLIT["target"])}
    sampler = bound(SamplerClassResampling("target", 31, batch_size=4), split)
    assert classes_drawn(sampler, SPLIT["target"]) == {0: 10, 1: 10, 5: 10}


def test_all_samples_of_a_class_can_be_drawn():
    assert set(drawn(bound(SamplerClassResampling("target", 600)))) == set(range(10))


def test_classes_are_shuffled():
    numbers = drawn(bound(SamplerClassResampling("target", 300)))
    targets = [SPLIT["target"][number] for number in numbers]
    # sorted by class there would be 2 changes; in random order 199 are expected, with a standard deviation of 8
    assert 150 < sum(left != right for left, right in itertools.pairwise(targets)) < 250


@pytest.mark.parametrize(
    "feature",
    [
        [0.5, 1.0],
        ["a", "b"],
        [[0], [1]],
        [[0], [1, 2]],
        [True, False],
        np.zeros((2, 1), int),
        torch.zeros(2),
        (0, 1),
        3,
        None,
    ],
)
def test_a_feature_that_is_not_one_integer_for_each_sample_is_named(feature):
    with pytest.raises(ValueError, match="feature 'target' must"):
        SamplerClassResampling("target", 10).initializer({"target": feature, "x": [1, 2]})


def test_a_missing_class_feature_is_named():
    with pytest.raises(ValueError, match=r"must have the feature 'label', it has \['name', 'target', 'x'\]"):
        SamplerClassResampling("label", 10).initializer(SPLIT)


def test_a_list_has_no_classes():
    with pytest.raises(TypeError, match="must be a mapping to find 'target' in, got list"):
        SamplerClassResampling("target", 10).initializer([0, 1])


def test_fewer_samples_than_classes_are_refused():
    with pytest.raises(ValueError, match=r"at least the number of classes in 'target', .* got 2 for 3 classes"):
        SamplerClassResampling("target", 2).initializer(SPLIT)


def test_no_samples_have_no_classes():
    with pytest.raises(ValueError, match="for 0 classes"):
        SamplerClassResampling("target", 2).initializer({"target": []})


def test_classes_are_sorted_once_while_the_feature_stays():
    targets = np.array([0, 0, 1, 1])
    sampler = bound(SamplerClassResampling("target", 40), {"target": targets})
    targets[:] = [0, 1, 1, 1]  # unseen: rows 0 and 1 still count as class 0
    numbers = drawn(bound(copy.copy(sampler), {"target": targets}))
    assert sum(number < 2 for number in numbers) == 20


def test_classes_are_sorted_again_where_they_may_change():
    targets = np.array([0, 0, 1, 1])
    sampler = SamplerClassResampling("target", 40, reuse_class_frequencies_across_epochs=False)
    bound(sampler, {"target": targets})
    targets[:] = [0, 1, 1, 1]
    assert classes_drawn(bound(copy.copy(sampler), {"target": targets}), targets) == {0: 20, 1: 20}


@pytest.mark.parametrize("other", [[1, 1, 0, 1], [0, 1, 1, 1, 1]])
def test_another_feature_is_sorted_into_its_own_classes(other):
    sampler = bound(SamplerClassResampling("target", 40), {"target": [0, 0, 1, 1]})
    assert classes_drawn(bound(copy.copy(sampler), {"target": other}), other) == {0: 20, 1: 20}


def test_a_feature_that_grows_is_sorted_again():
    targets = [0, 0, 1, 1]
    sampler = bound(SamplerClassResampling("target", 40), {"target": targets})
    targets.append(2)
    assert classes_drawn(bound(sampler, {"target": targets}), targets) == {0: 13, 1: 13, 2: 13}


# --- subset


@EVERY_SAMPLER
def test_a_subset_draws_only_rows_that_are_left(sampler):
    kept = np.array([9, 7, 6, 1, 0])
    reduced = {"target": np.array(SPLIT["target"])[kept]}
    numbers = drawn(bound(bound(sampler).subset(kept), reduced))
    assert numbers
    assert set(numbers) <= set(range(5))


def test_a_subset_of_listed_samples_follows_them_to_their_new_rows():
    kept = [6, 7, 2, 9]
    reduced = bound(SamplerSubsetRandom([7, 1, 9]).subset(kept), [None] * 4)
    assert sorted(kept[number] for number in drawn(reduced)) == [7, 9]


def test_a_row_that_is_kept_twice_is_drawn_twice():
    assert sorted(drawn(bound(SamplerSubsetRandom([7]).subset([7, 2, 7]), [None] * 3))) == [0, 2]


@EVERY_SAMPLER
def test_a_subset_leaves_the_sampler_as_it_was(sampler):
    expected = drawn(bound(sampler, seed=6))
    bound(sampler.subset([0, 1, 6, 9]), {"target": [0, 0, 1, 5]})
    assert drawn(bound(sampler, seed=6)) == expected
