"""A sequence goes through `Accelerator.prepare`, as it is or within a `DataLoader`."""

from __future__ import annotations

import pytest
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from toy_loop import EPOCHS, Trained, expected, loss_of, new_net, sgd

pytestmark = pytest.mark.slow


def trained_by_accelerate(train, valid):
    accelerator = Accelerator(cpu=True)
    net = new_net()
    result = Trained(net)
    net, optimizer, train, valid = accelerator.prepare(net, sgd(net), train, valid)
    for _ in range(EPOCHS):
        result.ids.append([])
        for batch in train:
            result.ids[-1].append(batch["id"].tolist())
            optimizer.zero_grad()
            accelerator.backward(loss_of(net, batch))
            optimizer.step()
        with torch.no_grad():
            result.losses.append([loss_of(net, batch).item() for batch in valid])
    return result


def test_accelerate_lets_a_sequence_pass_as_it_is(chains):
    train, _ = chains
    assert Accelerator(cpu=True).prepare(train) is train
    trained_by_accelerate(*chains).assert_same(expected())


def test_accelerate_prepares_a_loader_over_the_dataset(chains):
    train, valid = (DataLoader(chain.to_dataset(), batch_size=None) for chain in chains)
    assert Accelerator(cpu=True).prepare(train) is not train
    trained_by_accelerate(train, valid).assert_same(expected())
