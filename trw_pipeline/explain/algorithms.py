"""All explainers behind one call."""

from __future__ import annotations

from enum import Enum
from typing import Any

import numpy as np
from torch import nn

from trw_pipeline.explain.grad_cam import GradCam
from trw_pipeline.explain.guided_backprop import GuidedBackprop
from trw_pipeline.explain.integrated_gradients import IntegratedGradients
from trw_pipeline.explain.meaningful_perturbation import MeaningfulPerturbation
from trw_pipeline.explain.score import TargetClass


class ExplainableAlgorithm(Enum):
    """The ways to explain a decision."""

    GuidedBackPropagation = "guided back-propagation"
    GradCAM = "Grad-CAM"
    Gradient = "gradient"
    IntegratedGradients = "integrated gradients"
    MeaningfulPerturbations = "meaningful perturbation"


def default_algorithm_args() -> dict[ExplainableAlgorithm, dict[str, Any]]:
    """Make the keyword arguments with which the explainers are built: none, so that their own defaults hold.

    Returns:
        Algorithm -> keyword arguments, a new dict to be edited.
    """
    return {algorithm: {} for algorithm in ExplainableAlgorithm}


def explain(
    algorithm: ExplainableAlgorithm,
    model: nn.Module,
    inputs: Any,
    output_name: str | None = None,
    target_class: TargetClass = None,
    **arguments: Any,
) -> tuple[str, dict[str, np.ndarray]]:
    """Explain a class by any algorithm.

    Args:
        algorithm: which.
        model: the model.
        inputs: what it takes; those that require gradients are explained.
        output_name: name of the output, or None: see `GradCam`.
        target_class: the class, one for each sample, or None: see `GradCam`.
        **arguments: with which the explainer is built.

    Returns:
        Name of the output, and input name -> how much each point speaks for the class: `(N, C, ...)` of the shape of
        the input from gradients, with signs; `(N, 1, ...)` in [0, 1] from meaningful perturbation, 1 where the mask
        took the image away; from Grad-CAM `{"default_input": (N, 1, ...)}` of the axes of the convolution.

    Raises:
        ExplanationError: the algorithm does not fit the model.
        MissingExtraError: captum is not installed.
        ValueError, TypeError: see the explainers.
    """
    if algorithm is ExplainableAlgorithm.GradCAM:
        name, maps = GradCam(model, **arguments)(inputs, output_name, target_class)
        return name, {key: value[:, np.newaxis] for key, value in maps.items()}
    if algorithm is ExplainableAlgorithm.MeaningfulPerturbations:
        name, masks = MeaningfulPerturbation(model, **arguments)(inputs, output_name, target_class)
        return name, {key: 1 - value["mask"] for key, value in masks.items()}
    if algorithm is ExplainableAlgorithm.IntegratedGradients:
        return IntegratedGradients(model, **arguments)(inputs, output_name, target_class)
    if algorithm is ExplainableAlgorithm.Gradient:
        arguments = {"unguided_gradient": True, **arguments}
    return GuidedBackprop(model, **arguments)(inputs, target_class, output_name)
