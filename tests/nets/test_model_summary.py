import warnings

import pytest
import torch
from torch import nn

from trw_pipeline.nets.activations import activations_of
from trw_pipeline.nets.model_summary import model_summary, shape_text, summarise_layers


class Net(nn.Module):
    """A convolution, a layer that is called twice, one that is frozen, and one that nobody calls."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, padding=1, bias=False)
        self.twice = nn.Linear(4, 4)
        self.frozen = nn.Linear(4, 2).requires_grad_(False)
        self.unused = nn.Linear(7, 7)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, batch):
        x = self.norm(self.first(batch["x"])).mean((2, 3))
        return {"scores": self.frozen(self.twice(self.twice(x)))}


def layers_of(net):
    return {layer.name: layer for layer in summarise_layers(net, {"x": torch.randn(5, 3, 6, 8)})}


def test_parameters_shapes_and_operations_are_those_computed_by_hand():
    """An operation is a multiplication or an addition: FLOPs = 2 x what is multiplied for each value that comes out."""
    layers = layers_of(Net())
    assert layers["first"].nb_parameters == 4 * 3 * 3 * 3
    assert layers["first"].outputs == "(5, 4, 6, 8)"
    assert layers["first"].nb_flops == 2 * (3 * 3 * 3) * (5 * 4 * 6 * 8)
    assert layers["twice"].nb_parameters == 4 * 4 + 4
    assert layers["twice"].nb_flops == 2 * (2 * 4 * (5 * 4)), "of both calls"
    assert layers["frozen"].nb_flops == 2 * 4 * (5 * 2)
    assert (layers["frozen"].nb_parameters, layers["frozen"].nb_trainable) == (10, 0)
    assert (layers["unused"].outputs, layers["unused"].nb_flops, layers["unused"].nb_parameters) == (None, 0, 56)
    whole = layers[""]
    assert whole.outputs == "scores: (5, 2)"
    assert whole.nb_parameters == 108 + 20 + 10 + 56 + 8
    assert whole.nb_trainable == whole.nb_parameters - 10
    assert whole.nb_flops == sum(layers[name].nb_flops for name in ("first", "twice", "frozen"))


def test_a_scripted_part_can_not_be_watched_and_fails_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch has announced the end of scripts
        scripted = torch.jit.script(nn.Linear(4, 2))
    whole, part, *_ = summarise_layers(nn.Sequential(scripted), torch.ones(1, 4))
    assert (whole.outputs, whole.nb_parameters) == ("(1, 2)", 10)
    assert (part.outputs, part.nb_parameters) == (None, 10)
    assert activations_of(nn.Sequential(scripted), torch.ones(1, 4)) == []


def test_a_shared_layer_is_counted_once():
    linear = nn.Linear(4, 4)
    whole = summarise_layers(nn.Sequential(linear, linear), torch.ones(1, 4))[0]
    assert whole.nb_parameters == 20
    assert whole.nb_flops == 2 * 2 * 4 * 4, "and its operations as often as it is called"


def test_the_model_stays_as_it_is_also_when_it_fails():
    net = Net().train()
    net.frozen.eval()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    layers_of(net)
    with pytest.raises(KeyError):
        summarise_layers(net, {})
    assert net.training
    assert not net.frozen.training
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    hooks = [*(module._forward_hooks for module in net.modules()), *(m._forward_pre_hooks for m in net.modules())]
    assert not any(hooks)


def test_the_text_has_a_line_for_each_layer_and_the_sums():
    told = []
    text = model_summary(Net(), {"x": torch.randn(5, 3, 6, 8)}, told.append)
    assert told == [text]
    lines = [line.split() for line in text.splitlines()]
    assert ["first", "Conv2d", "(5,", "4,", "6,", "8)", "108", "108", "51,840"] in lines
    assert ["unused", "Linear", "not", "seen", "56", "56", "0"] in lines
    assert "parameters: 202, trainable: 192" in text
    assert "FLOPs of this batch of 5: 52,240 (10,448 a sample)" in text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (torch.zeros(2, 3), "(2, 3)"),
        (torch.tensor(1.0), "()"),
        ([torch.zeros(1), (torch.zeros(2, 2),)], "[(1), [(2, 2)]]"),
        ({"a": torch.zeros(1), "b": None}, "a: (1), b: NoneType"),
    ],
)
def test_shapes_are_written_in_the_nesting_of_what_a_module_returns(value, text):
    assert shape_text(value) == text
