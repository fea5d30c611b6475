"""Which of two values of a metric is the better one."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Literal, TypeAlias

Direction: TypeAlias = Literal["lower", "higher"]

_LOWER = re.compile(
    r"(loss(es)?|errors?|err|false|fpr|fnr|distance|deviation|mae|mse|rmse|mape|nll|perplexity|entropy|hausdorff|hd95|assd"
    r"|ece|brier|time|latency|wait)"
)
_HIGHER = re.compile(
    r"(accuracy|acc|sensitivity|specificity|recall|precision|dice|jaccard|m?iou|overlap|f1|fbeta|fscore|auroc|auc|auprc"
    r"|mcc|kappa|tpr|tnr|ppv|npv|correct|correlation|pearson|spearman|r2|psnr|ssim|similarity|throughput|score)"
)
"""Whole words of names."""


def metric_direction(metric: str) -> Direction:
    """Tell whether lower or higher values of a metric are better, by the words of its name.

    Args:
        metric: its name, such as `"loss"`, `"classification error"` or `"dice 2"`; upper case and what stands between
            words do not matter.

    Returns:
        `"higher"` for a name with a word for what goes right (accuracy, sensitivity, specificity, recall, precision,
        dice, IoU, F1, AUROC, correlation, PSNR, ...) and none for what goes wrong (loss, error, false, distance, MSE,
        ...), else `"lower"`: of a name that says nothing, that is what a loss would be. So `"auroc error"` and
        `"1 - dice loss"` are lower; a metric of one's own is judged right if its name says what it is.

    Example:
        >>> metric_direction("dice 1"), metric_direction("dice_loss"), metric_direction("overall")
        ('higher', 'lower', 'lower')
    """
    words = re.findall(r"[a-z]+[0-9]*", metric.lower())
    goes_wrong, goes_right = any(map(_LOWER.fullmatch, words)), any(map(_HIGHER.fullmatch, words))
    return "higher" if goes_right and not goes_wrong else "lower"


def best_index(metric: str, values: Sequence[float | None]) -> int | None:
    """Find the best of several values of a metric.

    Args:
        metric: its name, which tells the direction.
        values: one an epoch, for example; None where there is none.

    Returns:
        Index of the best value, the first of equals; None if no value is a finite number. NaN and infinite values are
        never the best.
    """
    sign = -1.0 if metric_direction(metric) == "higher" else 1.0
    known = [(sign * value, i) for i, value in enumerate(values) if value is not None and math.isfinite(value)]
    return min(known)[1] if known else None
