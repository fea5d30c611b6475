import numpy as np
import pytest
from PIL import Image

from trw_pipeline.reporting.samples_by_epoch import plot_samples_by_epoch


def picture(path, losses, uids=None):
    matrix = np.asarray(losses, float)
    rows, columns = matrix.shape
    plot_samples_by_epoch(path, matrix, uids or list(range(rows)), list(range(columns)), "d/valid: y")
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB")).astype(int)


def brightness_of_quarters(pixels):
    """Mean of the colours in the middle of each quarter of the 2 x 2 matrix, whose frame begins and ends with black."""
    dark = (pixels.sum(2) < 60).sum(0) > 0.5 * pixels.shape[0]
    columns = np.flatnonzero(dark)
    left, right = columns.min(), columns[columns < 0.9 * pixels.shape[1]].max()
    rows = np.flatnonzero((pixels.sum(2) < 60)[:, left : right + 1].mean(1) > 0.8)
    top, bottom = rows.min(), rows.max()
    x = [left + (right - left) * part // 4 for part in (1, 3)]
    y = [top + (bottom - top) * part // 4 for part in (1, 3)]
    return [[pixels[row, column].tolist() for column in x] for row in y]


@pytest.mark.slow
def test_rows_are_samples_columns_epochs_bright_is_high_and_grey_unknown(tmp_path):
    (first, second), (third, fourth) = brightness_of_quarters(picture(tmp_path / "m.png", [[4, 2], [1, np.nan]]))
    assert sum(first) > sum(second) > sum(third)
    assert len(set(fourth)) == 1
    assert 150 < fourth[0] < 210


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(1, 1), (1000, 3), (3, 200)])
def test_any_number_of_samples_and_epochs_is_a_picture(shape, tmp_path):
    losses = np.random.default_rng(0).random(shape)
    uids = ["$a name that is much longer than there is room for it$"] * shape[0]
    assert picture(tmp_path / "m.png", losses, uids).shape[1] == 840


@pytest.mark.slow
def test_nothing_finite_is_a_grey_picture(tmp_path):
    assert picture(tmp_path / "m.png", [[np.nan, np.inf]]).shape[1] == 840
