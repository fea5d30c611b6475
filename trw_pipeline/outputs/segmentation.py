"""The head of a segmentation."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from trw_pipeline.outputs.class_counts import NOT_A_CLASS
from trw_pipeline.outputs.losses import classes_of_mask, cross_entropy_and_dice
from trw_pipeline.outputs.metrics import Metric
from trw_pipeline.outputs.output import Criterion, StatefulMetric
from trw_pipeline.outputs.segmentation_metrics import default_segmentation_metrics
from trw_pipeline.outputs.targeted import OutputWithTarget
from trw_pipeline.typing import default_sample_uid_name

_highest_score = functools.partial(torch.argmax, dim=1)


def _default_criterion() -> Criterion:
    return cross_entropy_and_dice


class OutputSegmentation(OutputWithTarget):
    """Judges scores of classes for each point of an image, of any number of dimensions, against a mask of classes.

    The loss of a batch is `loss_reduction(losses * weights) * loss_scaling`. Its history has `loss` and what the
    metrics give: `dice` and, for more than two classes, `dice 1`, `dice 2`, ... All of them are over the samples of the
    split, not over its batches.

    Args:
        output: `(N, C, d0, ..., dn)` floating, logits of C classes (class 0 is the background) with the default
            criterion. In half precision, the criterion gets it in float32.
        target_name: feature of the batch with the true classes: `(N, d0, ..., dn)` or `(N, 1, d0, ..., dn)`, any
            integers, in [0, C). A point whose class is -100, and a sample of such points alone, counts neither for the
            loss nor the metrics. (A criterion gives 0 for it, as the default and those of torch do.)
        criterion_fn: called without arguments, gives the criterion: (output, truth `(N, d0, ..., dn)` int64) -> losses
            `(N,)` or `(N, ...)`, not reduced. Default: of each sample, half the mean cross entropy of its points and
            half its `LossDiceMulticlass`.
        collect_only_non_training_output: where outputs are collected, not of batches that are trained on.
        metrics: each a `Metric`, or anything with `update`, `compute` and `reset`: see `MetricStateful`. None is
            `default_segmentation_metrics()`. They ignore the weights.
        loss_reduction: losses -> loss, a tensor without dimensions: see `OutputClassification`.
        weight_name: feature of the batch with a weight for each sample, `(N,)`, or None: see `OutputClassification`.
        loss_scaling: factor of the loss (and so of `loss` in the history), to balance several heads.
        collect_output: whether `output_raw`, `output` and `output_truth` are kept for the whole split: the memory of
            all its outputs. Images whose size differs between batches can not be.
        output_postprocessing: output -> predicted class `(N, d0, ..., dn)`. Default: the class with the highest score.
        sample_uid_name: feature of the batch that identifies its samples; kept as `uid` if the batch has it. None: not.

    Raises:
        TypeError: an element of `metrics` is not one.
    """

    def __init__(
        self,
        output: torch.Tensor,
        target_name: str,
        criterion_fn: Callable[[], Criterion] = _default_criterion,
        collect_only_non_training_output: bool = True,
        metrics: Sequence[Metric | StatefulMetric] | None = None,
        loss_reduction: Callable[[torch.Tensor], torch.Tensor] = torch.mean,
        weight_name: str | None = None,
        loss_scaling: float = 1.0,
        collect_output: bool = True,
        output_postprocessing: Callable[[torch.Tensor], torch.Tensor] = _highest_score,
        sample_uid_name: str | None = default_sample_uid_name,
    ) -> None:
        super().__init__(
            output,
            target_name,
            criterion_fn,
            collect_output=collect_output,
            collect_only_non_training_output=collect_only_non_training_output,
            metrics=default_segmentation_metrics() if metrics is None else metrics,
            loss_reduction=loss_reduction,
            weight_name=weight_name,
            loss_scaling=loss_scaling,
            output_postprocessing=output_postprocessing,
            sample_uid_name=sample_uid_name,
        )

    def _checked_truth(self, raw: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return classes_of_mask(raw, target, f"the mask {self.target_name!r}")

    def _has_target(self, truth: Any) -> Any:
        return truth != NOT_A_CLASS
