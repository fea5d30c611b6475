"""Guided back-propagation, and the plain gradient."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

from trw_pipeline.batches.device import to_value
from trw_pipeline.errors import ExplanationError
from trw_pipeline.explain.inputs import gradients, inputs_to_explain, named_inputs, replaced
from trw_pipeline.explain.score import (
    PostProcess,
    TargetClass,
    chosen_output,
    class_weights,
    post_process_output_id,
    score,
)
from trw_pipeline.nets.mode import looked_at

_RELUS = frozenset({F.relu, torch.relu, torch.relu_, torch.Tensor.relu, torch.Tensor.relu_})


class GuidedBackprop:
    """The gradient of the score of a class, where each ReLU lets only positive gradients back.

    Springenberg et al., "Striving for Simplicity: The All Convolutional Net", https://arxiv.org/abs/1412.6806, section
    3.4. Every ReLU is guided, that of a module `nn.ReLU` as well as `torch.relu`, `F.relu` and those in place, because
    it is the call that is caught and not the module: hooks of modules, which captum uses, never see the others, and
    what comes out is the plain gradient without a word. A ReLU within a `torch.jit.ScriptModule` can not be caught,
    which is an error, and neither can one that is written as something else (`x.clamp(min=0)`), which is an error if
    there is no other.

    The model is in evaluation mode meanwhile; its hooks, modes and gradients are afterwards as they were.

    Args:
        model: maps a tensor, or a batch, to a tensor, or to output name -> `Output` or tensor.
        unguided_gradient: leave ReLUs as they are: the plain gradient.
        post_process_output: a head, or the tensor -> `(N, C, ...)`. Default: the tensor of the head.
    """

    def __init__(
        self,
        model: nn.Module,
        unguided_gradient: bool = False,
        post_process_output: PostProcess = post_process_output_id,
    ) -> None:
        self.model = model
        self.unguided_gradient = unguided_gradient
        self.post_process_output = post_process_output

    @contextmanager
    def update_relus(self) -> Generator[None, None, None]:
        """Guide every ReLU that is called in the block; the modules are not changed.

        Raises:
            ExplanationError: the model has parts that can not be looked into; or, at the end, no ReLU was called.
        """
        scripted = [name for name, part in self.model.named_modules() if isinstance(part, torch.jit.ScriptModule)]
        if scripted:
            raise ExplanationError(f"the ReLUs of scripted modules can not be guided: {scripted[:5]}")
        relus = _Guided()
        with relus:
            yield
        if not relus.nb_calls:
            raise ExplanationError(
                f"guided back-propagation needs ReLUs, {type(self.model).__name__} calls none that can be seen; the "
                f"plain gradient is there with unguided_gradient=True"
            )

    @staticmethod
    def get_floating_inputs_with_gradients(inputs: Any) -> list[tuple[str, torch.Tensor]]:
        """Find the inputs that require gradients.

        Args:
            inputs: a tensor, or a batch.

        Returns:
            Pairs of name and input.
        """
        return [
            (name, value)
            for name, value in named_inputs(inputs).items()
            if isinstance(value, torch.Tensor) and value.requires_grad
        ]

    def __call__(
        self, inputs: Any, target_class: TargetClass = None, target_class_name: str | None = None
    ) -> tuple[str, dict[str, np.ndarray]]:
        """Explain a class. As documented, the class comes before the output here, unlike in the other explainers.

        Args:
            inputs: what the model takes. Those that require gradients are explained; they do not get any.
            target_class: the class, or one for each sample. None: the one the model finds; in a segmentation the one
                found at most points, the background left aside.
            target_class_name: name of the output. None: the single tensor, or the first `OutputClassification`, or the
                first `OutputSegmentation`.

        Returns:
            Name of the output, and input name -> gradient, of the shape of the input.

        Raises:
            ExplanationError: there is no ReLU to guide.
            ValueError, TypeError: no input requires gradients, output or class are not there, or the model gives
                something else.
        """
        leaves = inputs_to_explain(inputs)
        # The gradients are made within the block too: a model may run parts of itself again for them.
        guided: Callable[[], Any] = _as_they_are if self.unguided_gradient else self.update_relus
        with looked_at(self.model), torch.enable_grad(), guided():
            outputs = self.model(replaced(inputs, leaves))
            name, output = chosen_output(outputs, target_class_name, self.post_process_output)
            found = gradients(score(output, class_weights(output, target_class)), leaves)
        return name, to_value(found)

    @staticmethod
    def get_positive_negative_saliency(gradient: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Part a gradient into what speaks for a class and what speaks against it.

        Args:
            gradient: any shape.

        Returns:
            The positive and the negative part, both in [0, 1], each scaled by its greatest value; 0 if there is none.
        """

        def scaled(part: np.ndarray) -> np.ndarray:
            greatest = part.max(initial=0)
            return part / greatest if greatest > 0 else part

        return scaled(np.maximum(gradient, 0)), scaled(np.maximum(-gradient, 0))


class _Guided(TorchFunctionMode):
    """Lets only positive gradients back to what a ReLU gave; those of ReLU itself take care of where it gave 0."""

    def __init__(self) -> None:
        super().__init__()
        self.nb_calls = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in _RELUS:
            self.nb_calls += 1
            if result.requires_grad:
                result.register_hook(_positive)
        return result


def _positive(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.clamp(min=0)


@contextmanager
def _as_they_are() -> Generator[None, None, None]:
    yield
