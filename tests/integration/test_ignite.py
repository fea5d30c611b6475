"""A sequence is the data of ignite's engines."""

from __future__ import annotations

import warnings

import pytest
import torch
from toy_loop import EPOCHS, Trained, expected, loss_of, new_net, sgd

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it imports what torch has deprecated
    from ignite.engine import Engine, Events

pytestmark = pytest.mark.slow


def test_ignite_trains_as_the_loop_by_hand_does(chains):
    train, valid = chains
    result = Trained(new_net())
    optimizer = sgd(result.net)

    def step(engine, batch):
        result.ids[-1].append(batch["id"].tolist())
        optimizer.zero_grad()
        loss_of(result.net, batch).backward()
        optimizer.step()

    def judge(engine, batch):
        with torch.no_grad():
            result.losses[-1].append(loss_of(result.net, batch).item())

    trainer, evaluator = Engine(step), Engine(judge)
    trainer.add_event_handler(Events.EPOCH_STARTED, lambda engine: result.ids.append([]))
    evaluator.add_event_handler(Events.STARTED, lambda engine: result.losses.append([]))
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda engine: evaluator.run(valid) and None)
    trainer.run(train, max_epochs=EPOCHS)
    result.assert_same(expected())
