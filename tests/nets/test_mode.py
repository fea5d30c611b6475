"""A model that is looked at is as it was: its modes, and its buffers."""

import pytest
import torch
from torch import nn

from trw_pipeline.nets.mode import looked_at


class Counts(nn.Module):
    """Counts its passes in place, and keeps the last input in a buffer that is another tensor each time."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(2)
        self.register_buffer("nb", torch.zeros(()))
        self.register_buffer("last", torch.zeros(1, 2))

    def forward(self, x):
        self.nb += 1.0
        self.last = x.detach()
        return self.norm(x)


def test_modes_and_buffers_are_put_back():
    model = Counts()
    model.norm.eval()
    kept = dict(model.named_buffers())
    before = {name: buffer.clone() for name, buffer in kept.items()}
    with looked_at(model):
        assert not model.training
        model(torch.ones(1, 2))
        assert model.nb == 1.0
    assert (model.training, model.norm.training) == (True, False)
    for name, buffer in model.named_buffers():
        assert buffer is kept[name]
        assert torch.equal(buffer, before[name])


def test_they_are_put_back_after_an_error_too():
    model = Counts()
    with pytest.raises(ValueError, match="expected 2D or 3D input"), looked_at(model):
        model(torch.ones(2))
    assert model.nb == 0.0
    assert model.training


def test_a_graph_that_was_made_meanwhile_can_be_used():
    model = Counts()
    x = torch.ones(3, 2, requires_grad=True)
    with looked_at(model):
        output = model(x)
    output.sum().backward()
    assert x.grad is not None
