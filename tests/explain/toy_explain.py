"""Small models of one, two and three dimensions, and all explainers behind one call."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from trw_pipeline.explain.algorithms import ExplainableAlgorithm, explain
from trw_pipeline.outputs.classification import OutputClassification
from trw_pipeline.outputs.segmentation import OutputSegmentation

CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
SIZES = {1: (12,), 2: (8, 10), 3: (5, 6, 7)}
QUICK = {
    ExplainableAlgorithm.MeaningfulPerturbations: {"iterations": 10, "mask_reduction_factor": 2},
    ExplainableAlgorithm.IntegratedGradients: {"steps": 5},
}

# Several threads wait for each other longer than these tensors take.
torch.set_num_threads(1)


def net(nb_dims=2, nb_classes=3, nb_channels=2):
    """Tensor -> logits, by two convolutions."""
    convolution = CONVOLUTIONS[nb_dims]
    torch.manual_seed(0)
    return nn.Sequential(
        convolution(nb_channels, 4, 3, padding=1),
        nn.ReLU(),
        convolution(4, 5, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.LazyLinear(nb_classes),
    )


def images(nb_dims=2, nb_samples=3, nb_channels=2):
    torch.manual_seed(1)
    return torch.randn(nb_samples, nb_channels, *SIZES[nb_dims], requires_grad=True)


class Heads(nn.Module):
    """Batch of two images -> two heads; `color` depends on one of them alone."""

    def __init__(self):
        super().__init__()
        self.shape, self.color = net(nb_classes=4), net(nb_classes=2)
        self.eval()(batch())

    def forward(self, batch):
        return {
            "shape": OutputClassification(self.shape(batch["left"] + 2 * batch["right"]), "shape"),
            "color": OutputClassification(self.color(batch["left"]), "color"),
        }


def batch(nb_samples=3):
    torch.manual_seed(2)
    return {
        "left": torch.randn(nb_samples, 2, 8, 10, requires_grad=True),
        "right": torch.randn(nb_samples, 2, 8, 10, requires_grad=True),
        "shape": torch.zeros(nb_samples, dtype=torch.int64),
        "uid": [f"s{number}" for number in range(nb_samples)],
    }


class Segments(nn.Module):
    """Batch -> a segmentation of three classes: the channels of the image, and the background where they are low."""

    def forward(self, batch):
        image = F.relu(batch["image"])
        return {"mask": OutputSegmentation(torch.cat([torch.full_like(image[:, :1], 0.5), image], 1), "truth")}


def heat(algorithm, model, inputs, name=None, target=None, **arguments):
    return explain(algorithm, model, inputs, name, target, **{**QUICK.get(algorithm, {}), **arguments})


def algorithms(*left_out):
    """A test of each algorithm but these."""
    chosen = [algorithm for algorithm in ExplainableAlgorithm if algorithm not in left_out]
    return pytest.mark.parametrize("algorithm", chosen, ids=lambda algorithm: algorithm.name)
