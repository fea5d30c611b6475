"""Grad-CAM."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from trw_pipeline.batches.device import to_value
from trw_pipeline.errors import ExplanationError
from trw_pipeline.explain.inputs import DEFAULT_INPUT, floating_inputs, gradients, replaced
from trw_pipeline.explain.score import PostProcess, TargetClass, chosen_output, class_weights, post_process_output_id
from trw_pipeline.explain.score import score as score_of
from trw_pipeline.nets.hooks import CleanAddedHooks
from trw_pipeline.nets.mode import looked_at
from trw_pipeline.nets.reflection import find_last_forward_convolution


class GradCam:
    """Gradient-weighted class activation mapping: where the features of a convolution speak for a class.

    The map is `ReLU(sum_k a_k A_k)` over the channels `A_k` of the convolution, `a_k` being the mean over its points of
    the gradient of the score of the class: Selvaraju et al., "Grad-CAM: Visual Explanations from Deep Networks via
    Gradient-based Localization", https://arxiv.org/abs/1610.02391, equations 1 and 2. It is not scaled: 0 is where
    nothing speaks for the class, and all is 0 where nothing does.

    The model is in evaluation mode meanwhile; its hooks, modes and gradients are afterwards as they were.

    Args:
        model: maps a tensor, or a batch, to a tensor, or to output name -> `Output` or tensor.
        find_convolution: (model, inputs) -> what `find_last_forward_convolution` gives. In a segmentation the last
            convolution often is the output itself: take one before it, with
            `functools.partial(find_last_forward_convolution, relative_index=1)`.
        post_process_output: a head, or the tensor -> `(N, C, ...)`. Default: the tensor of the head.
    """

    def __init__(
        self,
        model: nn.Module,
        find_convolution: Callable[..., dict[str, Any] | None] = find_last_forward_convolution,
        post_process_output: PostProcess = post_process_output_id,
    ) -> None:
        self.model = model
        self.find_convolution = find_convolution
        self.post_process_output = post_process_output

    def __call__(
        self, inputs: Any, target_class_name: str | None = None, target_class: TargetClass = None
    ) -> tuple[str, dict[str, np.ndarray]]:
        """Explain a class.

        Args:
            inputs: what the model takes; it need not require gradients.
            target_class_name: name of the output. None: the single tensor, or the first `OutputClassification`, or the
                first `OutputSegmentation`.
            target_class: the class, or one for each sample. None: the one the model finds; in a segmentation the one
                found at most points, the background left aside.

        Returns:
            Name of the output, and `{"default_input": map}`, whatever the inputs are called: `(N, ...)`, not negative,
            with the axes of the convolution. `upsample(torch.from_numpy(map)[:, None], size)` lays it over the input.

        Raises:
            ExplanationError: there is no such convolution, or the output does not depend on it.
            ValueError, TypeError: output or class are not there, or the model gives something else.
        """
        with CleanAddedHooks(self.model), looked_at(self.model), torch.enable_grad():
            found = self.find_convolution(self.model, replaced(inputs, floating_inputs(inputs)))
            if found is None:
                raise ExplanationError(f"Grad-CAM needs a convolution, {type(self.model).__name__} calls none")
            name, output = chosen_output(found["outputs"], target_class_name, self.post_process_output)
            features = found["matched_module_output"]
            score = score_of(output, class_weights(output, target_class))
            if not score.requires_grad:
                raise ExplanationError(f"Grad-CAM needs gradients, the output {name!r} has none")
            slopes = gradients(score, {"features": features})["features"]
        spatial = tuple(range(2, features.dim()))
        shares = slopes.mean(spatial, keepdim=True) if spatial else slopes
        return name, {DEFAULT_INPUT: to_value((shares * features.detach()).sum(1).relu())}
