"""Checkpoints as files: one for each, complete or absent, that `torch.load(weights_only=True)` reads."""

from __future__ import annotations

import logging
import os
import re
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np
import torch

from trw_pipeline.errors import CheckpointError
from trw_pipeline.files import open_atomic
from trw_pipeline.training.saved_model import save_with_torch

_logger = logging.getLogger(__name__)

Checkpoint: TypeAlias = dict[str, Any]
"""Everything that a training needs to go on as if it had never stopped: see `capture`."""

FORMAT = "trw_pipeline checkpoint 2"
FOLDER = "checkpoints"
_ARRAY = "__numpy__"
_OUR_NAMES = re.compile(r"(last|final|epoch-\d+|best-\d+)\.pt")


def save_checkpoint(checkpoint: Checkpoint, path: str | os.PathLike[str]) -> None:
    """Write a checkpoint, atomically.

    Args:
        checkpoint: plain data, tensors and arrays; with its own `format` where it is of another.
        path: where; the folder must exist.

    Raises:
        OSError: the file can not be written; the one that was there is as it was.
        TypeError: the checkpoint holds something that is no plain data, of a callback say; the message names where.
    """
    plain = _as_plain({"format": FORMAT, **checkpoint}, "checkpoint")
    with open_atomic(path) as file:
        save_with_torch(plain, file)


def load_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Read a checkpoint into memory, without running any code that may be in it.

    Args:
        path: the file.

    Returns:
        What was saved, on the CPU.

    Raises:
        FileNotFoundError: it is not there.
        CheckpointError: it is damaged, or none of ours.
    """
    checkpoint = read_checkpoint(path)
    if checkpoint.get("format") != FORMAT:
        raise CheckpointError(f"{os.fspath(path)!r} is no checkpoint of the format {FORMAT!r}")
    return checkpoint


def read_checkpoint(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a dict of plain data of any format, as in `load_checkpoint`."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"there is no checkpoint {os.fspath(path)!r}")
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # zip, pickle and torch each have errors of their own for a damaged file
        raise CheckpointError(f"the checkpoint {os.fspath(path)!r} is damaged: {error}") from error
    if not isinstance(loaded, dict):
        raise CheckpointError(f"{os.fspath(path)!r} is no checkpoint: it holds a {type(loaded).__name__}")
    return _from_plain(loaded)


def checkpoint_at(path: str | os.PathLike[str], epochs: int) -> tuple[Path, Checkpoint]:
    """Find where a training goes on.

    Args:
        path: a checkpoint; or the folder of a run, or its folder of checkpoints.
        epochs: to train in all. Of a folder, the checkpoint of a finished training counts if it is over, see `is_over`.

    Returns:
        The file, and what is in it. Of a folder it is the newest that is complete: those that are damaged are passed
        over with a warning, and files with other names than ours are not looked at.

    Raises:
        FileNotFoundError: there is no such file, or no checkpoint in the folder.
        CheckpointError: it is damaged, or all of them are.
    """
    if not Path(path).is_dir():
        return Path(path), load_checkpoint(path)
    paths = our_files(path)
    if not paths:
        raise FileNotFoundError(f"there is no checkpoint to resume from in {os.fspath(path)!r}")
    for one in sorted(paths, key=lambda one: one.stat().st_mtime_ns, reverse=True):
        try:
            checkpoint = load_checkpoint(one)
        except CheckpointError as error:
            _logger.warning("%s; the one before is used", error)
            continue
        if not checkpoint["is_finished"] or is_over(checkpoint, epochs):
            return one, checkpoint
    raise CheckpointError(f"no checkpoint in {os.fspath(path)!r} can be resumed: {sorted(one.name for one in paths)}")


def has_all_epochs(checkpoint: Checkpoint, epochs: int) -> bool:
    """Whether no epoch is left to do: there were so many, or the training was stopped before."""
    return checkpoint["epoch"] >= epochs or checkpoint["counters"]["stop"]


def is_over(checkpoint: Checkpoint, epochs: int) -> bool:
    """Whether nothing is left to do, not even the final evaluation."""
    return checkpoint["is_finished"] and has_all_epochs(checkpoint, epochs)


def run_folder_of(checkpoint: Path) -> Path:
    """Give the folder of the run that a checkpoint belongs to."""
    folder = checkpoint.absolute().parent
    return folder.parent if folder.name == FOLDER else folder


def our_files(folder: str | os.PathLike[str]) -> list[Path]:
    """List the checkpoints of a run, given its folder or that of its checkpoints."""
    inner = Path(folder) / FOLDER
    where = inner if inner.is_dir() else Path(folder)
    return [path for path in _entries(where) if _OUR_NAMES.fullmatch(path.name)]


def remove_leftovers(folder: str | os.PathLike[str], names: re.Pattern[str] = _OUR_NAMES) -> None:
    """Remove what is left of checkpoints of such names whose writing was cut short, and nothing else."""
    leftovers = re.compile(rf"\.({names.pattern})\.[0-9a-f]{{8}}\.tmp")
    for path in _entries(Path(folder)):
        if leftovers.fullmatch(path.name):
            path.unlink(missing_ok=True)


def _entries(folder: Path) -> Iterable[Path]:
    return folder.iterdir() if folder.is_dir() else ()


def _as_plain(value: Any, where: str) -> Any:
    """Copies nested plain data, with arrays as tensors; numbers of NumPy become Python's."""
    if value is None or isinstance(value, (bool, int, float, str, bytes, torch.Tensor)):
        return value.item() if isinstance(value, np.generic) else value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return _array_as_plain(value, where)
    if isinstance(value, Mapping):
        mapping = cast("Mapping[Any, Any]", value)
        items = {_as_plain(key, where): _as_plain(inner, f"{where}[{key!r}]") for key, inner in mapping.items()}
        return _of_the_kind(mapping, items)
    if isinstance(value, (list, tuple)):
        inner = [_as_plain(one, f"{where}[{i}]") for i, one in enumerate(cast("list[Any]", value))]
        return tuple(inner) if isinstance(value, tuple) else inner
    if hasattr(value, "__fspath__"):
        return os.fspath(value)
    raise TypeError(f"{where} is a {type(value).__name__}: a checkpoint holds plain data, tensors and arrays")


def _of_the_kind(mapping: Mapping[Any, Any], items: dict[Any, Any]) -> dict[Any, Any]:
    """The items as a mapping of the same kind, where torch reads that kind without trust; else as they are."""
    if isinstance(mapping, Counter):  # the milestones of a scheduler
        return Counter(items)
    if not isinstance(mapping, OrderedDict):
        return items
    copy: OrderedDict[Any, Any] = OrderedDict(items)
    if hasattr(mapping, "_metadata"):  # the state of a module: the versions of its parts
        copy._metadata = mapping._metadata  # pyright: ignore[reportAttributeAccessIssue]
    return copy


def _array_as_plain(array: np.ndarray, where: str) -> dict[str, Any]:
    kind = array.dtype.str
    if array.dtype.hasobject:
        return {_ARRAY: "O", "shape": list(array.shape), "values": _as_plain(array.ravel().tolist(), where)}
    # As bytes any type of numbers, texts or times keeps its byte order.
    data = torch.from_numpy(np.frombuffer(array.tobytes(), np.uint8).copy())
    return {_ARRAY: kind, "shape": list(array.shape), "values": data}


def _from_plain(value: Any) -> Any:
    if isinstance(value, dict):
        known = cast("dict[Any, Any]", value)
        if _ARRAY in known:
            return _array_from_plain(known)
        return _of_the_kind(known, {key: _from_plain(inner) for key, inner in known.items()})
    if isinstance(value, (list, tuple)):
        inner = [_from_plain(one) for one in cast("list[Any]", value)]
        return tuple(inner) if isinstance(value, tuple) else inner
    return value


def _array_from_plain(plain: Mapping[str, Any]) -> np.ndarray:
    shape = tuple(plain["shape"])
    if plain[_ARRAY] == "O":
        array = np.empty(len(plain["values"]), object)
        array[:] = _from_plain(plain["values"])
        return array.reshape(shape)
    return np.frombuffer(plain["values"].numpy().tobytes(), np.dtype(plain[_ARRAY])).reshape(shape).copy()
