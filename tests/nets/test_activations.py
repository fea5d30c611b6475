import math

import pytest
import torch
from torch import nn

from trw_pipeline.nets.activations import activations_of


class Given(nn.Module):
    """Gives what it is told to."""

    def __init__(self, *outputs):
        super().__init__()
        self.outputs = list(outputs)

    def forward(self, x):
        return self.outputs.pop(0)


def of(output):
    (layer,) = activations_of(nn.Sequential(Given(output)), torch.zeros(1))
    return layer


def test_the_figures_of_a_layer_are_those_computed_by_hand():
    layer = of(torch.tensor([[0.0, 2.0], [4.0, math.nan], [-2.0, math.inf]]))
    assert (layer.name, layer.kind, layer.nb_values) == ("0", "Given", 6)
    assert layer.mean == 1.0
    assert layer.std == pytest.approx(math.sqrt((1 + 1 + 9 + 9) / 4))
    assert (layer.low, layer.high) == (-2.0, 4.0)
    assert layer.zeros == 1 / 6
    assert layer.not_finite == pytest.approx(2 / 6)


def test_half_precision_does_not_overflow_in_the_sums():
    layer = of(torch.tensor([60000.0, 60000.0, 60000.0, -60000.0], dtype=torch.float16))
    exact = float(torch.tensor(60000.0, dtype=torch.float16))
    assert layer.mean == exact / 2
    assert layer.std == pytest.approx(exact * math.sqrt(3) / 2)


def test_a_layer_of_which_nothing_is_finite_has_no_mean_but_its_share():
    layer = of(torch.tensor([math.nan, -math.inf]))
    assert all(math.isnan(value) for value in (layer.mean, layer.std, layer.low, layer.high))
    assert (layer.zeros, layer.not_finite) == (0.0, 1.0)


def test_several_calls_of_a_layer_and_several_tensors_of_a_call_count_as_one():
    given = Given(torch.tensor([1.0, 2.0]), {"a": torch.tensor([9.0]), "b": (torch.tensor([0.0, 3.0]), None)})

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.given = given

        def forward(self, x):
            return [self.given(x), self.given(x)]

    (layer,) = activations_of(Twice(), torch.zeros(1))
    values = torch.tensor([1.0, 2.0, 9.0, 0.0, 3.0], dtype=torch.float64)
    assert (layer.nb_values, layer.mean, layer.zeros) == (5, 3.0, 1 / 5)
    assert layer.std == pytest.approx(float(values.std(correction=0)))


def test_only_layers_that_were_called_and_give_numbers_have_a_line():
    model = nn.ModuleDict({"embed": nn.Embedding(3, 2), "unused": nn.Linear(1, 1), "top": Given(torch.arange(3))})

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = model

        def forward(self, batch):
            return self.parts["embed"](batch), self.parts["top"](batch)

    assert [layer.name for layer in activations_of(Net(), torch.tensor([0, 1]))] == ["parts.embed"]


def test_hooks_and_modes_are_put_back_also_when_the_model_fails():
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5), nn.Linear(3, 1)).train()
    with pytest.raises(RuntimeError, match="shapes"):
        activations_of(model, torch.ones(1, 2))
    assert all(module.training and not module._forward_hooks for module in model.modules())


def test_dropout_is_off():
    model = nn.Sequential(nn.Dropout(0.9)).train()
    (layer,) = activations_of(model, torch.ones(1000))
    assert (layer.mean, layer.zeros) == (1.0, 0.0)
