import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from toy_trainer import Net, fitting_in, trainer

from trw_pipeline.callbacks.export_convolution_kernel import (
    PICTURE_PIXELS,
    CallbackExportConvolutionKernel,
    default_export_filter,
)


class Convolves(Net):
    """Two kernels over three channels, whose weights are 0 to 53, and which stay."""

    def __init__(self, convolution=None):
        super().__init__()
        self.convolution = convolution or nn.Conv2d(3, 2, 3)
        weight = self.convolution.weight
        weight.data = torch.arange(weight.numel(), dtype=torch.float32).reshape(weight.shape)
        weight.requires_grad_(False)

    def forward(self, batch):
        nb_axes = self.convolution.weight.dim() - 2
        self.convolution(torch.zeros(1, 3, *[5] * nb_axes))
        return super().forward(batch)


def pixels(path):
    with Image.open(path) as image:
        return np.asarray(image.convert("L")).astype(int)


def export(folder, *arguments, model=Convolves, num_epochs=1, **keywords):
    callback = CallbackExportConvolutionKernel(*arguments, **keywords)
    fitting_in(folder)(trainer(callback), num_epochs=num_epochs, model_fn=lambda options: model())
    return folder / "default_r0" / (keywords.get("dirname") or "convolution_kernels")


def test_a_picture_for_each_filter_shows_its_weights_on_one_scale(tmp_path):
    folder = export(tmp_path)
    names = [f"kernel{kernel}_filter{filter}_iter_0.png" for kernel in range(2) for filter in range(3)]
    assert sorted(path.name for path in folder.iterdir()) == names
    weights = np.arange(54).reshape(2, 3, 3, 3)
    for kernel in range(2):
        for filter in range(3):
            picture = pixels(folder / f"kernel{kernel}_filter{filter}_iter_0.png")
            assert picture.shape == (PICTURE_PIXELS, PICTURE_PIXELS)
            square = PICTURE_PIXELS // 3
            middles = picture[square // 2 :: square, square // 2 :: square]
            assert np.abs(middles - weights[kernel, filter] * 255 / 53).max() <= 1
            assert (picture[:square, :square] == picture[0, 0]).all(), "a weight is a square"


def test_the_frequency_is_in_epochs_and_the_first_is_always_there(tmp_path):
    folder = export(tmp_path, 2, num_epochs=4, max_filters=1, dirname="kernels")
    assert sorted(path.name for path in folder.iterdir()) == [f"kernel0_filter0_iter_{n}.png" for n in (0, 2)]
    often = export(tmp_path / "default", num_epochs=3, max_filters=1)
    assert [path.name for path in often.iterdir()] == ["kernel0_filter0_iter_0.png"]


def test_functions_of_ones_own_find_the_convolution_and_export_the_filters(tmp_path):
    seen = []
    keywords = {
        "find_convolution_fn": lambda model, batch: {"matched_module": nn.Conv1d(1, 1, 2)} if "x" in batch else None,
        "export_filter_fn": lambda filter, path, low, high: seen.append((filter.shape, path.name, low <= high)),
    }
    export(tmp_path, **keywords)
    assert seen == [((2,), "kernel0_filter0_iter_0.png", True)]


def test_a_model_without_a_convolution_is_told_of_and_nothing_is_written(tmp_path, caplog):
    caplog.set_level("INFO")
    assert not export(tmp_path, model=Net).exists()
    assert "no convolution was found" in caplog.text


@pytest.mark.parametrize(
    ("convolution", "shape"),
    [(nn.Conv1d(3, 1, 4), (24, 96)), (nn.Conv2d(3, 1, (3, 2)), (96, 64)), (nn.Conv3d(3, 1, 3), (96, 3 * 96 + 2 * 8))],
)
def test_convolutions_of_one_two_and_three_dimensions(tmp_path, convolution, shape):
    folder = export(tmp_path, model=lambda: Convolves(convolution))
    assert pixels(folder / "kernel0_filter2_iter_0.png").shape == shape


def test_of_three_dimensions_the_middle_slices_stand_side_by_side(tmp_path):
    values = np.arange(27.0).reshape(3, 3, 3)
    default_export_filter(torch.from_numpy(values), tmp_path / "f.png")
    picture = pixels(tmp_path / "f.png")
    for number, slice in enumerate((values[1], values[:, 1], values[:, :, 1])):
        part = picture[:, number * 104 : number * 104 + 96]
        assert np.abs(part[16::32, 16::32] - slice * 255 / 26).max() <= 1


def test_weights_that_are_no_numbers_are_black_and_the_others_seen(tmp_path):
    default_export_filter(np.array([[0.0, np.nan], [1.0, 2.0]]), tmp_path / "f.png")
    assert pixels(tmp_path / "f.png")[24::48, 24::48].tolist() == [[0, 0], [128, 255]]


def test_a_filter_that_is_none_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"1, 2 or 3 dimensions, got shape \(1, 1, 1, 1\)"):
        default_export_filter(np.zeros((1, 1, 1, 1)), tmp_path / "f.png")


@pytest.mark.parametrize("name", ["export_frequency", "max_filters"])
def test_numbers_below_one_are_refused(name):
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        CallbackExportConvolutionKernel(**{name: 0})
