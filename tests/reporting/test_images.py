import sys

import numpy as np
import pytest
import torch
from PIL import Image

from trw_pipeline.errors import MissingExtraError
from trw_pipeline.reporting.images import as_image_ui8, as_rgb_image, export_image, sample_pictures


def read(path, expected_format="PNG"):
    with Image.open(path) as image:
        assert (image.format, image.mode) == (expected_format, "RGB")
        return np.asarray(image).transpose(2, 0, 1)


@pytest.mark.parametrize("shape", [(2, 3), (1, 2, 3)])
def test_grey_values_are_those_of_all_three_channels(shape):
    values = np.arange(6, dtype=np.int16)
    rgb = as_rgb_image(values.reshape(shape))
    assert rgb.shape == (3, 2, 3)
    assert rgb.dtype == np.int16
    assert all(np.array_equal(channel, [[0, 1, 2], [3, 4, 5]]) for channel in rgb)


def test_a_colour_image_stays_as_it_is_and_a_tensor_becomes_an_array():
    image = torch.arange(12.0, requires_grad=True).reshape(3, 2, 2)
    assert np.array_equal(as_rgb_image(image), np.arange(12, dtype=np.float32).reshape(3, 2, 2))
    assert np.array_equal(as_rgb_image(torch.ones(2, 2, dtype=torch.bfloat16)), np.ones((3, 2, 2)))


@pytest.mark.parametrize("shape", [(4,), (2, 4, 4), (4, 4, 3), (1, 3, 4, 4)])
def test_the_shape_of_what_is_no_image_is_named(shape):
    with pytest.raises(ValueError, match=r"\(3, y, x\), got the shape \(" + str(shape[0])):
        as_rgb_image(np.zeros(shape))


@pytest.mark.parametrize(
    "value", ["text", [[1, 2]], np.array([["a"]]), np.array([[1j]]), None, torch.eye(3).to_sparse()]
)
def test_what_is_no_array_of_numbers_is_a_type_error(value):
    with pytest.raises(TypeError, match="array or a tensor of real numbers"):
        as_rgb_image(value)
    with pytest.raises(TypeError, match="array or a tensor of real numbers"):
        as_image_ui8(value)


@pytest.mark.parametrize(
    ("values", "bounds", "expected"),
    [
        ([0.0, 0.2, 1.0], {}, [0, 51, 255]),
        ([-1.0, 0.0, 1.0], {}, [0, 128, 255]),  # 127.5 rounds to the even one
        ([-4, 0, 6], {}, [0, 102, 255]),
        (np.array([10, 11, 15], np.uint8), {}, [0, 51, 255]),
        (np.array([-(2**62), 0, 2**62], np.int64), {}, [0, 128, 255]),
        (np.array([0, 2**63], np.uint64), {}, [0, 255]),
        ([False, True], {}, [0, 255]),
        ([True, True], {}, [255, 255]),
        ([7.0, 7.0], {}, [0, 0]),
        ([7.0, 7.0], {"min_value": 0, "max_value": 14}, [128, 128]),
        ([7.0, 9.0], {"min_value": 8, "max_value": 8}, [0, 0]),
        ([-1.0, 0.5, 2.0], {"min_value": 0, "max_value": 1}, [0, 128, 255]),
        ([0.0, 5.0], {"max_value": 10}, [0, 128]),
        ([5.0, 10.0], {"min_value": 0}, [128, 255]),
        ([0.0, 5.0], {"min_value": 9}, [0, 0]),
        ([np.nan, 0.0, 1.0], {}, [0, 0, 255]),
        ([np.inf, 0.0, 1.0, -np.inf], {}, [255, 0, 255, 0]),
        ([np.nan, np.inf], {}, [0, 0]),
        ([], {}, []),
    ],
)
def test_values_between_the_bounds_are_spread_over_the_range(values, bounds, expected):
    scaled = as_image_ui8(np.asarray(values), **bounds)
    assert scaled.dtype == np.uint8
    assert scaled.tolist() == expected


def test_the_image_that_is_rescaled_is_not_changed():
    image = np.array([[np.nan, -1.0], [2.0, np.inf]])
    before = image.copy()
    as_image_ui8(image)
    assert np.array_equal(image, before, equal_nan=True)


@pytest.mark.parametrize("bound", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["min_value", "max_value"])
def test_a_bound_that_is_not_finite_is_refused(name, bound):
    with pytest.raises(ValueError, match=f"{name} must be finite, got {bound}"):
        as_image_ui8(np.zeros((2, 2)), **{name: bound})


def test_bounds_in_the_wrong_order_are_refused():
    with pytest.raises(ValueError, match="must not be above max_value, got 2 and 1"):
        as_image_ui8(np.zeros((2, 2)), 2, 1)


def test_a_png_has_the_values_of_the_image(tmp_path):
    image = np.random.default_rng(0).integers(0, 256, (3, 5, 4), dtype=np.uint8)
    export_image(image, tmp_path / "a.png")
    assert np.array_equal(read(tmp_path / "a.png"), image)
    export_image(torch.tensor([[0.0, 1.0], [0.2, float("nan")]]), str(tmp_path / "grey.png"))
    assert np.array_equal(read(tmp_path / "grey.png"), [[[0, 255], [51, 0]]] * 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.png", "grey.png"]


def test_the_suffix_says_the_format(tmp_path):
    export_image(np.zeros((3, 8, 8), np.uint8), tmp_path / "a.JPG")
    assert read(tmp_path / "a.JPG", "JPEG").shape == (3, 8, 8)
    for name in ("a", "a.nonsense"):
        with pytest.raises(ValueError, match=r"such as \.png, got .*a(\.nonsense)?'"):
            export_image(np.zeros((3, 8, 8), np.uint8), tmp_path / name)


def test_an_image_without_pixels_writes_no_file(tmp_path):
    with pytest.raises(ValueError, match="pixels"):
        export_image(np.zeros((3, 0, 4), np.uint8), tmp_path / "a.png")
    assert list(tmp_path.iterdir()) == []


def test_without_pillow_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'trw_pipeline\[images\]'"):
        export_image(np.zeros((2, 2)), tmp_path / "a.png")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("shape", "pictures"),
    [
        ((4, 6), [(4, 6)]),
        ((1, 4, 6), [(4, 6)]),
        ((3, 4, 6), [(4, 6)]),
        ((2, 4, 6), [(4, 6)] * 2),
        ((8, 4, 6), [(4, 6)] * 8),
        ((9, 4, 6), [(4, 6), (9, 6), (9, 4)]),
        ((1, 9, 4, 6), [(4, 6), (9, 6), (9, 4)]),
        ((1, 2, 4, 6), [(4, 6), (2, 6), (2, 4)]),
        ((2, 9, 4, 6), [(4, 6)] * 2 + [(9, 6)] * 2 + [(9, 4)] * 2),
        ((11, 9, 4, 6), [(4, 6)] * 8 + [(9, 6)] * 8 + [(9, 4)] * 8),
    ],
)
@pytest.mark.parametrize("kind", [np.zeros, torch.zeros])
def test_images_and_volumes_are_shown(kind, shape, pictures):
    shown = sample_pictures(kind(shape))
    assert [picture.shape for picture in shown] == [(3, *size) for size in pictures]
    assert all(picture.dtype == np.uint8 for picture in shown)


def test_a_volume_is_shown_by_its_middle_slices():
    volume = np.random.default_rng(0).normal(size=(10, 4, 6))
    shown = sample_pictures(volume)
    for picture, expected in zip(shown, (volume[5], volume[:, 2], volume[:, :, 3]), strict=True):
        assert np.array_equal(picture[0], as_image_ui8(expected))
        assert np.array_equal(picture[1], picture[2])


def test_each_channel_is_rescaled_by_itself_but_colours_are_not():
    channels = np.stack([np.array([[0, 1], [0, 1]]), np.array([[0, 100], [50, 100]])])
    assert [picture[0].tolist() for picture in sample_pictures(channels)] == [
        [[0, 255], [0, 255]],
        [[0, 255], [128, 255]],
    ]
    colours = np.zeros((3, 2, 2))
    colours[0, 0, 0], colours[1, 0, 0] = 100, 20
    (picture,) = sample_pictures(colours)
    assert picture[:, 0, 0].tolist() == [255, 51, 0]


@pytest.mark.parametrize(
    "value",
    [
        np.zeros(10),
        np.zeros((1, 10)),
        np.zeros((10, 1)),
        np.zeros((0, 4, 4)),
        np.zeros((1, 1, 1, 4, 4)),
        np.zeros((4, 4), complex),
        np.float32(3),
        "text",
        ["a", "b"],
        [[1, 2], [3, 4]],
        {"a": 1},
        None,
        7,
        torch.tensor(3),
        torch.eye(3).to_sparse(),
    ],
    ids=repr,
)
def test_what_is_no_image_has_no_picture(value):
    assert sample_pictures(value) == []
