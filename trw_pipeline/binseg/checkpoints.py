"""The checkpoints of a training, in its output folder."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from torch import nn
from torch.optim import Optimizer

from trw_pipeline.errors import CheckpointError
from trw_pipeline.files import write_text
from trw_pipeline.training.checkpoint import read_checkpoint, remove_leftovers, save_checkpoint

_logger = logging.getLogger(__name__)

LOWEST, PERIODIC, FINAL = "model_lowest_valid_loss", "model_periodic_save", "model_final_epoch"

_POINTER = "last_checkpoint"
_FORMAT = "trw_pipeline.binseg checkpoint 1"
_NAMES = re.compile(rf"({LOWEST}|{PERIODIC}|{FINAL})\.pth|{_POINTER}")


class SavesCheckpoints(Protocol):
    """What `run` wants of a checkpointer."""

    def save(self, name: str, /, **data: Any) -> Any:
        """Write a checkpoint of that name with the model, its optimizer, its scheduler, and this data."""
        ...


class Checkpointer:
    """Writes checkpoints to `<path>/<name>.pth`, and to `<path>/last_checkpoint` the name of the newest file.

    A checkpoint is a dict of the states of `model`, `optimizer` and `scheduler`, and whatever else is given: plain
    data, tensors and arrays. Each file is complete or absent, and is read without running code of its maker. To go on:

        arguments = {"epoch": 0, **checkpointer.load(), "max_epoch": 100}

    Args:
        model: the model.
        optimizer: its optimizer, or None.
        scheduler: its learning rate scheduler, or None.
        path: the folder; it is made by the first `save`.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | None = None,
        scheduler: Any = None,
        path: str | os.PathLike[str] = ".",
    ) -> None:
        self.path = Path(path)
        self._parts: dict[str, Any] = {"model": model, "optimizer": optimizer, "scheduler": scheduler}

    def save(self, name: str, **data: Any) -> None:
        """Write a checkpoint.

        Args:
            name: of the file, without its extension; one that is there is replaced.
            **data: what else to keep.

        Raises:
            OSError: the file can not be written; the one that was there is as it was.
            TypeError: something is no plain data; the message names it.
            ValueError: data is called like a part: `model`, `optimizer`, `scheduler`.
        """
        taken = sorted(set(data) & set(self._parts))
        if taken:
            raise ValueError(f"the data of a checkpoint must not be called {taken}: so are its parts")
        self.path.mkdir(parents=True, exist_ok=True)
        remove_leftovers(self.path, _NAMES)
        states = {part: thing.state_dict() for part, thing in self._parts.items() if thing is not None}
        save_checkpoint({**data, **states, "format": _FORMAT}, self.path / f"{name}.pth")
        write_text(self.path / _POINTER, f"{name}.pth")  # after the file: it never names one that is not there

    def load(self, f: str | os.PathLike[str] | None = None) -> dict[str, Any]:
        """Put model, optimizer and scheduler into the state of a checkpoint.

        Args:
            f: the file. None: the newest of the folder.

        Returns:
            What else is in it; {} if none was asked for and none is there. A part that it has not stays as it is.

        Raises:
            FileNotFoundError: the file is not there.
            CheckpointError: it is damaged, or of another model, optimizer or scheduler.
        """
        if f is None and not self.has_checkpoint():
            _logger.info("there is no checkpoint in %s", self.path)
            return {}
        path = self.last_checkpoint() if f is None else Path(f)
        data = read_checkpoint(path)
        data.pop("format", None)
        for part, thing in self._parts.items():
            state = data.pop(part, None)
            if thing is not None and state is not None:
                try:
                    thing.load_state_dict(state)
                except (KeyError, ValueError, RuntimeError, TypeError) as error:
                    raise CheckpointError(
                        f"the {part} of the checkpoint {str(path)!r} does not fit: {error}"
                    ) from error
        _logger.info("loaded the checkpoint %s", path)
        return data

    def has_checkpoint(self) -> bool:
        """Tell whether there is one to go on from."""
        return (self.path / _POINTER).is_file()

    def last_checkpoint(self) -> Path:
        """Give the newest file.

        Raises:
            FileNotFoundError: there is none.
        """
        return self.path / (self.path / _POINTER).read_text(encoding="utf-8").strip()


def checkpointer_process(
    checkpointer: SavesCheckpoints | None,
    checkpoint_period: int,
    valid_loss: float | None,
    lowest_validation_loss: float,
    arguments: Mapping[str, Any],
    epoch: int,
    max_epoch: int,
) -> float:
    """Write the checkpoints that are due at the end of an epoch.

    | name | when |
    |---|---|
    | `model_lowest_valid_loss` | the validation loss is lower than it ever was |
    | `model_periodic_save` | every `checkpoint_period` epochs |
    | `model_final_epoch` | the last epoch |

    Args:
        checkpointer: has `save(name, **data)`; None: nothing is written.
        checkpoint_period: in epochs; 0: none is written for it.
        valid_loss: of this epoch, or None.
        lowest_validation_loss: of the epochs before, or infinity.
        arguments: goes into each checkpoint, with `epoch` and `max_epoch`.
        epoch: epochs finished.
        max_epoch: epochs in all.

    Returns:
        The lowest validation loss so far. One that is NaN, or equal to the lowest, is not lower.
    """
    is_lowest = valid_loss is not None and valid_loss < lowest_validation_loss
    is_due = bool(checkpoint_period) and epoch % checkpoint_period == 0
    # The lowest first: where a kill comes in between, there is no newer one from which a training would go on and have
    # no reason to write it.
    due = {LOWEST: is_lowest, PERIODIC: is_due, FINAL: epoch >= max_epoch}
    for name in (name for name, wanted in due.items() if wanted and checkpointer is not None):
        assert checkpointer is not None  # else there is no name
        checkpointer.save(name, **{**arguments, "epoch": epoch, "max_epoch": max_epoch})
    return valid_loss if is_lowest and valid_loss is not None else lowest_validation_loss
