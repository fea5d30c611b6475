"""One epoch over a loader of (name, image, target[, mask])."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias, cast

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, IterableDataset

from trw_pipeline.callbacks.progress_bar import CallbackProgressBar
from trw_pipeline.outputs.output import LossTerm, Output
from trw_pipeline.training.callback import create_hook_table
from trw_pipeline.training.history import OVERALL_LOSS
from trw_pipeline.training.loop import default_sum_all_losses, eval_loop, train_loop
from trw_pipeline.training.optimization import Optimization
from trw_pipeline.training.run import Run
from trw_pipeline.typing import Batch, default_sample_uid_name

Loader: TypeAlias = Iterable[Any]
"""Gives batches `(names, images (N, C, H, W), targets (N, ...)[, masks (N, ...)])`, anew each time it is iterated."""

Criterion: TypeAlias = Callable[..., torch.Tensor]
"""(output, targets) or, where a batch has masks, (output, targets, masks) -> mean loss of the batch, no dimensions."""

_DATASET = "binseg"


def train_epoch(
    loader: Loader,
    model: nn.Module,
    optimizer: Optimizer,
    device: torch.device,
    criterion: Criterion,
    batch_chunk_count: int,
) -> float:
    """Train a model for one epoch.

    Args:
        loader: gives tuples or lists `(names, images, targets)` or `(names, images, targets, masks)`.
        model: images -> whatever the criterion takes.
        optimizer: steps after each `batch_chunk_count` batches of the loader, and at its end.
        device: where the model is; images, targets and masks are moved there.
        criterion: (output, targets) or, where there are masks, (output, targets, masks) -> the mean loss of the batch:
            a tensor without dimensions. A sum over the samples would count a batch by the square of its size.
        batch_chunk_count: so many batches are the chunks of one. The gradient is that of all their samples at once,
            also of those that are left at the end. (Statistics of batch normalisation are those of each chunk.)

    Returns:
        The mean loss over the samples, each as the weights were when it was trained on.

    Raises:
        ValueError: there is no batch; a batch has no samples, or not three or four parts; or the count is less than 1.
        TypeError: a batch is neither tuple nor list, or the count is no int.
        NonFiniteLossError: a loss is NaN or infinite; the weights are those before.
    """
    split = _Batches(loader, "train")
    with _shown(Run(_Net(model, criterion), torch.device(device), optimization=Optimization(batch_chunk_count))) as run:
        where = (run.device, _DATASET, split.name, split)
        _, history = train_loop(*where, optimizer, run.model, default_sum_all_losses, None, None, None, run=run)
    return history[OVERALL_LOSS]["loss"]


def validate_epoch(
    loader: Loader, model: nn.Module, device: torch.device, criterion: Criterion, pbar_desc: str
) -> float:
    """Evaluate a model with all samples of a loader: in evaluation mode, without gradients.

    Args:
        loader: gives tuples or lists `(names, images, targets)` or `(names, images, targets, masks)`.
        model: images -> whatever the criterion takes.
        device: where the model is; images, targets and masks are moved there.
        criterion: as in `train_epoch`.
        pbar_desc: what the progress bar says; there is one on a terminal alone.

    Returns:
        The mean loss over the samples.

    Raises:
        ValueError: there is no batch; a batch has no samples, or not three or four parts.
        TypeError: a batch is neither tuple nor list.
    """
    split = _Batches(loader, pbar_desc)
    with _shown(Run(_Net(model, criterion), torch.device(device))) as run:
        where = (run.device, _DATASET, split.name, split)
        _, history = eval_loop(*where, run.model, default_sum_all_losses, None, run=run)
    if OVERALL_LOSS not in history:
        raise ValueError(f"a loader to validate with must give at least one batch, and {pbar_desc!r} gave none")
    return history[OVERALL_LOSS]["loss"]


@contextmanager
def torch_evaluation(model: nn.Module) -> Generator[nn.Module, None, None]:
    """Put a model into evaluation mode for a block, and each part of it back into the mode it was in, whatever happens.

    Args:
        model: the model.

    Yields:
        The model.
    """
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield model
    finally:
        for module, mode in modes:
            module.training = mode


@contextmanager
def _shown(run: Run) -> Generator[Run, None, None]:
    """Shows on a terminal where the loop is."""
    run.hooks = create_hook_table(per_epoch=[CallbackProgressBar()])
    run.fire("on_fit_start")
    try:
        yield run
    finally:
        run.fire("on_fit_end")


class _Batches:
    """The tuples of a loader as batches of named features."""

    def __init__(self, loader: Loader, name: str) -> None:
        self.loader = loader
        self.name = name

    def __iter__(self) -> Generator[Batch, None, None]:
        for index, batch in enumerate(self.loader):
            yield self._named(index, batch)

    def __len__(self) -> int:
        if isinstance(self.loader, DataLoader) and isinstance(self.loader.dataset, IterableDataset):
            raise TypeError("what a loader says of an iterable dataset is a guess")
        return len(cast("Any", self.loader))

    def _named(self, index: int, batch: Any) -> Batch:
        if not isinstance(batch, (tuple, list)):
            raise TypeError(
                f"a batch must be a tuple (names, images, targets[, masks]), and batch {index} of "
                f"{self.name!r} is a {type(batch).__name__}"
            )
        parts = cast("Sequence[Any]", batch)
        if len(parts) not in (3, 4):
            raise ValueError(
                f"a batch must have three or four parts (names, images, targets[, masks]), and batch {index} of "
                f"{self.name!r} has {len(parts)}"
            )
        names = parts[0]
        features = dict(zip(("image", "target", "mask"), parts[1:], strict=False))
        return {**features, default_sample_uid_name: list(names) if isinstance(names, tuple) else names}


class _Net(nn.Module):
    """A model of images, judged by a criterion, as the loop wants it."""

    def __init__(self, model: nn.Module, criterion: Criterion) -> None:
        super().__init__()
        self.model = model
        self.criterion = criterion

    def forward(self, batch: Batch) -> dict[str, Output]:
        return {"y": _Judged(self.model(batch["image"]), self.criterion)}


class _Judged(Output):
    def __init__(self, output: Any, criterion: Criterion) -> None:
        super().__init__(output, None)
        self.criterion = criterion

    def evaluate_batch(self, batch: Batch, is_training: bool) -> LossTerm:
        mask = [batch["mask"]] if "mask" in batch else []
        return self._term(batch, loss=self.criterion(self._unjudged(), batch["target"], *mask))
