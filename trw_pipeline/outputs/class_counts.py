"""How often each class was there, was found, and was found where it was: what overlaps and F scores are made of."""

from __future__ import annotations

import torch

NOT_A_CLASS = -100
"""The class that torch's cross entropy passes over unless told otherwise."""


def number_of_classes(raw: torch.Tensor) -> int:
    """Tell how many classes the scores `(N, C, ...)` are of; a single column is for two."""
    return max(raw.shape[1], 2) if raw.dim() > 1 else 2


def class_counts(
    found: torch.Tensor, truth: torch.Tensor, nb_classes: int, ignore_index: int
) -> dict[str, torch.Tensor]:
    """Count classes, without reading a value on the host.

    Args:
        found: `(N, ...)` integer, the class that was predicted. One outside of [0, nb_classes) is wrong, whatever the
            truth, and counts as found nowhere.
        truth: `(N, ...)` integer, the class that is right.
        nb_classes: number of classes.
        ignore_index: where the truth has this value, or is no class, nothing is counted.

    Returns:
        Three tensors `(N, nb_classes)` int64: `nb_true`, `nb_found`, and `nb_hits` where both are the same class.
    """
    # A small type might have no room for the bin of what is not valid.
    truth, found = truth.reshape(len(truth), -1).long(), found.reshape(len(found), -1).long()
    valid = (truth != ignore_index) & (truth >= 0) & (truth < nb_classes)
    return {
        "nb_true": _counted(truth, valid, nb_classes),
        "nb_found": _counted(found, valid & (found >= 0) & (found < nb_classes), nb_classes),
        "nb_hits": _counted(truth, valid & (truth == found), nb_classes),
    }


def _counted(classes: torch.Tensor, valid: torch.Tensor, nb_classes: int) -> torch.Tensor:
    # Not `bincount`, which asks the device for the largest class. What is not valid goes to a bin that is cut off.
    bins = torch.where(valid, classes, nb_classes)
    counts = torch.zeros(len(classes), nb_classes + 1, dtype=torch.int64, device=classes.device)
    return counts.scatter_add_(1, bins, torch.ones_like(bins))[:, :nb_classes]
