import numpy as np
import pytest
import torch
from PIL import Image

from trw_pipeline.reporting.sample_files import distinct_file_names, export_sample, file_name


def lines_of(path):
    return path.read_text().splitlines()


def test_each_kind_of_value_is_written_where_it_can_be_read(tmp_path):
    image = np.zeros((1, 4, 6), np.float32)
    image[0, 1, 2] = 2.5
    signal = np.arange(100, dtype=np.int16)
    features = {
        "sample_uid": np.int64(17),
        "class": torch.tensor(2),
        "score": 0.5,
        "box": torch.tensor([1.0, 2.0]),
        "who": "Jane",
        "image": image,
        "a signal": signal,
        "noise": float,
    }
    written = export_sample(tmp_path / "new", "s0", features, {"class": {2: "cow"}})
    assert written == ["s0.txt", "s0_image.png", "s0_a_signal.npy"]
    assert sorted(written) == sorted(path.name for path in (tmp_path / "new").iterdir())
    assert lines_of(tmp_path / "new" / "s0.txt") == [
        "sample_uid: 17",
        "class: 2 (cow)",
        "score: 0.5",
        "box: [1.0, 2.0]",
        "who: Jane",
        "image: float32 (1, 4, 6), 0 to 2.5, in s0_image.png",
        "a signal: int16 (100,), 0 to 99, in s0_a_signal.npy",
        "noise: <class 'float'>",
    ]
    with Image.open(tmp_path / "new" / "s0_image.png") as picture:
        pixels = np.asarray(picture)
    assert pixels.shape == (4, 6, 3)
    assert np.argwhere(pixels == 255).tolist() == [[1, 2, 0], [1, 2, 1], [1, 2, 2]]
    assert np.array_equal(np.load(tmp_path / "new" / "s0_a_signal.npy"), signal)


def test_a_volume_is_three_numbered_pictures(tmp_path):
    written = export_sample(tmp_path, "s", {"scan": np.zeros((10, 12, 14), np.uint8)})
    assert written == ["s.txt", "s_scan_0.png", "s_scan_1.png", "s_scan_2.png"]
    assert lines_of(tmp_path / "s.txt") == ["scan: uint8 (10, 12, 14), 0 to 0, in " + ", ".join(written[1:])]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (5, "5"),  # a class without a name
        (True, "True"),
        (None, "None"),
        ("two\nlines", r"'two\nlines'"),
        ("x" * 600, "x" * 500 + "... (600 characters)"),
        (np.array(1e-20), "1e-20"),
        (np.array(["a", "b"]), "['a', 'b']"),
        ({"nested": torch.tensor([1])}, "{'nested': array([1])}"),
        (np.full(20, np.nan), "float64 (20,), nothing finite, in s_v.npy"),
        (np.array([*range(19), np.inf]), "float64 (20,), 0 to 18, 1 not finite, in s_v.npy"),
        (torch.zeros(20, dtype=torch.bfloat16), "float32 (20,), 0 to 0, in s_v.npy"),
    ],
    ids=str,
)
def test_a_value_is_one_line(value, text, tmp_path):
    export_sample(tmp_path, "s", {"v": value}, {"v": {1: "one"}})
    assert (tmp_path / "s.txt").read_text() == f"v: {text}\n"


def test_names_of_files_are_safe_and_distinct():
    assert file_name("a/b", "two words", "../c") == "ab_two_words_c"
    assert distinct_file_names(["a/b", "ab", 3, "a b"]) == ["ab", "ab-1", "3", "a_b"]


def test_names_that_are_too_long_for_a_file_system_are_shortened_and_stay_different(tmp_path):
    images = {"f" * 300 + end: np.ones((5, 5), np.float32) for end in "ab"}
    written = [export_sample(tmp_path, "train_s" + "u" * 300 + end, images) for end in "ab"]
    names = [name for files in written for name in files]
    assert len(set(names)) == len(names) == 6
    assert sorted(names) == sorted(path.name for path in tmp_path.iterdir())
    for text, *pictures in written:  # as a report finds the text of a picture
        assert all(name.startswith(f"{text.removesuffix('.txt')}_") for name in pictures)


def test_what_is_stored_sparsely_is_described(tmp_path):
    assert export_sample(tmp_path, "s0", {"neighbours": torch.eye(40).to_sparse()}) == ["s0.txt"]
    assert lines_of(tmp_path / "s0.txt") == ["neighbours: float32 (40, 40), sparse"]
