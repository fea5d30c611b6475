"""One batch of tensors out of one dict or many: the right values and dtypes."""

from __future__ import annotations

import enum
import itertools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from collate_forms import EVERY_FORM, dict_form, list_form
from hypothesis import given
from hypothesis import strategies as st

from trw_pipeline.batches.collate import (
    collate_dicts,
    default_collate_list_of_dicts,
)


@dataclass(frozen=True)
class Box:
    size: int


class Label(enum.IntEnum):
    CAT = 3


# --- one value for each sample


@EVERY_FORM
@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([True, False], torch.bool),
        ([1, 2], torch.int64),
        ([1.5, 2.0], torch.float32),
        ([1j, 2.0], torch.complex64),
        ([Label.CAT, Label.CAT], torch.int64),
        ([np.float64(1), np.float64(2)], torch.float64),
        ([np.float16(1), np.float16(2)], torch.float16),
        ([np.uint8(200), np.uint8(3)], torch.uint8),
        ([np.uint64(2**63 + 1), np.uint64(3)], torch.uint64),
        ([np.bool_(True), np.bool_(False)], torch.bool),
        ([np.array(3, np.int16), np.array(4, np.int16)], torch.int16),
        ([np.array(3, ">i4"), np.array(4, ">i4")], torch.int32),
        ([torch.tensor(1.5, dtype=torch.bfloat16), torch.tensor(2, dtype=torch.bfloat16)], torch.bfloat16),
        ([torch.tensor(True), torch.tensor(False)], torch.bool),
    ],
)
def test_numbers_become_a_tensor_of_their_dtype(collated, values, dtype):
    tensor = collated(values)
    assert isinstance(tensor, torch.Tensor)
    assert (tensor.dtype, tensor.tolist()) == (dtype, [getattr(value, "item", lambda v=value: v)() for value in values])


@EVERY_FORM
@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([1, 2.5], torch.float32),
        ([True, 2], torch.int64),
        ([True, 2.5, 3], torch.float32),
        ([np.float64(1.5), 2.5], torch.float64),
        ([np.float16(1.5), 70000], torch.float32),
        ([np.uint8(255), 256], torch.int64),
        ([np.uint16(65535), np.int16(-1)], torch.int32),
        ([torch.tensor(2, dtype=torch.uint8), 300], torch.int64),
        ([torch.tensor(1.5), np.int8(-2), np.array(True)], torch.float32),
    ],
)
def test_mixed_numbers_keep_their_values_in_every_order(collated, values, dtype):
    """BATCH-3."""
    for order in itertools.permutations(values):
        tensor = collated(list(order))
        assert (tensor.dtype, tensor.tolist()) == (dtype, [value + 0 for value in order])


@EVERY_FORM
def test_floats_follow_the_default_float_of_torch(collated):
    torch.set_default_dtype(torch.float64)
    try:
        assert collated([1.5, 2]).dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


@EVERY_FORM
@pytest.mark.parametrize(
    "values",
    [
        ["a", "b"],
        [np.str_("a"), np.str_("b")],
        [b"a", b"b"],
        [Path("a"), Path("b")],
        [None, None],
        [Box(1), Box(2)],
        [("a", 1), ("b", 2)],
        [np.datetime64("2020-01-01"), np.datetime64("2021-01-01")],
        [np.array("a"), np.array("b")],
        [1, None],
        [2.5, "unknown"],
    ],
)
def test_what_is_no_number_stays_a_list_of_the_same_objects(collated, values):
    """BATCH-4."""
    result = collated(values)
    assert isinstance(result, list)
    assert len(result) == len(values)
    assert all(mine is yours for mine, yours in zip(result, values, strict=True))


@EVERY_FORM
@pytest.mark.parametrize("value", [2**63, -(2**63) - 1])
def test_an_int_too_large_for_int64_names_its_feature(collated, value):
    with pytest.raises(ValueError, match=r"the numbers of feature 'x' must fit torch\.int64"):
        collated([1, value])


def test_numbers_keep_their_gradient():
    weight = torch.tensor(2.0, requires_grad=True)
    list_form([weight, 3.0]).sum().backward()
    assert weight.grad == 1


# --- arrays and tensors


@pytest.mark.parametrize(
    "dtype", ["bool", "uint8", "uint16", "uint32", "uint64", "int8", "float16", "float32", "complex64", ">f4", ">i2"]
)
@pytest.mark.parametrize("as_list", [False, True])
def test_arrays_keep_their_dtype(dtype, as_list):
    values = [np.array([[1, 0]], dtype), np.array([[0, 1]], dtype)]
    joined = list_form([[value[0]] for value in values] if as_list else values)
    assert joined.dtype == torch.from_numpy(np.zeros(1, np.dtype(dtype).newbyteorder("="))).dtype
    assert joined.tolist() == [[1, 0], [0, 1]]


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint16, torch.bfloat16, torch.float16, torch.complex128])
def test_tensors_keep_their_dtype(dtype):
    values = [torch.tensor([[1, 0]]).to(dtype), torch.tensor([[0, 1]]).to(dtype)]
    assert list_form(values).dtype == dict_form([value[0] for value in values]).dtype == dtype
    assert list_form(values).tolist() == dict_form([value[0] for value in values]).tolist() == [[1, 0], [0, 1]]


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([np.array([1]), np.array([2.5], np.float32)], torch.float32),
        ([np.array([300], np.int16), np.array([255], np.uint8)], torch.int16),
        ([np.array([2.5], ">f8"), np.array([1.5], np.float32)], torch.float64),
        ([torch.tensor([True]), torch.tensor([2.5], dtype=torch.float16)], torch.float16),
        ([torch.tensor([70000]), torch.tensor([0.5], dtype=torch.float16)], torch.float32),
        ([np.array([40000], np.uint16), torch.tensor([-1], dtype=torch.int8)], torch.int32),
    ],
)
def test_mixed_dtypes_keep_their_values_in_every_order(values, dtype):
    for order in itertools.permutations(values):
        joined = list_form(list(order))
        assert (joined.dtype, joined.tolist()) == (dtype, [value[0].item() for value in order])


@given(st.lists(st.integers(0, 3), min_size=1, max_size=5))
def test_joining_keeps_every_row_in_order(lengths):
    numbers = itertools.count()
    rows = [[[next(numbers), next(numbers)] for _ in range(length)] for length in lengths]
    joined = list_form([np.array(some, np.int32).reshape(-1, 2) for some in rows])
    assert joined.tolist() == [row for some in rows for row in some]


def test_arrays_in_lists_are_stacked():
    stacked = list_form([[np.array([1, 2])], [np.array([3, 4]), torch.tensor([5, 6])]])
    assert stacked.tolist() == [[1, 2], [3, 4], [5, 6]]


def test_transposed_arrays_become_a_contiguous_tensor():
    joined = list_form([np.arange(6).reshape(2, 3).T, np.arange(6).reshape(2, 3).T])
    assert joined.tolist() == [[0, 3], [1, 4], [2, 5]] * 2
    assert joined.is_contiguous()


def read_only(array):
    array.flags.writeable = False
    return array


UNUSUAL = {
    "reversed": np.arange(6.0)[::-1],
    "transposed": np.arange(6).reshape(2, 3).T,
    "one row, reversed": np.zeros((1, 4))[::-1],
    "broadcast": np.broadcast_to(np.arange(3), (2, 3)),
    "read-only": read_only(np.arange(4)),
    "big-endian": np.arange(4, dtype=">f4"),
    "no rows": np.zeros((0, 3), np.uint8),
    "no rows, reversed": np.zeros((0, 3))[::-1],
}


@pytest.mark.parametrize("array", UNUSUAL.values(), ids=UNUSUAL.keys())
@pytest.mark.parametrize(
    ("collated", "expected"),
    [
        (lambda array: collate_dicts({"x": array}, None)["x"], lambda values: values),
        (lambda array: dict_form([array, array]), lambda values: [values, values]),
        (lambda array: list_form([array, array]), lambda values: values + values),
        (lambda array: list_form([array]), lambda values: values),
    ],
    ids=["dict", "list in a dict", "list of two", "list of one"],
)
def test_unusual_arrays_become_writable_tensors_of_the_same_values(array, collated, expected):
    """BATCH-5, BATCH-6."""
    tensor = collated(array)
    assert tensor.tolist() == expected(array.tolist())
    one_more = tensor.clone() + 1
    tensor += 1  # raises where elements share memory
    assert tensor.tolist() == one_more.tolist()


@pytest.mark.parametrize(
    "array", [np.array(["a", "bcd"]), np.array([b"a"]), np.array([None]), np.array(["2020"], "M8[Y]")]
)
def test_arrays_of_dtypes_that_torch_has_not_stay_arrays(array):
    joined = list_form([array, array[:1]])
    assert isinstance(joined, np.ndarray)
    assert joined.tolist() == array.tolist() + array[:1].tolist()
    assert collate_dicts({"x": array}, None)["x"] is array


def test_longer_text_is_not_cut_to_the_length_of_the_first():
    assert list_form([np.array(["a"]), np.array(["bcd"])]).tolist() == ["a", "bcd"]


# --- batch-wide values


def test_batch_wide_values_of_a_dict_are_unchanged():
    batch = {
        "n": 3,
        "f": 2.5,
        "s": "text",
        "u": (1, 2),
        "c": len,
        "none": None,
        "m": {"l": [1, 2]},
        "scalar": np.int8(3),
    }
    assert collate_dicts(batch, None) == batch


def test_tensors_in_a_nested_mapping_of_a_dict_move_to_the_device():
    moved = collate_dicts({"m": {"a": np.zeros(2), "l": [np.zeros(2), np.zeros(3)]}}, "meta")["m"]
    assert moved["a"].device.type == "meta"
    assert [len(array) for array in moved["l"]] == [2, 3]


def test_an_empty_list_stays_an_empty_list():
    assert dict_form([]) == []
    assert list_form([[], []]) == []
    assert list_form([[], [1]]).tolist() == [1]


def test_nested_mappings_are_joined():
    batches = [{"m": {"n": {"x": np.full((1, 2), i), "y": i}, "s": str(i)}} for i in range(2)]
    joined = default_collate_list_of_dicts(batches)["m"]
    assert joined["n"]["x"].tolist() == [[0, 0], [1, 1]]
    assert joined["n"]["y"].tolist() == [0, 1]
    assert joined["s"] == ["0", "1"]


def test_a_nested_feature_is_named_by_its_path():
    batches = [{"sample_uid": [7 + i], "a": {"b": np.zeros((1, i))}} for i in range(2)]
    with pytest.raises(ValueError, match=r"'a\.b' .* \(1, 0\) in sample 0 \(sample_uid 7\) and \(1, 1\) in sample 1"):
        default_collate_list_of_dicts(batches)


def test_a_missing_nested_feature_is_named_by_its_path():
    with pytest.raises(ValueError, match=r"'a\.b' is in sample 0 and missing in sample 1"):
        default_collate_list_of_dicts([{"a": {"b": 1}}, {"a": {}}])


def test_one_callable_is_kept():
    assert list_form([len, len]) is len


def test_different_callables_become_a_list():
    assert list_form([len, max]) == [len, max]


def test_a_shared_feature_is_kept_once_from_the_first():
    batches = [{"x": [i], "weights": np.array([i, 5, 6]), "classes": ["cat", "dog"]} for i in range(2)]
    joined = default_collate_list_of_dicts(batches, shared_features=["weights", "classes"])
    assert joined["x"].tolist() == [0, 1]
    assert joined["weights"].tolist() == [0, 5, 6]
    assert joined["classes"] == ["cat", "dog"]


def test_a_shared_list_of_a_dict_stays_a_list():
    polygons = [np.zeros((2, 2)), np.zeros((3, 2))]
    assert collate_dicts({"polygons": polygons}, None, shared_features=["polygons"])["polygons"] is polygons
