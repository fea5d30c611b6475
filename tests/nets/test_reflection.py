"""What is found in a forward pass is what ran, and the model is left as it was."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from trw_pipeline.nets.hooks import CleanAddedHooks
from trw_pipeline.nets.reflection import (
    find_first_forward_convolution,
    find_last_forward_convolution,
    find_last_forward_types,
    find_tensor_leaves_with_grad,
)


class Backwards(nn.Module):
    """Calls its convolutions in another order than that of their definition."""

    def __init__(self):
        super().__init__()
        self.last = nn.Conv2d(2, 3, 1)
        self.middle = nn.Conv2d(2, 2, 1)
        self.first = nn.Conv2d(1, 2, 1)

    def forward(self, x):
        return F.relu_(self.last(F.relu_(self.middle(self.first(x)))))


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Backwards()


X = torch.arange(4.0).reshape(1, 1, 2, 2)


@pytest.mark.parametrize(("relative_index", "name"), [(0, "last"), (1, "middle"), (2, "first")])
def test_the_last_call_is_found_and_those_before_it_by_relative_index(model, relative_index, name):
    found = find_last_forward_convolution(model, X, relative_index=relative_index)
    assert found["matched_module"] is getattr(model, name)


@pytest.mark.parametrize(("relative_index", "name"), [(0, "first"), (1, "middle"), (2, "last")])
def test_the_first_call_is_found_and_those_behind_it_by_relative_index(model, relative_index, name):
    found = find_first_forward_convolution(model, X, relative_index=relative_index)
    assert found["matched_module"] is getattr(model, name)


def test_without_inputs_the_first_module_by_definition_is_found(model):
    found = find_first_forward_convolution(model)
    assert found.pop("matched_module") is model.last
    assert set(found.values()) == {None}
    assert find_first_forward_convolution(model, relative_index=2)["matched_module"] is model.first


@pytest.mark.parametrize("find", [find_last_forward_convolution, find_first_forward_convolution])
def test_inputs_and_outputs_are_those_of_the_call_under_both_names(model, find):
    found = find(model, X, relative_index=1)
    first = model.first(X)
    assert torch.equal(found["outputs"], model(X))
    assert len(found["matched_module_input"]) == 1
    assert torch.equal(found["matched_module_input"][0], first)
    assert found["matched_module_inputs"] is found["matched_module_input"]
    # An activation works on it in place in the model.
    assert torch.equal(found["matched_module_output"], model.middle(first))


def test_the_outputs_depend_on_what_was_found(model):
    found = find_last_forward_convolution(model, X)
    [gradient] = torch.autograd.grad(found["outputs"].sum(), found["matched_module_output"])
    assert torch.equal(gradient, (found["matched_module_output"] > 0).float())


def test_types_are_one_or_several_and_derived_ones_count():
    class Own(nn.Linear):
        pass

    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), Own(4, 4), nn.Tanh())
    assert find_last_forward_types(model, torch.ones(1, 4), nn.Linear)["matched_module"] is model[2]
    assert find_last_forward_types(model, torch.ones(1, 4), (nn.Linear, nn.Tanh))["matched_module"] is model[3]


@pytest.mark.parametrize("relative_index", [0, 3])
def test_what_is_not_there_is_none(model, relative_index):
    types = (nn.Conv2d,) if relative_index else (nn.Conv3d,)
    assert find_last_forward_types(model, X, types, relative_index) is None
    assert find_first_forward_convolution(model, X, types, relative_index) is None
    assert find_first_forward_convolution(model, None, types, relative_index) is None


def test_a_module_that_is_called_twice_counts_twice():
    shared = nn.Conv1d(1, 1, 1)
    model = nn.Sequential(shared, nn.ReLU(), shared)
    x = torch.randn(1, 1, 3)
    found = [find_last_forward_convolution(model, x, relative_index=index) for index in (0, 1)]
    assert found[0]["matched_module"] is found[1]["matched_module"] is shared
    assert torch.equal(found[1]["matched_module_input"][0], x)
    assert not torch.equal(found[0]["matched_module_input"][0], x)


def test_an_error_of_the_model_passes_and_leaves_no_hook(model):
    model.last.register_forward_hook(lambda *arguments: None)
    before = CleanAddedHooks.record_hooks(model)
    with pytest.raises(RuntimeError, match="expected input"):
        find_last_forward_convolution(model, torch.ones(1, 5, 2, 2))
    assert CleanAddedHooks.record_hooks(model) == before


def test_mode_statistics_and_gradients_stay():
    model = nn.Sequential(nn.Conv2d(1, 1, 1), nn.BatchNorm2d(1), nn.Dropout())
    model[1].eval()
    find_last_forward_convolution(model, X)
    assert [module.training for module in model.modules()] == [True, True, False, True]
    assert model[1].num_batches_tracked == 0
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("find", [find_last_forward_convolution, find_first_forward_convolution])
def test_a_negative_index_is_refused(model, find):
    with pytest.raises(ValueError, match="relative_index must be at least 0, got -1"):
        find(model, X, relative_index=-1)


def test_leaves_are_inputs_and_parameters_that_require_gradients_each_once():
    x, y, fixed = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True), torch.ones(3)
    leaves = find_tensor_leaves_with_grad((x * y + x * fixed).sum())
    assert {id(leaf) for leaf in leaves} == {id(x), id(y)}
    assert len(leaves) == 2


def test_a_leaf_is_its_own_leaf_and_a_constant_has_none():
    x = torch.ones(3, requires_grad=True)
    assert find_tensor_leaves_with_grad(x)[0] is x
    assert find_tensor_leaves_with_grad(torch.ones(3)) == []


def test_a_graph_may_be_deeper_than_the_stack():
    x = torch.ones((), requires_grad=True)
    y = x
    for _ in range(5000):
        y = y + 1
    assert find_tensor_leaves_with_grad(y)[0] is x
