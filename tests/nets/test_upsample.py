"""Resampling is that of torch where torch has it, and keeps every dtype."""

import pytest
import torch
import torch.nn.functional as F

from trw_pipeline.nets.upsample import upsample

SIZES = {1: ((5,), (13,)), 2: ((5, 4), (13, 3)), 3: ((5, 4, 3), (7, 8, 9))}
LINEAR = {1: "linear", 2: "bilinear", 3: "trilinear"}


@pytest.mark.parametrize("nb_dims", [1, 2, 3])
@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_values_are_those_of_interpolate(nb_dims, mode):
    before, after = SIZES[nb_dims]
    tensor = torch.randn(2, 3, *before)
    expected = F.interpolate(tensor, after, mode=LINEAR[nb_dims] if mode == "linear" else mode)
    assert torch.equal(upsample(tensor, after, mode), expected)


def test_a_number_is_the_size_of_one_dimension_and_linear_the_default():
    found = upsample(torch.tensor([[[0.0, 4.0]]]), 4)
    assert found.tolist() == [[[0.0, 1.0, 3.0, 4.0]]]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int64, torch.bool, torch.float16, torch.float64])
@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_the_dtype_stays(dtype, mode):
    found = upsample(torch.tensor([[[0, 1, 1, 0]]]).to(dtype), 8, mode)
    assert found.dtype == dtype
    assert found.bool().any()


def test_integers_are_rounded():
    assert upsample(torch.tensor([[[0, 3]]]), 4).tolist() == [[[0, 1, 2, 3]]]  # 0, 0.75, 2.25, 3


def test_the_nearest_of_large_integers_is_exact():
    large = 2**40 + 1
    assert upsample(torch.tensor([[[large, 7]]]), 4, "nearest").tolist() == [[[large, large, 7, 7]]]


def test_gradients_pass():
    tensor = torch.ones(1, 1, 2, requires_grad=True)
    upsample(tensor, 4).sum().backward()
    assert tensor.grad.tolist() == [[[2.0, 2.0]]]


@pytest.mark.parametrize(
    ("shape", "size", "mode", "message"),
    [
        ((2, 3), 4, "linear", r"1 to 3 axes behind, got shape \(2, 3\)"),
        ((2, 3, 4, 4), 4, "linear", r"size must be 2 numbers of at least 1 for shape \(2, 3, 4, 4\), got 4"),
        ((2, 3, 4), (0,), "linear", "size must be 1 numbers of at least 1"),
        ((2, 3, 4), 8, "cubic", "mode must be 'linear' or 'nearest', got 'cubic'"),
    ],
)
def test_wrong_arguments_are_refused(shape, size, mode, message):
    with pytest.raises(ValueError, match=message):
        upsample(torch.ones(shape), size, mode)
