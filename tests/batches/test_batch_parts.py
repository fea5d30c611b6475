"""Cutting a batch keeps every sample, in order, and every batch-wide value."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trw_pipeline.batches.parts import take


def test_every_kind_of_feature_is_cut_at_the_same_samples():
    batch = {"a": np.arange(10).reshape(5, 2), "t": torch.arange(5), "l": list("abcde")}
    part = take(batch, 1, 3)
    assert part["a"].tolist() == [[2, 3], [4, 5]]
    assert part["t"].tolist() == [1, 2]
    assert part["l"] == ["b", "c"]


def test_batch_wide_values_are_kept_in_every_part():
    batch = {"x": [1, 2, 3], "name": "abc", "size": (1, 2, 3), "scale": 2.0, "nested": {"y": [1, 2, 3]}, "f": len}
    wide = {name: value for name, value in batch.items() if name != "x"}
    assert take(batch, 0, 1) == {"x": [1], **wide}
    assert take(batch, 1, 3) == {"x": [2, 3], **wide}


def test_shared_features_are_kept_in_every_part():
    weights = np.ones(3)
    assert take({"x": [1, 2, 3], "weights": weights}, 1, 2, ["weights"])["weights"] is weights


@given(st.integers(0, 12), st.data())
def test_two_parts_hold_every_sample_once(nb_samples, data):
    cut = data.draw(st.integers(0, nb_samples))
    batch = {"x": np.arange(nb_samples), "y": list(range(nb_samples))}
    left, right = take(batch, 0, cut), take(batch, cut, nb_samples)
    assert np.concatenate([left["x"], right["x"]]).tolist() == list(range(nb_samples))
    assert left["y"] + right["y"] == list(range(nb_samples))


def test_features_keep_their_order():
    assert list(take({"z": [1], "n": 1, "a": [2]}, 0, 1)) == ["z", "n", "a"]


def test_the_batch_is_not_changed():
    batch = {"x": [1, 2, 3]}
    take(batch, 0, 1)["x"].append(9)
    assert batch == {"x": [1, 2, 3]}


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (2, 1), (0, 4), (4, 4)])
def test_a_range_outside_the_batch_is_refused(start, stop):
    with pytest.raises(ValueError, match=f"0 <= start <= stop <= 3, got {start} and {stop}"):
        take({"x": [1, 2, 3]}, start, stop)


def test_features_of_different_lengths_can_not_be_cut():
    with pytest.raises(ValueError, match=r"'x' has 1 and feature 'y' has 2"):
        take({"x": [1], "y": [1, 2]}, 0, 1)
