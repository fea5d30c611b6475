"""Metrics that are exact over a split, however its samples were cut into batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch

from trw_pipeline.outputs.output import Summand


class Metric(ABC):
    """A figure of a split that is computed from counts, never by averaging batches.

    A metric has no state, so one object may serve any number of heads.
    """

    @abstractmethod
    def measure(self, raw: torch.Tensor, output: torch.Tensor, truth: torch.Tensor) -> dict[str, Summand]:
        """Count one batch.

        Args:
            raw: `(N, ...)`, detached output of the model.
            output: detached, `raw` after the head's postprocessing.
            truth: `(N, ...)`, the target.

        Returns:
            Name -> number, or tensor on the device of the output, to be added up over batches; a tensor always of the
            same shape and dtype under one name. Empty if the metric does not apply. Nothing here may read a value of a
            tensor on the host.
        """

    @abstractmethod
    def figures(self, totals: Mapping[str, Any]) -> dict[str, float]:
        """Compute the figures of the split.

        Args:
            totals: what `measure` returned, added up: numbers and `numpy` arrays; empty if it never returned anything.

        Returns:
            Metric name -> value. A figure that has no value (a sensitivity without a positive sample) is left out.
        """


class ClassificationError(Metric):
    """`classification error`: share of the samples whose class is not the true one, in [0, 1]."""

    def measure(self, raw: torch.Tensor, output: torch.Tensor, truth: torch.Tensor) -> dict[str, Summand]:
        """Count the samples, and the wrong ones as an int64 tensor without dimensions."""
        return {"nb_wrong": (output != truth).sum(), "nb_samples": truth.numel()}

    def figures(self, totals: Mapping[str, Any]) -> dict[str, float]:
        """Give `classification error`, if there was a sample."""
        nb_samples = totals.get("nb_samples", 0)
        return {"classification error": int(totals["nb_wrong"]) / nb_samples} if nb_samples else {}


class SensitivitySpecificity(Metric):
    """`sensitivity` and `specificity` of class 1 against class 0, in [0, 1]; only for outputs with two columns.

    Sensitivity = true positives / positives, specificity = true negatives / negatives.
    """

    def measure(self, raw: torch.Tensor, output: torch.Tensor, truth: torch.Tensor) -> dict[str, Summand]:
        """Count positives, negatives and those of each that were found: int64 tensors without dimensions."""
        if raw.dim() < 2 or raw.shape[1] != 2:
            return {}
        positive = truth == 1
        negative = truth == 0
        return {
            "nb_positive": positive.sum(),
            "nb_negative": negative.sum(),
            "nb_true_positive": (positive & (output == 1)).sum(),
            "nb_true_negative": (negative & (output == 0)).sum(),
        }

    def figures(self, totals: Mapping[str, Any]) -> dict[str, float]:
        """Give `sensitivity` if there was a positive sample, `specificity` if there was a negative one."""
        figures: dict[str, float] = {}
        for name, kind in (("sensitivity", "positive"), ("specificity", "negative")):
            nb_samples = int(totals.get(f"nb_{kind}", 0))
            if nb_samples:
                figures[name] = int(totals[f"nb_true_{kind}"]) / nb_samples
        return figures


def default_classification_metrics() -> list[Metric]:
    """Make the metrics of a classification: its error and, for two classes, sensitivity and specificity."""
    return [ClassificationError(), SensitivitySpecificity()]
