"""The head of a regression."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

from trw_pipeline.outputs.metrics import Metric
from trw_pipeline.outputs.output import Criterion, StatefulMetric
from trw_pipeline.outputs.regression_metrics import default_regression_metrics
from trw_pipeline.outputs.targeted import OutputWithTarget
from trw_pipeline.typing import default_sample_uid_name

_squared_errors = functools.partial(F.mse_loss, reduction="none")


def _default_criterion() -> Criterion:
    return _squared_errors


def _as_it_is(raw: torch.Tensor) -> torch.Tensor:
    return raw


class OutputRegression(OutputWithTarget):
    """Judges numbers against the true numbers of each sample.

    The loss of a batch is `loss_reduction(losses * weights) * loss_scaling`. Its history has `loss` and what the
    metrics give: `mean absolute error` and `r2`. All of them are over the samples of the split, not over its batches.

    Args:
        output: `(N, ...)` floating. In half precision, the criterion gets it in float32.
        target_name: feature of the batch with the true numbers: the shape of the output exactly, because `(N,)` against
            `(N, 1)` would compare each sample with all others. Integers are converted to the type of the output.
        criterion_fn: called without arguments, gives the criterion: (output, truth) -> losses `(N,)` or `(N, ...)`, not
            reduced. Default: the squared error of each number.
        collect_output: whether `output_raw`, `output` and `output_truth` are kept for the whole split: see
            `OutputClassification`.
        collect_only_non_training_output: keep them, but not of batches that are trained on.
        metrics: each a `Metric`, or anything with `update`, `compute` and `reset`: see `MetricStateful`. None is
            `default_regression_metrics()`. They ignore the weights.
        loss_reduction: losses -> loss, a tensor without dimensions. Default: the mean of all numbers.
        weight_name: feature of the batch with a weight for each sample, `(N,)`, or None: see `OutputClassification`.
        loss_scaling: factor of the loss (and so of `loss` in the history), to balance several heads.
        output_postprocessing: output -> what is collected and measured, of the shape of the target. Default: nothing is
            changed.
        sample_uid_name: feature of the batch that identifies its samples; kept as `uid` if the batch has it. None: not.

    Raises:
        TypeError: an element of `metrics` is not one.
    """

    def __init__(
        self,
        output: torch.Tensor,
        target_name: str,
        criterion_fn: Callable[[], Criterion] = _default_criterion,
        collect_output: bool = True,
        collect_only_non_training_output: bool = False,
        metrics: Sequence[Metric | StatefulMetric] | None = None,
        loss_reduction: Callable[[torch.Tensor], torch.Tensor] = torch.mean,
        weight_name: str | None = None,
        loss_scaling: float = 1.0,
        output_postprocessing: Callable[[torch.Tensor], torch.Tensor] = _as_it_is,
        sample_uid_name: str | None = default_sample_uid_name,
    ) -> None:
        super().__init__(
            output,
            target_name,
            criterion_fn,
            collect_output=collect_output,
            collect_only_non_training_output=collect_only_non_training_output,
            metrics=default_regression_metrics() if metrics is None else metrics,
            loss_reduction=loss_reduction,
            weight_name=weight_name,
            loss_scaling=loss_scaling,
            output_postprocessing=output_postprocessing,
            sample_uid_name=sample_uid_name,
        )

    def _checked_truth(self, raw: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        if target.shape != raw.shape or target.is_complex():
            raise ValueError(
                f"the target {self.target_name!r} of a regression must be of numbers of shape {tuple(raw.shape)}, that "
                f"of the output, got {target.dtype} of shape {tuple(target.shape)}"
            )
        return target if target.is_floating_point() else target.to(raw.dtype)
