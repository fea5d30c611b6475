"""Optimizers and learning rate schedulers, one for each dataset."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, StepLR

from trw_pipeline.typing import Datasets

Optimizers: TypeAlias = dict[str, Optimizer]
Schedulers: TypeAlias = dict[str, LRScheduler]
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
    return optimizers, {name: scheduler_fn(optimizer) for name, optimizer in optimizers.items()}


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


def learning_rates(optimizers: Mapping[str, Optimizer] | None) -> dict[str, float]:
    """List the present learning rates.

    Args:
        optimizers: dataset name -> optimizer, or None.

    Returns:
        Dataset name -> rate of its first parameter group; further groups are named `<dataset>/<number>`, from 1.
    """
    return {
        f"{name}/{number}" if number else name: float(group["lr"])
        for name, optimizer in (optimizers or {}).items()
        for number, group in enumerate(optimizer.param_groups)
    }
