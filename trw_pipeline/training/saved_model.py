"""A model and the result of its training, as two files."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import torch
from torch import nn

from trw_pipeline.files import open_atomic
from trw_pipeline.outputs.output import Output

Result: TypeAlias = dict[str, Any]
"""What `Trainer.fit` tells of a training: `history`, `options`, `outputs` and `datasets_infos`."""


def save_model(model: nn.Module, result: Result | None, path: str | os.PathLike[str]) -> None:
    """Save a whole model, and the result of its training beside it.

    Each file is complete or absent. The result is written first: where a new model is, its result is too.

    Args:
        model: written as a whole with `pickle`, so its class must be importable where it is loaded.
        result: written to `path + '.result'`, without the heads (`output_ref`) in its outputs; it is not changed. None:
            there is no such file afterwards.
        path: where to write the model; the folder must exist.

    Raises:
        OSError: a file can not be written.
        pickle.PicklingError, AttributeError, TypeError: the model or the result can not be pickled.
    """
    result_path = Path(f"{os.fspath(path)}.result")
    if result is None:
        result_path.unlink(missing_ok=True)
    else:
        with open_atomic(result_path) as file:
            pickle.dump(_without_heads(result), file, protocol=pickle.HIGHEST_PROTOCOL)
    with open_atomic(path) as file:
        save_with_torch(model, file)


def load_model(
    path: str | os.PathLike[str], with_result: bool = False, device: torch.device | str | None = None
) -> tuple[nn.Module, Result | None]:
    """Load what `save_model` saved.

    **Load only files that you trust**: both are pickles, which run code of their maker when they are loaded.

    Args:
        path: file of the model.
        with_result: whether to load the result too, from `path + '.result'`.
        device: where to put the model. None: where it was when it was saved.

    Returns:
        The model, and the result or None.

    Raises:
        FileNotFoundError: a file is absent.
        TypeError: the file holds something that is not a module.
    """
    # A whole module is no plain data, so torch must be told to unpickle anything.
    model = torch.load(path, map_location=device, weights_only=False)
    if not isinstance(model, nn.Module):
        raise TypeError(f"{os.fspath(path)!r} must hold a whole module, got {type(model).__name__}")
    if not with_result:
        return model, None
    with Path(f"{os.fspath(path)}.result").open("rb") as file:
        return model, pickle.load(file)


def save_with_torch(value: Any, file: BinaryIO) -> None:
    """`torch.save`, but what ended it half-way (a Ctrl-C, a full disk) is what is raised.

    torch closes its archive then, fails at that too, and its `RuntimeError` about a position would hide the first.
    """
    try:
        torch.save(value, file)
    except RuntimeError as error:
        if error.__context__ is not None:
            raise error.__context__ from None
        raise


def _without_heads(value: Any) -> Any:
    """A copy of nested dicts without the values that are heads."""
    if not isinstance(value, dict):
        return value
    return {name: _without_heads(inner) for name, inner in value.items() if name != Output.output_ref_tag}
