"""On digits, explanations are of what the model has learned, and find what it needs: the tests that can fail.

Adebayo et al., "Sanity Checks for Saliency Maps", https://arxiv.org/abs/1810.03292 (random weights); Petsiuk et al.,
"RISE", https://arxiv.org/abs/1806.07421 (deletion curves).
"""

import numpy as np
import pytest
import torch
from toy_explain import algorithms

from trw_pipeline.explain.algorithms import ExplainableAlgorithm, explain
from trw_pipeline.explain.meaningful_perturbation import default_information_removal_smoothing
from trw_pipeline.nets.upsample import upsample

pytestmark = pytest.mark.slow
every_algorithm = algorithms()
MASK = ExplainableAlgorithm.MeaningfulPerturbations
ARGUMENTS = {
    MASK: {"mask_reduction_factor": 2, "iterations": 80},
    ExplainableAlgorithm.IntegratedGradients: {"steps": 20},
}
BY_SIZE = (ExplainableAlgorithm.Gradient, ExplainableAlgorithm.GuidedBackPropagation)
"""A gradient says how much a point counts, not whether it is there: its size is what is ranked."""


def heat(algorithm, digits, model=None):
    """How much each point counts, `(N, 1, 28, 28)`."""
    arguments = ARGUMENTS.get(algorithm, {})
    _, found = explain(algorithm, model or digits.model, digits.inputs(), None, digits.found, **arguments)
    values = torch.from_numpy(found["default_input"])
    values = values.abs() if algorithm in BY_SIZE else values
    return upsample(values, (28, 28)) if values.shape[2:] != (28, 28) else values


def area_under_deletion(digits, ranks, blank):
    """The mean probability of what was found, while more and more of the points that count most are replaced."""
    order = ranks.flatten(1).argsort(1, descending=True)
    areas = []
    for nb_points in np.linspace(0, 28 * 28, 15).astype(int):
        pixels, gone = digits.images.flatten(1).clone(), order[:, :nb_points]
        pixels.scatter_(1, gone, blank.flatten(1).gather(1, gone))
        with torch.no_grad():
            said = digits.model(pixels.reshape(digits.images.shape)).softmax(1)
        areas.append(said.gather(1, digits.found[:, None]).mean().item())
    return float(np.mean(areas))


def occlusion(digits, side, blank):
    """What the probability loses when a square is replaced, for each square."""

    def said(images):
        with torch.no_grad():
            return digits.model(images).softmax(1).gather(1, digits.found[:, None])[:, 0]

    heat = torch.zeros_like(digits.images)
    for y in range(0, 28, side):
        for x in range(0, 28, side):
            square = (..., slice(y, y + side), slice(x, x + side))
            images = digits.images.clone()
            images[square] = blank[square]
            heat[square] = (said(digits.images) - said(images)).reshape(-1, 1, 1, 1)
    return heat


@every_algorithm
def test_what_counts_most_is_what_the_model_needs_most(algorithm, digits):
    blank = torch.zeros_like(digits.images)
    generator = torch.Generator().manual_seed(0)
    by_chance = area_under_deletion(digits, torch.rand(digits.images.shape, generator=generator), blank)
    ranked = heat(algorithm, digits)
    least_first = area_under_deletion(digits, -ranked, blank)
    assert area_under_deletion(digits, ranked, blank) < by_chance - 0.05
    assert least_first > by_chance


def test_a_learned_mask_is_better_than_occlusion(digits):
    blank = default_information_removal_smoothing(digits.images)
    learned = area_under_deletion(digits, heat(MASK, digits), blank)
    assert learned < area_under_deletion(digits, occlusion(digits, 4, blank), blank)
    assert learned < area_under_deletion(digits, occlusion(digits, 7, blank), blank)


@every_algorithm
def test_weights_that_never_learned_give_another_explanation(algorithm, digits):
    learned, never = (heat(algorithm, digits, model).flatten(1) for model in (digits.model, digits.random_model))
    alike = [
        np.corrcoef(torch.stack(pair).numpy() + 1e-9 * np.arange(784))[0, 1]
        for pair in zip(learned, never, strict=True)
    ]
    assert np.mean(alike) < 0.6


def test_integrated_gradients_of_digits_sum_up_to_the_difference_of_the_scores(digits):
    _, found = explain(ExplainableAlgorithm.IntegratedGradients, digits.model, digits.inputs(), steps=400)
    with torch.no_grad():
        scores = [
            digits.model(images).gather(1, digits.found[:, None])[:, 0]
            for images in (digits.images, torch.zeros_like(digits.images))
        ]
    differences = (scores[0] - scores[1]).numpy()
    # The score has a kink at each ReLU and each maximum that changes on the way, at which any sum is a little wrong.
    np.testing.assert_allclose(found["default_input"].sum((1, 2, 3)), differences, atol=1e-3 * differences.max())
