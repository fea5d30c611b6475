"""A network that has learned to read digits."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from trw_pipeline.examples.mnist_files import load_digit, mnist_splits


@dataclass(frozen=True)
class Digits:
    """A model, the same with weights that never learned, and some images it has not seen, with the digits it finds."""

    model: nn.Module
    random_model: nn.Module
    images: torch.Tensor
    found: torch.Tensor

    def inputs(self):
        return self.images.clone().requires_grad_()


def reader(seed):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 7 * 7, 10),
    )


@pytest.fixture(scope="session")
def digits(tmp_path_factory):
    splits = mnist_splits(tmp_path_factory.mktemp("digits") / "mnist")
    train, test = (load_digit(splits[name]) for name in ("train", "test"))
    order = np.random.default_rng(0).permutation(len(train["target"]))
    images, targets = torch.from_numpy(train["image"][order]), torch.from_numpy(train["target"][order])
    model = reader(seed=1)
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    for start in [*range(0, len(images), 50)] * 2:
        optimizer.zero_grad()
        F.cross_entropy(model(images[start : start + 50]), targets[start : start + 50]).backward()
        optimizer.step()
    seen = torch.from_numpy(test["image"][::31][:32])  # of all digits: the split is sorted by them
    with torch.no_grad():
        found = model.eval()(seen).argmax(1)
        right = (model(torch.from_numpy(test["image"])).argmax(1).numpy() == test["target"]).mean()
    assert right > 0.8
    model.zero_grad(set_to_none=True)
    return Digits(model, reader(seed=100).eval(), seen, found)
