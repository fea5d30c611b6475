"""Criteria that torch does not have: one loss for each sample."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from trw_pipeline.outputs.class_counts import NOT_A_CLASS
from trw_pipeline.outputs.precision import at_least_float32


class LossDiceMulticlass(nn.Module):
    """One minus the Dice score of probabilities and truth, for images of any number of dimensions.

    Of each sample and class, `1 - (2 * sum(p * t) + eps) / (sum(p) + sum(t) + eps)`, where p is the probability, and t
    is 1 where the truth is that class (Milletari et al., V-Net, arXiv:1606.04797, without their squares); of each
    sample, the mean over classes. Half precision is widened first: its sums over an image would overflow.

    Args:
        normalization_fn: called without arguments, gives what makes probabilities of the output, such as
            `functools.partial(nn.Softmax, dim=1)`. None: they are probabilities.
        eps: keeps the ratio defined where a class is absent; a class that is neither there nor predicted has no loss.
        ignore_index: where the truth has this value, neither it nor the output counts.
    """

    def __init__(
        self,
        normalization_fn: Callable[[], nn.Module] | None = nn.Sigmoid,
        eps: float = 0.0001,
        *,
        ignore_index: int = NOT_A_CLASS,
    ) -> None:
        super().__init__()
        self.normalization = nn.Identity() if normalization_fn is None else normalization_fn()
        self.eps = eps
        self.ignore_index = ignore_index

    def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Compute the loss of each sample.

        Args:
            output: `(N, C, d0, ..., dn)` floating, by default logits. With one column, that of class 1 against 0.
            target: `(N, d0, ..., dn)` or `(N, 1, d0, ..., dn)` integer, the classes, in [0, C).

        Returns:
            `(N,)`, at least float32, in [0, 1].

        Raises:
            ValueError: the shapes do not fit, or the target is not of integers.
        """
        target = classes_of_mask(output, target, "the target of a Dice loss")
        nb_samples, nb_classes = output.shape[:2]
        valid = (target != self.ignore_index).reshape(nb_samples, 1, -1)
        probability = self.normalization(at_least_float32(output)).reshape(nb_samples, nb_classes, -1) * valid
        truth = _masks(target.reshape(nb_samples, 1, -1), valid, probability)
        shared = (probability * truth).sum(2)
        sizes = probability.sum(2) + truth.sum(2)
        return (1 - (2 * shared + self.eps) / (sizes + self.eps)).mean(1)


def cross_entropy_and_dice(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Compute, of each sample, half the mean cross entropy of its points and half its Dice loss.

    Args:
        output: `(N, C, d0, ..., dn)` floating, logits of at least two classes.
        target: `(N, d0, ..., dn)` integer, the classes, in [0, C); -100 where there is none.

    Returns:
        `(N,)`.

    Raises:
        ValueError: the output has one column.
    """
    if output.shape[1] < 2:
        raise ValueError(
            f"the cross entropy of a segmentation needs a column for each class, background included, got outputs of "
            f"shape {tuple(output.shape)}: give two columns, or a criterion_fn and an output_postprocessing for one"
        )
    by_point = F.cross_entropy(output, target, reduction="none").reshape(len(output), -1)
    nb_points = (target != NOT_A_CLASS).reshape(len(output), -1).sum(1).clamp(min=1)
    return 0.5 * by_point.sum(1) / nb_points + 0.5 * LossDiceMulticlass()(output, target)


def classes_of_mask(output: torch.Tensor, target: torch.Tensor, name: str) -> torch.Tensor:
    """Check a mask of classes against scores.

    Args:
        output: `(N, C, d0, ..., dn)`, scores.
        target: `(N, d0, ..., dn)` or `(N, 1, d0, ..., dn)` integer.
        name: what the target is called in errors.

    Returns:
        The target as `(N, d0, ..., dn)` int64.

    Raises:
        ValueError: the shapes do not fit, or the target is not of integers.
    """
    expected = output.shape[:1] + output.shape[2:]
    is_bare = target.shape == expected
    has_column = target.dim() == output.dim() and target.shape == (*expected[:1], 1, *expected[1:])
    if output.dim() < 2 or not (is_bare or has_column):
        raise ValueError(
            f"{name} must be of shape {tuple(expected)}, or with one column behind the samples, for outputs of shape "
            f"(N, C, ...) = {tuple(output.shape)}, got {tuple(target.shape)}"
        )
    if target.is_floating_point() or target.is_complex() or target.dtype == torch.bool:
        raise ValueError(f"{name} must be of integers, one class for each point, got {target.dtype}")
    return (target.squeeze(1) if has_column else target).long()


def _masks(target: torch.Tensor, valid: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """One mask of zeros and ones for each class, `(N, C, points)`, zero where nothing counts."""
    if like.shape[1] == 1:
        return ((target == 1) & valid).to(like.dtype)
    # Not `one_hot`, which looks at the values on the host.
    return torch.zeros_like(like).scatter_(1, torch.where(valid, target, 0), 1.0) * valid
