"""Metrics of masks: how well what was found overlaps with what is there."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from trw_pipeline.outputs.class_counts import NOT_A_CLASS, class_counts, number_of_classes
from trw_pipeline.outputs.metrics import Metric
from trw_pipeline.outputs.output import Summand
from trw_pipeline.outputs.precision import precise_dtype


class _Overlap(Metric):
    """The mean over classes of a ratio of counts, and the ratio of each class where there are several."""

    name: str

    def __init__(
        self,
        *,
        by_sample: bool = False,
        include_background: bool = False,
        ignore_index: int = NOT_A_CLASS,
    ) -> None:
        self.by_sample = by_sample
        self.include_background = include_background
        self.ignore_index = ignore_index

    def measure(self, raw: torch.Tensor, output: torch.Tensor, truth: torch.Tensor) -> dict[str, Summand]:
        """Add up, for each class, numerators and denominators, or ratios and the samples that have one: `(C,)`."""
        nb_classes = number_of_classes(raw)
        counts = class_counts(output, truth, nb_classes, self.ignore_index)
        numerator, denominator = self._ratio(counts["nb_hits"], counts["nb_true"] + counts["nb_found"])
        if self.by_sample:
            # In float64: a sum of many ratios must not lose digits. Where there is nothing, the numerator is 0.
            numerator = numerator.to(precise_dtype(numerator)) / denominator.clamp(min=1)
            denominator = (denominator > 0).long()
        return {"numerator": numerator.sum(0), "denominator": denominator.sum(0)}

    def figures(self, totals: Mapping[str, Any]) -> dict[str, float]:
        """Give the mean, and with more than one class each of them; those that are nowhere are left out."""
        if not totals:
            return {}
        ratios = {
            index: float(numerator / denominator)
            for index, (numerator, denominator) in enumerate(
                zip(totals["numerator"], totals["denominator"], strict=True)
            )
            if denominator and (index or self.include_background)
        }
        nb_wanted = len(totals["numerator"]) - (not self.include_background)
        by_class = {f"{self.name} {index}": ratio for index, ratio in ratios.items()} if nb_wanted > 1 else {}
        return {self.name: float(np.mean(list(ratios.values())))} | by_class if ratios else {}

    @abstractmethod
    def _ratio(self, nb_hits: torch.Tensor, nb_known: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Numerator and denominator from where truth and found agree, and the sum of their sizes."""


class MetricDice(_Overlap):
    """`dice`: twice what truth and found share, over the sum of their sizes, in [0, 1]; the mean over classes.

    For more than two classes there are also `dice 1`, `dice 2`, ...: the figure of each class. A class that is neither
    in the truth nor found has none, and takes no part in the mean.

    Args:
        by_sample: the mean over the samples that have the class in truth or found, of the figure of each. Default: one
            figure from the points of all samples of the split together, in which large objects count for more.
        include_background: whether class 0 is counted too.
        ignore_index: points of this true class are not counted.
    """

    name = "dice"

    def _ratio(self, nb_hits: torch.Tensor, nb_known: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return 2 * nb_hits, nb_known


class MetricIoU(_Overlap):
    """`iou`: what truth and found share, over what either has (Jaccard's index), in [0, 1]; the mean over classes.

    For more than two classes there are also `iou 1`, `iou 2`, ...: the figure of each class. A class that is neither in
    the truth nor found has none, and takes no part in the mean.

    Args:
        by_sample: the mean over the samples that have the class in truth or found, of the figure of each. Default: one
            figure from the points of all samples of the split together, in which large objects count for more.
        include_background: whether class 0 is counted too.
        ignore_index: points of this true class are not counted.
    """

    name = "iou"

    def _ratio(self, nb_hits: torch.Tensor, nb_known: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return nb_hits, nb_known - nb_hits


def default_segmentation_metrics() -> list[Metric]:
    """Make the metrics of a segmentation: the Dice score of its classes but the background."""
    return [MetricDice()]
