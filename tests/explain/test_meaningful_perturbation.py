"""A mask takes away what a model looks at, and little else."""

import numpy as np
import pytest
import torch
from torch import nn

from trw_pipeline.explain.meaningful_perturbation import (
    MeaningfulPerturbation,
    default_information_removal_smoothing,
    default_optimizer,
)


class LooksAtACorner(nn.Module):
    """Class 1 if the first quarter along each axis is bright."""

    def forward(self, x):
        corner = x[(slice(None), slice(None), *[slice(0, size // 4) for size in x.shape[2:]])]
        score = 6 * corner.flatten(1).mean(1) - 3
        return torch.stack([-score, score], 1)


SIZES = {1: (32,), 2: (16, 24), 3: (8, 12, 16)}


@pytest.mark.parametrize("nb_dims", [1, 2, 3])
def test_the_mask_is_where_the_model_looks(nb_dims):
    image = torch.zeros(2, 1, *SIZES[nb_dims])
    corner = (slice(None), slice(None), *[slice(0, size // 4) for size in SIZES[nb_dims]])
    image[corner] = 1.0
    image[..., -3:] = 1.0  # bright too, and not looked at
    explain = MeaningfulPerturbation(
        LooksAtACorner(), 100, l1_coeff=0.1, mask_reduction_factor=2, information_removal_fn=torch.zeros_like
    )
    _, found = explain(image.requires_grad_(), None, 1)
    result = found["default_input"]
    assert result["mask"].shape == (2, 1, *SIZES[nb_dims])
    assert result["mask"][corner].mean() < 0.6
    assert result["mask"][..., -3:].mean() > 0.9
    assert result["loss_c_start"].tolist() == pytest.approx([1 / (1 + np.exp(-6))] * 2, rel=1e-5)
    assert (result["loss_c_end"] < 0.6 * result["loss_c_start"]).all()


def test_the_results_fit_each_other():
    image = torch.rand(2, 3, 16, 16, requires_grad=True)
    model = LooksAtACorner()
    name, found = MeaningfulPerturbation(model, 20, mask_reduction_factor=4)(image, None, [0, 1])
    result = found["default_input"]
    assert name == "default_output"
    assert set(result) == {
        "mask", "perturbated_input", "smoothed_input", "loss_c_start", "loss_c_end", "output_end"
    }  # fmt: skip
    mask, smoothed = result["mask"], result["smoothed_input"]
    assert mask.min() >= 0
    assert mask.max() <= 1
    np.testing.assert_allclose(
        result["perturbated_input"], image.numpy(force=True) * mask + smoothed * (1 - mask), atol=1e-6
    )
    said = model(torch.from_numpy(result["perturbated_input"])).softmax(1).numpy()
    np.testing.assert_allclose(result["output_end"], said, rtol=1e-4)
    np.testing.assert_allclose(result["loss_c_end"], said[[0, 1], [0, 1]], rtol=1e-4)


def test_a_higher_price_takes_less_away():
    image = torch.ones(1, 1, 16, 16, requires_grad=True)
    taken = [
        1
        - MeaningfulPerturbation(LooksAtACorner(), 60, coefficient, information_removal_fn=torch.zeros_like)(
            image, None, 1
        )[1]["default_input"]["mask"].mean()
        for coefficient in (0.01, 0.05, 100.0)
    ]
    assert taken[0] > taken[1] > taken[2] == 0


def test_a_higher_price_of_steps_makes_the_mask_smoother():
    image = torch.ones(1, 1, 16, 16, requires_grad=True)

    def roughness(coefficient):
        explain = MeaningfulPerturbation(
            LooksAtACorner(), 60, 0.1, coefficient, mask_reduction_factor=2, information_removal_fn=torch.zeros_like
        )
        mask = explain(image, None, 1)[1]["default_input"]["mask"]
        return np.abs(np.diff(mask, axis=-1)).max()

    assert roughness(50.0) < 0.7 * roughness(0.0)


def test_vectors_are_left_out():
    class OfBoth(nn.Module):
        def forward(self, batch):
            return batch["image"].flatten(1)[:, :2] + batch["age"]

    inputs = {"image": torch.rand(2, 1, 8, 8).requires_grad_(), "age": torch.rand(2, 1).requires_grad_()}
    assert list(MeaningfulPerturbation(OfBoth(), 2)(inputs, None)[1]) == ["image"]


def test_each_iteration_is_shown_to_who_wants_to_see_it():
    seen = []
    explain = MeaningfulPerturbation(LooksAtACorner(), 3, export_fn=lambda *what: seen.append(what), noise=0)
    explain(torch.ones(1, 1, 16, 24, requires_grad=True), None)
    assert [(name, iteration) for name, iteration, *_ in seen] == [("default_input", number) for number in range(3)]
    assert [tuple(tensor.shape) for tensor in seen[0][2:]] == [(1, 1, 16, 24), (1, 1, 2, 3)]
    assert not seen[0][2].requires_grad
    assert torch.equal(seen[0][2], torch.ones(1, 1, 16, 24)), "the mask begins with all of the image"


def test_another_optimizer_is_used():
    rates = []

    def optimizer_fn(params, nb_iters):
        rates.append(nb_iters)
        return torch.optim.SGD(params, lr=0.0), None

    explain = MeaningfulPerturbation(LooksAtACorner(), 4, optimizer_fn=optimizer_fn)
    _, found = explain(torch.ones(1, 1, 16, 16, requires_grad=True), None)
    assert rates == [4]
    assert (found["default_input"]["mask"] == 1).all()


def test_the_default_rate_takes_a_mask_from_one_to_zero_in_two_thirds_of_the_iterations():
    mask = torch.ones(1, requires_grad=True)
    optimizer, scheduler = default_optimizer([mask], 60)
    reached = []
    for _ in range(60):
        mask.grad = torch.ones(1)
        optimizer.step()
        scheduler.step()
        reached.append(mask.item())
    assert reached[19] == pytest.approx(0.5)
    assert reached[39] == pytest.approx(0.0, abs=1e-4)
    assert reached[59] == pytest.approx(-0.05, abs=1e-4)


@pytest.mark.parametrize("nb_dims", [1, 2, 3])
def test_smoothing_keeps_what_is_constant_up_to_the_borders_and_blurs_the_rest(nb_dims):
    constant = torch.full((1, 2, *SIZES[nb_dims]), 3.0)
    torch.testing.assert_close(default_information_removal_smoothing(constant), constant)
    torch.manual_seed(0)
    image = torch.randn(1, 1, *SIZES[nb_dims])
    deviations = [default_information_removal_smoothing(image, sigma).std() for sigma in (0.1, 1.0, 5.0)]
    assert deviations[0] > deviations[1] > deviations[2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"iterations": 0}, "iterations must be at least 1, got 0"),
        ({"mask_reduction_factor": 0.5}, "mask_reduction_factor must be at least 1, got 0.5"),
        ({"noise": -1}, "noise must not be negative, got -1"),
    ],
)
def test_numbers_out_of_range_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        MeaningfulPerturbation(LooksAtACorner(), **arguments)
