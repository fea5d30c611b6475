"""What all explainers promise, on models of one, two and three dimensions, with heads and without."""

import copy
import functools
import random

import numpy as np
import pytest
import torch
from torch import nn
from toy_explain import SIZES, Heads, Segments, algorithms, batch, heat, images, net

from trw_pipeline.explain.algorithms import ExplainableAlgorithm, default_algorithm_args
from trw_pipeline.nets.hooks import CleanAddedHooks
from trw_pipeline.outputs.regression import OutputRegression

every_algorithm = algorithms()
GRAD_CAM, MASK = ExplainableAlgorithm.GradCAM, ExplainableAlgorithm.MeaningfulPerturbations


def built(model, *inputs):
    """The model with its lazy parts made."""
    with torch.no_grad():
        model(*inputs)
    return model


@pytest.mark.parametrize("nb_dims", [1, 2, 3])
@every_algorithm
def test_each_point_of_each_sample_is_explained(algorithm, nb_dims):
    name, found = heat(algorithm, built(net(nb_dims), images(nb_dims)), images(nb_dims))
    assert name == "default_output"
    assert list(found) == ["default_input"]
    nb_channels = 1 if algorithm in (GRAD_CAM, MASK) else 2
    assert found["default_input"].shape == (3, nb_channels, *SIZES[nb_dims])
    assert np.isfinite(found["default_input"]).all()
    assert all(sample.any() for sample in found["default_input"])


@every_algorithm
def test_a_sample_is_explained_in_a_batch_as_it_is_alone(algorithm):
    model = built(net(), images())
    # Without noise: its draws are those of the whole batch.
    arguments = {"noise": 0} if algorithm is MASK else {}
    _, together = heat(algorithm, model, images(), **arguments)
    for number in range(3):
        alone = images()[number : number + 1].detach().requires_grad_()
        _, found = heat(algorithm, model, alone, **arguments)
        np.testing.assert_allclose(found["default_input"][0], together["default_input"][number], atol=1e-4)


@every_algorithm
def test_the_class_that_is_explained_is_the_one_found_or_the_one_asked_for(algorithm):
    model = built(net(), images())
    classes = model(images()).argmax(1)
    others = (classes + 1) % 3
    by_default = heat(algorithm, model, images())[1]["default_input"]
    asked_for = heat(algorithm, model, images(), target=classes)[1]["default_input"]
    another = heat(algorithm, model, images(), target=others.tolist())[1]["default_input"]
    assert np.array_equal(by_default, asked_for)
    assert not np.allclose(by_default, another)


@every_algorithm
def test_heads_are_explained_by_name_and_each_input_has_its_own(algorithm):
    model = Heads()
    name, found = heat(algorithm, model, batch())
    assert name == "shape"
    assert set(found) == ({"default_input"} if algorithm is GRAD_CAM else {"left", "right"})
    name, found = heat(algorithm, model, batch(), "color")
    assert name == "color"
    if algorithm is not GRAD_CAM:
        assert found["left"].any()
        assert not found["right"].any() or algorithm is MASK


@algorithms(GRAD_CAM)
def test_only_inputs_that_require_gradients_are_explained(algorithm):
    inputs = batch()
    inputs["left"].requires_grad_(False)
    assert set(heat(algorithm, Heads(), inputs)[1]) == {"right"}
    inputs["right"].requires_grad_(False)
    with pytest.raises(ValueError, match="must require gradients, by requires_grad_"):
        heat(algorithm, Heads(), inputs)


@algorithms(GRAD_CAM)
def test_a_segmentation_is_explained_at_the_points_of_its_class(algorithm):
    image = torch.zeros(1, 2, 8, 8)
    image[0, 1, :4, :4] = 1.0  # class 2
    arguments = {"mask_reduction_factor": 1, "iterations": 60, "l1_coeff": 0.1} if algorithm is MASK else {}
    name, found = heat(algorithm, Segments(), {"image": image.requires_grad_()}, **arguments)
    assert name == "mask"
    by_place = np.abs(found["image"][0]).max(0)
    assert by_place[:4, :4].min() > by_place[5:].max()


@every_algorithm
def test_a_head_that_is_no_classification_is_explained_if_it_is_named(algorithm):
    class Regresses(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net(nb_classes=1)

        def forward(self, batch):
            return {"age": OutputRegression(self.net(batch["image"])[:, 0], "age")}

    model = built(Regresses(), {"image": images()})
    arguments = {"model_output_postprocessing": nn.Identity()} if algorithm is MASK else {}
    name, found = heat(algorithm, model, {"image": images()}, "age", **arguments)
    assert name == "age"
    assert all(value.any() for value in found.values())


@every_algorithm
def test_an_output_that_is_not_there_is_refused(algorithm):
    with pytest.raises(ValueError, match=r"must be one of \['shape', 'color'\], got 'size'"):
        heat(algorithm, Heads(), batch(), "size")


def state_of(model, inputs):
    return {
        "modes": [part.training for part in model.modules()],
        "hooks": CleanAddedHooks.record_hooks(model),
        "no gradients": [p.grad is None for p in model.parameters()] + [inputs.grad is None],
        "requires_grad": [p.requires_grad for p in model.parameters()] + [inputs.requires_grad],
        "random": (random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()),
        "enabled": torch.is_grad_enabled(),
    }


class Fails(nn.Module):
    def forward(self, x):
        raise OSError("in the model")


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("in_no_grad", [False, True])
@every_algorithm
def test_model_inputs_and_random_state_are_left_as_they_were(algorithm, fails, in_no_grad):
    inner = built(net(), images())
    inner[2].requires_grad_(False)
    model = nn.Sequential(nn.BatchNorm2d(2), nn.Dropout(), *inner, *([Fails()] if fails else []))
    model.train()
    model[1].eval()
    model[2].register_forward_hook(lambda *arguments: None)
    inputs = images()
    weights, pixels = copy.deepcopy(model.state_dict()), inputs.detach().clone()
    before = state_of(model, inputs)
    with torch.set_grad_enabled(not in_no_grad):
        if fails:
            with pytest.raises(OSError, match="in the model"):
                heat(algorithm, model, inputs)
        else:
            heat(algorithm, model, inputs)
    assert state_of(model, inputs) == before
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in weights.items())
    assert torch.equal(inputs, pixels)


@every_algorithm
def test_a_batch_is_not_changed_by_a_model_that_edits_it_nor_by_one_that_works_in_place(algorithm):
    class Edits(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net()

        def forward(self, batch):
            batch["image"].mul_(2)
            batch["more"] = 1
            return self.net(batch.pop("image"))

    model = built(Edits(), {"image": images().detach()})
    inputs = {"image": images()}
    heat(algorithm, model, inputs)
    assert list(inputs) == ["image"]
    assert torch.equal(inputs["image"], images())


@every_algorithm
def test_a_frozen_model_is_explained_as_one_that_learns(algorithm):
    model = built(net(), images())
    expected = heat(algorithm, model, images())[1]["default_input"]
    found = heat(algorithm, model.requires_grad_(False), images())[1]["default_input"]
    assert np.array_equal(found, expected)


@every_algorithm
def test_the_same_explanation_each_time(algorithm):
    explain = functools.partial(heat, algorithm, built(net(), images()), images())
    assert np.array_equal(explain()[1]["default_input"], explain()[1]["default_input"])


@every_algorithm
def test_default_arguments_are_made_anew_for_each_algorithm(algorithm):
    default_algorithm_args()[algorithm]["steps"] = 3
    assert default_algorithm_args()[algorithm] == {}
