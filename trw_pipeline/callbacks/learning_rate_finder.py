"""Which learning rates make the loss fall, found out before the training."""

from __future__ import annotations

import copy
import itertools
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.optim import Optimizer

from trw_pipeline.batches.device import get_device
from trw_pipeline.batches.length import len_batch
from trw_pipeline.errors import NonFiniteLossError
from trw_pipeline.files import safe_filename
from trw_pipeline.outputs.output import LossTerm
from trw_pipeline.reporting.figures import new_figure, write_figure
from trw_pipeline.reporting.learning_rate_plot import draw_learning_rates
from trw_pipeline.training.callback import BatchCallback, Callback
from trw_pipeline.training.history import History
from trw_pipeline.training.looking import beside, can_be_read_again
from trw_pipeline.training.loop import train_loop
from trw_pipeline.training.optimizers import Optimizers, by_name, set_optimizer_learning_rate
from trw_pipeline.training.options import Options
from trw_pipeline.training.randomness import random_states, set_random_states
from trw_pipeline.training.run import LossFn
from trw_pipeline.typing import Batch, Datasets, Split

_logger = logging.getLogger(__name__)

Section: TypeAlias = tuple[int, int]
"""Positions of the first and of the last rate of a section, counted from 0."""

IdentifySection: TypeAlias = Callable[[Sequence[tuple[float, float]], float], "Section | None"]

_MAX_PASSES = 10
"""Through a split that has fewer samples than a rate is tried with: what a model makes of each of them ten times over
tells enough, and a handful of samples is not read a hundred times for each of a hundred rates."""

_DIVERGED = 10
"""A loss so many times that of the first rate has left all that is of interest, and greater rates only make it worse.
The number is a guess: cross entropy begins near its chance level, and a rate that works never comes close to it."""


def default_identify_learning_rate_section(
    lr_loss_list: Sequence[tuple[float, float]], loss_ratio_to_discard: float = 0.8
) -> Section | None:
    """Find the section of learning rates that make the loss fall.

    The loss at the first, smallest rate stands for the loss of the untrained model. The section begins at the first
    rate whose loss is below `loss_ratio_to_discard` times that loss, and ends at the rate with the lowest loss (the
    first of equals): beyond it, steps are too large. Losses that are not finite are never in question.

    After L. N. Smith, "Cyclical Learning Rates for Training Neural Networks" (https://arxiv.org/abs/1506.01186), which
    reads the bounds off the curve by eye.

    Args:
        lr_loss_list: (rate, mean loss towards the end of a training at that rate), rates growing.
        loss_ratio_to_discard: in (0, 1].

    Returns:
        Positions of the first and of the last rate of the section; None: no loss is low enough, or the first is not
        finite. With losses below 0 the ratio has no meaning, and any loss below the first one is low enough.

    Example:
        >>> default_identify_learning_rate_section([(0.001, 1.0), (0.01, 0.7), (0.1, 0.2), (1.0, 0.5), (10.0, 1e9)])
        (1, 2)
    """
    losses = [loss for _, loss in lr_loss_list]
    if not losses or not math.isfinite(losses[0]):
        return None
    limit = losses[0] * loss_ratio_to_discard if losses[0] > 0 else losses[0]
    fallen = [position for position, loss in enumerate(losses) if math.isfinite(loss) and loss < limit]
    return (fallen[0], min(fallen, key=losses.__getitem__)) if fallen else None


class CallbackLearningRateFinder(Callback):
    """Trains a copy of the model for a moment at each of many learning rates, and tells which make the loss fall.

    Each rate starts from the model and the optimizer as they are now, with the same batches and the same random
    numbers: what differs is the rate. Its loss is the mean over the samples of the later half of the batches. The model
    that is trained, its optimizer (but for the rate, with `set_new_learning_rate`), the random generators and the
    position in the data stay as they are. Greater rates are not tried after a loss that is not finite, or ten times the
    first one.

    Writes `<run folder>/<dirname>/<dataset>_<split>.png`, and logs what was found at level INFO. Mixed precision,
    accumulation and clipping of the training are not applied here. For the list before training; in that of each epoch,
    `CallbackSkipEpoch` keeps it from running after each.

    Args:
        nb_samples_per_learning_rate: samples that each rate is tried with. A split that has fewer is gone through
            again, ten times at most.
        learning_rate_start: the smallest rate.
        learning_rate_stop: no rate is greater.
        learning_rate_mul: factor from one rate to the next.
        dataset_name: the dataset to train with. None: the first that has an optimizer.
        split_name: the split to train with. None: the one that is trained on.
        dirname: folder of the plot, in the run folder.
        identify_learning_rate_section: like `default_identify_learning_rate_section`: (list of (rate, mean loss),
            `param_maximum_loss_ratio`) -> positions of the first and the last good rate, or None.
        set_new_learning_rate: whether the optimizer of the dataset gets the last rate of the section; if there is none,
            it keeps its own. A scheduler may set another one at its next step.
        param_maximum_loss_ratio: a rate is good if its loss is below this share of the loss at the first rate.

    Raises:
        ValueError: a number is not positive; the rates would not grow; the ratio is not in (0, 1].
    """

    def __init__(
        self,
        nb_samples_per_learning_rate: int = 1000,
        learning_rate_start: float = 1e-6,
        learning_rate_stop: float = 10.0,
        learning_rate_mul: float = 1.2,
        dataset_name: str | None = None,
        split_name: str | None = None,
        dirname: str = "lr_finder",
        identify_learning_rate_section: IdentifySection = default_identify_learning_rate_section,
        set_new_learning_rate: bool = False,
        param_maximum_loss_ratio: float = 0.8,
    ) -> None:
        if nb_samples_per_learning_rate < 1:
            raise ValueError(f"nb_samples_per_learning_rate must be at least 1, got {nb_samples_per_learning_rate}")
        if not 0 < learning_rate_start <= learning_rate_stop < math.inf:
            raise ValueError(
                f"learning_rate_start must be positive and not above learning_rate_stop, got {learning_rate_start} "
                f"and {learning_rate_stop}"
            )
        if not learning_rate_mul > 1:
            raise ValueError(f"learning_rate_mul must be greater than 1, got {learning_rate_mul}")
        if not 0 < param_maximum_loss_ratio <= 1:
            raise ValueError(f"param_maximum_loss_ratio must be in (0, 1], got {param_maximum_loss_ratio}")
        self.nb_samples_per_learning_rate = nb_samples_per_learning_rate
        self.learning_rate_start = learning_rate_start
        self.learning_rate_stop = learning_rate_stop
        self.learning_rate_mul = learning_rate_mul
        self.dataset_name = dataset_name
        self.split_name = split_name
        self.dirname = dirname
        self.identify_learning_rate_section = identify_learning_rate_section
        self.set_new_learning_rate = set_new_learning_rate
        self.param_maximum_loss_ratio = param_maximum_loss_ratio

    def __call__(
        self,
        options: Options,
        history: History,
        model: nn.Module,
        losses: Mapping[str, LossFn],
        outputs: Any,
        datasets: Datasets,
        datasets_infos: Any,
        callbacks_per_batch: Sequence[BatchCallback] | None,
        **kwargs: Any,
    ) -> None:
        """Try the rates.

        Args:
            options: has the run folder, the device and the name of the split to train with.
            history: not used.
            model: what is copied.
            losses: dataset name -> what is optimised.
            outputs: not used.
            datasets: give the batches.
            datasets_infos: not used.
            callbacks_per_batch: see each batch before the model does.
            **kwargs: `optimizers`, dataset name -> optimizer; else `optimizers_fn`, which makes one for the copy.
                Without either, as where nothing is trained, nothing is done.

        Raises:
            ValueError: there is no such dataset or split, or the dataset has several optimizers, of which nobody but
                the step of the training knows when to use which.
            MissingExtraError: matplotlib is not installed.
        """
        optimizers = _optimizers(datasets, model, kwargs)
        if not optimizers:
            _logger.info("no learning rate to find: nothing is trained")
            return
        workflow = options["workflow_options"]
        dataset, split, optimizer = self._chosen(datasets, optimizers, workflow["train_split"])
        if not can_be_read_again(datasets[dataset][split], f"{dataset}/{split}"):
            return
        figure = new_figure(7.0, 4.5)  # first of all: without matplotlib the search would be in vain
        with beside(datasets[dataset][split]) as batches:
            tried = self._losses(model, optimizer, batches, (dataset, split), losses[dataset], callbacks_per_batch)
        section = self.identify_learning_rate_section(tried, self.param_maximum_loss_ratio)
        folder = Path(workflow["current_logging_directory"]) / self.dirname
        folder.mkdir(parents=True, exist_ok=True)
        rates, found = zip(*tried, strict=True)
        draw_learning_rates(figure, rates, found, section, f"{dataset}: {split}")
        write_figure(folder / f"{safe_filename(f'{dataset}_{split}')}.png", figure)
        self._tell(f"{dataset}/{split}", tried, section)
        if section is not None and self.set_new_learning_rate:
            set_optimizer_learning_rate(optimizer, tried[section[1]][0])

    def rates(self) -> Iterator[float]:
        """Give the rates that may be tried, the smallest first."""
        factors = (self.learning_rate_mul**number for number in itertools.count())
        room_for_rounding = 1 + 1e-9
        yield from itertools.takewhile(
            lambda rate: rate <= self.learning_rate_stop * room_for_rounding,
            (self.learning_rate_start * factor for factor in factors),
        )

    def _chosen(self, datasets: Datasets, optimizers: Optimizers, train_split: str) -> tuple[str, str, Optimizer]:
        split = self.split_name or train_split
        fitting = [name for name in datasets if name in optimizers and split in datasets[name]]
        if self.dataset_name is not None:
            fitting = [name for name in fitting if name == self.dataset_name]
        if not fitting:
            wanted = "a dataset" if self.dataset_name is None else f"the dataset {self.dataset_name!r}"
            raise ValueError(f"{wanted} must have the split {split!r} and an optimizer; datasets: {list(datasets)}")
        named = by_name(optimizers[fitting[0]])
        if len(named) != 1:
            raise ValueError(f"the learning rate of one optimizer can be found, {fitting[0]!r} has {list(named)}")
        return fitting[0], split, next(iter(named.values()))

    def _losses(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        split: Split,
        names: tuple[str, str],
        loss_fn: LossFn,
        callbacks_per_batch: Sequence[BatchCallback] | None,
    ) -> list[tuple[float, float]]:
        tried: list[tuple[float, float]] = []
        states, device = random_states(), get_device(model) or torch.device("cpu")
        for rate in self.rates():
            set_random_states(states)
            # Together, so that the copied optimizer has the parameters of the copied model.
            of_model, of_optimizer = copy.deepcopy((model, optimizer))
            set_optimizer_learning_rate(of_optimizer, rate)
            some = _Some(split, self.nb_samples_per_learning_rate, loss_fn)
            callbacks = callbacks_per_batch, [some.count]
            try:
                train_loop(device, *names, some, of_optimizer, of_model, some.noted_loss, None, *callbacks)
                loss = some.late_loss()
            except NonFiniteLossError:
                loss = math.nan
            tried.append((rate, loss))
            if not math.isfinite(loss) or abs(loss) > _DIVERGED * max(abs(tried[0][1]), 1e-12):
                break
        return tried

    def _tell(self, where: str, tried: Sequence[tuple[float, float]], section: Section | None) -> None:
        if section is None:
            _logger.warning(
                "no learning rate from %.3g to %.3g brings the loss of %s below %.3g times that of the first, %.5g",
                tried[0][0],
                tried[-1][0],
                where,
                self.param_maximum_loss_ratio,
                tried[0][1],
            )
            return
        (first, _), (last, loss) = tried[section[0]], tried[section[1]]
        _logger.info(
            "the loss of %s falls at learning rates from %.3g to %.3g; at the last it is %.5g", where, first, last, loss
        )


class _Some:
    """The first samples of a split, which is gone through again while there are too few, and the losses of them."""

    def __init__(self, split: Split, nb_samples: int, loss_fn: LossFn) -> None:
        self._split: Any = split
        self._nb_left = nb_samples
        self._loss_fn = loss_fn
        self._noted: list[tuple[int, torch.Tensor]] = []

    def __iter__(self) -> Iterator[Batch]:
        for number in range(_MAX_PASSES):
            if hasattr(self._split, "set_epoch"):  # the same passes for each rate
                self._split.set_epoch(number)
            yield from self._split

    def noted_loss(self, dataset_name: str, batch: Batch, terms: Mapping[str, LossTerm]) -> torch.Tensor | float:
        loss = self._loss_fn(dataset_name, batch, terms)
        self._noted.append((len_batch(batch), torch.as_tensor(loss).detach()))
        return loss

    def late_loss(self) -> float:
        """The mean over the samples of the later half of the batches: at first, every rate has the same loss."""
        late = self._noted[len(self._noted) // 2 :]
        sizes = torch.tensor([size for size, _ in late], dtype=torch.float64)
        losses = torch.stack([loss for _, loss in late]).to("cpu", torch.float64)
        return float((sizes * losses).sum() / sizes.sum())

    def count(self, dataset_name: str, split_name: str, batch: Batch, terms: Any) -> None:
        self._nb_left -= len_batch(batch)
        if self._nb_left <= 0:
            raise StopIteration


def _optimizers(datasets: Datasets, model: nn.Module, kwargs: Mapping[str, Any]) -> Optimizers | None:
    if kwargs.get("optimizers") is not None or kwargs.get("optimizers_fn") is None:
        return kwargs.get("optimizers")
    return kwargs["optimizers_fn"](datasets, model)[0]
