"""Trains on patches of brain volumes, and segments a whole one: `python -m trw_pipeline.examples.volume_patches`.

    path -> load_volume -> a list of patches -> batches of them -> a small network -> sliding window over a volume

A mapped function that returns a list gives so many items. Each of the three that cut patches may stand in the chain:
one in NumPy, and the samplers of TorchIO and MONAI. All patches that they give lie wholly within the volume.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from trw_pipeline.errors import MissingExtraError
from trw_pipeline.examples.brain_files import NB_TISSUES, brain_splits, load_volume
from trw_pipeline.sequences.samplers import SamplerRandom
from trw_pipeline.sequences.sequence import Sequence, SequenceArray
from trw_pipeline.typing import Batch

logger = logging.getLogger(__name__)

Cut = Callable[..., list[Batch]]
"""Makes patches of a volume: called with a batch of one."""


def patch_of(volume: Batch, image: Any, label: Any) -> Batch:
    """Returns a patch as a batch of one: `image` and `label` (1, 1, S, S, S), `volume_uid` (1,)."""
    return {"image": image[None], "label": label[None], "volume_uid": volume["sample_uid"]}


def random_patches(volume: Batch, rng: np.random.Generator, nb_patches: int, size: int) -> list[Batch]:
    """Cuts patches anywhere, each place as likely as any other.

    Args:
        volume: `image` and `label` (1, 1, D, H, W) and `sample_uid` (1,).
        rng: draws the places.
        nb_patches: how many.
        size: voxels along each axis; no axis of the volume may be shorter.
    """
    image, label = volume["image"][0], volume["label"][0]
    starts = rng.integers(0, np.subtract(image.shape[1:], size) + 1, size=(nb_patches, 3))
    places = [(slice(None), *(slice(start, start + size) for start in place)) for place in starts]
    return [patch_of(volume, image[place].copy(), label[place].copy()) for place in places]


def torchio_patches(volume: Batch, nb_patches: int, size: int, around_tissue: bool) -> list[Batch]:
    """Cuts patches by TorchIO: anywhere, or centred as often on each tissue as on the background.

    Args:
        volume: see `random_patches`.
        nb_patches: how many.
        size: voxels along each axis.
        around_tissue: whether a `LabelSampler` draws the centres, else a `UniformSampler` the corners.
    """
    try:
        import torchio  # noqa: PLC0415 (optional)
    except ImportError as error:
        raise MissingExtraError("patches by TorchIO", "integration") from error
    image, label = (torch.as_tensor(volume[name][0]) for name in ("image", "label"))
    subject = torchio.Subject(image=torchio.ScalarImage(tensor=image), label=torchio.LabelMap(tensor=label))
    sampler: Any = torchio.UniformSampler(size)
    if around_tissue:
        sampler = torchio.LabelSampler(size, "label", dict.fromkeys(range(NB_TISSUES), 1))
    return [patch_of(volume, p["image"].data.clone(), p["label"].data.clone()) for p in sampler(subject, nb_patches)]


def monai_patches(nb_patches: int, size: int) -> Cut:
    """Returns a function that cuts patches by MONAI, centred as often on tissue as beside it.

    Its arguments and results are those of `random_patches`, but for `rng`: the transform is given its state.
    """
    try:
        from monai.transforms.croppad.dictionary import RandCropByPosNegLabeld  # noqa: PLC0415 (optional)
    except ImportError as error:
        raise MissingExtraError("patches by MONAI", "integration") from error
    crop: Any = RandCropByPosNegLabeld(["image", "label"], "label", (size,) * 3, num_samples=nb_patches)
    return partial(_cropped, crop=crop)


def _cropped(volume: Batch, crop: Callable[[Any], Any]) -> list[Batch]:
    patches = crop({name: torch.as_tensor(volume[name][0]) for name in ("image", "label")})
    return [patch_of(volume, p["image"].as_tensor().clone(), p["label"].as_tensor().clone()) for p in patches]


def patch_chain(paths: list[str], cut: Cut, batch_size: int, **workers: Any) -> Sequence:
    """Returns batches of patches of volumes in random order.

    Args:
        paths: one file for each volume.
        cut: makes the patches.
        batch_size: patches of a batch; those of the same volume come one after the other, so make it some times more
            than a volume gives, or put `async_reservoir` in the place of `map`.
        **workers: options of `map`.
    """
    return (
        SequenceArray({"path": paths}, SamplerRandom()).map([load_volume, cut], **workers).batch(batch_size).collate()
    )


class TissueNet(nn.Module):
    """Three convolutions; a voxel is judged by the 5 x 5 x 5 around it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv3d(1, 8, 3, padding=1),
            nn.ReLU(),
            nn.Conv3d(8, 8, 3, padding=1),
            nn.ReLU(),
            nn.Conv3d(8, NB_TISSUES, 1),
        )

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Maps float32 (N, 1, D, H, W) in [0, 1] to logits (N, NB_TISSUES, D, H, W)."""
        return self.layers(4 * (image - 0.5))  # grey and white are close: without, some seeds never tell them apart


def predict(net: Callable[[torch.Tensor], torch.Tensor], image: torch.Tensor, size: int) -> torch.Tensor:
    """Returns what the network says of a whole volume, window by window, with a quarter of overlap.

    Args:
        net: maps (N, 1, S, S, S) to (N, C, S, S, S).
        image: float32 (1, 1, D, H, W).
        size: S, voxels along each axis of a window.

    Returns:
        (1, C, D, H, W): the mean of all windows that hold the voxel.
    """
    try:
        from monai.inferers.utils import sliding_window_inference  # noqa: PLC0415 (optional)
    except ImportError as error:
        raise MissingExtraError("the sliding window", "integration") from error
    with torch.inference_mode():
        found: Any = sliding_window_inference(image, (size,) * 3, 4, net, overlap=0.25)
    return found


def dice(found: torch.Tensor, label: torch.Tensor, tissue: int) -> float:
    """Returns the overlap 2 |A and B| / (|A| + |B|) of the voxels of a tissue in two int64 arrays."""
    a, b = found == tissue, label == tissue
    return float(2 * (a & b).sum() / (a.sum() + b.sum()))


def train(
    folder: Path | None = None, epochs: int = 30, nb_patches: int = 8, size: int = 24, seed: int = 0, **workers: Any
) -> dict[str, float]:
    """Trains on four parts of a brain, and segments a fifth.

    Args:
        folder: of the files; see `brain_splits`.
        epochs: passes over the volumes.
        nb_patches: of each volume in each epoch.
        size: voxels along each axis of a patch.
        seed: of weights, order and patches.
        **workers: options of `map`.

    Returns:
        The dice of grey and white matter, in [0, 1].
    """
    splits = brain_splits(folder)
    torch.manual_seed(seed)
    net = TissueNet()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    cut = partial(random_patches, nb_patches=nb_patches, size=size)
    with patch_chain(splits["train"]["path"], cut, batch_size=nb_patches, **workers).with_seed(seed) as batches:
        for epoch in range(epochs):
            losses: list[float] = []
            for batch in batches:
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(net(batch["image"]), batch["label"][:, 0])
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            logger.info("epoch %d: loss %.3f", epoch, sum(losses) / len(losses))
    volume = load_volume({"path": splits["test"]["path"]})
    found = predict(net, torch.as_tensor(volume["image"]), size=2 * size).argmax(dim=1, keepdim=True)
    label = torch.as_tensor(volume["label"])
    return {name: dice(found, label, tissue) for tissue, name in ((1, "grey matter"), (2, "white matter"))}


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logger.info("dice of the other part: %s", train(nb_workers=2))
