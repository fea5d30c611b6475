"""Metrics of classes: errors, sensitivity and specificity, F score, area under the ROC curve."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from trw_pipeline.outputs.auroc import auroc
from trw_pipeline.outputs.class_counts import NOT_A_CLASS, class_counts, number_of_classes
from trw_pipeline.outputs.metrics import Metric
from trw_pipeline.outputs.output import Rows, Summand
from trw_pipeline.outputs.precision import at_least_float32


class MetricClassificationError(Metric):
    """`classification error`: share of the samples whose class is not the true one, in [0, 1].

    Args:
        ignore_index: samples of this true class are not counted.
    """

    def __init__(self, *, ignore_index: int = NOT_A_CLASS) -> None:
        self.ignore_index = ignore_index

    def measure(self, raw: torch.Tensor, output: torch.Tensor, truth: torch.Tensor) -> dict[str, Summand]:
        """Count the samples, and the wrong ones: int64 tensors without dimensions."""
        valid = truth != self.ignore_index
        return {"nb_wrong": ((output != truth) & valid).count_nonzero(), "nb_samples": valid.count_nonzero()}

    def figures(self, totals: Mapping[str, Any]) -> dict[str, float]:
        """Give `classification error`, if there was a sample."""
        nb_samples = int(totals.get("nb_samples", 0))
        return {"classification error": int(totals["nb_wrong"]) / nb_samples} if nb_samples else {}


class MetricSensitivitySpecificity(Metric):
    """`sensitivity` and `specificity` of class 1 against class 0, in [0, 1]; only for outputs with two columns.

    Sensitivity = true positives / positives, specificity = true negatives / negatives.
    """

    def measure(self, raw: torch.Tensor, output: torch.Tensor, truth: torch.Tensor) -> dict[str, Summand]:
        """Count positives, negatives and those of each that were found: int64 tensors without dimensions."""
        if not _has_two_columns(raw):
            return {}
        positive = truth == 1
        negative = truth == 0
        return {
            "nb_positive": positive.count_nonzero(),
            "nb_negative": negative.count_nonzero(),
            "nb_true_positive": (positive & (output == 1)).count_nonzero(),
            "nb_true_negative": (negative & (output == 0)).count_nonzero(),
        }

    def figures(self, totals: Mapping[str, Any]) -> dict[str, float]:
        """Give `sensitivity` if there was a positive sample, `specificity` if there was a negative one."""
        figures: dict[str, float] = {}
        for name, kind in (("sensitivity", "positive"), ("specificity", "negative")):
            nb_samples = int(totals.get(f"nb_{kind}", 0))
            if nb_samples:
                figures[name] = int(totals[f"nb_true_{kind}"]) / nb_samples
        return figures


class MetricF1(Metric):
    """`f1`: the harmonic mean of precision and recall, in [0, 1].

    Of class 1 where there are two classes; of more classes, the mean over those that are in the truth or were found.

    Args:
        ignore_index: samples of this true class are not counted.
    """

    def __init__(self, *, ignore_index: int = NOT_A_CLASS) -> None:
        self.ignore_index = ignore_index

    def measure(self, raw: torch.Tensor, output: torch.Tensor, truth: torch.Tensor) -> dict[str, Summand]:
        """Count for each class how often it was there, found, and both: int64 tensors `(C,)`."""
        # All samples as one row: the counts of each sample are not needed, and would take N times the memory.
        counts = class_counts(output.reshape(1, -1), truth.reshape(1, -1), number_of_classes(raw), self.ignore_index)
        return {name: count[0] for name, count in counts.items()}

    def figures(self, totals: Mapping[str, Any]) -> dict[str, float]:
        """Give `f1`, if one of its classes was there or found."""
        if not totals:
            return {}
        nb_known = totals["nb_true"] + totals["nb_found"]
        classes = nb_known > 0
        if len(nb_known) == 2:
            classes[0] = False
        return {"f1": float(np.mean(2 * totals["nb_hits"][classes] / nb_known[classes]))} if classes.any() else {}


class MetricAUROC(Metric):
    """`auroc`: see `auroc`; of class 1 against class 0, only for outputs with two columns.

    The score is the second column minus the first, which orders samples as the probability of class 1 does, for logits
    and for probabilities. Unlike other metrics it keeps a score and a class of each sample of the split.
    """

    def measure(self, raw: torch.Tensor, output: torch.Tensor, truth: torch.Tensor) -> dict[str, Summand]:
        """Give score, at least float32, and class of each sample: `(N,)`."""
        if raw.dim() != 2 or not _has_two_columns(raw):
            return {}
        columns = at_least_float32(raw)
        return {"scores": Rows(columns[:, 1] - columns[:, 0]), "truth": Rows(truth)}

    def figures(self, totals: Mapping[str, Any]) -> dict[str, float]:
        """Give `auroc`, if there were samples of both classes; those of no class are not counted."""
        if not totals:
            return {}
        truth = totals["truth"]
        valid = (truth == 0) | (truth == 1)
        has_both = bool((truth == 0).any() and (truth == 1).any())
        return {"auroc": auroc(truth[valid], totals["scores"][valid])} if has_both else {}


def default_classification_metrics() -> list[Metric]:
    """Make the metrics of a classification: its error and, for two classes, sensitivity and specificity."""
    return [MetricClassificationError(), MetricSensitivitySpecificity()]


def _has_two_columns(raw: torch.Tensor) -> bool:
    return raw.dim() > 1 and raw.shape[1] == 2
