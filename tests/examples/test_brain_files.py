"""The parts of the brain: which are there to learn from, and which to be tested with."""

import numpy as np
import pytest

from trw_pipeline.examples.brain_files import brain_splits, load_volume


@pytest.mark.slow
def test_no_part_of_the_brain_is_trained_on_and_tested(tmp_path):
    """The template mirrors itself, so also none of its mirror image: a test on the other half would be no test."""
    splits = brain_splits(tmp_path)
    volumes = {
        name: [load_volume({"path": [path]})["image"][0, 0] for path in split["path"]] for name, split in splits.items()
    }
    tested = {row.tobytes() for volume in volumes["test"] for row in pieces(volume)}
    trained = {row.tobytes() for volume in volumes["train"] for one in (volume, volume[::-1]) for row in pieces(one)}
    assert len(tested) > 500
    assert len(trained) > 500
    assert not tested & trained


def pieces(volume):
    """Lines of 20 voxels along the first axis, but the nearly constant ones: each is a fingerprint of its place."""
    lines = np.moveaxis(volume, 0, -1).reshape(-1, volume.shape[0])[:, 20:40]
    return [line for line in lines if len(np.unique(line)) > 15]
