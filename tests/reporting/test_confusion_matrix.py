from itertools import pairwise

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn import metrics

from trw_pipeline.reporting.confusion_matrix import confusion_matrix, count_confusion

TRUE = [0, 0, 0, 0, 1, 1, 2]
FOUND = [0, 0, 0, 2, 1, 3, 2]
"""Class 3 was predicted once and is not in the truth; class 0 was taken for class 2 once, class 1 for class 3 once."""


def texts_on(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


def cells_of(axes):
    return {tuple(int(place) for place in text.get_position()): text for text in axes.texts}


@pytest.mark.parametrize("nb_classes", [2, 7])
def test_counts_are_those_of_scikit_learn(nb_classes):
    generator = np.random.default_rng(0)
    truth, found = generator.integers(0, nb_classes, (2, 50))
    confusion = count_confusion(found, truth, sort_by_decreasing_sample_size=False)
    assert confusion.ids.tolist() == sorted({*truth, *found})
    assert np.array_equal(confusion.counts, metrics.confusion_matrix(truth, found))
    assert np.allclose(confusion.shares(), metrics.confusion_matrix(truth, found, normalize="true"))


def test_classes_with_more_samples_come_first_and_of_equal_ones_the_lower():
    confusion = count_confusion(FOUND, TRUE)
    assert confusion.ids.tolist() == [0, 1, 2, 3]
    assert confusion.nb_samples.tolist() == [4, 2, 1, 0]
    assert confusion.counts.tolist() == [[3, 0, 1, 0], [0, 1, 0, 1], [0, 0, 1, 0], [0, 0, 0, 0]]
    assert count_confusion([5, 4, 9], [4, 5, 5]).ids.tolist() == [5, 4, 9]


def test_the_shares_of_a_class_without_samples_are_not_a_number():
    shares = count_confusion(FOUND, TRUE).shares()
    assert shares[:3].tolist() == [[0.75, 0, 0.25, 0], [0, 0.5, 0, 0.5], [0, 0, 1, 0]]
    assert np.isnan(shares[3]).all()


def test_small_classes_are_left_out_but_what_was_taken_for_them_still_counts():
    confusion = count_confusion(FOUND, TRUE, excludes_classes_with_samples_less_than=2)
    assert confusion.ids.tolist() == [0, 1]
    assert confusion.counts.tolist() == [[3, 0], [0, 1]]
    assert confusion.shares().tolist() == [[0.75, 0], [0, 0.5]]
    with pytest.raises(ValueError, match="must leave a class, got 5, and the largest has 4 samples"):
        count_confusion(FOUND, TRUE, excludes_classes_with_samples_less_than=5)


@pytest.mark.parametrize(("found", "truth"), [([], []), ([1, 2], [1]), ([[1]], [[1]])])
def test_classes_that_do_not_fit_are_refused(tmp_path, found, truth):
    with pytest.raises(ValueError, match=r"of one shape \(N,\), N at least 1"):
        confusion_matrix(tmp_path / "new", np.array(found, int), np.array(truth, int))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("classes", [[0.5], ["a"], [True]])
def test_classes_that_are_no_integers_are_refused(classes):
    with pytest.raises(TypeError, match="classes_predictions must be integers"):
        count_confusion(classes, [0])
    with pytest.raises(TypeError, match="classes_trues must be integers"):
        count_confusion([0], classes)


def test_negative_classes_and_tensors_are_counted_too():
    assert count_confusion(torch.tensor([-1, 3]), torch.tensor([3, 3])).ids.tolist() == [3, -1]


@pytest.mark.slow
def test_truth_is_on_the_y_axis_and_what_was_predicted_on_the_x_axis(tmp_path, drawn):
    path = confusion_matrix(tmp_path, FOUND, TRUE, ["cat", "dog", "cow"], title="pets / farm")
    assert path == tmp_path / "pets  farm.png"
    with Image.open(path) as image:
        image.load()
        assert image.format == "PNG"
    axes = drawn[0].axes[0]
    assert axes.get_xlabel().startswith("Predicted")
    assert axes.get_ylabel().startswith("True")
    assert axes.get_title() == "pets / farm"
    assert texts_on(axes.xaxis) == ["cat", "dog", "cow", "3"]
    assert texts_on(axes.yaxis) == ["cat (4)", "dog (2)", "cow (1)", "3 (0)"]
    cells = {place: text.get_text() for place, text in cells_of(axes).items()}
    assert len(cells) == 16
    assert (cells[2, 0], cells[0, 2]) == ("1", "0")  # x is the class that was predicted, y the true one
    assert (cells[3, 1], cells[1, 3]) == ("1", "0")
    assert axes.get_images()[0].get_array().tolist() == count_confusion(FOUND, TRUE).counts.tolist()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("percentage", "expected", "top"), [(False, ["0.75", "0.25"], 1), (True, ["75.0", "25.0"], 100)]
)
def test_shares_are_shown_to_one_or_to_a_hundred(tmp_path, drawn, percentage, expected, top):
    confusion_matrix(tmp_path, FOUND, TRUE, normalize=True, normalize_unit_percentage=percentage)
    axes, bar = drawn[0].axes
    cells = cells_of(axes)
    assert [cells[0, 0].get_text(), cells[2, 0].get_text()] == expected
    assert len(cells) == 12  # those of the class without samples are empty
    assert axes.get_images()[0].get_clim() == (0, top)
    assert ("percent" in bar.get_ylabel()) == percentage


@pytest.mark.slow
def test_each_number_can_be_read_on_its_colour(tmp_path, drawn):
    confusion_matrix(tmp_path, FOUND, TRUE, cmap="gray")
    cells = cells_of(drawn[0].axes[0])
    assert (cells[0, 0].get_color(), cells[1, 0].get_color()) == ("black", "white")


@pytest.mark.slow
def test_the_look_is_as_asked_for(tmp_path, drawn):
    path = confusion_matrix(
        tmp_path,
        FOUND,
        TRUE,
        ["cat", "dog", "cow"],
        title="one two three",
        display_numbers=False,
        maximum_chars_per_line=7,
        rotate_x=45,
        rotate_y=30,
        display_names_x=False,
        sort_by_decreasing_sample_size=False,
        main_font_size=20,
        sub_font_size=6,
        name="file",
    )
    assert path.name == "file.png"
    axes = drawn[0].axes[0]
    assert axes.get_title() == "one two\nthree"
    assert axes.title.get_fontsize() == axes.xaxis.label.get_fontsize() == 20
    assert not axes.texts
    assert texts_on(axes.xaxis) == ["0", "1", "2", "3"]
    assert texts_on(axes.yaxis) == ["0 cat (4)", "1 dog (2)", "2 cow (1)", "3 (0)"]
    for axis, rotation in ((axes.xaxis, 45), (axes.yaxis, 30)):
        assert {(label.get_rotation(), label.get_fontsize()) for label in axis.get_ticklabels()} == {(rotation, 6)}


@pytest.mark.slow
def test_an_unknown_colour_map_is_refused(tmp_path):
    with pytest.raises(ValueError, match="nonsense"):
        confusion_matrix(tmp_path, FOUND, TRUE, cmap="nonsense")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("nb_classes", [2, 200])
def test_long_names_stay_readable_and_the_picture_bounded(tmp_path, drawn, nb_classes):
    classes = [f"a name ${index}$ of a class that was given with too much time" for index in range(nb_classes)]
    path = confusion_matrix(tmp_path, range(nb_classes), range(nb_classes), classes)
    with Image.open(path) as image:
        assert max(image.size) < 2500
    axes = drawn[0].axes[0]
    for axis in (axes.xaxis, axes.yaxis):
        boxes = [label.get_window_extent() for label in axis.get_ticklabels()]
        assert not any(one.overlaps(other) for one, other in pairwise(boxes))
        assert len(boxes) == nb_classes if nb_classes == 2 else 60 < len(boxes) < 200
        assert not any(label.get_parse_math() for label in axis.get_ticklabels())
    assert bool(axes.texts) == (nb_classes == 2)
