"""What every metric of a head promises, and how metrics of other libraries become one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np
import torch

from trw_pipeline.outputs.output import StatefulMetric, Summand, Update

MetricInputs: TypeAlias = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], tuple[torch.Tensor, ...]]
"""(raw, output, truth) -> what `update` of a stateful metric is called with."""


class Metric(ABC):
    """A figure of a split that is exact, however its samples were cut into batches; never an average of batches.

    A metric has no state, so one object may serve any number of heads.
    """

    @abstractmethod
    def measure(self, raw: torch.Tensor, output: torch.Tensor, truth: torch.Tensor) -> dict[str, Summand]:
        """Measure one batch.

        Args:
            raw: `(N, ...)`, detached output of the model.
            output: detached, `raw` after the head's postprocessing.
            truth: `(N, ...)`, the target.

        Returns:
            Name -> what is to be gathered over batches, see `Totals`: a number, or a tensor on the device of the
            output, to be added up; a tensor always of the same shape and dtype under one name. Empty if the metric
            does not apply. Nothing here may read a value of a tensor on the host, which an operation whose result has
            a shape that depends on values does too (`tensor[mask]`, `bincount`, `unique`).
        """

    @abstractmethod
    def figures(self, totals: Mapping[str, Any]) -> dict[str, float]:
        """Compute the figures of the split.

        Args:
            totals: what `measure` returned, gathered: numbers and `numpy` arrays; empty if it never returned anything.

        Returns:
            Metric name -> value. A figure that has no value (a sensitivity without a positive sample) is left out.
        """


class MetricStateful(Metric):
    """A metric with a state of its own, such as those of torchmetrics: `update` at each batch, `compute` at the end.

    Each split has a copy of the metric, empty at its start and on the device of the output; the object given here is
    never updated, so one that a model keeps and one that is made anew at each forward pass are the same to a head.
    What `compute` gives is named: a mapping by its keys (so a `MetricCollection` names what it holds), a single number
    by the class of the metric, such as `MulticlassAUROC`, and several numbers so too, with their position behind it.

    Many metrics of torchmetrics look at values on the host to check them, which stops the device at every batch; with
    `validate_args=False` they do not.

    Args:
        metric: anything with `update`, `compute` and `reset` that can be copied; where it has `to`, it is moved.
        inputs: (raw, output, truth) -> the arguments of `update`, tensors of which the first tells the device. Default:
            what is predicted, and the truth. What is predicted is `raw.softmax(1)` where the truth is a class (so
            that scores are probabilities in every batch, which torchmetrics otherwise judges by the values of each
            batch), else `output`.

    Raises:
        TypeError: `metric` lacks one of the three methods.
    """

    def __init__(self, metric: StatefulMetric, inputs: MetricInputs | None = None) -> None:
        has_methods = all(callable(getattr(metric, method, None)) for method in ("update", "compute", "reset"))
        if not has_methods or isinstance(metric, type):
            raise TypeError(
                f"a metric of a head must be a Metric or have update, compute and reset, got {_kind(metric)}"
            )
        self.metric = metric
        self.inputs: MetricInputs = inputs or _predicted_and_truth

    def measure(self, raw: torch.Tensor, output: torch.Tensor, truth: torch.Tensor) -> dict[str, Summand]:
        """Give what the metric is to be updated with."""
        return {"update": Update(self.metric, self.inputs(raw, output, truth))}

    def figures(self, totals: Mapping[str, Any]) -> dict[str, float]:
        """Name what the metric has computed."""
        if not totals:
            return {}
        computed = totals["update"]
        name = type(self.metric).__name__
        named = computed if isinstance(computed, Mapping) else {name: computed}
        return {figure: value for key, values in named.items() for figure, value in _numbered(str(key), values).items()}


def as_metrics(metrics: Iterable[Metric | StatefulMetric]) -> list[Metric]:
    """Make metrics of a head from what its user gave.

    Args:
        metrics: metrics, and objects with `update`, `compute` and `reset`.

    Returns:
        A new list, in which the latter are `MetricStateful`.

    Raises:
        TypeError: an element is neither.
    """
    return [metric if isinstance(metric, Metric) else MetricStateful(metric) for metric in metrics]


def _predicted_and_truth(
    raw: torch.Tensor, output: torch.Tensor, truth: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    is_class = not truth.is_floating_point() and raw.dim() > 1 and raw.shape[1] > 1
    return (raw.softmax(1) if is_class else output), truth


def _numbered(name: str, values: Any) -> dict[str, float]:
    array = np.asarray(values, dtype=np.float64)
    if array.size == 1:
        return {name: float(array.reshape(()))}
    return {f"{name} {index}": float(value) for index, value in enumerate(array.reshape(-1))}


def _kind(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
