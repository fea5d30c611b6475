"""What is explained: the score that a model gives to a class, as a function of its inputs.

The score of a sample is the sum of the output times weights that are chosen once, by what the model says of the inputs
as they are, and are constant from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, cast

import torch

from trw_pipeline.outputs.classification import OutputClassification
from trw_pipeline.outputs.output import Output
from trw_pipeline.outputs.segmentation import OutputSegmentation

PostProcess: TypeAlias = Callable[[Any], torch.Tensor]
"""A head, or a tensor if the model gives one -> `(N, C)` or `(N, C, ...)`, of which a class is explained."""

TargetClass: TypeAlias = int | Sequence[int] | torch.Tensor | None
"""One class, or one for each sample; None: the one the model finds."""

DEFAULT_OUTPUT = "default_output"
"""Name of the output of a model that gives a single tensor."""


def post_process_output_id(output: Any) -> torch.Tensor:
    """Give the tensor of a head as the model computed it.

    Args:
        output: an `Output`, or a tensor, which is returned as it is.

    Returns:
        The tensor.

    Raises:
        TypeError: it is neither.
    """
    tensor = output.output if isinstance(output, Output) else output
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"an output to explain must be an Output or a tensor, got {type(output).__name__}")
    return tensor


def post_process_output_for_gradient_attribution(output: Any) -> torch.Tensor:
    """Give the probabilities of a classification, so that what is explained is the probability of a class.

    The gradient of a probability vanishes where the model is sure. To explain logits, which do not have that, use the
    explainers without this.

    Args:
        output: an `Output`, or a tensor.

    Returns:
        For an `OutputClassification` the softmax `(N, C)` of its logits; else the tensor as it is.

    Raises:
        TypeError: it is neither.
    """
    tensor = post_process_output_id(output)
    return tensor.softmax(1) if isinstance(output, OutputClassification) else tensor


def chosen_output(outputs: Any, name: str | None, post_process: PostProcess) -> tuple[str, torch.Tensor]:
    """Choose what is explained among the outputs of a model.

    Args:
        outputs: what the model gave: a tensor, or output name -> `Output` or tensor.
        name: of the output. None: the single tensor; else the first `OutputClassification`, else the first
            `OutputSegmentation`, else the only output, if it has real numbers.
        post_process: the output -> a tensor.

    Returns:
        The name, and the tensor `(N, C, ...)`; one of `(N,)` gets an axis.

    Raises:
        ValueError: there is no such output, or nothing to choose.
        TypeError: the model gave something else.
    """
    if isinstance(outputs, torch.Tensor):
        if name not in (None, DEFAULT_OUTPUT):
            raise ValueError(f"the model gives a single tensor, so there is no output {name!r}")
        name, output = DEFAULT_OUTPUT, outputs
    elif isinstance(outputs, Mapping):
        by_name = cast("Mapping[str, Any]", outputs)
        name = default_output_name(by_name) if name is None else name
        if name not in by_name:
            raise ValueError(f"the output must be one of {list(by_name)}, got {name!r}")
        output = by_name[name]
    else:
        raise TypeError(f"a model must give a tensor or a mapping of outputs, got {type(outputs).__name__}")
    tensor = post_process(output)
    return name, tensor.unsqueeze(1) if tensor.dim() == 1 else tensor


def default_output_name(outputs: Mapping[str, Any]) -> str:
    """Name the output that is explained where nobody has named one: see `chosen_output`.

    Raises:
        ValueError: there is nothing to choose.
    """
    for kind in (OutputClassification, OutputSegmentation):
        for name, output in outputs.items():
            if isinstance(output, kind):
                return name
    if len(outputs) == 1:
        [(name, output)] = outputs.items()
        tensor = getattr(output, "output", output)
        if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
            return name
    raise ValueError(f"none of the outputs {list(outputs)} is a classification or a segmentation: name one of them")


def ranked_classes(output: torch.Tensor) -> torch.Tensor:
    """Rank the classes of each sample by how much the model says so.

    Args:
        output: `(N, C)`, or `(N, C, ...)` of a segmentation.

    Returns:
        `(N, C)` int64, the class that is found first: by its output; in a segmentation by the number of points at which
        it is found, where class 0, the background, comes behind all others that are found.
    """
    if output.dim() == 2:
        return torch.argsort(output.detach(), dim=1, descending=True, stable=True)
    counts = _at_points(output).flatten(2).sum(2)
    counts[:, 0] = counts[:, 0].clamp(max=0.5)
    return torch.argsort(counts, dim=1, descending=True, stable=True)


def class_weights(output: torch.Tensor, target_class: TargetClass = None) -> torch.Tensor:
    """Choose the weights of a class in the score.

    Args:
        output: `(N, C)`, or `(N, C, ...)` of a segmentation.
        target_class: the class, in [0, C). None: the one that is found; in a segmentation the one found at most points,
            where class 0, the background, is taken only if there is no other.

    Returns:
        The shape and dtype of `output`: 1 at the class, else 0. In a segmentation, 1 only at the points where that
        class is found, or at all points of a sample where it is found nowhere.

    Raises:
        ValueError: a class is out of range, or there is not one for each sample.
        TypeError: it is made of something else than numbers, such as names.
    """
    nb_samples, nb_classes = output.shape[:2]
    classes = ranked_classes(output)[:, 0] if target_class is None else _checked(target_class, nb_samples, nb_classes)
    of_class = torch.zeros(nb_samples, nb_classes, dtype=output.dtype, device=output.device)
    of_class = of_class.scatter_(1, classes.to(output.device)[:, None], 1.0)
    of_class = of_class.reshape(nb_samples, nb_classes, *[1] * (output.dim() - 2))
    if output.dim() == 2:
        return of_class
    where = (_at_points(output) * of_class).sum(1, keepdim=True)
    is_nowhere = where.flatten(1).sum(1).reshape(-1, *[1] * (output.dim() - 1)) == 0
    return of_class * torch.where(is_nowhere, torch.ones_like(where), where)


def score(output: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Compute the score `(N,)` of each sample: the sum of output times weights, both `(N, C, ...)`."""
    return (output * weights).flatten(1).sum(1)


def _at_points(output: torch.Tensor) -> torch.Tensor:
    """1 at the class that is found at each point, else 0."""
    return torch.zeros_like(output, requires_grad=False).scatter_(1, output.detach().argmax(1, keepdim=True), 1.0)


def _checked(target_class: Any, nb_samples: int, nb_classes: int) -> torch.Tensor:
    try:
        classes = torch.as_tensor(target_class)
    except (TypeError, ValueError, RuntimeError) as error:  # which one depends on what is in it
        raise TypeError(f"target_class must be an int, or one for each sample, got {target_class!r}") from error
    if classes.is_floating_point() or classes.shape not in ((), (nb_samples,)):
        raise ValueError(f"target_class must be a class, or one for each of {nb_samples} samples, got {target_class!r}")
    if ((classes < 0) | (classes >= nb_classes)).any():
        raise ValueError(f"target_class must be in [0, {nb_classes}), got {target_class!r}")
    return classes.long().expand(nb_samples)
