"""The head of a classification."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from trw_pipeline.outputs.metrics import Metric, default_classification_metrics
from trw_pipeline.outputs.output import Criterion, LossTerm, Output, Totals
from trw_pipeline.typing import Batch, default_sample_uid_name

_highest_score = functools.partial(torch.argmax, dim=1)
_cross_entropy_of_samples = functools.partial(F.cross_entropy, reduction="none")


def _default_criterion() -> Criterion:
    return _cross_entropy_of_samples


class OutputClassification(Output):
    """Judges scores of classes against the true class of each sample.

    The loss of a batch is `loss_reduction(losses * weights) * loss_scaling`. Its history has `loss` and what the
    metrics give: `classification error` and, for outputs with two columns, `sensitivity` and `specificity`. All of
    them are over the samples of the split, not over its batches.

    Args:
        output: `(N, C)` floating, logits of C classes with the default criterion.
        classes_name: feature of the batch with the true classes: `(N,)` int64, in [0, C).
        criterion_fn: called without arguments, gives the criterion: (output, truth) -> losses `(N,)` or `(N, ...)`, not
            reduced. Default: the cross entropy of each sample.
        collect_output: whether `output_raw`, `output` and `output_truth` are kept for the whole split. The default is
            yes, because reports need them; they take the memory of all outputs of a split.
        collect_only_non_training_output: keep them, but not of batches that are trained on.
        metrics: None is `default_classification_metrics()`. They ignore the weights.
        loss_reduction: losses -> loss, a tensor without dimensions.
        weight_name: feature of the batch with a weight for each sample, `(N,)`, or None. Axes of weights and losses
            line up from the left, the samples: weights `(N,)` weigh losses `(N, H, W)` sample by sample.
        loss_scaling: factor of the loss (and so of `loss` in the history), to balance several heads.
        output_postprocessing: output -> predicted class `(N,)`. Default: the class with the highest score.
        maybe_optional: a batch without `classes_name` is passed over by this head instead of being an error.
        sample_uid_name: feature of the batch that identifies its samples; kept as `uid` if the batch has it. None: not.
    """

    def __init__(
        self,
        output: torch.Tensor,
        classes_name: str,
        criterion_fn: Callable[[], Criterion] = _default_criterion,
        collect_output: bool = True,
        collect_only_non_training_output: bool = False,
        metrics: Sequence[Metric] | None = None,
        loss_reduction: Callable[[torch.Tensor], torch.Tensor] = torch.mean,
        weight_name: str | None = None,
        loss_scaling: float = 1.0,
        output_postprocessing: Callable[[torch.Tensor], torch.Tensor] = _highest_score,
        maybe_optional: bool = False,
        sample_uid_name: str | None = default_sample_uid_name,
    ) -> None:
        super().__init__(output, criterion_fn, collect_output=collect_output, sample_uid_name=sample_uid_name)
        self.classes_name = classes_name
        self.collect_only_non_training_output = collect_only_non_training_output
        self.metrics = default_classification_metrics() if metrics is None else metrics
        self.loss_reduction = loss_reduction
        self.weight_name = weight_name
        self.loss_scaling = loss_scaling
        self.output_postprocessing = output_postprocessing
        self.maybe_optional = maybe_optional

    def evaluate_batch(self, batch: Batch, is_training: bool) -> LossTerm | None:
        """Judge the output of one batch.

        Args:
            batch: has the true classes and, where named, the weights, on the device of the output.
            is_training: whether the batch is trained on.

        Returns:
            None if the true classes are absent and `maybe_optional`; else `loss` (with its graph), `losses`
            (`(N, ...)`, weighted, not scaled), `metrics`, `output_ref`, `uid` if the batch has it, and where outputs
            are collected `output_raw` `(N, C)`, `output` `(N,)` and `output_truth` `(N,)` int64.

        Raises:
            ValueError: the true classes or the weights are absent, or not a tensor of the right shape and dtype; or the
                criterion or the postprocessing gave something that is not by sample.
            RuntimeError: the output is gone, because this head has judged its batch.
        """
        raw = self.output
        if raw is None:
            raise RuntimeError("a head judges one batch: its output is gone once that batch is done")
        truth = self._truth(batch, raw)
        if truth is None:
            return None
        losses = self._losses(batch, raw, truth)
        loss = self.loss_reduction(losses)
        detached = raw.detach()
        output = self.output_postprocessing(detached)
        if output.shape != truth.shape:
            raise ValueError(
                f"output_postprocessing of {self.classes_name!r} must give classes of shape {tuple(truth.shape)}, "
                f"got {tuple(output.shape)}"
            )
        term: LossTerm = {
            "losses": losses.detach(),
            "loss": loss if self.loss_scaling == 1.0 else loss * self.loss_scaling,
            "metrics": Totals(
                ((index, name), count)
                for index, metric in enumerate(self.metrics)
                for name, count in metric.measure(detached, output, truth).items()
            ),
            self.output_ref_tag: self,
        }
        if self.sample_uid_name is not None and self.sample_uid_name in batch:
            term["uid"] = batch[self.sample_uid_name]
        if self.collect_output and not (is_training and self.collect_only_non_training_output):
            term |= {"output_raw": detached, "output": output, "output_truth": truth}
        return term

    def extract_history(self, outputs: Mapping[str, Any]) -> dict[str, float]:
        """Give `loss` and the figures of the metrics.

        Args:
            outputs: the loss terms of the split as one.

        Returns:
            Metric name -> value.
        """
        figures = {"loss": float(outputs["loss"])}
        for index, metric in enumerate(self.metrics):
            totals = {name: value for (owner, name), value in outputs["metrics"].items() if owner == index}
            figures |= metric.figures(totals)
        return figures

    def _truth(self, batch: Batch, raw: torch.Tensor) -> torch.Tensor | None:
        name = self.classes_name
        if name not in batch:
            if self.maybe_optional:
                return None
            raise ValueError(f"a classification needs the feature {name!r} in the batch, which has {sorted(batch)}")
        truth = batch[name]
        if not isinstance(truth, torch.Tensor):
            raise ValueError(f"the classes {name!r} must be a tensor, got {type(truth).__name__}")
        if truth.dtype != torch.int64 or truth.shape != raw.shape[:1]:
            raise ValueError(
                f"the classes {name!r} must be int64 of shape {tuple(raw.shape[:1])} for outputs of shape "
                f"{tuple(raw.shape)}, got {truth.dtype} of shape {tuple(truth.shape)}"
            )
        return truth

    def _losses(self, batch: Batch, raw: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
        assert self.criterion_fn is not None  # the constructor takes no None
        losses = self.criterion_fn()(raw, truth)
        if losses.shape[:1] != raw.shape[:1]:
            raise ValueError(
                f"the criterion of {self.classes_name!r} must give losses of shape ({len(raw)}, ...), one or more for "
                f"each sample (reduction='none'), got {tuple(losses.shape)}"
            )
        if self.weight_name is None:
            return losses
        return losses * _weights(batch, self.weight_name, losses)


def _weights(batch: Batch, name: str, losses: torch.Tensor) -> torch.Tensor:
    """The weights with as many axes as the losses: missing axes are added on the right."""
    weights = batch.get(name)
    if not isinstance(weights, torch.Tensor):
        found = "nothing" if weights is None else type(weights).__name__
        raise ValueError(f"the weights {name!r} must be a tensor in the batch, got {found}")
    nb_missing = losses.dim() - weights.dim()
    if weights.shape[:1] != losses.shape[:1] or nb_missing < 0:
        raise ValueError(
            f"the weights {name!r} must be of shape ({len(losses)},), one for each sample of losses of shape "
            f"{tuple(losses.shape)}, got {tuple(weights.shape)}"
        )
    return weights.reshape(weights.shape + (1,) * nb_missing)
