"""Samples that do not fit together, and what is no sample: an error that names the feature and the samples."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from collate_forms import EVERY_FORM, list_form

from trw_pipeline.batches.collate import (
    collate_dicts,
    collate_list_of_dicts,
    default_collate_fn,
    default_collate_list_of_dicts,
)


@EVERY_FORM
def test_different_shapes_are_named_with_their_samples(collated):
    with pytest.raises(ValueError, match=r"'x' .* \(3, 4\) in sample 0 and \(3, 5\) in sample") as error:
        collated([np.zeros((3, 4)), np.zeros((3, 4)), torch.zeros(3, 5)])
    # each array of the second form counts as three samples
    assert str(error.value).count("sample 6" if collated is list_form else "sample 2") == 1


def test_the_uids_of_misshapen_samples_are_named():
    batches = [{"sample_uid": np.array([uid]), "x": np.zeros((1, 3, nb))} for uid, nb in ((17, 4), (18, 4), (19, 5))]
    with pytest.raises(
        ValueError, match=r"\(1, 3, 4\) in sample 0 \(sample_uid 17\) .* \(1, 3, 5\) in sample 2 \(sa.*19\)"
    ):
        default_collate_list_of_dicts(batches)


def test_the_uids_of_misshapen_samples_in_lists_are_named():
    batches = [
        {"x": [np.zeros(1), np.zeros(1)], "sample_uid": ["a", "b"]},
        {"x": [np.zeros(1), np.zeros(2)], "sample_uid": torch.tensor([7, 8])},
    ]
    with pytest.raises(
        ValueError, match=r"\(1,\) in sample 0 \(sample_uid 'a'\) .* \(2,\) in sample 3 \(sample_uid 8\)"
    ):
        default_collate_list_of_dicts(batches)


def test_no_axis_is_missing_in_silence():
    with pytest.raises(ValueError, match=r"\(0,\) in sample 0 and \(2, 3\) in sample 0"):
        list_form([torch.zeros(0), torch.zeros(2, 3)])


@pytest.mark.parametrize(
    ("values", "named"),
    [
        (
            [np.zeros((1, 3)), "text"],
            r"ndarray of shape \(1, 3\) and dtype float64 in sample 0 and str 'text' in sample 1",
        ),
        (
            ["text", torch.zeros(1)],
            r"str 'text' in sample 0 and Tensor of shape \(1,\) and dtype torch.float32 in sample 1",
        ),
        ([np.zeros(1), None], "NoneType None in sample 1"),
        ([5, np.zeros(1)], r"int 5 in sample 0 and ndarray of shape \(1,\)"),
        ([[1], np.zeros(1)], r"list \[1\] in sample 0 and ndarray"),
        ([{"a": 1}, 3], r"dict \{'a': 1\} in sample 0 and int 3 in sample 1"),
        ([[np.zeros(2), "text"]], r"ndarray of shape \(2,\) and dtype float64 in sample 0 and str 'text' in sample 1"),
        (
            [np.zeros(1), np.array(["a"])],
            r"dtype float64 in sample 0 and ndarray of shape \(1,\) and dtype <U1 in sample 1",
        ),
    ],
)
def test_mixed_kinds_are_named_with_their_samples(values, named):
    with pytest.raises(ValueError, match=f"the values of feature 'x' must be of one kind, got .*{named}"):
        list_form(values)


def test_a_missing_feature_is_named_with_its_sample():
    """BATCH-4."""
    batches = [{"sample_uid": uid, "x": 1, "y": 1} for uid in "abc"]
    del batches[2]["y"]
    with pytest.raises(
        ValueError, match=r"'y' is in sample 0 \(sample_uid 'a'\) and missing in sample 2 \(sample_uid 'c'\)"
    ):
        default_collate_list_of_dicts(batches)


def test_samples_are_counted_through_the_batches_before():
    batches = [{"x": np.zeros((4, 2))}, {"n": 1, "x": np.zeros((3, 2))}]
    with pytest.raises(ValueError, match="'n' is in sample 4 and missing in sample 0"):
        default_collate_list_of_dicts(batches)


def test_an_unexpected_feature_is_named_with_its_sample():
    """BATCH-4."""
    with pytest.raises(ValueError, match="'y' is in sample 1 and missing in sample 0"):
        default_collate_list_of_dicts([{"x": 1}, {"x": 1, "y": 2}])


@pytest.mark.parametrize("collate", [collate_list_of_dicts, default_collate_fn])
def test_no_samples_can_not_be_collated(collate):
    with pytest.raises(ValueError, match="at least one sample, got an empty list"):
        collate([], None)


@pytest.mark.parametrize(
    ("collate", "batch"),
    [
        (default_collate_fn, 3),
        (default_collate_fn, [3]),
        (default_collate_fn, "text"),
        (collate_dicts, [{"x": 1}]),
        (collate_list_of_dicts, {"x": 1}),
        (collate_list_of_dicts, [{"x": 1}, None]),
    ],
)
def test_only_mappings_can_be_collated(collate, batch):
    with pytest.raises(TypeError, match=r"must be a (list of )?mapping"):
        collate(batch, None)
