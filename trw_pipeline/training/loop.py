"""The loops of the reference: train on a split, evaluate one, run an epoch of all splits."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias, cast

import torch
from torch import nn
from torch.optim import Optimizer

from trw_pipeline.outputs.output import LossTerm
from trw_pipeline.training.callback import BatchCallback, LossTermsCallback, with_batch_callbacks
from trw_pipeline.training.history import EpochHistory, EpochOutputs, History, metric_at
from trw_pipeline.training.optimizers import Optimizers, Schedule, Schedulers, by_name, schedules_of
from trw_pipeline.training.options import Options
from trw_pipeline.training.run import LossFn, Run
from trw_pipeline.training.split import SplitResult, Step, judge, one_split, supervised
from trw_pipeline.typing import Batch, Datasets, Split

BatchCallbacks: TypeAlias = tuple["Iterable[BatchCallback] | None", "Iterable[LossTermsCallback] | None"]

EpochResult: TypeAlias = tuple[EpochOutputs, EpochHistory]


def train_loop(
    device: torch.device,
    dataset_name: str,
    split_name: str,
    split: Split,
    optimizer: Optimizer | Mapping[str, Optimizer] | None,
    model: nn.Module,
    loss_fn: LossFn,
    history: History | None,
    callbacks_per_batch: Iterable[BatchCallback] | None,
    callbacks_per_batch_loss_terms: Iterable[LossTermsCallback] | None,
    apply_backward: bool = True,
    *,
    run: Run | None = None,
) -> SplitResult:
    """Train a model with one split.

    Args:
        device: where the model is; batches are moved there.
        dataset_name: name of the dataset, which each batch gets as feature `dataset_name`.
        split_name: name of the split, which each batch gets as feature `split_name`.
        split: gives the batches: dicts of features.
        optimizer: steps after each batch, or as often as the run accumulates. Gradients it had from before are cleared.
            Several by name all step, unless `run.training_step` chooses. None: nobody steps, and the gradients of all
            batches add up in the parameters.
        model: batch -> dict output name -> `Output`.
        loss_fn: (dataset name, batch, loss terms) -> what to optimise.
        history: the history so far; not read.
        callbacks_per_batch: called with (dataset name, split name, batch) before the model, in order; or None.
        callbacks_per_batch_loss_terms: called with (dataset name, split name, batch, loss terms) after the step, in
            order; or None. StopIteration of a callback ends the split; its batch counts.
        apply_backward: False: the model is in training mode, and nothing is optimised.
        run: the training this is a part of; its hooks fire. None: a training of its own without hooks.

    Returns:
        Output -> the loss terms of the split as one, and output -> metric -> value.

    Raises:
        ValueError: the split gave no batch; a batch has no samples.
        RuntimeError: StopIteration came out of the model, a head, the loss or the data.
    """
    run = run or Run(model, device)
    run.dataset, run.split, run.loss_fn = dataset_name, split_name, loss_fn
    run.training = True
    run.optimizer = optimizer
    if apply_backward:
        for one in by_name(optimizer).values():
            one.zero_grad(set_to_none=True)
    step = (run.training_step or supervised) if apply_backward else judge
    return _run_split(run, split, model, device, (callbacks_per_batch, callbacks_per_batch_loss_terms), step)


def eval_loop(
    device: torch.device,
    dataset_name: str,
    split_name: str,
    split: Split,
    model: nn.Module,
    loss_fn: LossFn,
    history: History | None,
    callbacks_per_batch: Iterable[BatchCallback] | None = None,
    callbacks_per_batch_loss_terms: Iterable[LossTermsCallback] | None = None,
    *,
    run: Run | None = None,
) -> SplitResult:
    """Evaluate a model on one split: in evaluation mode, without gradients.

    Args:
        device: where the model is; batches are moved there.
        dataset_name: name of the dataset, which each batch gets as feature `dataset_name`.
        split_name: name of the split, which each batch gets as feature `split_name`.
        split: gives the batches: dicts of features.
        model: batch -> dict output name -> `Output`.
        loss_fn: (dataset name, batch, loss terms) -> the overall loss.
        history: the history so far; not read.
        callbacks_per_batch: called with (dataset name, split name, batch) before the model, in order; or None.
        callbacks_per_batch_loss_terms: called with (dataset name, split name, batch, loss terms) after it, in order; or
            None. StopIteration of a callback ends the split; its batch counts.
        run: the training this is a part of; its hooks fire. None: without hooks.

    Returns:
        Output -> the loss terms of the split as one, and output -> metric -> value. A split without batches has no
        outputs and no metric but those of `info`.

    Raises:
        ValueError: a batch has no samples.
        RuntimeError: StopIteration came out of the model, a head, the loss or the data.
    """
    run = run or Run(model, device)
    run.dataset, run.split, run.loss_fn = dataset_name, split_name, loss_fn
    run.training = False
    run.optimizer = None
    return _run_split(run, split, model, device, (callbacks_per_batch, callbacks_per_batch_loss_terms), judge)


def epoch_train_eval(
    options: Options,
    datasets: Datasets,
    optimizers: Optimizers | None,
    model: nn.Module,
    losses: Mapping[str, LossFn],
    schedulers: Schedulers | None,
    history: History | None,
    callbacks_per_batch: Iterable[BatchCallback] | None,
    callbacks_per_batch_loss_terms: Iterable[LossTermsCallback] | None,
    run_eval: bool,
    eval_loop_fn: Callable[..., SplitResult] = eval_loop,
    train_loop_fn: Callable[..., SplitResult] = train_loop,
    *,
    run: Run | None = None,
) -> EpochResult:
    """Run one epoch: every dataset in order, every split of it in order.

    The split that `options` call `train_split` is trained on, if its dataset has an optimizer; every other split is
    evaluated, if `run_eval`; where the run averages weights, with the average. A dataset's schedulers step after the
    splits of a dataset that was trained on, those that want a metric after all datasets, if the epoch has it.

    Args:
        options: device and name of the split to train on.
        datasets: dataset name -> split name -> split.
        optimizers: dataset name -> optimizer. None, or none for a dataset: it is only evaluated.
        model: the model.
        losses: dataset name -> loss function.
        schedulers: dataset name -> scheduler, or None.
        history: the history so far.
        callbacks_per_batch: see `train_loop`.
        callbacks_per_batch_loss_terms: see `train_loop`.
        run_eval: whether to evaluate.
        eval_loop_fn: called like `eval_loop`.
        train_loop_fn: called like `train_loop`. Either gets `run` too if it takes that keyword.
        run: the training this is a part of. Its epoch is told to each split that has a `set_epoch`. None: no hooks, and
            splits count their epochs themselves.

    Returns:
        Dataset -> split -> output -> loss term, and dataset -> split -> output -> metric -> value; without the splits
        that were not run.

    Raises:
        ValueError: a scheduler wants a metric that the first epoch has not, though all splits ran.
    """
    device = options["workflow_options"]["device"]
    train_split = options["workflow_options"]["train_split"]
    of_epoch = run or Run(model, device)

    def result_of(dataset: str, name: str, split: Split, optimizer: Any) -> SplitResult | None:
        if not of_epoch.has_reached(dataset, name):
            return _done(of_epoch, dataset, name)
        if optimizer is None and not run_eval:
            return None
        if run is not None and hasattr(split, "set_epoch"):
            cast("Any", split).set_epoch(run.epoch)
        where = (device, dataset, name, split)
        how = (losses[dataset], history, callbacks_per_batch, callbacks_per_batch_loss_terms)
        if optimizer is None:
            return eval_loop_fn(*where, of_epoch.judged(model), *how, **run_keyword(eval_loop_fn, of_epoch))
        return train_loop_fn(*where, optimizer, model, *how, **run_keyword(train_loop_fn, of_epoch))

    outputs: EpochOutputs = {}
    epoch: EpochHistory = {}
    trained: list[Schedule] = []
    for dataset_name, dataset in datasets.items():
        optimizer = (optimizers or {}).get(dataset_name)
        schedules = schedules_of(schedulers, dataset_name)
        of_epoch.step_schedules = [schedule for schedule in schedules if schedule.every == "step"]
        for split_name, split in dataset.items():
            result = result_of(dataset_name, split_name, split, optimizer if split_name == train_split else None)
            if result is not None:
                outputs.setdefault(dataset_name, {})[split_name] = result[0]
                epoch.setdefault(dataset_name, {})[split_name] = result[1]
        if optimizer is not None and train_split in dataset:
            trained += schedules
            if of_epoch.resume_point is None:  # else they stepped before the checkpoint was made
                _step([schedule for schedule in schedules if schedule.metric is None])
    is_first = run_eval and of_epoch.epoch == 0
    _step([schedule for schedule in trained if schedule.metric is not None], epoch, is_first)
    return outputs, epoch


def default_sum_all_losses(dataset_name: str, batch: Batch, loss_terms: Mapping[str, LossTerm]) -> torch.Tensor | float:
    """Add the losses of all heads.

    Args:
        dataset_name: name of the dataset.
        batch: the batch.
        loss_terms: output -> loss term; those without `loss` are not optimised.

    Returns:
        The sum, with its graph; 0.0 if no term has a loss.
    """
    losses = [term["loss"] for term in loss_terms.values() if "loss" in term]
    return sum(losses[1:], losses[0]) if losses else 0.0


def create_losses_fn(datasets: Datasets, generic_loss: LossFn) -> dict[str, LossFn]:
    """Give each dataset the same loss function.

    Args:
        datasets: only their names matter.
        generic_loss: the loss function.

    Returns:
        Dataset name -> loss function.
    """
    return dict.fromkeys(datasets, generic_loss)


def trainer_callbacks_per_batch(dataset_name: str, split_name: str, batch: Batch) -> None:
    """Replace each feature of a batch that is callable by what it returns for the batch.

    So a batch may ask for values that are made anew for it, on its device: the noise of a generative model.

    Args:
        dataset_name: name of the dataset.
        split_name: name of the split.
        batch: the batch to edit.
    """
    for name, value in list(batch.items()):
        if callable(value):
            batch[name] = value(batch)


def _done(run: Run, dataset: str, split: str) -> SplitResult | None:
    """What a split gave before the checkpoint was made from which the training goes on; None: it did not run."""
    assert run.resume_point is not None, "else there is nothing before it"
    history: EpochHistory = run.resume_point["history"]
    if split not in history.get(dataset, {}):
        return None
    return run.resume_point["outputs"].get(dataset, {}).get(split, {}), history[dataset][split]


def _step(schedules: Iterable[Schedule], epoch: EpochHistory | None = None, has_all_splits: bool = False) -> None:
    """Step what steps once an epoch; with the metric that it wants, if the epoch has it."""
    for schedule in schedules:
        value = None if schedule.metric is None or epoch is None else metric_at(epoch, schedule.metric, has_all_splits)
        if value is not None:
            schedule.scheduler.step(value)
        elif schedule.metric is None and schedule.every == "epoch":
            schedule.scheduler.step()


def run_keyword(function: Callable[..., Any], run: Run | None) -> dict[str, Run]:
    """Make the keyword arguments that hand `run` to a function which stands in for a documented one.

    Args:
        function: what is to be called.
        run: the training, or None.

    Returns:
        `{"run": run}` if there is a run and the function takes that keyword, which the documented signatures have not;
        else {}.
    """
    parameters = inspect.signature(function).parameters.values()
    takes_run = any(parameter.name == "run" or parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    return {"run": run} if run is not None and takes_run else {}


def _run_split(
    run: Run, split: Split, model: nn.Module, device: torch.device, callbacks: BatchCallbacks, step: Step
) -> SplitResult:
    """Run a split with a model, which need not be that of the run, and with the callbacks of batches hung in."""
    before = run.hooks, run.split_model, run.device
    run.hooks, run.split_model, run.device = with_batch_callbacks(run.hooks, *callbacks), model, device
    try:
        return one_split(run, split, step)
    finally:
        run.hooks, run.split_model, run.device = before
