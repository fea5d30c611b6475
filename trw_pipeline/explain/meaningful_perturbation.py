"""Meaningful perturbation: the smallest part of an image without which the model no longer says so."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from trw_pipeline.batches.device import to_value
from trw_pipeline.explain.inputs import inputs_to_explain, replaced
from trw_pipeline.explain.score import TargetClass, chosen_output, class_weights, post_process_output_id, score
from trw_pipeline.nets.filters import FilterGaussian
from trw_pipeline.nets.mode import looked_at
from trw_pipeline.nets.upsample import upsample

OptimizerFn: TypeAlias = Callable[[list[torch.Tensor], int], "tuple[torch.optim.Optimizer, Any]"]
"""(parameters, iterations) -> the optimizer, and a scheduler that steps after each iteration, or None."""

ExportFn: TypeAlias = Callable[[str, int, torch.Tensor, torch.Tensor], Any]
"""(input name, iteration, perturbated input, mask), called in each iteration with tensors that are detached."""

_probabilities = functools.partial(F.softmax, dim=1)


def default_optimizer(
    params: list[torch.Tensor], nb_iters: int, learning_rate: float | None = None
) -> tuple[torch.optim.Optimizer, Any]:
    """Make the optimizer of a mask: Adam, at a tenth of the rate in the last third.

    Args:
        params: the mask.
        nb_iters: how many steps there will be.
        learning_rate: that of the first two thirds. None: such that a point that is pulled at all times gets from 1 to
            0 in them. At higher rates most points of a mask are 0 or 1, which does not say which of them counts more:
            on digits, its deletion curve is worse than that of plain occlusion then.

    Returns:
        The optimizer and its scheduler.
    """
    optimizer = torch.optim.Adam(params, lr=1.5 / nb_iters if learning_rate is None else learning_rate)
    return optimizer, torch.optim.lr_scheduler.MultiStepLR(optimizer, [math.ceil(nb_iters * 2 / 3)])


def default_information_removal_smoothing(
    image: torch.Tensor, blurring_sigma: float = 5, blurring_kernel_size: int = 23
) -> torch.Tensor:
    """Remove what an image shows by blurring it.

    Args:
        image: `(N, C, ...)` with 1 to 3 axes behind the channels.
        blurring_sigma: standard deviation of the Gaussian, in points.
        blurring_kernel_size: points of the kernel along each axis, odd.

    Returns:
        The same shape. A point is the mean of those around it that are in the image: a constant image stays as it is,
        up to its borders.
    """
    nb_dims = image.dim() - 2
    blur = FilterGaussian(image.shape[1], nb_dims, blurring_sigma, blurring_kernel_size, device=image.device)
    blur = blur.to(image.dtype)
    return blur(image) / blur(torch.ones_like(image[:1]))


class MeaningfulPerturbation:
    """Learns a mask that takes as little as it can from an image, and with it what the model says.

    Fong and Vedaldi, "Interpretable Explanations of Black Boxes by Meaningful Perturbation",
    https://arxiv.org/abs/1704.03296, equation 6, with one smoothed image in place of one for each strength. Minimised
    is, for each sample, `score + l1_coeff * mean |1 - mask| + tv_coeff * sum over axes of mean |step of mask|^tv_beta`.

    Images of one, two and three dimensions with channels are explained, other inputs are left out. The model is in
    evaluation mode meanwhile; its hooks, modes and gradients, and the global random generators, are afterwards as they
    were.

    Args:
        model: maps a tensor, or a batch, to a tensor, or to output name -> `Output` or tensor.
        iterations: steps of the optimizer, at least 1.
        l1_coeff: weight of the size of what is taken away.
        tv_coeff: weight of the roughness of the mask.
        tv_beta: exponent of its steps: the higher, the more gently the borders run.
        noise: what is added to the image in each step, normally distributed, in standard deviations of the image: so
            that the mask does not learn an artefact.
        model_output_postprocessing: tensor of the output -> what a class is to lose. Default: the softmax of logits.
        mask_reduction_factor: points of the image for a point of the mask, along each axis; at least 1. The more, the
            smoother the explanation.
        optimizer_fn: see `OptimizerFn`.
        information_removal_fn: images `(N, C, ...)` -> images without what they show.
        export_fn: see `ExportFn`; or None.

    Raises:
        ValueError: a number is out of range.
    """

    def __init__(
        self,
        model: nn.Module,
        iterations: int = 150,
        l1_coeff: float = 0.01,
        tv_coeff: float = 0.2,
        tv_beta: float = 3,
        noise: float = 0.2,
        model_output_postprocessing: Callable[[torch.Tensor], torch.Tensor] = _probabilities,
        mask_reduction_factor: float = 8,
        optimizer_fn: OptimizerFn = default_optimizer,
        information_removal_fn: Callable[[torch.Tensor], torch.Tensor] = default_information_removal_smoothing,
        export_fn: ExportFn | None = None,
    ) -> None:
        for name, value in (("iterations", iterations), ("mask_reduction_factor", mask_reduction_factor)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if noise < 0:
            raise ValueError(f"noise must not be negative, got {noise}")
        self.model = model
        self.iterations = iterations
        self.l1_coeff = l1_coeff
        self.tv_coeff = tv_coeff
        self.tv_beta = tv_beta
        self.noise = noise
        self.model_output_postprocessing = model_output_postprocessing
        self.mask_reduction_factor = mask_reduction_factor
        self.optimizer_fn = optimizer_fn
        self.information_removal_fn = information_removal_fn
        self.export_fn = export_fn

    def __call__(
        self, inputs: Any, target_class_name: str | None = None, target_class: TargetClass = None
    ) -> tuple[str, dict[str, dict[str, np.ndarray]]]:
        """Explain a class.

        Args:
            inputs: what the model takes. Those that require gradients are explained, one after the other.
            target_class_name: name of the output. None: the single tensor, or the first `OutputClassification`, or the
                first `OutputSegmentation`.
            target_class: the class, or one for each sample. None: the one the model finds; in a segmentation the one
                found at most points, the background left aside.

        Returns:
            Name of the output, and input name -> dict of `mask`, `(N, 1, ...)` in [0, 1] of the size of the image: 1
            where it was left, 0 where it was taken away; `perturbated_input` and `smoothed_input`, of the shape of the
            input; `loss_c_start` and `loss_c_end`, `(N,)`, the score of the class for the input and for the perturbated
            input (in a segmentation the mean over the points that count); `output_end`, what the model says of that.

        Raises:
            ValueError, TypeError: no input requires gradients, output or class are not there, or the model gives
                something else.
        """
        leaves = inputs_to_explain(inputs)
        with looked_at(self.model), torch.no_grad():
            name, output = self._output(target_class_name, replaced(inputs, leaves))
            weights = class_weights(output, target_class)
            weights = weights / weights.flatten(1).sum(1).reshape(-1, *[1] * (weights.dim() - 1))
            images = {key: leaf.detach() for key, leaf in leaves.items() if 3 <= leaf.dim() <= 5}
            found: dict[str, dict[str, Any]] = {}
            for key, image in images.items():
                smoothed = self.information_removal_fn(image)
                mask = self._mask(inputs, key, image, smoothed, name, weights)
                perturbated = image * mask + smoothed * (1 - mask)
                end = self._output(name, replaced(inputs, {key: perturbated}))[1]
                found[key] = {
                    "mask": mask,
                    "perturbated_input": perturbated,
                    "smoothed_input": smoothed,
                    "loss_c_start": score(output, weights),
                    "loss_c_end": score(end, weights),
                    "output_end": end,
                }
        return name, to_value(found)

    def _output(self, name: str | None, inputs: Any) -> tuple[str, torch.Tensor]:
        return chosen_output(
            self.model(inputs),
            name,
            lambda output: self.model_output_postprocessing(post_process_output_id(output)),
        )

    def _mask(
        self, inputs: Any, key: str, image: torch.Tensor, smoothed: torch.Tensor, name: str, weights: torch.Tensor
    ) -> torch.Tensor:
        """The mask of each sample, in the size of the image."""
        size = image.shape[2:]
        small = [max(1, math.ceil(length / self.mask_reduction_factor)) for length in size]
        mask = torch.ones(len(image), 1, *small, dtype=image.dtype, device=image.device).requires_grad_()
        optimizer, scheduler = self.optimizer_fn([mask], self.iterations)
        # One of our own: nobody else's draws change, and the same input has the same explanation.
        generator = torch.Generator(image.device).manual_seed(0)
        deviation = image.flatten(1).std(1).reshape(-1, *[1] * (image.dim() - 1)) * self.noise
        for iteration in range(self.iterations):
            with torch.enable_grad():
                large = upsample(mask, size)
                noise = torch.empty_like(image).normal_(generator=generator) * deviation
                perturbated = image * large + smoothed * (1 - large) + noise
                output = self._output(name, replaced(inputs, {key: perturbated}))[1]
                loss = (score(output, weights) + self._cost(mask)).sum()
            # Not `backward`, which would leave gradients in the parameters of the model.
            [mask.grad] = torch.autograd.grad(loss, [mask])
            optimizer.step()
            if scheduler is not None:
                scheduler.step()
            mask.clamp_(0, 1)
            if self.export_fn is not None:
                self.export_fn(key, iteration, perturbated.detach(), mask.detach().clone())
        return upsample(mask.detach(), size)

    def _cost(self, mask: torch.Tensor) -> torch.Tensor:
        """What a mask costs, `(N,)`: how much it takes away, and how rough it is."""
        cost = self.l1_coeff * (1 - mask).abs().flatten(1).mean(1)
        for axis in range(2, mask.dim()):
            if mask.shape[axis] > 1:
                steps = mask.diff(dim=axis).abs() ** self.tv_beta
                cost = cost + self.tv_coeff * steps.flatten(1).mean(1)
        return cost
