"""A bowl whose stable rates are known: the loss k w^2 / 2 falls for rates below 2 / k, fastest at 1 / k."""

import copy
import functools
import math
import random
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from toy_trainer import fitting_in, sgd, trainer

from trw_pipeline.callbacks.learning_rate_finder import (
    CallbackLearningRateFinder,
    default_identify_learning_rate_section,
)
from trw_pipeline.errors import MissingExtraError
from trw_pipeline.outputs.regression import OutputRegression
from trw_pipeline.training.optimizers import create_sgd_optimizers_fn
from trw_pipeline.training.options import create_default_options

K = 4.0
STEPS = 5


class Bowl(nn.Module):
    """The mean of (w x)^2 with x^2 = k / 2."""

    def __init__(self, start=3.0):
        super().__init__()
        self.w = nn.Parameter(torch.tensor(start, dtype=torch.float64))

    def forward(self, batch):
        return {"y": OutputRegression(self.w * batch["x"], "zero")}


ROWS = {"x": torch.full((2, 1), math.sqrt(K / 2), dtype=torch.float64), "zero": torch.zeros(2, 1, dtype=torch.float64)}
SPLIT = [ROWS] * STEPS
plain = functools.partial(create_sgd_optimizers_fn, learning_rate=0.001, momentum=0.0)


def expected_loss(rate):
    """The mean over the later steps of k w^2 / 2, w being multiplied by 1 - rate k at each."""
    late = range(STEPS // 2, STEPS)
    return sum(K / 2 * (3.0 * (1 - rate * K) ** step) ** 2 for step in late) / len(late)


def find(folder, model=None, optimizers=None, optimizers_fn=plain, split=SPLIT, **arguments):
    """Runs the callback as before a training; returns (rate, loss) of what was tried, the section, the optimizer."""
    seen = []

    def identify(tried, ratio):
        seen.append((list(tried), default_identify_learning_rate_section(tried, ratio)))
        return seen[-1][1]

    options = create_default_options(folder, 1, "cpu")
    options["workflow_options"]["current_logging_directory"] = str(folder)
    model = Bowl() if model is None else model
    datasets = {"d": {"train": split}}
    optimizers = optimizers_fn(datasets, model)[0] if optimizers is None else optimizers
    losses = {"d": lambda name, batch, terms: terms["y"]["loss"]}
    arguments = {"nb_samples_per_learning_rate": 2 * STEPS, "learning_rate_start": 1e-3} | arguments
    finder = CallbackLearningRateFinder(identify_learning_rate_section=identify, **arguments)
    finder({**options}, [], model, losses, None, datasets, {}, None, optimizers=optimizers)
    return *seen[0], optimizers["d"]


@pytest.mark.slow
def test_in_a_bowl_the_rate_found_is_the_best_and_rates_that_diverge_are_left_out(tmp_path):
    tried, (first, last), optimizer = find(tmp_path, set_new_learning_rate=True)
    for rate, loss in tried:
        assert loss == pytest.approx(expected_loss(rate), rel=1e-9), "each rate starts anew"
    rate = tried[last][0]
    assert 1 / K / 1.2 < rate < 1 / K * 1.2
    assert tried[first][1] < 0.8 * tried[0][1] <= tried[first - 1][1]
    assert optimizer.param_groups[0]["lr"] == rate
    assert 2 / K < tried[-1][0] < 10, "far behind the stable rates no further one is tried"


@pytest.mark.slow
def test_the_model_that_is_trained_its_optimizer_and_the_generators_stay_bit_for_bit(tmp_path):
    """T50."""
    torch.manual_seed(1)
    model = Bowl()
    optimizers, _ = create_sgd_optimizers_fn({"d": {}}, model, 0.01)
    model.w.grad = torch.tensor(0.5, dtype=torch.float64)
    optimizers["d"].step()  # so that it has a momentum
    state, of_optimizer = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizers["d"].state_dict())
    model.eval()
    generators = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    find(tmp_path, model, optimizers)
    assert torch.equal(model.w, state["w"])
    assert model.w.grad.item() == 0.5
    assert not model.training
    assert optimizers["d"].state_dict() == of_optimizer
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == generators


@pytest.mark.slow
def test_a_training_with_it_is_the_training_without(tmp_path):
    models = []
    for pre in ([CallbackLearningRateFinder(10, 1e-2, 1.0, 3.0)], []):
        torch.manual_seed(0)
        models.append(fitting_in(tmp_path)(trainer(pre=pre))[0])
    assert torch.equal(models[0].inner.weight, models[1].inner.weight)
    with Image.open(tmp_path / "default_r0" / "lr_finder" / "d_train.png") as image:
        image.load()
        assert image.format == "PNG"


@pytest.mark.slow
def test_a_loss_that_is_no_number_ends_the_search_and_is_never_chosen(tmp_path):
    class Breaks(Bowl):
        """NaN as soon as a step has gone beyond the bottom, which rates above 1 / k do."""

        def forward(self, batch):
            x = batch["x"] if self.w.item() >= 0 else batch["x"] * math.nan
            return {"y": OutputRegression(self.w * x, "zero")}

    tried, (_, last), _ = find(tmp_path, Breaks())
    assert math.isnan(tried[-1][1])
    assert 1 / K < tried[-1][0] < 1.2 / K, "the first one beyond the bottom"
    assert last == len(tried) - 2


@pytest.mark.slow
def test_a_loss_that_never_falls_enough_fails_nothing_and_sets_nothing(tmp_path, caplog):
    tried, section, optimizer = find(tmp_path, learning_rate_stop=1e-2, set_new_learning_rate=True)
    assert [rate for rate, _ in tried] == [1e-3 * 1.2**number for number in range(13)]
    assert section is None
    assert optimizer.param_groups[0]["lr"] == 0.001
    assert "no learning rate from 0.001 to 0.00892 brings the loss of d/train below 0.8" in caplog.text
    assert (tmp_path / "lr_finder" / "d_train.png").stat().st_size > 1000


@pytest.mark.slow
@pytest.mark.parametrize(("nb_samples", "nb_steps"), [(1, 1), (4, 2), (20, 10), (10_000, 10 * STEPS)])
def test_a_rate_is_tried_with_as_many_samples_as_asked_for_but_ten_passes_at_most(tmp_path, nb_samples, nb_steps):
    seen = []

    class Counts:
        def __iter__(self):
            for batch in SPLIT:
                seen.append(1)
                yield batch

    one_rate = {"learning_rate_start": 0.01, "learning_rate_stop": 0.01}
    find(tmp_path, split=Counts(), nb_samples_per_learning_rate=nb_samples, **one_rate)
    assert len(seen) == nb_steps


def test_without_matplotlib_nothing_is_searched(tmp_path, monkeypatch):
    class Unread:
        def __iter__(self):
            raise AssertionError("the split was read")

    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match=r"trw_pipeline\[plot\]"):
        find(tmp_path, split=Unread())


def test_where_nothing_is_trained_there_is_nothing_to_find(tmp_path):
    fit = fitting_in(tmp_path)
    fit(trainer(pre=[CallbackLearningRateFinder()]), optimizers_fn=None)
    assert not (tmp_path / "default_r0" / "lr_finder").exists()


@pytest.mark.parametrize(("name", "value"), [("dataset_name", "absent"), ("split_name", "absent")])
def test_a_name_that_is_not_there_is_refused(tmp_path, name, value):
    with pytest.raises(ValueError, match="'absent'"):
        find(tmp_path, **{name: value})


def test_several_optimizers_of_a_dataset_are_refused(tmp_path):
    def two(datasets, model):
        first, second = (sgd(datasets, model)[0]["d"] for _ in range(2))
        return {"d": {"a": first, "b": second}}, None

    with pytest.raises(ValueError, match=r"of one optimizer can be found, 'd' has \['a', 'b'\]"):
        fitting_in(tmp_path)(trainer(pre=[CallbackLearningRateFinder()]), optimizers_fn=two)


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ({"nb_samples_per_learning_rate": 0}, "at least 1, got 0"),
        ({"learning_rate_start": 0.0}, "must be positive"),
        ({"learning_rate_start": 1.0, "learning_rate_stop": 0.5}, "not above learning_rate_stop, got 1.0 and 0.5"),
        ({"learning_rate_mul": 1.0}, "greater than 1, got 1.0"),
        ({"param_maximum_loss_ratio": 1.5}, r"in \(0, 1\], got 1.5"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(arguments, rule):
    with pytest.raises(ValueError, match=rule):
        CallbackLearningRateFinder(**arguments)


@pytest.mark.parametrize(
    ("losses", "section"),
    [
        ([], None),
        ([math.nan, 0.5], None),
        ([1.0, 0.9, 0.81], None),
        ([1.0, 0.9, 0.7, 0.2, 0.3, 50.0], (2, 3)),
        ([1.0, 0.5, math.nan, 0.1], (1, 3)),
        ([1.0, 0.5, math.inf], (1, 1)),
        ([-1.0, -1.1, -3.0, -2.0], (1, 2)),
        ([1.0, 0.5, 0.5], (1, 1)),
    ],
)
def test_the_section_begins_where_the_loss_is_low_enough_and_ends_where_it_is_lowest(losses, section):
    assert default_identify_learning_rate_section([(10.0**n, loss) for n, loss in enumerate(losses)], 0.8) == section
