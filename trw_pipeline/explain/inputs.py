"""The inputs of a model that is explained, as copies that gradients reach."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch

DEFAULT_INPUT = "default_input"
"""Name of the input of a model that takes a single tensor."""


def named_inputs(inputs: Any) -> dict[str, Any]:
    """Name the inputs of a model.

    Args:
        inputs: a tensor, or a batch.

    Returns:
        Name -> input, a new dict.

    Raises:
        TypeError: it is neither.
    """
    if isinstance(inputs, torch.Tensor):
        return {DEFAULT_INPUT: inputs}
    if isinstance(inputs, Mapping):
        return dict(cast("Mapping[str, Any]", inputs))
    raise TypeError(f"inputs must be a tensor or a mapping of names to tensors, got {type(inputs).__name__}")


def replaced(inputs: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Put tensors in the place of inputs.

    Args:
        inputs: a tensor, or a batch, which is not changed.
        tensors: name -> what takes its place.

    Returns:
        What the model takes: a tensor, or a new dict. The model gets copies, with which it may do as it likes, also in
        place; gradients go through them to the tensors.
    """
    copies = {name: tensor.clone() for name, tensor in tensors.items()}
    if isinstance(inputs, torch.Tensor):
        return copies.get(DEFAULT_INPUT, inputs)
    return {**inputs, **copies}


def inputs_to_explain(inputs: Any) -> dict[str, torch.Tensor]:
    """Find the inputs that require gradients: those are explained.

    Args:
        inputs: a tensor, or a batch.

    Returns:
        Name -> a leaf of its own, which shares the memory of the input and not its gradient.

    Raises:
        ValueError: none requires gradients, or they have not the same number of samples.
        TypeError: `inputs` is neither tensor nor mapping.
    """
    named = named_inputs(inputs)
    leaves = {
        name: value.detach().requires_grad_()
        for name, value in named.items()
        if isinstance(value, torch.Tensor) and value.requires_grad
    }
    if not leaves:
        raise ValueError(
            f"the inputs to be explained must require gradients, by requires_grad_(); none of {list(named)} does"
        )
    if len({len(leaf) for leaf in leaves.values()}) > 1:
        lengths = {name: len(leaf) for name, leaf in leaves.items()}
        raise ValueError(f"the inputs to be explained must have the same number of samples, got {lengths}")
    return leaves


def floating_inputs(inputs: Any) -> dict[str, torch.Tensor]:
    """Give all inputs of real numbers, as leaves that require gradients, whether or not they did."""
    return {
        name: value.detach().requires_grad_()
        for name, value in named_inputs(inputs).items()
        if isinstance(value, torch.Tensor) and value.is_floating_point()
    }


def gradients(score: torch.Tensor, leaves: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Compute the gradients of the scores of all samples; those of leaves on which no score depends are 0.

    Args:
        score: `(N,)`.
        leaves: name -> tensor that requires gradients.

    Returns:
        Name -> gradient. No `.grad` of anything is touched.
    """
    if not score.requires_grad:
        return {name: torch.zeros_like(leaf, requires_grad=False) for name, leaf in leaves.items()}
    found = torch.autograd.grad(score.sum(), list(leaves.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(leaves, found, strict=True))
