"""What is drawn of an explanation: the pixels of the file."""

import numpy as np
import pytest
from PIL import Image

from trw_pipeline.reporting.explanation import export_explanation, with_channels


def pixels(path):
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB")).astype(int)


def drawn(tmp_path, sample, relevance, title="why?", **arguments):
    export_explanation(tmp_path, "e", sample, relevance, title, **arguments)
    return pixels(tmp_path / "e.png")


def reddish(picture):
    return picture[..., 0] - picture[..., 2] > 30


def bluish(picture):
    return picture[..., 2] - picture[..., 0] > 30


def part(picture, name):
    """The pictures of one column."""
    left, right = {"input": (0.01, 0.29), "explanation": (0.33, 0.59), "both": (0.71, 0.99)}[name]
    width = picture.shape[1]
    return picture[:, int(left * width) : int(right * width)]


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((10,), (1, 10)),
        ((3, 50), (3, 50)),
        ((20, 30), (1, 20, 30)),
        ((3, 20, 30), (3, 20, 30)),
        ((9, 20, 30), (1, 9, 20, 30)),
        ((12, 9, 20, 30), (12, 9, 20, 30)),
    ],
)
def test_a_sample_without_channels_gets_one(shape, expected):
    assert with_channels(np.zeros(shape)).shape == expected


def test_what_speaks_for_a_class_is_red_and_what_speaks_against_it_blue_where_it_is(tmp_path):
    relevance = np.zeros((1, 20, 20))
    relevance[0, :5, :5] = 1.0
    relevance[0, -5:, -5:] = -1.0
    picture = drawn(tmp_path, np.zeros((1, 20, 20)), relevance)
    explanation = part(picture, "explanation")
    rows, columns = np.nonzero(reddish(explanation))
    blue_rows, blue_columns = np.nonzero(bluish(explanation))
    assert rows.max() < blue_rows.min()
    assert columns.max() < blue_columns.min()
    assert not reddish(part(picture, "input")).any()


def test_the_two_are_over_each_other_where_the_relevance_is_and_the_input_shows_elsewhere(tmp_path):
    sample, relevance = np.zeros((1, 20, 20)), np.zeros((1, 20, 20))
    sample[0, :, 10:] = 1.0
    relevance[0, :10, :10] = 1.0
    relevance[0, 10:, :10] = -1.0
    both = part(drawn(tmp_path, sample, relevance), "both")
    half = both.shape[1] // 2
    left, right = both[:, : half - 10], both[:, half + 10 :]
    assert reddish(left).any()
    assert bluish(left).any()
    assert not (reddish(right) | bluish(right)).any()
    assert (right == 255).all(2).mean() > 0.5


@pytest.mark.parametrize(
    ("nb_channels", "average", "nb_rows"), [(3, True, 1), (3, False, 3), (2, False, 2), (12, False, 8)]
)
def test_channels_are_averaged_or_shown_one_by_one(tmp_path, nb_channels, average, nb_rows):
    sample = np.random.default_rng(0).random((nb_channels, 20, 20))
    height = drawn(tmp_path, sample, sample, average_filters=average).shape[0]
    one = drawn(tmp_path, sample[:1], sample[:1]).shape[0]
    assert height == pytest.approx(one + 260 * (nb_rows - 1), abs=2)


def test_a_volume_is_shown_by_its_middle_slices(tmp_path):
    """Only the middle slice across z is relevant as a whole; across y and x it is a line."""
    volume, relevance = np.zeros((1, 9, 11, 13)), np.zeros((1, 9, 11, 13))
    relevance[0, 4] = 1.0
    relevance[0, 0, 0, 0] = -1.0  # so that the colours are those of both signs
    picture = drawn(tmp_path, volume, relevance)
    rows = np.array_split(part(picture, "explanation")[60:], 3)
    shares = [reddish(row).mean() for row in rows]
    assert shares[0] > 5 * max(shares[1:])
    assert min(shares[1:]) > 0


def test_a_signal_has_its_relevance_behind_the_curve(tmp_path):
    relevance = np.zeros((1, 64))
    relevance[0, :16] = 1.0
    picture = drawn(tmp_path, np.random.default_rng(0).random((2, 64)), relevance)
    above = picture[60:300]
    assert reddish(above[:, 100:250]).mean() > 0.5
    assert reddish(above[:, 350:]).mean() < 0.2  # one of the curves is orange


@pytest.mark.parametrize("value", [0.0, np.nan, np.inf])
def test_nothing_relevant_and_what_is_not_finite_are_drawn(tmp_path, value):
    assert drawn(tmp_path, np.zeros((1, 8, 8)), np.full((1, 8, 8), value)).size


def test_a_title_is_data_and_long_ones_get_more_lines(tmp_path):
    image = np.zeros((1, 8, 8))
    short = drawn(tmp_path, image, image, "cost $5 and $6 _x^")
    long = drawn(tmp_path, image, image, "name of a class " * 40)
    assert long.shape[0] > short.shape[0]
    edges = np.concatenate([long[:80, :3], long[:80, -3:]])
    assert (edges == 255).all(), "nothing is cut off at the sides"


def test_a_relevance_of_another_shape_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"must have the shape of the sample \(1, 8, 8\), got \(1, 4, 4\)"):
        export_explanation(tmp_path, "e", np.zeros((1, 8, 8)), np.zeros((1, 4, 4)), "")
    assert list(tmp_path.iterdir()) == []
