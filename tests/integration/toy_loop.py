"""A chain, a model, and the loop by hand that every loop of a library is compared with."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from trw_pipeline.sequences.samplers import SamplerRandom, SamplerSequential
from trw_pipeline.sequences.sequence import Sequence, SequenceArray

NB_TRAIN, NB_VALID, BATCH_SIZE, EPOCHS = 18, 6, 4, 2
NB_BATCHES = 5
"""Of 4, 4, 4, 4 and 2 samples."""
THREADS = {"nb_workers": 2, "backend": "thread"}


def plain(batch: dict[str, Any]) -> dict[str, Any]:
    """Makes a sample without noise: no loop of others saves where its validation stands."""
    x = batch["x"]
    return {"x": x.astype(np.float32), "y": x.sum(axis=1, keepdims=True).astype(np.float32), "id": batch["id"]}


def noisy(batch: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Augments a sample, so that each epoch has other values."""
    return plain({"x": batch["x"] + rng.normal(size=batch["x"].shape), "id": batch["id"]})


def array(nb: int, shuffled: bool) -> SequenceArray:
    split = {"x": np.arange(2 * nb).reshape(nb, 2) / nb, "id": np.arange(nb)}
    return SequenceArray(split, SamplerRandom() if shuffled else SamplerSequential()).with_seed(3)


def train_chain(**workers: Any) -> Sequence:
    return array(NB_TRAIN, True).map(noisy, **workers).batch(BATCH_SIZE).collate()


def valid_chain(**workers: Any) -> Sequence:
    return array(NB_VALID, False).map(plain, **workers).batch(BATCH_SIZE).collate()


def new_net() -> nn.Linear:
    torch.manual_seed(1)
    return nn.Linear(2, 1)


def loss_of(net: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return nn.functional.mse_loss(net(batch["x"]), batch["y"])


def sgd(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)


@dataclass
class Trained:
    """What came of a training: the weights, and the ids of all batches and losses of validation, epoch by epoch."""

    net: nn.Module
    ids: list[list[list[int]]] = field(default_factory=list)
    losses: list[list[float]] = field(default_factory=list)

    def assert_same(self, other: Trained) -> None:
        assert self.ids == other.ids
        assert self.losses == other.losses
        for one, its in zip(self.net.parameters(), other.net.parameters(), strict=True):
            assert torch.equal(one, its)


def trained_by_hand(train: Iterable[Any], valid: Iterable[Any]) -> Trained:
    net = new_net()
    optimizer = sgd(net)
    result = Trained(net)
    for _ in range(EPOCHS):
        result.ids.append([])
        for batch in train:
            result.ids[-1].append(batch["id"].tolist())
            optimizer.zero_grad()
            loss_of(net, batch).backward()
            optimizer.step()
        with torch.no_grad():
            result.losses.append([loss_of(net, batch).item() for batch in valid])
    return result


def stored(batches: Sequence) -> list[list[dict[str, torch.Tensor]]]:
    """Returns the batches of all epochs, made without workers."""
    return [list(batches) for _ in range(EPOCHS)]


class EpochByEpoch:
    """Lists as a loader: each `iter` is the next of them."""

    def __init__(self, epochs: list[list[Any]]) -> None:
        self._epochs = iter(epochs)

    def __iter__(self):
        return iter(next(self._epochs))


def expected() -> Trained:
    """Returns what the loop by hand makes of batches that were made before it began."""
    return trained_by_hand(EpochByEpoch(stored(train_chain())), EpochByEpoch(stored(valid_chain())))
