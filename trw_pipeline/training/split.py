"""The core of the training loop: one split, and one batch of it.

`one_split` knows when the hooks fire, `supervised` what training does with a batch. Between the first and the last
batch of a split no value of a tensor is read on the host, so the device never waits for the loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import closing, contextmanager
from typing import Any, TypeAlias, cast

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from trw_pipeline.batches.device import transfer_batch_to_device
from trw_pipeline.batches.length import len_batch
from trw_pipeline.outputs.output import LossTerm, Output
from trw_pipeline.training.history import INFO, SplitHistory, SplitMeter, SplitOutputs, split_info
from trw_pipeline.training.run import Run
from trw_pipeline.typing import Batch, Split

_logger = logging.getLogger(__name__)

Step: TypeAlias = Callable[[Run], Any]
"""What is done with `run.batch`: `judge` where it is only evaluated, `supervised` where it is trained on."""

SplitResult: TypeAlias = tuple[SplitOutputs, SplitHistory]
"""The loss terms of a split as one, and its history."""


def one_split(run: Run, split: Split, step: Step) -> SplitResult:
    """Run one split, trained on or evaluated as `run.training` says.

    The model is put into its mode and back into the one it was in, whatever happens; the split's iterator is closed.

    Args:
        run: names the dataset and the split, and has the optimizer and the loss function of it.
        split: gives the batches.
        step: what is done with each of them.

    Returns:
        The loss terms of the split as one, and its history. A split without batches has only `info` in its history.

    Raises:
        ValueError: a training split gave no batch; a batch has no samples.
        RuntimeError: StopIteration came out of the model, a head, the loss or the data; or the split ended before its
            length.
        TypeError: a batch is not a mapping, or the model did not return one of heads.
    """
    started = run.clock()
    _begin_split(run, split)
    with _mode(run.model, run.training), torch.set_grad_enabled(run.training):
        run.fire("on_split_start")
        try:
            with closing(_arrivals(run, split)) as batches:
                _every_batch(run, batches, step)
            _check_complete(run, split)
            outputs, history = run.meter.read()
        except StopIteration as error:
            raise RuntimeError(
                f"StopIteration out of the model, a head or the loss in {run.dataset}/{run.split}: only a per-batch "
                f"callback may end a split"
            ) from error
        run.batch, run.terms, run.loss = {}, {}, 0.0
        history[INFO] = split_info(run.meter.nb_samples, run.clock() - started, run.wait_s)
        if run.history:
            run.history[-1].setdefault(run.dataset, {})[run.split] = history
        if run.outputs is not None:
            run.outputs.setdefault(run.dataset, {})[run.split] = outputs
        run.fire("on_split_end")
    return outputs, history


def judge(run: Run) -> int:
    """Put the batch through the model, its heads and the loss, and count what they say.

    Args:
        run: has the batch.

    Returns:
        The samples of the batch.

    Raises:
        ValueError: the batch has no samples, or the loss has dimensions.
        TypeError: the model did not return a mapping of heads.
    """
    nb_samples = len_batch(run.batch)
    if not nb_samples:
        raise ValueError(f"batch {run.batch_index} of {run.dataset}/{run.split} has no samples: {sorted(run.batch)}")
    run.terms = _evaluate_heads(run)
    assert run.loss_fn is not None  # set where the split began
    run.loss = run.loss_fn(run.dataset, run.batch, run.terms)
    if isinstance(run.loss, torch.Tensor) and run.loss.dim():
        raise ValueError(
            f"the loss of {run.dataset}/{run.split} must be a tensor without dimensions, got shape "
            f"{tuple(run.loss.shape)}"
        )
    run.meter.add(run.terms, run.loss, nb_samples)
    run.fire("on_loss")
    return nb_samples


def supervised(run: Run) -> None:
    """Judge the batch, send the gradients of the loss back, and step.

    Args:
        run: has the batch.
    """
    run.nb_samples += judge(run)
    if isinstance(run.loss, torch.Tensor):  # a number: no head had a loss, so nothing is to be optimised
        run.loss.backward()
        run.nb_micro_batches += 1
        run.fire("on_backward_end")
        flush(run)


def flush(run: Run) -> None:
    """Step the optimizer with the gradients that are there, and clear them; without an optimizer they stay.

    Args:
        run: has the optimizer.
    """
    if run.optimizer is None:
        return
    run.fire("on_step_start")
    run.optimizer.step()
    run.optimizer.zero_grad(set_to_none=True)
    run.nb_steps += 1
    run.nb_micro_batches = 0
    run.fire("on_step_end")


def _begin_split(run: Run, split: Split) -> None:
    run.meter = SplitMeter()
    run.num_batches = _length(split)
    run.batch_index = 0
    run.wait_s = 0.0
    run.split_stopped = False
    run.nb_micro_batches = 0


def _every_batch(run: Run, batches: Iterable[Any], step: Step) -> None:
    for run.batch in batches:
        run.fire("on_batch_start")
        run.batch = _prepared(run)
        run.fire("on_forward_start")
        step(run)
        run.fire("on_batch_end")
        for term in run.terms.values():
            term[Output.output_ref_tag].loss_term_cleanup(term)
        run.batch_index += 1
        if run.split_stopped:
            break


def _arrivals(run: Run, split: Split) -> Generator[Any, None, None]:
    """The batches of a split; the time inside `iter` and `next` is what the loop waited for data.

    As a generator it turns a StopIteration of `iter(split)` into a RuntimeError by itself.
    """
    asked = run.clock()
    iterator = iter(split)
    try:
        while True:
            try:
                batch = next(iterator)
            except StopIteration:
                return
            finally:
                run.wait_s += run.clock() - asked
            yield batch
            asked = run.clock()
    finally:
        # A split that is its own iterator was opened by somebody else, who may want to go on with it.
        close = getattr(iterator, "close", None)
        if iterator is not split and close is not None:
            close()


def _prepared(run: Run) -> Batch:
    """The batch on its device, in a dict of its own, with the names of where it comes from."""
    batch: Any = run.batch
    if not isinstance(batch, Mapping):
        raise TypeError(f"a batch of {run.dataset}/{run.split} must be a mapping, got {type(batch).__name__}")
    moved = transfer_batch_to_device(cast("Batch", batch), run.device, non_blocking=True)
    return {**moved, "dataset_name": run.dataset, "split_name": run.split}


def _evaluate_heads(run: Run) -> dict[str, LossTerm]:
    heads = run.model(run.batch)
    if not isinstance(heads, Mapping):
        raise TypeError(f"a model must return a mapping of output name to Output, got {type(heads).__name__}")
    terms: dict[str, LossTerm] = {}
    for name, head in cast("Mapping[str, Output]", heads).items():
        term = head.evaluate_batch(run.batch, run.training)
        if term is not None:
            term.setdefault(Output.output_ref_tag, head)
            terms[name] = term
    return terms


def _check_complete(run: Run, split: Split) -> None:
    """A training split has batches; a split ends at its length, unless a callback ended it or failures were skipped."""
    name = f"{run.dataset}/{run.split}"
    if not run.batch_index:
        if run.training:
            raise ValueError(f"the training split {name} gave no batch: it is empty, or its batches were all dropped")
        _logger.warning("the split %s gave no batch: it has no metrics in the history", name)
    missing = (run.num_batches or 0) - run.batch_index
    if missing > 0 and not run.split_stopped and not getattr(split, "failures", None):
        raise RuntimeError(
            f"the split {name} has a length of {run.num_batches} batches and ended after {run.batch_index}: the length "
            f"is wrong, or a StopIteration escaped from its data"
        )


def _length(split: Split) -> int | None:
    """The batches of a split, where it knows them; what a loader says of an iterable dataset is a guess."""
    if isinstance(split, DataLoader) and isinstance(split.dataset, IterableDataset):
        return None
    try:
        return len(cast("Any", split))
    except TypeError:
        return None


@contextmanager
def _mode(model: nn.Module, training: bool) -> Generator[None, None, None]:
    """Put a model into training or evaluation mode, and every part of it back into the mode it was in."""
    modes = [(module, module.training) for module in model.modules()]
    model.train(training)
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
