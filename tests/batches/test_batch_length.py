"""How many samples a batch holds, and which features hold one entry for each."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from trw_pipeline.batches.length import len_batch, per_sample_features


@pytest.mark.parametrize(
    ("batch", "nb_samples"),
    [
        ({"x": np.zeros((4, 2))}, 4),
        ({"x": torch.zeros(5, 2)}, 5),
        ({"x": [1, 2, 3]}, 3),
        (OrderedDict(x=np.zeros((0, 7))), 0),
        ({}, 0),
        ([{"x": 1}, {"x": 2}], 2),
        (("a", "b", "c"), 3),
        (np.zeros((6, 1)), 6),
        (torch.zeros(7), 7),
    ],
)
def test_length_is_that_of_the_first_axis(batch, nb_samples):
    assert len_batch(batch) == nb_samples


@pytest.mark.parametrize(
    "batch_wide",
    [
        3,
        "four",
        b"four",
        (1, 2, 3),
        {"y": [1, 2, 3]},
        len,
        None,
        Path("a/b"),
        np.float32(3),
        np.array(3),
        torch.tensor(3),
        SimpleNamespace(shape=(9,), ndim=1),
    ],
)
def test_batch_wide_values_do_not_count(batch_wide):
    assert len_batch({"wide": batch_wide}) == 0
    assert len_batch({"wide": batch_wide, "x": [1, 2]}) == 2


def test_the_first_feature_with_samples_decides():
    assert len_batch({"name": "abc", "x": np.zeros((2, 3)), "y": [0] * 9}) == 2


def test_shared_features_do_not_count():
    assert len_batch({"weights": np.zeros(10), "x": [1, 2]}, shared_features=["weights"]) == 2


@pytest.mark.parametrize("batch", [3, None, "text", np.array(3), torch.tensor(3)])
def test_length_of_what_holds_no_samples_is_refused(batch):
    with pytest.raises(TypeError, match=f"got {type(batch).__name__}"):
        len_batch(batch)


def test_per_sample_features_are_named_in_order():
    batch = {"z": [1, 2], "name": "a", "y": np.zeros((2, 3)), "n": 2, "x": torch.zeros(2), "pair": (1, 2)}
    assert per_sample_features(batch) == ["z", "y", "x"]


def test_shared_features_may_have_any_length():
    batch = {"x": [1, 2], "weights": np.zeros(10)}
    assert per_sample_features(batch, shared_features=("weights", "absent")) == ["x"]


def test_features_of_different_lengths_are_named_with_their_lengths():
    with pytest.raises(ValueError, match=r"'x' has 2 and feature 'y' has 3"):
        per_sample_features({"x": [1, 2], "y": np.zeros(3)})


def test_a_string_for_shared_features_is_refused():
    with pytest.raises(TypeError, match="shared_features must be a list or tuple of names, got the string 'weights'"):
        per_sample_features({"w": [1]}, shared_features="weights")


def test_a_list_has_no_features():
    with pytest.raises(TypeError, match="must be a mapping"):
        per_sample_features([1, 2])
