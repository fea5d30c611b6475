"""The log of a training: `trainlog.csv`, one row an epoch."""

from __future__ import annotations

import csv
import logging
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import torch
from torch.optim import Optimizer

from trw_pipeline.files import write_text
from trw_pipeline.resources import CPU_FIGURES, GPU_FIGURES

_logger = logging.getLogger(__name__)


def check_exist_logfile(logfile_name: str | os.PathLike[str], arguments: Mapping[str, Any]) -> None:
    """Make a log ready that is there: that of another training is renamed to `<name>~`, ours cut to where we go on.

    Args:
        logfile_name: the file.
        arguments: `epoch`, the epochs finished: 0 for a new training. Rows of later epochs, and a last one that was not
            written whole, are taken out, since they are written again.
    """
    path = Path(logfile_name)
    if not path.exists():
        return
    if arguments["epoch"] == 0:
        path.replace(path.with_name(f"{path.name}~"))
        return
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    kept = [line for i, line in enumerate(lines) if i == 0 or _is_done(line, lines[0], arguments["epoch"])]
    if kept != lines:
        write_text(path, "".join(kept))


def create_logfile_fields(
    valid_loader: Any, extra_valid_loaders: Sequence[Any] | None, device: torch.device
) -> tuple[str, ...]:
    """Name the columns of the log.

    | column | meaning |
    |---|---|
    | `epoch` | from 1 |
    | `total_time`, `eta` | H:MM:SS since the training began, without pauses; and until it ends, if all goes on so |
    | `loss` | mean over the samples of the epoch |
    | `learning_rate` | of the first parameter group, as the epoch was trained with |
    | `validation_loss` | with a loader to validate |
    | `extra_validation_losses` | with extra loaders: `[a b ...]`, in their order |
    | `cpu_...`, and on a CUDA device `gpu_...` | figures of `resources.py`: the greatest of the epoch for |
    |  | `cpu_processes` and `cpu_open_files`, else the mean; memory in GiB |

    Args:
        valid_loader: the loader to validate with, or None.
        extra_valid_loaders: further ones, or None.
        device: where the training runs.

    Returns:
        The names, in order.
    """
    return (
        *("epoch", "total_time", "eta", "loss", "learning_rate"),
        *(["validation_loss"] if valid_loader is not None else []),
        *(["extra_validation_losses"] if extra_valid_loaders else []),
        *CPU_FIGURES,
        *(GPU_FIGURES if torch.device(device).type == "cuda" else []),
    )


def write_log_info(
    epoch: int,
    current_time: float,
    eta_seconds: float,
    loss: float,
    valid_loss: float | None,
    extra_valid_losses: Sequence[float],
    optimizer: Optimizer,
    logwriter: csv.DictWriter[str],
    logfile: TextIO,
    resource_data: Iterable[tuple[str, float]],
) -> None:
    """Write the row of an epoch, and log its first four values.

    Numbers are written so that reading them gives the same number.

    Args:
        epoch: from 1.
        current_time: seconds since the training began.
        eta_seconds: seconds until it ends.
        loss: of the epoch.
        valid_loss: the validation loss, or None.
        extra_valid_losses: the further ones, or ().
        optimizer: has the learning rate.
        logwriter: writes to the file.
        logfile: is flushed, so that the row is there whatever comes.
        resource_data: (column, value) for each figure of resources.
    """
    row: dict[str, Any] = {
        "epoch": epoch,
        "total_time": _hours(current_time),
        "eta": _hours(eta_seconds),
        "loss": loss,
        "learning_rate": float(optimizer.param_groups[0]["lr"]),
    }
    if valid_loss is not None:
        row["validation_loss"] = valid_loss
    if extra_valid_losses:
        row["extra_validation_losses"] = f"[{' '.join(map(repr, extra_valid_losses))}]"
    logwriter.writerow({**row, **dict(resource_data)})
    logfile.flush()
    _logger.info(" | ".join(f"{name}: {row[name]}" for name in ("epoch", "total_time", "eta", "loss")))


class LogSoFar(NamedTuple):
    """What the log of a training knows.

    Attributes:
        fields: its columns; none if there is no log.
        lowest_validation_loss: or infinity.
        total_time_s: seconds.
    """

    fields: tuple[str, ...]
    lowest_validation_loss: float
    total_time_s: float


def read_log(path: Path) -> LogSoFar:
    """Read the log that a training goes on with."""
    if not path.exists():
        return LogSoFar((), math.inf, 0.0)
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        rows = list(reader)
    # A loss that is NaN is never the lowest: in `min` it would be, where it comes first.
    losses = [loss for row in rows for loss in [float(row.get("validation_loss") or "nan")] if loss == loss]
    return LogSoFar(tuple(reader.fieldnames or ()), min(losses, default=math.inf), _seconds(rows))


def _is_done(line: str, header: str, epoch: int) -> bool:
    is_whole = line.endswith("\n") and line.count(",") >= header.count(",")
    return is_whole and int(line.split(",", 1)[0]) <= epoch


def _hours(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def _seconds(rows: Sequence[Mapping[str, str]]) -> float:
    if not rows:
        return 0.0
    hours, minutes, seconds = map(int, rows[-1]["total_time"].split(":"))
    return 3600.0 * hours + 60 * minutes + seconds
