"""The example of patches: every volume gives as many as were asked for, and windows that slide make a whole volume."""

from __future__ import annotations

import itertools
import time
import warnings
from collections import Counter
from functools import partial

import numpy as np
import pytest
import torch

from trw_pipeline.examples.brain_files import NB_TISSUES, brain_splits, load_volume
from trw_pipeline.examples.volume_patches import (
    dice,
    monai_patches,
    patch_chain,
    predict,
    random_patches,
    torchio_patches,
    train,
)
from trw_pipeline.sequences.samplers import SamplerRandom
from trw_pipeline.sequences.sequence import SequenceArray

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # they import what others have deprecated
    import monai.inferers  # noqa: F401 (before a worker is forked, which then need not do it)
    import torchio  # noqa: F401 (as above)

pytestmark = pytest.mark.slow
NB_VOLUMES, NB_PATCHES, SIZE = 4, 3, 12
CUTS = {
    "numpy": lambda: partial(random_patches, nb_patches=NB_PATCHES, size=SIZE),
    "torchio, anywhere": lambda: partial(torchio_patches, nb_patches=NB_PATCHES, size=SIZE, around_tissue=False),
    "torchio, around tissue": lambda: partial(torchio_patches, nb_patches=NB_PATCHES, size=SIZE, around_tissue=True),
    "monai": lambda: monai_patches(NB_PATCHES, SIZE),
}
every_cut = pytest.mark.parametrize("make", CUTS.values(), ids=CUTS.keys())
THREADS = {"nb_workers": 2, "backend": "thread"}


@pytest.fixture
def one_thread():
    """Threads of torch would wait for each other where others use the cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def splits(tmp_path_factory):
    return brain_splits(tmp_path_factory.mktemp("brain"))


@pytest.fixture(scope="module")
def volume(splits):
    return load_volume({"path": splits["train"]["path"][:1], "sample_uid": np.array([7])})


# The volumes


def test_the_parts_are_real_disjoint_and_labelled(splits):
    shapes = []
    for path in splits["train"]["path"] + splits["test"]["path"]:
        loaded = load_volume({"path": [path]})
        assert 0 <= loaded["image"].min() < loaded["image"].max() <= 1
        grey, white = (loaded["image"][loaded["label"] == tissue].mean() for tissue in (1, 2))
        assert grey < white, "fat is bright in a T1-weighted image"
        shapes.append(loaded["image"].shape[2:])
    assert shapes == [(49, 43, 47), (49, 43, 48), (49, 43, 47), (49, 43, 48), (49, 31, 95)]


def test_files_that_are_there_are_not_written_again(splits, tmp_path_factory):
    path = splits["train"]["path"][0]
    before = np.load(path)["label"]
    assert brain_splits(tmp_path_factory.mktemp("again"))["train"]["path"] != splits["train"]["path"]
    assert np.array_equal(before, np.load(path)["label"])


# Patches


def load_numbered(batch):
    """A volume whose voxels bear their numbers, so that each tells where it is."""
    volume = load_volume(batch)
    shape = volume["image"].shape
    return {**volume, "image": np.arange(np.prod(shape), dtype=np.float32).reshape(shape)}


@every_cut
def test_each_patch_is_a_piece_of_its_volume_with_its_labels(make, splits):
    paths = splits["train"]["path"]
    seen = Counter()
    for patch in SequenceArray({"path": paths}, SamplerRandom()).map([load_numbered, make()]):
        uid = int(patch["volume_uid"][0])
        volume = load_numbered({"path": [paths[uid]]})
        corner = np.unravel_index(int(patch["image"][0, 0, 0, 0, 0]), volume["image"].shape)[2:]
        place = (0, 0, *(slice(start, start + SIZE) for start in corner))
        for name in ("image", "label"):
            assert np.array_equal(patch[name][0, 0], volume[name][place])
        seen[uid] += 1
    assert seen == dict.fromkeys(range(NB_VOLUMES), NB_PATCHES)


@every_cut
def test_patches_do_not_depend_on_the_workers_and_differ_between_epochs(make, splits):
    epochs = []
    for workers in ({}, {"nb_workers": 2, "start_method": "fork"}):
        with patch_chain(splits["train"]["path"], make(), batch_size=NB_PATCHES, **workers).with_seed(1) as batches:
            epochs += [[batch["image"] for batch in batches] for _ in range(2)]
    assert all(map(torch.equal, itertools.chain(*epochs[:2]), itertools.chain(*epochs[2:])))
    assert not torch.equal(*map(torch.cat, epochs[:2]))


# BATCH-9: how many of each volume


def numbered_patches(batch):
    return [{"volume_uid": batch["sample_uid"], "patch": np.array([i])} for i in range(NB_PATCHES)]


def counted(batches):
    return Counter(int(uid) for batch in batches for uid in batch["volume_uid"])


def volumes_of(nb):
    return SequenceArray({"x": np.arange(nb)}, SamplerRandom()).with_seed(2)


@pytest.mark.parametrize("capacity", range(1, 31))
def test_each_volume_gives_exactly_its_patches_for_every_capacity(capacity):
    with volumes_of(7).map(numbered_patches, max_jobs_at_once=capacity, **THREADS).batch(4) as batches:
        for _ in range(3):
            assert counted(batches) == dict.fromkeys(range(7), NB_PATCHES)


@pytest.mark.parametrize("capacity", range(1, 31))
def test_a_reservoir_serves_all_patches_of_each_volume_that_it_holds(capacity):
    held = min(capacity, 7)
    reservoir = volumes_of(7).async_reservoir(
        held, numbered_patches, min_reservoir_samples=held, max_jobs_at_once=2, backend="thread"
    )
    ever = Counter()
    deadline = time.monotonic() + 30
    with reservoir.collate().batch(4) as batches:
        while len(ever) < 7 and time.monotonic() < deadline:  # what has finished enters when an epoch begins
            counts = counted(batches)
            assert sum(counts.values()) == held * NB_PATCHES
            assert all(count % NB_PATCHES == 0 for count in counts.values())
            ever += counts
    assert set(ever) == set(range(7)), "none is starved"


@pytest.mark.parametrize("most", range(1, 31))
def test_a_maximum_of_samples_an_epoch_is_kept_exactly_and_starves_no_volume(most):
    nb_all = 7 * NB_PATCHES
    with volumes_of(7).map(numbered_patches, **THREADS).max_samples(most) as batches:
        passes = Counter()
        left = nb_all
        for _ in range(-(-nb_all // most)):
            counts = counted(batches)
            assert sum(counts.values()) == min(most, left)
            left -= sum(counts.values())
            passes += counts
    assert passes == dict.fromkeys(range(7), NB_PATCHES)


# The other end


@pytest.mark.parametrize(
    "net", [lambda x: x, lambda x: torch.cat([x.square(), 1 - x], dim=1)], ids=["identity", "known"]
)
@pytest.mark.parametrize("size", [16, 31, 64])
def test_a_sliding_window_gives_what_the_whole_volume_does(volume, net, size):
    """Of what looks at each voxel alone, window by window and at once are the same."""
    image = torch.as_tensor(volume["image"])
    assert torch.allclose(predict(net, image, size), net(image), atol=1e-6)


def test_dice_by_hand():
    found, label = torch.tensor([1, 1, 2, 0]), torch.tensor([1, 2, 2, 0])
    assert dice(found, label, 1) == pytest.approx(2 * 1 / (2 + 1))
    assert dice(found, label, 2) == pytest.approx(2 * 1 / (1 + 2))
    assert dice(found, label, 0) == 1


@pytest.mark.usefixtures("one_thread")
def test_a_short_training_finds_the_grey_matter_of_another_part(tmp_path):
    found = train(tmp_path, epochs=10, nb_patches=8, size=16, **THREADS)
    assert found["grey matter"] > 0.5
    assert set(found) == {"grey matter", "white matter"}
    assert 1 + len(found) == NB_TISSUES
