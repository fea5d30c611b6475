"""A whole training, with its files."""

from __future__ import annotations

import csv
import logging
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from trw_pipeline.binseg.checkpoints import FINAL, SavesCheckpoints, checkpointer_process
from trw_pipeline.binseg.epochs import Criterion, Loader, train_epoch, validate_epoch
from trw_pipeline.binseg.information import check_gpu, save_model_summary, static_information_to_csv
from trw_pipeline.binseg.logfile import check_exist_logfile, create_logfile_fields, read_log, write_log_info
from trw_pipeline.callbacks.resource_monitor import gpu_names
from trw_pipeline.resources import Figures, ResourceMonitor, checked_interval
from trw_pipeline.training.checkpoint import remove_leftovers
from trw_pipeline.training.optimization import Optimization
from trw_pipeline.training.randomness import random_states, set_random_states

_logger = logging.getLogger(__name__)

_FILES = re.compile(r"model_summary\.txt|trainlog\.csv")
"""Those of a run that are written beside themselves first; `Checkpointer` sees to its own."""

_GREATEST = ("cpu_processes", "cpu_open_files")
"""Figures whose greatest value is logged, not their mean."""


def run(
    model: nn.Module,
    data_loader: Loader,
    valid_loader: Loader | None,
    extra_valid_loaders: Sequence[Loader] | None,
    optimizer: Optimizer,
    criterion: Criterion,
    scheduler: Any,
    checkpointer: SavesCheckpoints | None,
    checkpoint_period: int,
    device: torch.device,
    arguments: Mapping[str, Any],
    output_folder: str | os.PathLike[str],
    monitoring_interval: float,
    batch_chunk_count: int,
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> None:
    """Train a model, and write to a folder how it goes.

    | file | content |
    |---|---|
    | `model_summary.txt` | see `save_model_summary` |
    | `constants.csv` | see `static_information_to_csv`; one that is there is renamed to `constants.csv~` |
    | `trainlog.csv` | a row for each epoch, see `create_logfile_fields`; that of another training is renamed likewise |
    | checkpoints | see `checkpointer_process` |

    **To go on** with a training, load its newest checkpoint and hand over what it returns: `{**checkpointer.load(),
    "max_epoch": 100}`. Then weights, rows and best model become those of a training that never stopped: rows that came
    after the checkpoint are taken out, the generators of Python, NumPy and torch are put back, the lowest validation
    loss so far is that of the log. (The state of a loader that has a generator of its own is not in a checkpoint.)

    Args:
        model: images -> whatever the criterion takes; it is moved to the device.
        data_loader: what to train with, see `train_epoch`.
        valid_loader: what to validate with, at the end of each epoch; or None.
        extra_valid_loaders: more of these, for the log alone; or None.
        optimizer: optimises the model.
        criterion: see `train_epoch`.
        scheduler: its learning rate scheduler, stepped at the end of each epoch; or None. `ReduceLROnPlateau`
            follows the validation loss.
        checkpointer: a `Checkpointer`, anything else with `save(name, **data)`, or None for no checkpoints.
        checkpoint_period: epochs between two checkpoints for their own sake; 0: none.
        device: where to train.
        arguments: `epoch`, the epochs finished: 0 for a new training; `max_epoch`, the epochs in all. And whatever
            else a checkpoint returned. Where no epoch is left there is nothing to do: what was loaded is saved as the
            final checkpoint, and no other file is touched.
        output_folder: the folder; it is made if it is absent.
        monitoring_interval: seconds between two samples of resources. Each epoch has at least two.
        batch_chunk_count: so many batches of the loader make one step of the optimizer, see `train_epoch`.
        clock: seconds that never run backwards; every time that is logged comes from it.

    Raises:
        ValueError, TypeError: an argument is not as described; or a batch, see `train_epoch`.
        NonFiniteLossError: a loss that is trained on is NaN or infinite.
        OSError: a file can not be written.
    """
    start, max_epoch = _checked(arguments, checkpointer, checkpoint_period, batch_chunk_count)
    checked_interval("monitoring_interval", monitoring_interval)
    if isinstance(scheduler, ReduceLROnPlateau) and valid_loader is None:
        raise ValueError("ReduceLROnPlateau follows the validation loss, got no valid_loader")
    device = torch.device(device)
    check_gpu(device)
    if start >= max_epoch:
        _logger.info("nothing to do: %d of %d epochs are finished", start, max_epoch)
        if checkpointer is not None and "random" in arguments:
            checkpointer.save(FINAL, **arguments)  # a kill may have come just before that
        return
    _prepare(Path(output_folder), model, criterion, device, arguments)
    log_path = Path(output_folder) / "trainlog.csv"
    fields, lowest, total_time_s = read_log(log_path)
    with log_path.open("a", encoding="utf-8", newline="") as logfile, _monitor(monitoring_interval, device) as monitor:
        # Where the training goes on elsewhere, or with other loaders, the log keeps its columns.
        columns = fields or create_logfile_fields(valid_loader, extra_valid_loaders, device)
        writer = csv.DictWriter(logfile, columns, restval="", extrasaction="ignore", lineterminator="\n")
        if not fields:
            writer.writeheader()
        if "random" in arguments:
            set_random_states(arguments["random"])
        before = clock()
        for epoch in range(start + 1, max_epoch + 1):
            monitor.begin()
            loss = train_epoch(data_loader, model, optimizer, device, criterion, batch_chunk_count)
            valid_loss, extra_losses = _validated(model, valid_loader, extra_valid_loaders, device, criterion)
            resources = _logged(monitor.end())
            now = clock()
            epoch_s, before = now - before, now  # with the checkpoints of the epoch before
            total_time_s += epoch_s
            eta_s = epoch_s * (max_epoch - epoch)
            # Before the scheduler, because the row tells the rate of this epoch; and before the checkpoint, so that
            # there are the rows of whatever a training goes on from.
            write_log_info(
                epoch, total_time_s, eta_s, loss, valid_loss, extra_losses, optimizer, writer, logfile, resources
            )
            os.fsync(logfile.fileno())
            _step(scheduler, valid_loss)
            state = {**arguments, "random": random_states()}
            lowest = checkpointer_process(checkpointer, checkpoint_period, valid_loss, lowest, state, epoch, max_epoch)


def _prepare(
    folder: Path, model: nn.Module, criterion: Criterion, device: torch.device, arguments: Mapping[str, Any]
) -> None:
    """Puts everything on the device, and makes the folder and the files ready to which the epochs add."""
    folder.mkdir(parents=True, exist_ok=True)
    remove_leftovers(folder, _FILES)
    model.to(device)
    if isinstance(criterion, nn.Module):
        criterion.to(device)
    _, nb_parameters = save_model_summary(folder, model)
    static_information_to_csv(folder / "constants.csv", device, nb_parameters)
    check_exist_logfile(folder / "trainlog.csv", arguments)


def _validated(
    model: nn.Module,
    valid_loader: Loader | None,
    extra_valid_loaders: Sequence[Loader] | None,
    device: torch.device,
    criterion: Criterion,
) -> tuple[float | None, list[float]]:
    """Returns the loss of the loader to validate with, if there is one, and those of the others."""
    loss = None if valid_loader is None else validate_epoch(valid_loader, model, device, criterion, "valid")
    extra = enumerate(extra_valid_loaders or (), 1)
    return loss, [validate_epoch(loader, model, device, criterion, f"xval@{number}") for number, loader in extra]


def _step(scheduler: Any, valid_loss: float | None) -> None:
    if isinstance(scheduler, ReduceLROnPlateau):
        assert valid_loss is not None  # there is a loader to validate with
        scheduler.step(valid_loss)
    elif scheduler is not None:
        scheduler.step()


def _monitor(interval_s: float, device: torch.device) -> closing[ResourceMonitor]:
    return closing(ResourceMonitor(interval_s, gpu_names(device)))


def _checked(arguments: Any, checkpointer: Any, checkpoint_period: Any, batch_chunk_count: int) -> tuple[int, int]:
    """Returns the epochs that are finished and all; raises for arguments that are not as described."""
    if not isinstance(arguments, Mapping):
        raise TypeError(f"arguments must be a mapping with epoch and max_epoch, got {type(arguments).__name__}")
    given = cast("Mapping[str, Any]", arguments)
    counts = {name: given.get(name) for name in ("epoch", "max_epoch")} | {"checkpoint_period": checkpoint_period}
    for name, count in counts.items():
        if not isinstance(count, int) or isinstance(count, bool):
            raise TypeError(f"{name} must be an int, got {count!r}")
        if count < 0:
            raise ValueError(f"{name} must not be negative, got {count}")
    if checkpointer is not None and not callable(getattr(checkpointer, "save", None)):
        raise TypeError(f"a checkpointer must have save(name, **data), got {type(checkpointer).__name__}")
    Optimization(batch_chunk_count)
    return given["epoch"], given["max_epoch"]


def _logged(figures: Mapping[str, Figures]) -> list[tuple[str, float]]:
    return [(name, figure.max if name in _GREATEST else figure.mean) for name, figure in figures.items()]
