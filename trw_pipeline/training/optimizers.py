"""Optimizers and learning rate schedulers, one for each dataset."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau, StepLR

from trw_pipeline.typing import Datasets

Optimizers: TypeAlias = "dict[str, Optimizer | dict[str, Optimizer]]"
"""Dataset name -> its optimizer, or several by name for a model with parts that are trained against each other."""

MetricPath: TypeAlias = tuple[str, str, str, str]
"""Where a metric stands in an epoch of the history: (dataset, split, output, metric)."""


@dataclass(frozen=True)
class Schedule:
    """When a scheduler steps, where that is not once an epoch.

    Args:
        scheduler: what sets the learning rate.
        every: "epoch": when the splits of its dataset are done; "step": after every step of its optimizer.
        metric: the scheduler is given this metric, at the end of each epoch that has it, as
            `torch.optim.lr_scheduler.ReduceLROnPlateau` wants it; or None. One that the first epoch has not is an
            error.

    Raises:
        ValueError: `every` is none of the two; a metric is asked for at every step, or none for ReduceLROnPlateau.
    """

    scheduler: Any
    every: Literal["epoch", "step"] = "epoch"
    metric: MetricPath | None = None

    def __post_init__(self) -> None:
        if self.every not in ("epoch", "step"):
            raise ValueError(f"every must be 'epoch' or 'step', got {self.every!r}")
        if self.metric is not None and self.every == "step":
            raise ValueError(f"metrics are known when an epoch ends: every must be 'epoch' with metric={self.metric}")
        if self.metric is None and isinstance(self.scheduler, ReduceLROnPlateau):
            raise ValueError(
                "ReduceLROnPlateau follows a metric, got none: give Schedule(scheduler, metric=(dataset, split, "
                "output, metric))"
            )


Schedulers: TypeAlias = "dict[str, LRScheduler | Schedule | Sequence[LRScheduler | Schedule]]"
"""Dataset name -> scheduler, or several; one that is no `Schedule` steps once an epoch."""
OptimizerFn: TypeAlias = Callable[[Iterable[nn.Parameter]], Optimizer]
SchedulerFn: TypeAlias = Callable[[Optimizer], LRScheduler]


def create_optimizers_fn(
    datasets: Datasets, model: nn.Module, optimizer_fn: OptimizerFn, scheduler_fn: SchedulerFn | None = None
) -> tuple[Optimizers, Schedulers | None]:
    """Make an optimizer, and if wanted a scheduler, for each dataset.

    Args:
        datasets: only their names matter.
        model: for a `ModuleDict` each dataset gets the parameters of `model[dataset_name]`, else all of them get the
            parameters of the whole model.
        optimizer_fn: parameters -> optimizer.
        scheduler_fn: optimizer -> scheduler, which the training loop steps once an epoch; or None.

    Returns:
        Dataset name -> optimizer, and dataset name -> scheduler or None.

    Raises:
        ValueError: a `ModuleDict` has no module for a dataset.
    """
    optimizers: Optimizers = {}
    for dataset_name in datasets:
        if isinstance(model, nn.ModuleDict):
            if dataset_name not in model:
                raise ValueError(f"a ModuleDict needs a module for each dataset, and has none for {dataset_name!r}")
            optimizers[dataset_name] = optimizer_fn(model[dataset_name].parameters())
        else:
            optimizers[dataset_name] = optimizer_fn(model.parameters())
    if scheduler_fn is None:
        return optimizers, None
    return optimizers, {name: scheduler_fn(cast("Optimizer", optimizer)) for name, optimizer in optimizers.items()}


def create_sgd_optimizers_fn(
    datasets: Datasets,
    model: nn.Module,
    learning_rate: float,
    momentum: float = 0.9,
    weight_decay: float = 0,
    scheduler_fn: SchedulerFn | None = None,
) -> tuple[Optimizers, Schedulers | None]:
    """Make a stochastic gradient descent with momentum for each dataset.

    Args:
        datasets: only their names matter.
        model: what to optimise, as in `create_optimizers_fn`.
        learning_rate: initial learning rate.
        momentum: share of the last step that is kept.
        weight_decay: L2 penalty.
        scheduler_fn: optimizer -> scheduler, or None.

    Returns:
        As `create_optimizers_fn`.
    """
    optimizer_fn = functools.partial(torch.optim.SGD, lr=learning_rate, momentum=momentum, weight_decay=weight_decay)
    return create_optimizers_fn(datasets, model, optimizer_fn, scheduler_fn)


def create_adam_optimizers_fn(
    datasets: Datasets,
    model: nn.Module,
    learning_rate: float,
    weight_decay: float = 0,
    scheduler_fn: SchedulerFn | None = None,
) -> tuple[Optimizers, Schedulers | None]:
    """Make an Adam optimizer for each dataset.

    Args:
        datasets: only their names matter.
        model: what to optimise, as in `create_optimizers_fn`.
        learning_rate: initial learning rate.
        weight_decay: L2 penalty.
        scheduler_fn: optimizer -> scheduler, or None.

    Returns:
        As `create_optimizers_fn`.
    """
    optimizer_fn = functools.partial(torch.optim.Adam, lr=learning_rate, weight_decay=weight_decay)
    return create_optimizers_fn(datasets, model, optimizer_fn, scheduler_fn)


def create_scheduler_step_lr(optimizer: Optimizer, step_size: int = 30, gamma: float = 0.1) -> LRScheduler:
    """Make a scheduler that multiplies the learning rate by `gamma` every `step_size` epochs.

    Args:
        optimizer: whose learning rate.
        step_size: epochs of one step.
        gamma: factor of the learning rate at each step.

    Returns:
        The scheduler.
    """
    return StepLR(optimizer, step_size=step_size, gamma=gamma)


def create_sgd_optimizers_scheduler_step_lr_fn(
    datasets: Datasets,
    model: nn.Module,
    learning_rate: float,
    step_size: int,
    gamma: float,
    weight_decay: float = 0,
    momentum: float = 0.9,
) -> tuple[Optimizers, Schedulers | None]:
    """Make a stochastic gradient descent with a step scheduler for each dataset.

    Args:
        datasets: only their names matter.
        model: what to optimise, as in `create_optimizers_fn`.
        learning_rate: initial learning rate.
        step_size: epochs of one step of the scheduler.
        gamma: factor of the learning rate at each step.
        weight_decay: L2 penalty.
        momentum: share of the last step that is kept.

    Returns:
        As `create_optimizers_fn`, with schedulers.
    """
    scheduler_fn = functools.partial(create_scheduler_step_lr, step_size=step_size, gamma=gamma)
    return create_sgd_optimizers_fn(datasets, model, learning_rate, momentum, weight_decay, scheduler_fn)


def create_adam_optimizers_scheduler_step_lr_fn(
    datasets: Datasets,
    model: nn.Module,
    learning_rate: float,
    step_size: int,
    gamma: float,
    weight_decay: float = 0,
) -> tuple[Optimizers, Schedulers | None]:
    """Make an Adam optimizer with a step scheduler for each dataset.

    Args:
        datasets: only their names matter.
        model: what to optimise, as in `create_optimizers_fn`.
        learning_rate: initial learning rate.
        step_size: epochs of one step of the scheduler.
        gamma: factor of the learning rate at each step.
        weight_decay: L2 penalty.

    Returns:
        As `create_optimizers_fn`, with schedulers.
    """
    scheduler_fn = functools.partial(create_scheduler_step_lr, step_size=step_size, gamma=gamma)
    return create_adam_optimizers_fn(datasets, model, learning_rate, weight_decay, scheduler_fn)


def set_optimizer_learning_rate(optimizer: Optimizer, learning_rate: float) -> None:
    """Set the learning rate of all parameter groups of an optimizer.

    A scheduler of this optimizer keeps its own idea of the rate, and may set that again at its next step.

    Args:
        optimizer: the optimizer to change.
        learning_rate: the new rate.
    """
    for group in optimizer.param_groups:
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(learning_rate)  # a captured graph reads the rate from this very tensor
        else:
            group["lr"] = learning_rate


def learning_rates(optimizers: Optimizers | None) -> dict[str, float]:
    """List the present learning rates.

    Args:
        optimizers: dataset name -> optimizer, or several by name, or None.

    Returns:
        Dataset name -> rate of its first parameter group; further groups are named `<dataset>/<number>`, from 1, and
        those of an optimizer with a name `<dataset>/<name>`, `<dataset>/<name>/<number>`.
    """
    return {
        "/".join([dataset, *filter(None, [name]), *([str(number)] if number else [])]): float(group["lr"])
        for dataset, of_dataset in (optimizers or {}).items()
        for name, optimizer in by_name(of_dataset).items()
        for number, group in enumerate(optimizer.param_groups)
    }


def by_name(optimizers: Optimizer | Mapping[str, Optimizer] | None) -> Mapping[str, Optimizer]:
    """Name the optimizers of a dataset: a single one is called ''."""
    if optimizers is None:
        return {}
    return {"": optimizers} if isinstance(optimizers, Optimizer) else optimizers


def schedules_of(schedulers: Schedulers | None, dataset: str) -> list[Schedule]:
    """List the schedules of a dataset."""
    given: Any = (schedulers or {}).get(dataset, ())
    every: list[Any] = list(cast("Sequence[Any]", given)) if isinstance(given, Sequence) else [given]
    return [one if isinstance(one, Schedule) else Schedule(one) for one in every]
