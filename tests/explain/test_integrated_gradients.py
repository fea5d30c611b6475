"""Integrated gradients by hand, and their completeness."""

import sys

import numpy as np
import pytest
import torch
from torch import nn
from toy_explain import SIZES, Heads, batch, images

from trw_pipeline.errors import MissingExtraError
from trw_pipeline.explain.integrated_gradients import IntegratedGradients

CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


class Square(nn.Module):
    """x -> (x0^2 + 3 x1, x0). The integral from b to x is (x0^2 - b0^2, 3 (x1 - b1)) for class 0."""

    def forward(self, x):
        return torch.stack([x[:, 0] ** 2 + 3 * x[:, 1], x[:, 0]], 1)


X = torch.tensor([[2.0, 1.0], [-1.0, 0.5]], requires_grad=True)


@pytest.mark.parametrize(
    ("baseline", "expected"),
    [
        (None, [[4.0, 3.0], [1.0, 1.5]]),
        (torch.tensor([[1.0, 1.0], [1.0, 0.0]]), [[3.0, 0.0], [0.0, 1.5]]),
        (torch.tensor([[1.0, 1.0]]), [[3.0, 0.0], [0.0, -1.5]]),
        ({"default_input": torch.tensor([[1.0, 1.0]])}, [[3.0, 0.0], [0.0, -1.5]]),
    ],
)
def test_the_attribution_is_that_by_hand_from_the_baseline_that_is_given(baseline, expected):
    name, found = IntegratedGradients(Square(), baseline_inputs=baseline)(X, None, 0)
    assert name == "default_output"
    np.testing.assert_allclose(found["default_input"], expected, atol=1e-5)


def test_all_classes_are_explained_together_each_by_what_the_model_says_of_it():
    """Output (7, 2) of the first sample: 7 (x0^2 + 3 x1) + 2 x0; (2.5, -1) of the second."""
    _, found = IntegratedGradients(Square(), use_output_as_target=True)(X)
    np.testing.assert_allclose(found["default_input"], [[7 * 4 + 2 * 2, 7 * 3], [2.5 + 1, 2.5 * 1.5]], rtol=1e-5)


def test_one_step_is_the_gradient_in_the_middle():
    _, found = IntegratedGradients(Square(), steps=1)(X, None, 0)
    np.testing.assert_allclose(found["default_input"], [[4.0, 3.0], [1.0, 1.5]], rtol=1e-6)


def smooth(nb_dims):
    torch.manual_seed(0)
    nb_points = int(np.prod(SIZES[nb_dims]))
    convolution = CONVOLUTIONS[nb_dims](2, 3, 3, padding=1)
    return nn.Sequential(convolution, nn.Tanh(), nn.Flatten(), nn.Linear(3 * nb_points, 3))


@pytest.mark.parametrize("nb_dims", [1, 2, 3])
def test_the_attributions_sum_up_to_the_difference_of_the_scores(nb_dims):
    model, x, baseline = smooth(nb_dims), images(nb_dims), torch.full((1, 2, *SIZES[nb_dims]), 0.3)
    _, found = IntegratedGradients(model, 30, baseline)(x, None, [0, 1, 2])
    rows = torch.arange(3)
    expected = (model(x)[rows, rows] - model(baseline)[0, rows]).numpy(force=True)
    np.testing.assert_allclose(found["default_input"].reshape(3, -1).sum(1), expected, rtol=1e-3)


def test_the_attributions_of_all_inputs_together_sum_up():
    model, inputs = Heads().eval(), batch()
    model.shape[1] = model.shape[3] = nn.Tanh()
    _, found = IntegratedGradients(model, 30)(inputs, "shape", 1)
    nothing = {**inputs, "left": torch.zeros_like(inputs["left"]), "right": torch.zeros_like(inputs["right"])}
    expected = (model(inputs)["shape"].output - model(nothing)["shape"].output)[:, 1].numpy(force=True)
    total = sum(value.reshape(3, -1).sum(1) for value in found.values())
    np.testing.assert_allclose(total, expected, rtol=1e-3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"steps": 0}, "steps must be at least 1, got 0"),
        (
            {"baseline_inputs": torch.zeros(3, 2)},
            r"must have the shape \(2, 2\), or that with one sample, got \(3, 2\)",
        ),
        ({"baseline_inputs": {"image": torch.zeros(1, 2)}}, r"must be that of an input, got \['image'\]"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        IntegratedGradients(Square(), **arguments)(X, None)


def test_without_captum_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "captum.attr", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'trw_pipeline\[explain\]'"):
        IntegratedGradients(Square())(X, None, 0)
