"""Filters against scipy, and against a convolution by hand."""

import pytest
import torch
from scipy.ndimage import gaussian_filter

from trw_pipeline.nets.filters import FilterFixed, FilterGaussian

SIZES = {1: (17,), 2: (17, 12), 3: (9, 17, 12)}


@pytest.mark.parametrize("nb_dims", [1, 2, 3])
def test_a_gaussian_is_that_of_scipy_in_each_channel(nb_dims):
    torch.manual_seed(0)
    images = torch.randn(2, 3, *SIZES[nb_dims])
    sigmas = [1.3, 0.7, 2.0][:nb_dims]
    found = FilterGaussian(3, nb_dims, sigmas)(images)
    expected = gaussian_filter(images.double().numpy(), (0, 0, *sigmas), mode="constant")
    assert found.shape == images.shape
    torch.testing.assert_close(found, torch.from_numpy(expected).float(), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("nb_dims", [1, 2, 3])
def test_a_shorter_kernel_is_that_of_scipy_with_that_radius(nb_dims):
    images = torch.randn(1, 1, *SIZES[nb_dims])
    found = FilterGaussian(1, nb_dims, 2.0, kernel_sizes=5)(images)
    expected = gaussian_filter(images.double().numpy(), (0, 0, *[2.0] * nb_dims), mode="constant", radius=2)
    torch.testing.assert_close(found, torch.from_numpy(expected).float(), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("padding", ["valid", 2, (1, 0)])
def test_a_gaussian_is_its_kernel_applied_at_once(padding):
    images = torch.randn(2, 3, 20, 21)
    blur = FilterGaussian(3, 2, 1.0, (5, 7), padding)
    assert blur.kernel.shape == (3, 1, 5, 7)
    at_once = FilterFixed(blur.kernel, 3, padding)(images)
    torch.testing.assert_close(blur(images), at_once, atol=1e-6, rtol=1e-5)


def test_the_weights_of_a_gaussian_sum_to_one():
    assert FilterGaussian(1, 3, 1.5).kernel.sum().item() == pytest.approx(1)


@pytest.mark.parametrize("nb_dims", [1, 2, 3])
def test_a_fixed_kernel_is_applied_as_it_is_and_in_groups(nb_dims):
    """Two points along the last axis, (1, -1): the difference to the next point; in the second group its double."""
    kernel = torch.tensor([1.0, -1.0]).reshape(*[1] * (nb_dims + 1), 2)
    images = torch.randn(2, 2, *SIZES[nb_dims])
    difference = images[..., :-1] - images[..., 1:]
    found = FilterFixed(torch.cat([kernel, 2 * kernel]), groups=2)(images)
    torch.testing.assert_close(found, difference * torch.tensor([1.0, 2.0]).reshape(1, 2, *[1] * nb_dims))


def test_a_filter_has_nothing_to_learn_and_moves_with_its_dtype():
    blur = FilterGaussian(1, 1, 1.0)
    assert list(blur.parameters()) == []
    assert blur.double()(torch.ones(1, 1, 20, dtype=torch.float64)).dtype == torch.float64


@pytest.mark.parametrize(
    ("create", "message"),
    [
        (lambda: FilterFixed(torch.ones(1, 1)), r"1 to 3 axes behind, got shape \(1, 1\)"),
        (lambda: FilterGaussian(1, 4, 1.0), "nb_dims must be 1, 2 or 3, got 4"),
        (lambda: FilterGaussian(1, 2, 0.0), "sigma must be above 0, one number or one for each of 2 axes, got 0"),
        (lambda: FilterGaussian(1, 2, [1.0]), "sigma must be above 0, one number or one for each of 2 axes"),
        (lambda: FilterGaussian(1, 2, 1.0, 4), "kernel_sizes must be odd, or the image would be shifted, got 4"),
    ],
)
def test_wrong_arguments_are_refused(create, message):
    with pytest.raises(ValueError, match=message):
        create()
