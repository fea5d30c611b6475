"""Everything about one training, in one object."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.optim import Optimizer

from trw_pipeline.batches.length import len_batch
from trw_pipeline.outputs.output import LossTerm
from trw_pipeline.training.callback import BatchCallback, Callback, HookTable, create_hook_table, owner_name
from trw_pipeline.training.finite import LossWatch, NanPolicy
from trw_pipeline.training.history import EpochOutputs, History, SplitMeter
from trw_pipeline.training.optimization import Optimization
from trw_pipeline.training.optimizers import Optimizers, Schedule, Schedulers, by_name
from trw_pipeline.training.options import Options
from trw_pipeline.typing import Batch, Datasets

_logger = logging.getLogger(__name__)

LossFn: TypeAlias = Callable[[str, Batch, Mapping[str, LossTerm]], "torch.Tensor | float"]
"""(dataset name, batch, loss terms) -> what is optimised: a tensor without dimensions, or a number if nothing is."""

OptimizersFn: TypeAlias = Callable[[Datasets, nn.Module], "tuple[Optimizers, Schedulers | None]"]


@dataclass(eq=False)
class SplitPlace:
    """Where the split at work stands, as far as only its iterator knows.

    Attributes:
        started: when the split began, by the clock of the run.
        random: states of the global generators then.
        iterator: over the batches.
        mark: of the iterator before it was asked for the next batch, where it has marks.
        kept: state of the split before its iterator was closed, or why there is none.
    """

    started: float
    random: dict[str, Any]
    iterator: Any = None
    mark: Any = None
    kept: dict[str, Any] | TypeError | None = None

    def note(self) -> None:
        """Notes where the iterator stands: what interrupts it from now on does not count."""
        if hasattr(self.iterator, "position_at"):
            self.mark = self.iterator.mark()

    def state_of(self, split: Any) -> dict[str, Any]:
        """Gives the state of the split where it was noted.

        Raises:
            TypeError: a stage of the split can not tell its position.
        """
        if self.kept is None:
            state = split.state_dict()
            return state if self.mark is None else {**state, "position": self.iterator.position_at(self.mark)}
        if isinstance(self.kept, TypeError):
            raise self.kept
        return self.kept

    def keep(self, split: Any) -> None:
        """Keeps that state, because the iterator is about to be closed before its end."""
        if hasattr(split, "state_dict"):
            try:
                self.kept = self.state_of(split)
            except TypeError as error:
                self.kept = error


@dataclass(eq=False)
class Run:
    """One training, as the loop keeps it and every hook sees it.

    The loop alone writes here, except for `stop`, `split_stopped` and the content of `batch`, which hooks may set. What
    does not exist yet at a hook is None, empty or 0; after an error all is as it was when the error came.

    Attributes:
        model: the model being trained.
        device: where model and batches are.
        options: the options of this run, its own copy.
        datasets: dataset name -> dataset.
        datasets_infos: what `inputs_fn` told of the datasets, or {}.
        optimizers: dataset name -> optimizer; None: nothing is trained.
        optimizers_fn: what made the optimizers, or None.
        schedulers: dataset name -> scheduler, or None.
        optimization: how gradients become steps.
        training_step: what is done with a batch that is trained on; None: `supervised`.
        isolate_callbacks: an error in a callback is logged, and the training goes on.
        nan_policy: what becomes of a loss that is no number.
        sound: what `capture_weights` gave when the split that is trained on began, for `nan_policy` "revert"; or None.
        watch: finds it.
        losses: dataset name -> loss function.
        callbacks_per_batch: callbacks that see each batch before the model does.
        callbacks: all `Callback`s, in the order of the lists.
        hooks: who is called when.
        clock: seconds that never run backwards; every time that is logged comes from it.
        log_dir: folder of this run, or None outside `fit`.
        seed: of all that is random in the training, or None.

        history: one entry for each epoch begun; the newest fills up split by split.
        outputs: loss terms of the newest epoch, filling up split by split; None before the first.
        epoch: the epoch at work, from 0; during the final evaluation the number of epochs trained.
        epochs: epochs to train.
        last_epoch: whether no epoch follows this one.
        stop: set by a hook: the training ends after this epoch, with its final evaluation.
        resumed: whether the training goes on from a checkpoint.
        resume_point: what was measured of the epoch and the split where it goes on, until that split begins.
        nb_epochs_done: epochs that are finished, with the one at work from `on_epoch_end` on.
        is_final: whether the final evaluation is at work, or over.
        logs: name -> file in the run folder whose length is in every checkpoint, and which is cut to it on resume.
        at_boundaries: called between two batches, and between two epochs; they may raise to end the training there.
        is_averaged: the weights have become their average: the epochs are over.
        keeps_place: whether `place` is kept up to date, for who makes checkpoints within an epoch.
        error: what ended the training, or None.

        dataset: name of the dataset at work.
        split: name of the split at work.
        training: whether the split is trained on.
        optimizer: the optimizer of the split, or None.
        loss_fn: the loss function of the split, or None before the first.
        split_model: what is put into the split where that is not `model`: an average of its weights, say.
        num_batches: batches of the split, or None where that is not known before.
        batch_index: number of the batch in its split, from 0.
        batch: the batch at work.
        terms: output -> loss term of the batch.
        loss: what is optimised: a tensor without dimensions, or a number.
        meter: what the batches of the split add up to.
        wait_s: seconds that the split has waited for batches.
        place: where the split stands, or None between splits, or where nobody wants to know.
        is_between_batches: the last batch is done and the next is waited for.
        split_stopped: set by a hook: the split ends after this batch.
        batch_counted: whether the batch is among those of the next step.

        nb_micro_batches: batches whose gradients wait for the next step.
        is_step_due: whether the next step may be made of them: there are as many as asked for, or no more will come.
        nb_steps: optimizer steps since the training began.
        nb_samples: samples trained on since the training began.
        nb_not_finite: batches left out since then because their loss was no number.
    """

    model: nn.Module
    device: torch.device
    options: Options = field(default_factory=dict[str, Any])
    datasets: Datasets = field(default_factory=dict[str, Any])
    datasets_infos: Mapping[str, Any] = field(default_factory=dict[str, Any])
    optimizers: Optimizers | None = None
    optimizers_fn: OptimizersFn | None = None
    schedulers: Schedulers | None = None
    optimization: Optimization = field(default_factory=Optimization)
    training_step: Callable[[Run], Any] | None = None
    isolate_callbacks: bool = False
    nan_policy: NanPolicy = "raise"
    sound: dict[str, Any] | None = None
    watch: LossWatch = field(default_factory=LossWatch)
    losses: Mapping[str, LossFn] = field(default_factory=dict[str, LossFn])
    callbacks_per_batch: Sequence[BatchCallback] = ()
    callbacks: Sequence[Callback] = ()
    hooks: HookTable = field(default_factory=create_hook_table)
    clock: Callable[[], float] = time.perf_counter
    log_dir: Path | None = None
    seed: int | None = None

    history: History = field(default_factory=History)
    outputs: EpochOutputs | None = None
    epoch: int = 0
    epochs: int = 0
    stop: bool = False
    resumed: bool = False
    resume_point: dict[str, Any] | None = None
    nb_epochs_done: int = 0
    is_final: bool = False
    logs: dict[str, Path] = field(default_factory=dict[str, Path])
    at_boundaries: list[Callable[[Run], Any]] = field(default_factory=list["Callable[[Run], Any]"])
    is_averaged: bool = False
    keeps_place: bool = False
    error: BaseException | None = None

    dataset: str = ""
    split: str = ""
    training: bool = False
    split_model: nn.Module | None = None
    optimizer: Optimizer | Mapping[str, Optimizer] | None = None
    step_schedules: Sequence[Schedule] = ()
    loss_fn: LossFn | None = None
    num_batches: int | None = None
    batch_index: int = 0
    batch: Batch = field(default_factory=dict[str, Any])
    terms: dict[str, LossTerm] = field(default_factory=dict[str, LossTerm])
    loss: torch.Tensor | float = 0.0
    meter: SplitMeter = field(default_factory=SplitMeter)
    wait_s: float = 0.0
    place: SplitPlace | None = None
    is_between_batches: bool = False
    split_stopped: bool = False
    batch_counted: bool = False

    nb_steps: int = 0
    nb_samples: int = 0
    nb_not_finite: int = 0

    @property
    def last_epoch(self) -> bool:
        """Whether no epoch follows this one."""
        return self.stop or self.epoch + 1 >= self.epochs

    @property
    def scaler(self) -> Any:
        """Gradient scaler of mixed precision, or None."""
        return self.optimization.scaler

    @property
    def nb_micro_batches(self) -> int:
        """Batches whose gradients wait for the next step."""
        return self.optimization.nb_waiting

    @property
    def is_step_due(self) -> bool:
        """Whether the group of batches is full, or no more batches will come."""
        optimization = self.optimization
        return optimization.nb_waiting >= optimization.accumulate or self.batch_index + 1 == self.num_batches

    def judged(self, model: nn.Module) -> nn.Module:
        """Give what is evaluated in place of the model that is trained: the average of its weights, if there is one."""
        average = self.optimization.average
        return average.module if average is not None and model is self.model else model

    def has_reached(self, dataset: str, split: str) -> bool:
        """Whether this split comes after the checkpoint from which the training goes on, or is at work in it."""
        point = self.resume_point
        return point is None or (dataset, split) == (point["dataset"], point["split"])

    def take_average(self) -> None:
        """Put the average of the weights, if there is one, in their place; it ends there."""
        average, self.optimization.average = self.optimization.average, None
        if average is not None:
            self.model.load_state_dict(average.module.state_dict())
            self.is_averaged = True

    def backward(self, loss: torch.Tensor, nb_samples: float | torch.Tensor | None = None) -> None:
        """Add the gradients of a loss of this batch; a batch may have several losses.

        Args:
            loss: a tensor without dimensions, a mean over the samples of the batch.
            nb_samples: what the batch counts for among those of its step: its samples, or the denominator that the loss
                has instead; a tensor without dimensions is not read. Counted once a batch.
        """
        if not self.batch_counted:
            self.batch_counted = True
            nb_samples = len_batch(self.batch) if nb_samples is None else nb_samples
            self.optimization.take(
                nb_samples, len_batch(self.batch) if isinstance(nb_samples, torch.Tensor) else nb_samples
            )
        self.optimization.backward(loss)
        self.fire("on_backward_end")

    def step(self, *names: str) -> None:
        """Step with the gradients that are there, and clear all of them; without an optimizer they stay.

        Args:
            *names: of the optimizers of this dataset, where it has several; without names all of them step.

        Raises:
            KeyError: there is no optimizer of that name.
        """
        optimizers = by_name(self.optimizer)
        if not optimizers:
            self.optimization.begin_group()
            return
        self.fire("on_step_start")
        chosen = {name: optimizers[name] for name in names} if names else optimizers
        stepped = self.optimization.step(chosen)
        self.batch_counted = False
        if stepped:  # else half precision overflowed
            self.nb_steps += 1
            for schedule in self.step_schedules:
                if getattr(schedule.scheduler, "optimizer", stepped[0]) in stepped:
                    schedule.scheduler.step()
        self.fire("on_step_end")

    def fire(self, name: str) -> None:
        """Call whoever wants this hook.

        Args:
            name: name of the hook.

        Raises:
            Exception: what a callback raised, with a note that names it; RuntimeError for its StopIteration, which
                would be taken for the end of some iterator.
        """
        for hook in self.hooks[name]:
            try:
                hook(self)
            except StopIteration as error:
                raise RuntimeError(
                    f"StopIteration out of the callback {owner_name(hook)} at {name}: a hook ends a split by setting "
                    f"run.split_stopped"
                ) from error
            except Exception as error:
                where = f"the callback {owner_name(hook)} at {name}, epoch {self.epoch}"
                if not self.isolate_callbacks:
                    error.add_note(f"raised by {where}")
                    raise
                _logger.exception("error in %s; the training goes on", where)

    def fire_exception(self, error: BaseException) -> None:
        """Tell all callbacks that the training ends with an error; what goes wrong in them is only logged.

        Args:
            error: what ended the training.
        """
        self.error = error
        for hook in self.hooks["on_exception"]:
            try:
                hook(self)
            except BaseException:
                # Also a second Ctrl-C: the first error is the one to report, and every callback has files to close.
                _logger.exception("the callback %s failed at on_exception", owner_name(hook))
