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

from trw_pipeline.outputs.output import LossTerm
from trw_pipeline.training.callback import BatchCallback, HookTable, create_hook_table, owner_name
from trw_pipeline.training.history import EpochOutputs, History, SplitMeter
from trw_pipeline.training.optimizers import Optimizers, Schedulers
from trw_pipeline.training.options import Options
from trw_pipeline.typing import Batch, Datasets

_logger = logging.getLogger(__name__)

LossFn: TypeAlias = Callable[[str, Batch, Mapping[str, LossTerm]], "torch.Tensor | float"]
"""(dataset name, batch, loss terms) -> what is optimised: a tensor without dimensions, or a number if nothing is."""

OptimizersFn: TypeAlias = Callable[[Datasets, nn.Module], "tuple[Optimizers, Schedulers | None]"]


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
        scaler: gradient scaler of mixed precision, or None.
        losses: dataset name -> loss function.
        callbacks_per_batch: callbacks that see each batch before the model does.
        hooks: who is called when.
        clock: seconds that never run backwards; every time that is logged comes from it.
        log_dir: folder of this run, or None outside `fit`.

        history: one entry for each epoch begun; the newest fills up split by split.
        outputs: loss terms of the newest epoch, filling up split by split; None before the first.
        epoch: the epoch at work, from 0; during the final evaluation the number of epochs trained.
        epochs: epochs to train.
        last_epoch: whether no epoch follows this one.
        stop: set by a hook: the training ends after this epoch, with its final evaluation.
        resumed: whether the training goes on from a checkpoint.
        error: what ended the training, or None.

        dataset: name of the dataset at work.
        split: name of the split at work.
        training: whether the split is trained on.
        optimizer: the optimizer of the split, or None.
        loss_fn: the loss function of the split, or None before the first.
        num_batches: batches of the split, or None where that is not known before.
        batch_index: number of the batch in its split, from 0.
        batch: the batch at work.
        terms: output -> loss term of the batch.
        loss: what is optimised: a tensor without dimensions, or a number.
        meter: what the batches of the split add up to.
        wait_s: seconds that the split has waited for batches.
        split_stopped: set by a hook: the split ends after this batch.

        nb_micro_batches: batches whose gradients wait for the next step.
        nb_steps: optimizer steps since the training began.
        nb_samples: samples trained on since the training began.
    """

    model: nn.Module
    device: torch.device
    options: Options = field(default_factory=dict[str, Any])
    datasets: Datasets = field(default_factory=dict[str, Any])
    datasets_infos: Mapping[str, Any] = field(default_factory=dict[str, Any])
    optimizers: Optimizers | None = None
    optimizers_fn: OptimizersFn | None = None
    schedulers: Schedulers | None = None
    scaler: Any = None
    losses: Mapping[str, LossFn] = field(default_factory=dict[str, LossFn])
    callbacks_per_batch: Sequence[BatchCallback] = ()
    hooks: HookTable = field(default_factory=create_hook_table)
    clock: Callable[[], float] = time.perf_counter
    log_dir: Path | None = None

    history: History = field(default_factory=History)
    outputs: EpochOutputs | None = None
    epoch: int = 0
    epochs: int = 0
    stop: bool = False
    resumed: bool = False
    error: BaseException | None = None

    dataset: str = ""
    split: str = ""
    training: bool = False
    optimizer: Optimizer | None = None
    loss_fn: LossFn | None = None
    num_batches: int | None = None
    batch_index: int = 0
    batch: Batch = field(default_factory=dict[str, Any])
    terms: dict[str, LossTerm] = field(default_factory=dict[str, LossTerm])
    loss: torch.Tensor | float = 0.0
    meter: SplitMeter = field(default_factory=SplitMeter)
    wait_s: float = 0.0
    split_stopped: bool = False

    nb_micro_batches: int = 0
    nb_steps: int = 0
    nb_samples: int = 0

    @property
    def last_epoch(self) -> bool:
        """Whether no epoch follows this one."""
        return self.stop or self.epoch + 1 >= self.epochs

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
                error.add_note(f"raised by the callback {owner_name(hook)} at {name}, epoch {self.epoch}")
                raise

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
