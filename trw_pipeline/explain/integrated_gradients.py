"""Integrated gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from trw_pipeline.batches.device import to_value
from trw_pipeline.errors import MissingExtraError
from trw_pipeline.explain.inputs import inputs_to_explain, named_inputs, replaced
from trw_pipeline.explain.score import (
    PostProcess,
    TargetClass,
    chosen_output,
    class_weights,
    post_process_output_id,
    score,
)
from trw_pipeline.nets.mode import looked_at


class IntegratedGradients:
    """The gradient of the score of a class, integrated along the straight line from a baseline to the input.

    What is returned is already multiplied by the difference of input and baseline, point by point, and sums up to the
    difference of the scores of both: Sundararajan et al., "Axiomatic Attribution for Deep Networks",
    https://arxiv.org/abs/1703.01365, equation 1 and proposition 1. The integral is that of captum (Gauss-Legendre),
    with one forward pass of the batch for each step, so it takes no more memory than that.

    The model is in evaluation mode meanwhile; its hooks, modes and gradients are afterwards as they were.

    Args:
        model: maps a tensor, or a batch, to a tensor, or to output name -> `Output` or tensor.
        steps: points of the integral, at least 1.
        baseline_inputs: like the inputs: a tensor, or input name -> tensor, with as many samples, or one for all.
            None, or an input that is not named: 0.
        use_output_as_target: explain all classes together, each weighed by what the model says of it.
        post_process_output: a head, or the tensor -> `(N, C, ...)`. Default: the tensor of the head.

    Raises:
        ValueError: `steps` is less than 1.
    """

    def __init__(
        self,
        model: nn.Module,
        steps: int = 100,
        baseline_inputs: Any = None,
        use_output_as_target: bool = False,
        post_process_output: PostProcess = post_process_output_id,
    ) -> None:
        if steps < 1:
            raise ValueError(f"steps must be at least 1, got {steps}")
        self.model = model
        self.steps = steps
        self.baseline_inputs = baseline_inputs
        self.use_output_as_target = use_output_as_target
        self.post_process_output = post_process_output

    def __call__(
        self, inputs: Any, target_class_name: str | None = None, target_class: TargetClass = None
    ) -> tuple[str, dict[str, np.ndarray]]:
        """Explain a class.

        Args:
            inputs: what the model takes. Those that require gradients are explained; they do not get any.
            target_class_name: name of the output. None: the single tensor, or the first `OutputClassification`, or the
                first `OutputSegmentation`.
            target_class: the class, or one for each sample. None: the one the model finds; in a segmentation the one
                found at most points, the background left aside. Not used with `use_output_as_target`.

        Returns:
            Name of the output, and input name -> attribution, of the shape of the input.

        Raises:
            MissingExtraError: captum is not installed.
            ValueError, TypeError: no input requires gradients, a baseline does not fit, output or class are not there,
                or the model gives something else.
        """
        leaves = inputs_to_explain(inputs)
        baselines = self._baselines(inputs, leaves)
        with looked_at(self.model):
            with torch.no_grad():
                outputs = self.model(replaced(inputs, leaves))
            name, output = chosen_output(outputs, target_class_name, self.post_process_output)
            weights = output.detach() if self.use_output_as_target else class_weights(output, target_class)

            def score_of(*tensors: torch.Tensor) -> torch.Tensor:
                outputs = self.model(replaced(inputs, dict(zip(leaves, tensors, strict=True))))
                # Zero times all of them: captum takes no input on which the score does not depend.
                nothing = sum(tensor.flatten(1).sum(1) * 0 for tensor in tensors)
                return score(chosen_output(outputs, name, self.post_process_output)[1], weights) + nothing

            with torch.enable_grad():
                found = _captum_integral(score_of, tuple(leaves.values()), baselines, self.steps)
        return name, to_value(dict(zip(leaves, found, strict=True)))

    def _baselines(self, inputs: Any, leaves: dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """The baseline of each leaf, in its shape."""
        given = {} if self.baseline_inputs is None else named_inputs(self.baseline_inputs)
        if unknown := given.keys() - named_inputs(inputs).keys():
            raise ValueError(
                f"a baseline must be that of an input, got {sorted(unknown)}, the inputs are {list(leaves)}"
            )
        baselines: list[torch.Tensor] = []
        for name, leaf in leaves.items():
            baseline = torch.as_tensor(given.get(name, 0)).to(leaf)
            if baseline.dim() and (baseline.shape[1:] != leaf.shape[1:] or len(baseline) not in (1, len(leaf))):
                raise ValueError(
                    f"the baseline of {name!r} must have the shape {tuple(leaf.shape)}, or that with one sample, got "
                    f"{tuple(baseline.shape)}"
                )
            baselines.append(baseline.detach().expand_as(leaf).clone())
        return tuple(baselines)


def _captum_integral(
    score_of: Any, inputs: tuple[torch.Tensor, ...], baselines: tuple[torch.Tensor, ...], steps: int
) -> tuple[torch.Tensor, ...]:
    try:
        from captum.attr import IntegratedGradients as Integral  # noqa: PLC0415 (optional)
    except ImportError as error:
        raise MissingExtraError("an explanation by integrated gradients", "explain") from error
    # With batches of the size of ours the model never sees more samples than the other features of the batch have.
    return Integral(score_of).attribute(inputs, baselines, n_steps=steps, internal_batch_size=len(inputs[0]))
