"""Guided back-propagation by hand, for every way to write a ReLU, and against captum."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from captum.attr import GuidedBackprop as OfCaptum
from torch import nn
from toy_explain import images, net

from trw_pipeline.errors import ExplanationError
from trw_pipeline.explain.guided_backprop import GuidedBackprop

RELUS = {
    "module": nn.ReLU(),
    "module in place": nn.ReLU(inplace=True),
    "F.relu": F.relu,
    "F.relu in place": lambda x: F.relu(x, inplace=True),
    "F.relu_": F.relu_,
    "torch.relu": torch.relu,
    "torch.relu_": torch.relu_,
    "method": lambda x: x.relu(),
    "method in place": lambda x: x.relu_(),
    "in place, result not used": lambda x: (x.relu_(), x)[1],
}


class ByHand(nn.Module):
    """x -> (relu(x) - 2 relu(-x), 0)."""

    def __init__(self, relu):
        super().__init__()
        self.relu = relu

    def forward(self, x):
        score = self.relu(1 * x) - 2 * self.relu(-1 * x)
        return torch.cat([score, torch.zeros_like(score)], 1)


@pytest.mark.parametrize("relu", RELUS.values(), ids=RELUS)
def test_only_positive_gradients_pass_a_relu_however_it_is_written(relu):
    """At -3 the gradient is 2, through a ReLU whose own gradient is -2: it does not pass."""
    x = torch.tensor([[3.0], [-3.0], [0.0]], requires_grad=True)
    guided = GuidedBackprop(ByHand(relu))(x, 0)[1]["default_input"]
    plain = GuidedBackprop(ByHand(relu), unguided_gradient=True)(x, 0)[1]["default_input"]
    assert guided.tolist() == [[1.0], [0.0], [0.0]]
    assert plain.tolist() == [[1.0], [2.0], [0.0]]


@pytest.mark.parametrize("nb_dims", [1, 2, 3])
@pytest.mark.filterwarnings("ignore:Setting backward hooks on ReLU")
def test_with_modules_it_is_what_captum_gives(nb_dims):
    model, x = net(nb_dims), images(nb_dims)
    model(x)
    found = GuidedBackprop(model)(x, target_class=1)[1]["default_input"]
    expected = OfCaptum(model).attribute(images(nb_dims), target=1)
    np.testing.assert_allclose(found, expected.numpy(force=True), atol=1e-7)


def test_the_plain_gradient_is_that_of_autograd():
    model, x = net(), images()
    model(x)
    [expected] = torch.autograd.grad(model(x)[:, 2].sum(), [x])
    assert np.array_equal(GuidedBackprop(model, True)(x, 2)[1]["default_input"], expected.numpy())


def test_a_second_call_gives_the_same_and_the_model_is_not_guided_afterwards():
    model, x = net(), images()
    model(x)
    [before] = torch.autograd.grad(model(x).sum(), [x])
    explainer = GuidedBackprop(model)
    first, second = (explainer(x)[1]["default_input"] for _ in range(2))
    [after] = torch.autograd.grad(model(x).sum(), [x])
    assert np.array_equal(first, second)
    assert torch.equal(before, after)


class HiddenReLU(nn.Module):
    def forward(self, x):
        return x.clamp(min=0)


@pytest.mark.parametrize("activation", [nn.GELU(), HiddenReLU()])
def test_a_model_whose_relus_can_not_be_seen_is_refused_and_never_given_the_plain_gradient(activation):
    model = nn.Sequential(nn.Linear(3, 4), activation, nn.Linear(4, 2))
    x = torch.randn(2, 3, requires_grad=True)
    with pytest.raises(ExplanationError, match="needs ReLUs, Sequential calls none that can be seen"):
        GuidedBackprop(model)(x)
    assert GuidedBackprop(model, unguided_gradient=True)(x)[1]["default_input"].any()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_scripted_part_is_refused():
    model = nn.Sequential(nn.Linear(3, 4), torch.jit.script(nn.ReLU()), nn.ReLU(), nn.Linear(4, 2))
    with pytest.raises(ExplanationError, match=r"scripted modules can not be guided: \['1'\]"):
        GuidedBackprop(model)(torch.randn(2, 3, requires_grad=True))


def test_parts_of_the_model_that_run_again_for_the_gradient_are_guided_too():
    from torch.utils.checkpoint import checkpoint

    class Again(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = ByHand(F.relu)

        def forward(self, x):
            return checkpoint(self.net, x, use_reentrant=False)

    x = torch.tensor([[3.0], [-3.0]], requires_grad=True)
    assert GuidedBackprop(Again())(x, 0)[1]["default_input"].tolist() == [[1.0], [0.0]]


def test_inputs_with_gradients_are_found():
    x, y = torch.ones(1, requires_grad=True), torch.ones(1)
    assert GuidedBackprop.get_floating_inputs_with_gradients({"x": x, "y": y, "name": "n"}) == [("x", x)]
    assert GuidedBackprop.get_floating_inputs_with_gradients(x) == [("default_input", x)]
    assert GuidedBackprop.get_floating_inputs_with_gradients(y) == []


def test_a_gradient_is_parted_into_what_speaks_for_and_against():
    positive, negative = GuidedBackprop.get_positive_negative_saliency(np.array([4.0, 0.0, -1.0, 2.0, -2.0]))
    assert positive.tolist() == [1.0, 0.0, 0.0, 0.5, 0.0]
    assert negative.tolist() == [0.0, 0.0, 0.5, 0.0, 1.0]
    assert [part.tolist() for part in GuidedBackprop.get_positive_negative_saliency(np.zeros(2))] == [[0, 0], [0, 0]]
