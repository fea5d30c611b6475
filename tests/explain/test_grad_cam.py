"""Grad-CAM by hand."""

import functools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from trw_pipeline.errors import ExplanationError
from trw_pipeline.explain.grad_cam import GradCam
from trw_pipeline.explain.score import post_process_output_for_gradient_attribution
from trw_pipeline.nets.reflection import find_last_forward_convolution
from trw_pipeline.outputs.classification import OutputClassification


class ByHand(nn.Module):
    """Two channels, the image and its negative; class 0 is their means, 3 to -1, class 1 the opposite."""

    def __init__(self, in_place=False):
        super().__init__()
        self.convolution = nn.Conv2d(1, 2, 1, bias=False)
        self.convolution.weight.data = torch.tensor([1.0, -1.0]).reshape(2, 1, 1, 1)
        self.in_place = in_place

    def forward(self, x):
        features = F.relu(self.convolution(x), inplace=self.in_place)
        means = features.mean((2, 3))
        score = 3 * means[:, 0] - means[:, 1]
        return torch.stack([score, -score], 1)


IMAGE = torch.tensor([[[[4.0, 0.0], [-2.0, 1.0]]]])
# Gradients of class 0 at the convolution: 3/4 where the image is above 0 (2 of 4 points), -1/4 where it is below 0 (1
# of 4 points). Their means are 3/8 and -1/16. The map is 3/8 of the image and -1/16 of its negative: 7/16 of the image.
BY_HAND = 7 / 16 * IMAGE[:, 0].clamp(min=0).numpy()


@pytest.mark.parametrize("in_place", [False, True])
def test_the_map_is_that_by_hand(in_place):
    name, found = GradCam(ByHand(in_place))(IMAGE, target_class=0)
    assert name == "default_output"
    assert list(found) == ["default_input"]
    np.testing.assert_allclose(found["default_input"], BY_HAND)


def test_the_map_of_the_opposite_class_is_what_speaks_against_the_first():
    _, found = GradCam(ByHand())(IMAGE, target_class=1)
    np.testing.assert_allclose(found["default_input"], 7 / 16 * (-IMAGE[:, 0]).clamp(min=0).numpy())


def test_nothing_that_speaks_for_a_class_is_a_map_of_zeros():
    _, found = GradCam(ByHand())(torch.zeros(2, 1, 3, 3), target_class=0)
    assert not found["default_input"].any()


def test_the_convolution_is_the_one_that_is_found():
    model = nn.Sequential(
        nn.Conv1d(1, 2, 3, stride=2), nn.ReLU(), nn.Conv1d(2, 3, 3), nn.AdaptiveAvgPool1d(1), nn.Flatten()
    )
    before = functools.partial(find_last_forward_convolution, relative_index=1)
    assert GradCam(model)(torch.randn(2, 1, 21))[1]["default_input"].shape == (2, 8)
    assert GradCam(model, before)(torch.randn(2, 1, 21))[1]["default_input"].shape == (2, 10)


def test_a_probability_is_explained_where_that_is_asked_for():
    class WithHead(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = ByHand()

        def forward(self, batch):
            return {"y": OutputClassification(self.net(batch["x"]), "t")}

    model = WithHead()
    logits = model({"x": IMAGE})["y"].output
    probability = logits.softmax(1)[0, 0].item()
    _, found = GradCam(model, post_process_output=post_process_output_for_gradient_attribution)({"x": IMAGE}, "y", 0)
    # The slope of p by the score is 2 p (1 - p): both logits move.
    np.testing.assert_allclose(found["default_input"], 2 * probability * (1 - probability) * BY_HAND, rtol=1e-4)


def test_a_model_without_convolution_or_without_gradient_is_refused():
    with pytest.raises(ExplanationError, match="needs a convolution, Sequential calls none"):
        GradCam(nn.Sequential(nn.Linear(3, 2)))(torch.ones(1, 3))

    class Detached(ByHand):
        def forward(self, x):
            return super().forward(x).detach()

    with pytest.raises(ExplanationError, match="needs gradients, the output 'default_output' has none"):
        GradCam(Detached())(IMAGE)
