"""What a trained model says of a split, with the truth and without."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from trw_pipeline.outputs.output import LossTerm, Output
from trw_pipeline.training.history import OVERALL_LOSS, SplitOutputs
from trw_pipeline.training.loop import default_sum_all_losses, eval_loop
from trw_pipeline.training.run import LossFn, Run
from trw_pipeline.training.split import SplitResult, heads_of, nb_samples_of, one_split
from trw_pipeline.typing import Batch, Split


def evaluate(
    model: nn.Module,
    split: Split,
    losses_fn: LossFn = default_sum_all_losses,
    device: torch.device | str | None = None,
    dataset_name: str = "dataset",
    split_name: str = "split",
) -> SplitResult:
    """Judge a model on one split: in evaluation mode, without gradients.

    Args:
        model: batch -> dict output name -> `Output`. Every part of it is put back into the mode it was in.
        split: gives the batches: dicts of features, with the truth.
        losses_fn: (dataset name, batch, loss terms) -> the overall loss.
        device: where the batches go. None: where the model's first parameter is.
        dataset_name: name of the dataset, which each batch gets as feature `dataset_name`.
        split_name: name of the split, which each batch gets as feature `split_name`.

    Returns:
        Output -> the loss terms of the split as one, and output -> metric -> value; without batches, of `info` alone.

    Raises:
        ValueError: a batch has no samples.
    """
    return eval_loop(_device_of(model, device), dataset_name, split_name, split, model, losses_fn, None)


def predict(
    model: nn.Module, split: Split, device: torch.device | str | None = None, split_name: str = "split"
) -> SplitOutputs:
    """Collect what a model says of every sample of a split, which need not have the truth.

    Args:
        model: batch -> dict output name -> `Output`. It is in evaluation mode meanwhile, without gradients.
        split: gives the batches: dicts of features.
        device: where the batches go. None: where the model's first parameter is.
        split_name: name of the split, which each batch gets as feature `split_name`.

    Returns:
        Output name -> `output_raw` `(N, ...)`, what the model computed; `output`, after the postprocessing of the head,
        if it has one; and `uid`, if the batches have it: arrays on the host, in the order of the split. Empty if the
        split has no batches. All samples must fit into memory.

    Raises:
        ValueError: a batch has no samples, or the outputs of two batches do not fit each other.
    """
    run = Run(model, _device_of(model, device), dataset="", split=split_name)
    outputs, _ = one_split(run, split, _collect)
    return {name: term for name, term in outputs.items() if name != OVERALL_LOSS}


def _collect(run: Run) -> None:
    nb_samples = nb_samples_of(run)
    run.terms = {name: _said(head, run.batch) for name, head in heads_of(run).items()}
    run.meter.add(run.terms, 0.0, nb_samples)


def _said(head: Output, batch: Batch) -> LossTerm:
    assert head.output is not None, "the head is new"
    raw = head.output.detach()
    term: LossTerm = {"output_raw": raw}
    postprocessing: Any = getattr(head, "output_postprocessing", None)
    if postprocessing is not None:
        term["output"] = postprocessing(raw)
    if head.sample_uid_name is not None and head.sample_uid_name in batch:
        term["uid"] = batch[head.sample_uid_name]
    return term


def _device_of(model: nn.Module, device: torch.device | str | None) -> torch.device:
    if device is not None:
        return torch.device(device)
    first = next(model.parameters(), None)
    return torch.device("cpu") if first is None else first.device
