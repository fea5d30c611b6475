"""The core of the training loop: one split, and one batch of it.

`one_split` knows when the hooks fire, `supervised` what training does with a batch. Between the first and the last
batch of a split no value of a tensor is read on the host, so the device never waits for the loop.
"""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from typing import Any, TypeAlias, cast

import torch
from torch import nn

from trw_pipeline.batches.device import transfer_batch_to_device
from trw_pipeline.batches.length import len_batch
from trw_pipeline.errors import NonFiniteLossError
from trw_pipeline.nets.mode import in_mode
from trw_pipeline.outputs.output import LossTerm, Output
from trw_pipeline.training.arrivals import arrivals, length_of
from trw_pipeline.training.finite import Place, losses_of, told_uids, weights_are_finite
from trw_pipeline.training.gathering import number_on_host
from trw_pipeline.training.history import INFO, SplitHistory, SplitMeter, SplitOutputs, split_info
from trw_pipeline.training.randomness import random_states
from trw_pipeline.training.resume import capture_weights, restore_weights
from trw_pipeline.training.run import Run, SplitPlace
from trw_pipeline.typing import Batch, Split, default_sample_uid_name

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
        Exception: what a model, head, loss, metric or hook raised, with a note that names the batch and its samples.
    """
    started = run.clock()
    point = _begin_split(run, split)
    started -= 0.0 if point is None else point["time_s"]
    with in_mode(_model_of(run), run.training), torch.set_grad_enabled(run.training):
        run.fire("on_split_start")
        try:
            with closing(arrivals(run, split, point)) as batches:
                _every_batch(run, batches, step)
            if run.training and run.nb_micro_batches:
                run.step()  # what is left where nobody knew that no batch would follow
            late = run.watch.heard(wait=True)
            if late is not None:
                _refuse(run, late)
            _check_weights(run)
            _check_complete(run, split)
            outputs, history = _summed_up(run)
        except StopIteration as error:
            raise RuntimeError(
                f"StopIteration out of the model, a head or the loss in {run.dataset}/{run.split}: only a per-batch "
                f"callback may end a split"
            ) from error
        run.batch, run.terms, run.loss, run.place = {}, {}, 0.0, None
        history[INFO] = split_info(run.meter.nb_samples, run.clock() - started, run.wait_s)
        if run.history:
            run.history[-1].setdefault(run.dataset, {})[run.split] = history
        if run.outputs is not None:
            run.outputs.setdefault(run.dataset, {})[run.split] = outputs
        run.fire("on_split_end")
    return outputs, history


def judge(run: Run) -> None:
    """Put the batch through the model, its heads and the loss, and count what they say.

    Args:
        run: has the batch.

    Raises:
        ValueError: the batch has no samples, or the loss has dimensions.
        TypeError: the model did not return a mapping of heads.
    """
    nb_samples, loss = forward(run)
    run.fire("on_loss")
    # After the hook, so that one can tell judging from gathering.
    run.meter.add(run.terms, run.loss, nb_samples, loss, _nb_judged(run, nb_samples))


def supervised(run: Run) -> None:
    """Judge the batch, send the gradients of the loss back, and step where a step is due.

    A batch whose loss is no number is counted nowhere, and its gradients are not made; where the training goes on
    afterwards, the buffers of the model are as they were before it.

    Args:
        run: has the batch.

    Raises:
        NonFiniteLossError: the loss is no number, and `run.nan_policy` is "raise". The weights are as they were, but on
            an accelerator, where that is known some batches later.
    """
    if run.nan_policy in ("skip", "stop"):
        buffers = {name: buffer.clone() for name, buffer in _model_of(run).named_buffers()}
    else:
        buffers = {}
    nb_samples, loss = forward(run)
    is_sound = _is_sound(run, loss, buffers)
    nb_judged = _nb_judged(run, nb_samples)
    if is_sound:
        run.meter.add(run.terms, run.loss, nb_samples, loss, nb_judged)
        run.nb_samples += nb_samples
    run.fire("on_loss")
    if is_sound and isinstance(run.loss, torch.Tensor):  # a number: no head had a loss, so nothing is to be optimised
        run.backward(run.loss, nb_judged)
        if run.is_step_due:
            run.step()


def forward(run: Run) -> tuple[int, torch.Tensor | float]:
    """Put the batch through the model, its heads and the loss, in the precision of the training.

    Args:
        run: has the batch; gets `terms` and `loss`.

    Returns:
        The samples of the batch, and the loss as a number, as far as that can be read without making a device wait.
    """
    nb_samples = nb_samples_of(run)
    assert run.loss_fn is not None  # set where the split began
    with run.optimization.precision:
        run.terms = _evaluate_heads(run)
        loss = run.loss = run.loss_fn(run.dataset, run.batch, run.terms)
    if isinstance(loss, torch.Tensor) and loss.dim():
        raise ValueError(
            f"the loss of {run.dataset}/{run.split} must be a tensor without dimensions, got shape {tuple(loss.shape)}"
        )
    return nb_samples, number_on_host(loss)


def _nb_judged(run: Run, nb_samples: int) -> float | torch.Tensor:
    """Of how many samples the loss is a mean: as many as the head that judged most of them; without reading a tensor.

    Exact where one head has a loss, or all judge the same samples. For several that do not, no single number is.
    """
    greatest = None
    for term in run.terms.values():
        if "loss" in term:
            nb_judged = term.get("nb_judged")
            if nb_judged is None:
                return nb_samples
            greatest = nb_judged if greatest is None else _greater(greatest, nb_judged)
    return nb_samples if greatest is None else greatest


def _greater(one: float | torch.Tensor, other: float | torch.Tensor) -> float | torch.Tensor:
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        return torch.maximum(torch.as_tensor(one), torch.as_tensor(other))
    return max(one, other)


def _model_of(run: Run) -> nn.Module:
    return run.split_model or run.model


def _is_sound(run: Run, loss: torch.Tensor | float, buffers: Mapping[str, torch.Tensor]) -> bool:
    """Whether the loss is a number; if an accelerator has yet to tell, whether those before were.

    `loss` is as `forward` gave it. `buffers` are those of the model before the batch, to be put back: the statistics of
    batch normalisation, say.
    """
    if not isinstance(run.loss, torch.Tensor):
        return True
    if not isinstance(loss, torch.Tensor) or run.nan_policy in ("skip", "revert"):
        if math.isfinite(loss):
            return True
        for name, buffer in _model_of(run).named_buffers():
            if name in buffers:
                buffer.copy_(buffers[name])
        return _refuse(run, _place(run))
    run.watch.send(loss, _place(run))
    late = run.watch.heard()
    return late is None or _refuse(run, late)


def _place(run: Run) -> Place:
    uids = run.batch.get(default_sample_uid_name)
    where = f"{run.dataset}/{run.split}"
    return Place(run.epoch, where, run.batch_index, run.nb_steps, losses_of(run.terms), uids)


def _refuse(run: Run, place: Place) -> bool:
    """Does what the policy says of a batch whose loss is no number; that batch is not sound."""
    if weights_are_finite(_model_of(run)):
        found = f"the loss is not finite: {place}"
        if run.nan_policy == "skip":
            run.nb_not_finite += 1
            _logger.warning("left a batch out whose loss is not finite: %s", place)
            return False
    else:
        found = f"the weights are not finite, since a batch before: {place}"
    _end_or_revert(run, found)
    run.nb_not_finite += 1
    return False


def _check_weights(run: Run) -> None:
    """Does what the policy says of weights that are no numbers at the end: a gradient was none, of a loss that was."""
    if run.training and not weights_are_finite(_model_of(run)):
        _end_or_revert(run, f"the weights are not finite after {run.dataset}/{run.split} in epoch {run.epoch}")


def _end_or_revert(run: Run, found: str) -> None:
    if run.nan_policy == "stop":
        _logger.error("the training stops because %s", found)
        run.split_stopped = run.stop = True
    elif run.nan_policy == "revert" and run.sound is not None:
        _logger.warning("went back to where %s/%s began: %s", run.dataset, run.split, found)
        restore_weights(run, run.sound)
    else:
        raise NonFiniteLossError(found)


def _begin_split(run: Run, split: Split) -> dict[str, Any] | None:
    """Begin the split anew, or where a checkpoint says; returns that."""
    point, run.resume_point = run.resume_point, None
    run.meter = SplitMeter()
    run.num_batches = length_of(split)
    run.batch_index = 0
    run.wait_s = 0.0
    run.split_stopped = False
    run.optimization.begin_split(_model_of(run))
    run.place = SplitPlace(run.clock(), random_states()) if run.keeps_place else None
    if run.training and run.nan_policy == "revert":
        sound = capture_weights(run) if point is None or point["sound"] is None else point["sound"]
        run.sound = copy.deepcopy(sound) if weights_are_finite(_model_of(run)) or point else None
    if point is not None:
        run.meter.load_state_dict(point["meter"], run.device)
        run.batch_index, run.wait_s = point["batch_index"], point["wait_s"]
        if point["group"] is not None:
            run.optimization.load_group_state(point["group"])
        if run.place is not None:
            run.place.started -= point["time_s"]
            run.place.random = point["random"]
    return point


def _every_batch(run: Run, batches: Iterable[Any], step: Step) -> None:
    tag = Output.output_ref_tag
    for run.batch in batches:
        run.is_between_batches = run.batch_counted = False
        try:
            run.fire("on_batch_start")
            run.batch = _prepared(run)
            run.fire("on_forward_start")
            step(run)
            run.fire("on_batch_end")
            for term in run.terms.values():
                if tag in term:  # a step of the user's may make terms without a head
                    term[tag].loss_term_cleanup(term)
        except NonFiniteLossError:
            raise  # it names its batch, which may be an earlier one
        except Exception as error:
            uids = run.batch.get(default_sample_uid_name) if isinstance(run.batch, Mapping) else None  # pyright: ignore[reportUnnecessaryIsInstance]
            error.add_note(
                f"raised at batch {run.batch_index} of {run.dataset}/{run.split}, epoch {run.epoch}; sample_uid of the "
                f"batch: {told_uids(uids)}"
            )
            raise
        run.batch_index += 1
        if run.split_stopped:
            break


def _prepared(run: Run) -> Batch:
    """The batch on its device, in a dict of its own, with the names of where it comes from."""
    moved = transfer_batch_to_device(run.batch, run.device, non_blocking=True)
    moved["dataset_name"], moved["split_name"] = run.dataset, run.split
    return moved


def nb_samples_of(run: Run) -> int:
    """Count the samples of the batch.

    Args:
        run: has the batch.

    Returns:
        At least 1.

    Raises:
        ValueError: there are none.
    """
    nb_samples = len_batch(run.batch)
    if not nb_samples:
        raise ValueError(f"batch {run.batch_index} of {run.dataset}/{run.split} has no samples: {sorted(run.batch)}")
    return nb_samples


def heads_of(run: Run) -> Mapping[str, Output]:
    """Put the batch through the model.

    Args:
        run: has the batch.

    Returns:
        Output name -> head.

    Raises:
        TypeError: the model did not return a mapping.
        Exception: what the model raised; ValueError with a note where a single sample in training may be the reason.
    """
    try:
        heads = _model_of(run)(run.batch)
    except ValueError as error:
        if run.training and len_batch(run.batch) == 1:  # as batch normalisation refuses it
            error.add_note(
                f"batch {run.batch_index} of {run.dataset}/{run.split} has one sample: "
                f"batch(..., discard_batch_not_full=True) leaves an incomplete last batch out of a training split"
            )
        raise
    if not isinstance(heads, Mapping):
        raise TypeError(f"a model must return a mapping of output name to Output, got {type(heads).__name__}")
    return cast("Mapping[str, Output]", heads)


def _evaluate_heads(run: Run) -> dict[str, LossTerm]:
    terms: dict[str, LossTerm] = {}
    for name, head in heads_of(run).items():
        try:
            term = head.evaluate_batch(run.batch, run.training)
        except Exception as error:
            error.add_note(f"raised by the head {name!r}")
            raise
        if term is not None:
            term.setdefault(Output.output_ref_tag, head)
            terms[name] = term
    return terms


def _summed_up(run: Run) -> SplitResult:
    try:
        return run.meter.read()
    except Exception as error:
        error.add_note(f"raised where {run.dataset}/{run.split} is summed up, epoch {run.epoch}")
        raise


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
