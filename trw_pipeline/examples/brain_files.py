"""Five parts of a brain as files: the MNI152 template and its tissue maps, out of the nilearn package.

The template is symmetric, so of two halves that mirror each other one is used. Its front and its back, cut into two
each, are to train on; the slab between them is to test with.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trw_pipeline.errors import MissingExtraError
from trw_pipeline.examples.mnist_files import cache_folder
from trw_pipeline.files import open_atomic

TISSUES = ("neither", "grey matter", "white matter")
"""Names of the labels, from 0 on."""

NB_TISSUES = len(TISSUES)

STEP = 2
"""Every second voxel of a millimetre: the originals take 35 MB as float32."""

_FILE = "mni_icbm152_{}_tal_nlin_sym_09a_converted.nii.gz"
_NAMES = {"train": ("front-low", "front-high", "back-low", "back-high"), "test": ("middle",)}


def brain_splits(folder: Path | None = None) -> dict[str, dict[str, Any]]:
    """Returns the volumes as paths of files, writing them first if one is missing.

    Args:
        folder: where the files are; by default `brain` in the cache folder.

    Returns:
        "train" (4 volumes) and "test" (1) -> `path`, a list of str.

    Raises:
        MissingExtraError: nibabel or nilearn is not installed.
    """
    folder = cache_folder() / "brain" if folder is None else folder
    paths = {split: [folder / f"{name}.npz" for name in names] for split, names in _NAMES.items()}
    if not all(path.exists() for split in paths.values() for path in split):
        _write_files(folder)
    return {split: {"path": [str(path) for path in of_split]} for split, of_split in paths.items()}


def load_volume(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Reads the volume of a batch of one.

    Args:
        batch: `path`, a list of one str.

    Returns:
        The batch with `image`, float32 (1, 1, D, H, W) in [0, 1], T1-weighted, and `label`, int64 (1, 1, D, H, W).
    """
    with np.load(batch["path"][0]) as file:
        image, label = file["image"].astype(np.float32) / 255, file["label"].astype(np.int64)
    return {**batch, "image": image[None, None], "label": label[None, None]}


def _write_files(folder: Path) -> None:
    image, grey, white = (_read(name) for name in ("t1", "gm", "wm"))
    likely = np.maximum(grey, white) > 127
    label = np.where(likely, np.where(white > grey, 2, 1), 0).astype(np.uint8)
    half, high = image.shape[0] // 2, image.shape[2] // 2
    back, front = (round(share * image.shape[1]) for share in (0.37, 0.63))  # a quarter between them
    parts = {
        "front-low": np.s_[:half, front:, :high],
        "front-high": np.s_[:half, front:, high:],
        "back-low": np.s_[:half, :back, :high],
        "back-high": np.s_[:half, :back, high:],
        "middle": np.s_[:half, back:front],
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, part in parts.items():
        with open_atomic(folder / f"{name}.npz") as file:
            np.savez_compressed(file, image=image[part], label=label[part])


def _read(name: str) -> npt.NDArray[np.uint8]:
    """Returns a map whose greatest value is 255."""
    try:
        import nibabel  # noqa: PLC0415 (optional)

        with resources.as_file(resources.files("nilearn") / "datasets" / "data" / _FILE.format(name)) as path:
            volume: Any = nibabel.load(path)  # pyright: ignore[reportPrivateImportUsage]
            values = np.asarray(volume.dataobj, dtype=np.float32)[::STEP, ::STEP, ::STEP]
            return np.round(255 * np.clip(values / values.max(), 0, 1)).astype(np.uint8)
    except ModuleNotFoundError as error:
        raise MissingExtraError("the brain volumes", "examples") from error
