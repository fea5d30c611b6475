"""The area under the curve of the receiver operating characteristic."""

from __future__ import annotations

from typing import Any

import numpy as np


def auroc(trues: Any, found_1_scores: Any) -> float:
    """Compute the area under the ROC curve: how probably a sample of class 1 has a higher score than one of class 0.

    It is computed from ranks (Mann and Whitney's U), which is exact; equal scores count one half.

    Args:
        trues: `(N,)`, the classes: 1 (or True) is class 1, everything else is not.
        found_1_scores: `(N,)` numbers, higher where class 1 is more probable.

    Returns:
        The area in [0, 1]; NaN where one of the classes has no sample, or a score is NaN.

    Raises:
        ValueError: the shapes are not `(N,)` and the same.
    """
    positive = np.asarray(trues) == 1
    scores = np.asarray(found_1_scores)
    if positive.ndim != 1 or positive.shape != scores.shape:
        raise ValueError(f"trues and found_1_scores must be of one shape (N,), got {positive.shape} and {scores.shape}")
    nb_positive = int(positive.sum())
    nb_pairs = nb_positive * (len(positive) - nb_positive)
    if not nb_pairs or np.isnan(scores).any():
        return float("nan")
    _, place, count = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = np.cumsum(count) - (count - 1) / 2  # of equal scores, the mean of their ranks
    return float((ranks[place][positive].sum() - nb_positive * (nb_positive + 1) / 2) / nb_pairs)
