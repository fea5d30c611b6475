"""The head of a classification."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from trw_pipeline.outputs.class_counts import NOT_A_CLASS
from trw_pipeline.outputs.classification_metrics import default_classification_metrics
from trw_pipeline.outputs.metrics import Metric
from trw_pipeline.outputs.output import Criterion, StatefulMetric
from trw_pipeline.outputs.targeted import OutputWithTarget
from trw_pipeline.typing import default_sample_uid_name

_highest_score = functools.partial(torch.argmax, dim=1)


def _cross_entropy_of_samples(output: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    # Of one column it is 0 whatever the output: nothing would be learned, and nobody would be told.
    if output.dim() < 2 or output.shape[1] < 2:
        raise ValueError(
            f"the cross entropy of a classification needs a column for each class, got outputs of shape "
            f"{tuple(output.shape)}: give two columns, or a criterion_fn and an output_postprocessing for one"
        )
    return F.cross_entropy(output, truth, reduction="none")


def _default_criterion() -> Criterion:
    return _cross_entropy_of_samples


class OutputClassification(OutputWithTarget):
    """Judges scores of classes against the true class of each sample.

    The loss of a batch is `loss_reduction(losses * weights) * loss_scaling`. Its history has `loss` and what the
    metrics give: `classification error` and, for outputs with two columns, `sensitivity` and `specificity`. All of
    them are over the samples of the split, not over its batches, and over those alone that have a class.

    Args:
        output: `(N, C)` floating, logits of C classes with the default criterion. In half precision, the criterion gets
            it in float32.
        classes_name: feature of the batch with the true classes: `(N,)` int64, in [0, C), or -100 for a sample without
            a class, which neither loss nor metrics count. (A criterion gives 0 for it, as those of torch do.)
        criterion_fn: called without arguments, gives the criterion: (output, truth) -> losses `(N,)` or `(N, ...)`, not
            reduced. Default: the cross entropy of each sample, which needs two columns or more.
        collect_output: whether `output_raw`, `output` and `output_truth` are kept for the whole split. The default is
            yes, because reports need them; they take the memory of all outputs of a split.
        collect_only_non_training_output: keep them, but not of batches that are trained on.
        metrics: each a `Metric`, or anything with `update`, `compute` and `reset`, such as those of torchmetrics: see
            `MetricStateful`. None is `default_classification_metrics()`. They ignore the weights.
        loss_reduction: losses -> loss, a tensor without dimensions. `torch.mean` is over the samples with a class; any
            other has the zeros of those without, and the batch counts for all its samples.
        weight_name: feature of the batch with a weight for each sample, `(N,)`, or None. Axes of weights and losses
            line up from the left, the samples: weights `(N,)` weigh losses `(N, H, W)` sample by sample.
        loss_scaling: factor of the loss (and so of `loss` in the history), to balance several heads.
        output_postprocessing: output -> predicted class `(N,)`. Default: the class with the highest score.
        maybe_optional: a batch without `classes_name` is passed over by this head instead of being an error.
        sample_uid_name: feature of the batch that identifies its samples; kept as `uid` if the batch has it. None: not.

    Raises:
        TypeError: an element of `metrics` is not one.
    """

    def __init__(
        self,
        output: torch.Tensor,
        classes_name: str,
        criterion_fn: Callable[[], Criterion] = _default_criterion,
        collect_output: bool = True,
        collect_only_non_training_output: bool = False,
        metrics: Sequence[Metric | StatefulMetric] | None = None,
        loss_reduction: Callable[[torch.Tensor], torch.Tensor] = torch.mean,
        weight_name: str | None = None,
        loss_scaling: float = 1.0,
        output_postprocessing: Callable[[torch.Tensor], torch.Tensor] = _highest_score,
        maybe_optional: bool = False,
        sample_uid_name: str | None = default_sample_uid_name,
    ) -> None:
        super().__init__(
            output,
            classes_name,
            criterion_fn,
            collect_output=collect_output,
            collect_only_non_training_output=collect_only_non_training_output,
            metrics=default_classification_metrics() if metrics is None else metrics,
            loss_reduction=loss_reduction,
            weight_name=weight_name,
            loss_scaling=loss_scaling,
            output_postprocessing=output_postprocessing,
            maybe_optional=maybe_optional,
            sample_uid_name=sample_uid_name,
        )

    @property
    def classes_name(self) -> str:
        """Feature of the batch with the true classes."""
        return self.target_name

    def _checked_truth(self, raw: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        if target.dtype != torch.int64 or target.shape != raw.shape[:1]:
            raise ValueError(
                f"the classes {self.target_name!r} must be int64 of shape {tuple(raw.shape[:1])} for outputs of shape "
                f"{tuple(raw.shape)}, got {target.dtype} of shape {tuple(target.shape)}"
            )
        return target

    def _has_target(self, truth: Any) -> Any:
        return truth != NOT_A_CLASS
