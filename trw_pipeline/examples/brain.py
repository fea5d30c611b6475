"""Trains a small network to find the tissues of a brain in 3D: `python -m trw_pipeline train brain`.

    path -> load_volume -> flipped patches, a list of them -> shuffle -> batches -> TissueNet

The test is a whole slab of the brain at once, of which no part was trained on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from torch import nn

from trw_pipeline.examples import training
from trw_pipeline.examples.brain_files import TISSUES, brain_splits, load_volume
from trw_pipeline.examples.training import TrainOptions, TrainResult
from trw_pipeline.examples.volume_patches import TissueNet, random_patches
from trw_pipeline.outputs.segmentation import OutputSegmentation
from trw_pipeline.sequences.samplers import SamplerRandom, SamplerSequential
from trw_pipeline.sequences.sequence import Sequence, SequenceArray
from trw_pipeline.typing import Batch

NB_PATCHES = 16
"""Of each volume in each epoch."""

PATCH_SIZE = 24
"""Voxels of 2 mm along each axis."""


@dataclass(frozen=True, kw_only=True)
class BrainOptions(TrainOptions):
    """What the command takes."""

    epochs: int = 30
    batch_size: int = 4


class BrainNet(nn.Module):
    """A `TissueNet` with a head."""

    def __init__(self) -> None:
        super().__init__()
        self.tissues = TissueNet()

    def forward(self, batch: Mapping[str, Any]) -> dict[str, OutputSegmentation]:
        """Maps `image`, float32 (N, 1, D, H, W), to the head "tissue" over logits (N, NB_TISSUES, D, H, W)."""
        return {"tissue": OutputSegmentation(self.tissues(batch["image"]), "label", collect_output=False)}


def flipped_patches(volume: Batch, rng: np.random.Generator) -> list[Batch]:
    """Cuts patches anywhere, and flips each along some of its axes.

    Args:
        volume: see `random_patches`.
        rng: draws the places and the axes.
    """
    patches = random_patches(volume, rng, NB_PATCHES, PATCH_SIZE)
    for patch in patches:
        axes = tuple(axis for axis in (2, 3, 4) if rng.random() < 0.5)
        for name in ("image", "label"):
            patch[name] = np.flip(patch[name], axes).copy()
    return patches


def make_splits(options: BrainOptions) -> dict[str, Sequence]:
    """Returns the chains "train", of patches, and "test", of one volume."""
    splits = brain_splits()
    cut = [load_volume, flipped_patches]
    patches = (
        SequenceArray(splits["train"], SamplerRandom())
        .with_seed(options.seed)
        .map(cut, nb_workers=options.nb_workers, backend=options.backend)
    )
    return {
        "train": patches.shuffle(2 * NB_PATCHES).batch(options.batch_size).collate(),
        "test": SequenceArray(splits["test"], SamplerSequential()).map(load_volume).collate(),
    }


def train(options: BrainOptions, show: Callable[[str], None]) -> TrainResult:
    """Trains, and finds the dice of each tissue in the test volume.

    Args:
        options: what to do.
        show: takes the path of the run folder, and the table of each epoch, as text.

    Raises:
        ValueError: see `training.check_options`.
    """
    measured, folder = training.train(
        "brain",
        options,
        partial(make_splits, options),
        BrainNet,
        1e-2,
        show,
        class_names={"label": TISSUES},
        explained_split="train",  # patches: to explain a volume takes longer than to train
    )
    dice = measured["brain"]["test"]["tissue"]
    return TrainResult({"dice of grey matter": dice["dice 1"], "dice of white matter": dice["dice 2"]}, folder)
