"""What of a training goes into a checkpoint, and how it comes back.

A checkpoint is made between two batches, or between two epochs. What was measured of the epoch and of the split at work
is in it, too, so that a training that goes on from there writes the same numbers.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from torch.optim import Optimizer

from trw_pipeline.errors import CheckpointError
from trw_pipeline.outputs.output import Output
from trw_pipeline.training.checkpoint import Checkpoint, has_all_epochs
from trw_pipeline.training.optimizers import Schedule, by_name, schedules_of
from trw_pipeline.training.randomness import random_states, set_random_states
from trw_pipeline.training.run import Run, SplitPlace

_logger = logging.getLogger(__name__)


def capture(run: Run, is_finished: bool = False) -> Checkpoint:
    """Make a checkpoint of a training.

    | key | content |
    |---|---|
    | `model`, `ema` | states of the model, and of the average of its weights or None |
    | `optimizers`, `schedulers`, `scaler` | dataset -> name -> state; dataset -> list of states; state or None |
    | `epoch`, `batch_index` | epochs finished; batches finished of the split at work, or None between epochs |
    | `split` | what was measured of the epoch and the split at work; None between epochs |
    | `random`, `seed` | states of all global generators; the seed of the training or None |
    | `sequences` | dataset -> split -> `state_dict()`, for the splits that have it |
    | `history`, `counters` | the whole history; steps and samples so far |
    | `callbacks` | a list of (name of its class, `state_dict()`) |
    | `logs` | file in the run folder -> its length in bytes |
    | `is_finished` | whether the training was over |

    Args:
        run: between two batches, or at the end of an epoch or of the training.
        is_finished: whether the training is over.

    Returns:
        The checkpoint. It may share memory with the run: write it before the training goes on.

    Raises:
        TypeError: a split at work can not tell its position.
    """
    return {
        **capture_weights(run),
        "epoch": run.nb_epochs_done,
        "batch_index": None if run.place is None else run.batch_index,
        "split": None if run.place is None else _split_at_work(run, run.place),
        "random": random_states(),
        "seed": run.seed,
        "sequences": _sequences(run),
        "history": run.history,
        "counters": {name: getattr(run, name) for name in _COUNTERS},
        "callbacks": [(type(callback).__qualname__, callback.state_dict()) for callback in run.callbacks],
        "logs": {name: path.stat().st_size for name, path in run.logs.items() if path.exists()},
        "is_finished": is_finished,
    }


def capture_weights(run: Run) -> dict[str, Any]:
    """Gives the weights, and all that steps them: a part of a checkpoint, which shares memory with the run."""
    optimization = run.optimization
    return {
        "model": run.model.state_dict(),
        "ema": None if optimization.average is None else optimization.average.state_dict(),
        "optimizers": {
            dataset: {name: optimizer.state_dict() for name, optimizer in by_name(optimizers).items()}
            for dataset, optimizers in (run.optimizers or {}).items()
        },
        "schedulers": {
            dataset: [schedule.scheduler.state_dict() for schedule in schedules_of(run.schedulers, dataset)]
            for dataset in run.schedulers or {}
        },
        "scaler": None if run.scaler is None else run.scaler.state_dict(),
    }


def restore_weights(run: Run, state: Mapping[str, Any]) -> None:
    """Puts them back; what was gathered for the next step is forgotten."""
    # Optimizers take the tensors of a state for their own.
    state = copy.deepcopy({**state, "counters": {name: getattr(run, name) for name in _COUNTERS}})
    _restore_model(run, state)
    _restore_optimizers(run, state)
    run.optimization.forget_group([one for of in (run.optimizers or {}).values() for one in by_name(of).values()])


_COUNTERS = ("nb_steps", "nb_samples", "nb_not_finite", "stop", "is_averaged")


def restore(run: Run, checkpoint: Checkpoint) -> None:
    """Put a training that has just been built into the state of a checkpoint.

    Args:
        run: after `on_fit_start`.
        checkpoint: as `capture` made it.

    Raises:
        CheckpointError: it is of another model, other optimizers or other data.
    """
    try:
        _restore_model(run, checkpoint)
        _restore_optimizers(run, checkpoint)
    except (KeyError, ValueError, RuntimeError, IndexError, TypeError) as error:
        raise CheckpointError(f"the checkpoint does not fit this training: {error}") from error
    run.epoch = run.nb_epochs_done = checkpoint["epoch"]
    run.history[:] = checkpoint["history"]
    for name, value in checkpoint["counters"].items():
        setattr(run, name, value)
    if checkpoint["split"] is not None:
        # The entry of the history at work fills up again as the epoch begins.
        run.resume_point = {**checkpoint["split"], "history": run.history.pop(), "random_now": checkpoint["random"]}
    _restore_sequences(run, checkpoint["sequences"])
    _restore_callbacks(run, checkpoint["callbacks"])
    _cut_logs(run, checkpoint["logs"])
    set_random_states(checkpoint["random"])


def _split_at_work(run: Run, place: SplitPlace) -> dict[str, Any]:
    return {
        "dataset": run.dataset,
        "split": run.split,
        "batch_index": run.batch_index,
        "meter": run.meter.state_dict(),
        "wait_s": run.wait_s,
        "time_s": run.clock() - place.started,
        "random": place.random,
        "group": run.optimization.group_state(),
        "sound": run.sound if run.training else None,
        "outputs": _without_heads(run.outputs or {}),
    }


def _without_heads(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _without_heads(inner) for name, inner in value.items() if name != Output.output_ref_tag}
    return value


def _sequences(run: Run) -> dict[str, dict[str, Any]]:
    """The states of all splits that have one; of the split at work where it stood after the batch that is done."""
    states: dict[str, dict[str, Any]] = {}
    for dataset_name, dataset in run.datasets.items():
        for split_name, split in cast("Mapping[str, Any]", dataset).items():
            if not hasattr(split, "state_dict"):
                continue
            is_at_work = run.place is not None and (dataset_name, split_name) == (run.dataset, run.split)
            state = run.place.state_of(split) if is_at_work and run.place is not None else split.state_dict()
            states.setdefault(dataset_name, {})[split_name] = state
    return states


def _restore_model(run: Run, checkpoint: Checkpoint) -> None:
    run.model.load_state_dict(checkpoint["model"])
    average = run.optimization.average
    if checkpoint["counters"]["is_averaged"]:
        run.optimization.average = None  # the model has become it
    if average is not None and run.optimization.average is None and not has_all_epochs(checkpoint, run.epochs):
        raise CheckpointError(
            "the model of a finished training is the average of its weights (ema), from which it can not go on: resume "
            "from the folder of the run, or from last.pt"
        )
    average = run.optimization.average
    if (average is None) != (checkpoint["ema"] is None):
        raise CheckpointError("the checkpoint was made with an average of the weights (ema), or is to be used with one")
    if average is not None:
        average.load_state_dict(checkpoint["ema"])
    if (run.scaler is None) != (checkpoint["scaler"] is None):
        raise CheckpointError("the checkpoint was made with a gradient scaler (amp='fp16'), or is to be used with one")
    if run.scaler is not None:
        run.scaler.load_state_dict(checkpoint["scaler"])


def _restore_optimizers(run: Run, checkpoint: Checkpoint) -> None:
    ours: dict[str, Mapping[str, Optimizer]] = {
        dataset: by_name(optimizers) for dataset, optimizers in (run.optimizers or {}).items()
    }
    _check_same("optimizers", {f"{d}/{n}" for d in ours for n in ours[d]}, checkpoint["optimizers"])
    for dataset, optimizers in ours.items():
        for name, optimizer in optimizers.items():
            options = [set(group) for group in optimizer.param_groups]
            optimizer.load_state_dict(checkpoint["optimizers"][dataset][name])
            missing = set[str]().union(*options).difference(*optimizer.param_groups)
            if missing:  # torch takes the options of another kind of optimizer in place of ours
                kind = type(optimizer).__name__
                raise CheckpointError(
                    f"the checkpoint has no {sorted(missing)} for {kind}, the optimizer of {dataset!r}"
                )
            if checkpoint["counters"]["nb_steps"]:
                # It has stepped, though not in this process: else its scheduler warns that it goes first.
                optimizer._opt_called = True  # pyright: ignore[reportAttributeAccessIssue]
    schedules: dict[str, list[Schedule]] = {
        dataset: schedules_of(run.schedulers, dataset) for dataset in run.schedulers or {}
    }
    theirs, nb_ours = checkpoint["schedulers"], {dataset: len(of) for dataset, of in schedules.items()}
    nb_theirs = {dataset: len(states) for dataset, states in theirs.items()}
    if nb_ours != nb_theirs:
        raise CheckpointError(f"the checkpoint has so many schedulers: {nb_theirs}, this training: {nb_ours}")
    for dataset, states in theirs.items():
        for schedule, state in zip(schedules[dataset], states, strict=True):
            schedule.scheduler.load_state_dict(state)


def _check_same(what: str, ours: set[str], saved: Mapping[str, Mapping[str, Any]]) -> None:
    theirs = {f"{dataset}/{name}" for dataset, states in saved.items() for name in states}
    if ours != theirs:
        raise CheckpointError(f"the checkpoint has the {what} {sorted(theirs)}, this training {sorted(ours)}")


def _restore_sequences(run: Run, states: Mapping[str, Mapping[str, Any]]) -> None:
    for dataset_name, of_dataset in states.items():
        for split_name, state in of_dataset.items():
            split = run.datasets.get(dataset_name, {}).get(split_name)
            if split is None or not hasattr(split, "load_state_dict"):
                raise CheckpointError(
                    f"the checkpoint has a state of {dataset_name}/{split_name}, which takes none here"
                )
            split.load_state_dict(state)  # pyright: ignore[reportAttributeAccessIssue]


def _restore_callbacks(run: Run, states: list[tuple[str, Any]]) -> None:
    """By the names of their classes, in order; what has no counterpart is said."""
    left = list(run.callbacks)
    for name, state in states:
        callback = next((one for one in left if type(one).__qualname__ == name), None)
        if callback is None:
            if state:
                _logger.warning("the checkpoint has a state of the callback %s, which is not here any more", name)
            continue
        left.remove(callback)
        callback.load_state_dict(state)


def _cut_logs(run: Run, lengths: Mapping[str, int]) -> None:
    """What was written after the checkpoint is written again; what was not there yet goes."""
    for name, path in run.logs.items():
        length = lengths.get(name, 0)
        if path.exists():
            _cut(path, length)


def _cut(path: Path, length: int) -> None:
    found = path.stat().st_size
    if found < length:
        raise CheckpointError(f"the log {str(path)!r} had {length} bytes when the checkpoint was made, and has {found}")
    with path.open("r+b") as file:
        file.truncate(length)
