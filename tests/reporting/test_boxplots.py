from itertools import pairwise

import numpy as np
import pytest
from PIL import Image

from trw_pipeline.reporting.boxplots import boxplots

TRIALS = {"a": [1.0, 2.0, 3.0, 4.0, 100.0], "b $": [5.0, float("nan"), 7.0], "empty": []}


def plot(folder, **arguments):
    return boxplots(folder, **{"features_trials": TRIALS, "title": "title", "xlabel": "$x", "ylabel": "$y"} | arguments)


def points_of(axes, marker):
    return [line.get_ydata().tolist() for line in axes.lines if line.get_marker() == marker]


@pytest.mark.slow
def test_boxes_stand_at_the_quartiles_of_what_is_finite(tmp_path, drawn):
    path = plot(tmp_path / "new")
    assert path == tmp_path / "new" / "title.png"
    assert path.read_bytes()[:4] == b"\x89PNG"
    axes = drawn[0].axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["a", "b $", "empty"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("$x", "$y")
    boxes = [line.get_ydata() for line in axes.lines if len(line.get_ydata()) == 5 and line.get_marker() != "."]
    assert [(min(box), max(box)) for box in boxes[:2]] == [(2.0, 4.0), (5.5, 6.5)]
    assert points_of(axes, ".") == [[1.0, 2.0, 3.0, 4.0, 100.0], [5.0, 7.0], []]
    assert points_of(axes, "o") == []  # neither outliers nor means


@pytest.mark.slow
def test_the_look_is_as_asked_for(tmp_path, drawn):
    plot(
        tmp_path,
        meanline=True,
        plot_trials=False,
        scale="log",
        y_range=(0.5, 200.0),
        rotate_x=30,
        showfliers=True,
        title="one two three",
        maximum_chars_per_line=7,
        title_line_height=0.1,
    )
    figure = drawn[0]
    axes = figure.axes[0]
    assert points_of(axes, ".") == []
    assert axes.get_yscale() == "log"
    assert axes.get_ylim() == (0.5, 200.0)
    assert {label.get_rotation() for label in axes.get_xticklabels()} == {30}
    fliers, *_, means = points_of(axes, "o")
    assert fliers == [100.0]
    assert means[:2] == [22.0, 6.0]
    assert np.isnan(means[2])
    assert [text.get_text() for text in figure.texts] == ["one two\nthree"]
    assert axes.get_tightbbox().ymax <= 0.8 * figure.bbox.ymax + 1  # two lines of 0.1 are free


@pytest.mark.slow
def test_trials_of_the_same_value_lie_beside_one_another(tmp_path, drawn):
    plot(tmp_path, features_trials={"a": [1.0] * 50})
    (places,) = [line.get_xdata() for line in drawn[0].axes[0].lines if line.get_marker() == "."]
    assert np.diff(np.sort(places)).min() > 0.002
    assert abs(places).max() <= 0.2


@pytest.mark.slow
def test_the_picture_of_many_features_is_bounded(tmp_path, drawn):
    path = plot(tmp_path, features_trials={f"a long name {index}": [index, index + 1.0] for index in range(90)})
    with Image.open(path) as image:
        assert max(image.size) <= 24 * 120
    boxes = [label.get_window_extent() for label in drawn[0].axes[0].get_xticklabels()]
    assert not any(one.overlaps(other) for one, other in pairwise(boxes))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"features_trials": {}}, "at least one feature"),
        ({"features_trials": {"f": [[1.0]]}}, r"trials of 'f' must be \(N,\) numbers, got the shape \(1, 1\)"),
        ({"y_range": (2.0, 1.0)}, r"y_range must be \(least, greatest\), got \(2.0, 1.0\)"),
        ({"title_line_height": 1.0}, "must leave room for the plot"),
        ({"maximum_chars_per_line": 0}, "room for 1 character"),
        ({"scale": "nonsense"}, "nonsense"),
    ],
)
def test_what_can_not_be_drawn_is_refused(tmp_path, arguments, message):
    with pytest.raises(ValueError, match=message):
        plot(tmp_path / "new", **arguments)
    assert list(tmp_path.iterdir()) == []
