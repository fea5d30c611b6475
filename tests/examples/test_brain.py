"""The example of a segmentation: what is cut, and what the network is given to learn."""

import numpy as np
import pytest

from trw_pipeline.examples.brain import NB_PATCHES, PATCH_SIZE, BrainOptions, flipped_patches, make_splits


def test_image_and_label_are_flipped_together_along_each_axis_about_half_of_the_time():
    shape = (40, 30, 50)
    numbers = np.arange(np.prod(shape)).reshape(1, 1, *shape)
    volume = {"image": numbers.astype(np.float32), "label": numbers % 3, "sample_uid": np.array([0])}
    rng = np.random.default_rng(0)
    patches = [patch for _ in range(4) for patch in flipped_patches(volume, rng)]
    assert len(patches) == 4 * NB_PATCHES
    strides = np.array([shape[1] * shape[2], shape[2], 1])
    signs = []
    for patch in patches:
        image = patch["image"].astype(int)
        assert image.shape == (1, 1, PATCH_SIZE, PATCH_SIZE, PATCH_SIZE)
        assert np.array_equal(image % 3, patch["label"])
        steps = [np.unique(np.diff(image, axis=axis)) for axis in (2, 3, 4)]
        assert [len(step) for step in steps] == [1, 1, 1], "a patch is one piece of the volume"
        signs.append(np.concatenate(steps) / strides)
    shares = (np.array(signs) == -1).mean(axis=0)
    assert set(np.unique(signs)) == {-1, 1}
    assert (shares > 0.3).all()
    assert (shares < 0.7).all()


@pytest.mark.slow
def test_the_chains_give_what_was_asked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    splits = make_splits(BrainOptions(batch_size=5, nb_workers=0))
    batches = list(splits["train"])
    assert [len(batch["image"]) for batch in batches] == [5] * 12 + [4]
    uids = [int(uid) for batch in batches for uid in batch["volume_uid"]]
    assert sorted(uids) == sorted([0, 1, 2, 3] * NB_PATCHES)
    assert len(set(uids[:20])) > 1, "patches of several volumes are mixed"
    (whole,) = splits["test"]
    assert whole["image"].shape == whole["label"].shape == (1, 1, 49, 31, 95)
