"""The options of a training: one dict, so that a run can be described, stored and compared."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, TypeAlias, cast

import torch

Options: TypeAlias = dict[str, Any]
"""Section -> name -> value, as `create_default_options` makes it; sections may have more names."""

_NEEDED = {
    "training_parameters": ("num_epochs",),
    "workflow_options": ("device", "train_split", "logging_directory"),
}


def create_default_options(
    logging_directory: str | os.PathLike[str] | None = None,
    num_epochs: int = 50,
    device: torch.device | str | None = None,
) -> Options:
    """Make the options that `Trainer.fit` needs.

    Args:
        logging_directory: folder of all runs. None: the environment variable `LOGGING_DIRECTORY`, else
            `TRW_LOGGING_ROOT` (which the original reads), else `runs` under the working directory.
        num_epochs: epochs to train, 0 or more.
        device: where to train. None: the first CUDA device if there is one, else the CPU.

    Returns:
        A new dict with the sections

        - `model_parameters`: `hyperparams` (None);
        - `training_parameters`: `dropout_probability` (0.5), `num_epochs`;
        - `workflow_options`: `device` (a `torch.device`), `train_split` ("train": the split that is trained on),
          `logging_directory`, `trainer_run` (0) and `current_logging_directory` (None); `fit` sets the last two in the
          options it returns;
        - `runtime`: {}, for whatever else shall be recorded.

    Raises:
        ValueError: `num_epochs` is negative.
        TypeError: `num_epochs` is not an int.
    """
    check_num_epochs(num_epochs)
    if logging_directory is None:
        environment = os.environ
        logging_directory = environment.get("LOGGING_DIRECTORY") or environment.get("TRW_LOGGING_ROOT") or "runs"
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return {
        "model_parameters": {"hyperparams": None},
        "training_parameters": {"dropout_probability": 0.5, "num_epochs": num_epochs},
        "workflow_options": {
            "device": torch.device(device),
            "train_split": "train",
            "logging_directory": os.path.abspath(logging_directory),
            "trainer_run": 0,
            "current_logging_directory": None,
        },
        "runtime": {},
    }


def check_num_epochs(num_epochs: Any) -> None:
    """Check a number of epochs.

    Args:
        num_epochs: what is to be an int, 0 or more.

    Raises:
        ValueError: it is negative.
        TypeError: it is not an int.
    """
    if not isinstance(num_epochs, int) or isinstance(num_epochs, bool):
        raise TypeError(f"num_epochs must be an int, got {num_epochs!r}")
    if num_epochs < 0:
        raise ValueError(f"num_epochs must be at least 0, got {num_epochs}")


def check_options(options: Any) -> None:
    """Check that options have what a training needs.

    Args:
        options: what is to be like the result of `create_default_options`.

    Raises:
        ValueError: a section or a value of it is absent, or the number of epochs is negative.
        TypeError: the options are not a mapping, or the number of epochs is not an int.
    """
    if not isinstance(options, Mapping):
        raise TypeError(
            f"the options must be a mapping, as create_default_options makes it, got {type(options).__name__}"
        )
    for section, names in _NEEDED.items():
        for name in names:
            if name not in cast("Options", options).get(section, {}):
                raise ValueError(f"the options must have [{section!r}][{name!r}], as create_default_options makes them")
    check_num_epochs(options["training_parameters"]["num_epochs"])


def copy_options(options: Options) -> Options:
    """Copy options so that the original stays as it is: dicts are copied at every depth, other values are shared."""
    return {name: copy_options(value) if isinstance(value, dict) else value for name, value in options.items()}
