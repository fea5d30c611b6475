"""What heads that compare their output with a target have in common: losses, weights, collecting, metrics."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from trw_pipeline.outputs.metrics import Metric, as_metrics
from trw_pipeline.outputs.output import Criterion, LossTerm, Output, StatefulMetric, Totals
from trw_pipeline.outputs.precision import at_least_float32
from trw_pipeline.typing import Batch


class OutputWithTarget(Output):
    """A head that judges its output against a feature of the batch.

    The loss of a batch is `loss_reduction(losses * weights) * loss_scaling`, in float32 where the output has less. The
    history has `loss` and what the metrics give, over the samples of the split, not over its batches. Where a target
    says that it is none, the mean is over the others, of a batch as of a split and of a group of batches.

    What the arguments mean is told by the heads that users make, first of all by `OutputClassification`.
    """

    fleeting = ("nb_judged",)

    def __init__(
        self,
        output: torch.Tensor,
        target_name: str,
        criterion_fn: Callable[[], Criterion],
        *,
        collect_output: bool,
        collect_only_non_training_output: bool,
        metrics: Sequence[Metric | StatefulMetric],
        loss_reduction: Callable[[torch.Tensor], torch.Tensor],
        weight_name: str | None,
        loss_scaling: float,
        output_postprocessing: Callable[[torch.Tensor], torch.Tensor],
        sample_uid_name: str | None,
        maybe_optional: bool = False,
    ) -> None:
        super().__init__(output, criterion_fn, collect_output=collect_output, sample_uid_name=sample_uid_name)
        self.target_name = target_name
        self.collect_only_non_training_output = collect_only_non_training_output
        self.metrics = as_metrics(metrics)
        self.loss_reduction = loss_reduction
        self.weight_name = weight_name
        self.loss_scaling = loss_scaling
        self.output_postprocessing = output_postprocessing
        self.maybe_optional = maybe_optional

    def evaluate_batch(self, batch: Batch, is_training: bool) -> LossTerm | None:
        """Judge the output of one batch.

        Args:
            batch: has the target and, where named, the weights, on the device of the output.
            is_training: whether the batch is trained on.

        Returns:
            None if the target is absent and `maybe_optional`; else `loss` (with its graph), `nb_judged` where that may
            be fewer samples than there are, `losses` (weighted, not scaled), `metrics`, `output_ref`, `uid` if the
            batch has it, and where outputs are collected `output_raw`, `output` and `output_truth`, all `(N, ...)`.
            Where they are, `losses` has the shape that the criterion gives; else `(N,)`, their mean by sample, so that
            no more than a number for each sample is kept.

        Raises:
            ValueError: the target or the weights are absent, or not a tensor of the right shape and dtype; or the
                criterion or the postprocessing gave something of another shape.
            RuntimeError: the output is gone, because this head has judged its batch.
        """
        raw: torch.Tensor = self._unjudged()
        if self.target_name not in batch and self.maybe_optional:
            return None
        truth = self._checked_truth(raw, self._tensor_of(batch, self.target_name))
        losses = self._losses(batch, raw, truth)
        loss, nb_judged = self._reduced(losses, truth)
        raw, losses = raw.detach(), losses.detach()
        output = self.output_postprocessing(raw)
        if output.shape != truth.shape:
            raise ValueError(
                f"output_postprocessing of {self.target_name!r} must give the shape of the target, "
                f"{tuple(truth.shape)}, got {tuple(output.shape)}"
            )
        is_collected = self.collect_output and not (is_training and self.collect_only_non_training_output)
        term = self._term(
            batch,
            losses=losses if is_collected or losses.dim() == 1 else losses.flatten(1).mean(1),
            loss=loss if self.loss_scaling == 1.0 else loss * self.loss_scaling,
            metrics=Totals(
                ((index, name), summand)
                for index, metric in enumerate(self.metrics)
                for name, summand in metric.measure(raw, output, truth).items()
            ),
        )
        if is_collected:
            term |= {"output_raw": raw, "output": output, "output_truth": truth}
        if nb_judged is not None:
            term["nb_judged"] = nb_judged
        return term

    def extract_history(self, outputs: Mapping[str, Any]) -> dict[str, float]:
        """Give `loss` and the figures of the metrics.

        Args:
            outputs: the loss terms of the split as one.

        Returns:
            Metric name -> value.

        Raises:
            ValueError: two metrics give a figure of the same name.
        """
        figures = {"loss": float(outputs["loss"])}
        for index, metric in enumerate(self.metrics):
            totals = {name: value for (owner, name), value in outputs["metrics"].items() if owner == index}
            more = metric.figures(totals)
            if twice := sorted(figures.keys() & more.keys()):
                raise ValueError(
                    f"two metrics of {self.target_name!r} must not have figures of the same name, got {twice}: give "
                    f"the one of {type(metric).__name__} another, or a name by a MetricCollection"
                )
            figures |= more
        return figures

    @abstractmethod
    def _checked_truth(self, raw: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """The target as criterion and metrics take it.

        Raises:
            ValueError: it does not fit the output.
        """

    def _has_target(self, truth: Any) -> Any:
        """Where the target is one, elsewhere the losses are 0: a mask, array or tensor as it is; None: everywhere."""
        return None

    def _reduced(self, losses: torch.Tensor, truth: torch.Tensor) -> tuple[torch.Tensor, float | torch.Tensor | None]:
        """The loss of the batch, and how many samples it is a mean over where that may be fewer than there are.

        What a reduction of the user's makes of zeros only he knows.
        """
        loss = self.loss_reduction(losses)
        # As an array, on the CPU, it takes a third of the time.
        mask = self._has_target(truth.numpy() if truth.is_cpu else truth) if self.loss_reduction is torch.mean else None
        if mask is None:
            return loss, None
        if losses.shape != truth.shape:  # a loss for each sample, of whatever points it has
            mask = mask.reshape(len(truth), -1).any(1)
        if isinstance(mask, torch.Tensor):
            share = mask.count_nonzero() / mask.numel()
            return loss / torch.where(share > 0, share, 1.0), share * len(truth)
        nb_counted = np.count_nonzero(mask)
        if nb_counted == mask.size:
            return loss, None
        share = nb_counted / mask.size
        return loss / (share or 1.0), share * len(truth)

    def _tensor_of(self, batch: Batch, name: str) -> torch.Tensor:
        if name not in batch:
            raise ValueError(
                f"{type(self).__name__} needs the feature {name!r} in the batch, which has {sorted(batch)}"
            )
        value = batch[name]
        if not isinstance(value, torch.Tensor):
            raise ValueError(f"the feature {name!r} must be a tensor, got {type(value).__name__}")
        return value

    def _losses(self, batch: Batch, raw: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
        assert self.criterion_fn is not None  # the constructor takes no None
        losses = self.criterion_fn()(at_least_float32(raw), truth)
        if losses.shape[:1] != raw.shape[:1]:
            raise ValueError(
                f"the criterion of {self.target_name!r} must give losses of shape ({len(raw)}, ...), one or more for "
                f"each sample (reduction='none'), got {tuple(losses.shape)}"
            )
        if self.weight_name is None:
            return losses
        return losses * _aligned(self._tensor_of(batch, self.weight_name), losses, self.weight_name)


def _aligned(weights: torch.Tensor, losses: torch.Tensor, name: str) -> torch.Tensor:
    """The weights with as many axes as the losses: missing axes are added on the right."""
    nb_missing = losses.dim() - weights.dim()
    if weights.shape[:1] != losses.shape[:1] or nb_missing < 0:
        raise ValueError(
            f"the weights {name!r} must be of shape ({len(losses)},), one for each sample of losses of shape "
            f"{tuple(losses.shape)}, got {tuple(weights.shape)}"
        )
    return weights.reshape(weights.shape + (1,) * nb_missing)
