"""NumPy arrays as tensors: the same values whatever the memory looks like, and one dtype for several."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trw_pipeline.batches.tensors import numpy_dtype, promoted, tensor_of, torch_dtype

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
]


def read_only(array):
    array.flags.writeable = False
    return array


def unaligned():
    return np.array([(1, 2.5), (2, 3.5)], dtype=[("flag", "u1"), ("value", "f4")])["value"]


UNUSUAL = {
    "reversed": np.arange(6.0)[::-1],
    "reversed columns": np.arange(6).reshape(2, 3)[:, ::-1],
    "transposed": np.arange(6).reshape(2, 3).T,
    "strided": np.arange(10)[::3],
    "one row, reversed": np.zeros((1, 4))[::-1],
    "broadcast": np.broadcast_to(np.arange(3), (2, 3)),
    "broadcast, writable": np.lib.stride_tricks.as_strided(np.arange(3), (2, 3), (0, 8)),
    "read-only": read_only(np.arange(4)),
    "big-endian": np.arange(4, dtype=">f4"),
    "big-endian, one element": np.array([7], dtype=">i8"),
    "unaligned": unaligned(),
    "no rows": np.zeros((0, 3), np.uint8),
    "no rows, reversed": np.zeros((0, 3))[::-1],
    "no dimensions": np.array(5, np.int16),
    "unsigned long long": np.arange(3, dtype=np.ulonglong),
    "long long": np.arange(3, dtype=np.longlong),
    "float16": np.arange(3, dtype=np.float16),
    "complex": np.array([1 + 2j, 3]),
}


@pytest.mark.parametrize("array", UNUSUAL.values(), ids=UNUSUAL.keys())
def test_values_shape_and_dtype_are_kept(array):
    tensor = tensor_of(array)
    assert tensor.dtype == torch_dtype(array.dtype)
    assert tuple(tensor.shape) == array.shape
    assert tensor.tolist() == array.tolist()


@pytest.mark.parametrize("array", UNUSUAL.values(), ids=UNUSUAL.keys())
def test_every_tensor_can_be_written_in_place(array):
    tensor = tensor_of(array)
    tensor.fill_(1)
    assert tensor.tolist() == np.ones(array.shape, array.dtype).tolist()


def test_unaligned_memory_is_copied_to_where_it_is_aligned():
    array = np.frombuffer(bytearray(9), np.float32, count=2, offset=1)
    assert tensor_of(array).data_ptr() % 4 == 0


def test_an_ordinary_array_shares_its_memory():
    array = np.zeros(3)
    tensor_of(array)[1] = 5
    assert array.tolist() == [0, 5, 0]


@pytest.mark.parametrize("dtype", ["U3", "S3", "O", "M8[s]", "m8[s]", np.longdouble, [("a", "i4")]])
def test_dtypes_that_torch_has_not_have_no_twin(dtype):
    assert torch_dtype(np.dtype(dtype)) is None


def test_bfloat16_has_no_twin_in_numpy():
    assert numpy_dtype(torch.bfloat16) is None


@pytest.mark.parametrize(
    ("dtypes", "expected"),
    [
        ([torch.uint16], torch.uint16),
        ([torch.bool, torch.uint8], torch.uint8),
        ([torch.int8, torch.uint8], torch.int16),
        ([torch.uint16, torch.int16], torch.int32),
        ([torch.uint64, torch.int64], torch.float64),
        ([torch.float16, torch.bfloat16], torch.float32),
        ([torch.float32, torch.float64], torch.float64),
        ([torch.bool, torch.float16], torch.float16),
        ([torch.int64, torch.float16], torch.float32),
        ([torch.uint16, torch.bfloat16], torch.float32),
        ([torch.int64, torch.float32], torch.float32),
        ([torch.int64, torch.float64], torch.float64),
        ([torch.float64, torch.complex64], torch.complex128),
        ([torch.int32, torch.complex64], torch.complex64),
    ],
)
def test_several_dtypes_share_this_one(dtypes, expected):
    assert promoted(dtypes) == promoted(reversed(dtypes)) == expected


@given(st.lists(st.sampled_from(DTYPES), min_size=1, max_size=4))
def test_the_shared_dtype_does_not_depend_on_the_order(dtypes):
    assert len({promoted(order) for order in itertools.permutations(dtypes)}) == 1


@given(st.lists(st.sampled_from(DTYPES), min_size=1, max_size=4), st.sampled_from(DTYPES))
def test_one_more_dtype_never_makes_a_float_an_integer(dtypes, another):
    inexact = any(dtype.is_floating_point or dtype.is_complex for dtype in dtypes)
    shared = promoted([*dtypes, another])
    assert shared.is_floating_point or shared.is_complex or not inexact


def test_integers_beside_floats_follow_the_default_float():
    torch.set_default_dtype(torch.float64)
    try:
        assert promoted([torch.int64, torch.float16]) == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
