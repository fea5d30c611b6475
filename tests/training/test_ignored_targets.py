"""Samples and points without a class (-100) are in no mean: not of a batch, a group of batches, or a split."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from test_loop import HostReads
from test_optimization import trained
from torch import nn
from toy_training import CPU, evaluate, model_of

from trw_pipeline.outputs.classification import OutputClassification
from trw_pipeline.outputs.losses import cross_entropy_and_dice
from trw_pipeline.outputs.output import Output
from trw_pipeline.outputs.segmentation import OutputSegmentation
from trw_pipeline.outputs.targeted import OutputWithTarget
from trw_pipeline.training.history import SplitMeter

TRUTH = torch.tensor([0, -100, 1, -100, -100, 1, -100, -100, -100, 0, 1])
SIZES = [3, 3, 3, 2]
"""Of the batches: 2, 1, 0 and 2 samples of them have a class."""


def cut(whole):
    parts = zip(*(value.split(SIZES) for value in whole.values()), strict=True)
    return [dict(zip(whole, part, strict=True)) for part in parts]


def vectors():
    return {"x": torch.randn(len(TRUTH), 3, generator=torch.Generator().manual_seed(0)), "truth": TRUTH}


def masks():
    """The points of a sample without a class have none; of the others a few."""
    generator = torch.Generator().manual_seed(0)
    truth = torch.where(torch.rand(len(TRUTH), 4, 5, generator=generator) < 0.3, -100, TRUTH[:, None, None])
    return {"x": torch.randn(len(TRUTH), 3, 4, 5, generator=generator), "truth": truth}


def of_points():
    return nn.CrossEntropyLoss(reduction="none")


class Linear(nn.Module):
    def __init__(self, head, dtype=torch.float64):
        super().__init__()
        torch.manual_seed(0)
        self.weight, self.head = nn.Parameter(torch.randn(2, 3, dtype=dtype)), head

    def forward(self, batch):
        output = torch.einsum("cf,nf...->nc...", self.weight, batch["x"].to(self.weight.dtype))
        return {"y": self.head(output, "truth")}


def classification(output, name, **arguments):
    return OutputClassification(output, name, **arguments)


def segmentation_by_point(output, name):
    return OutputSegmentation(output, name, of_points)


KINDS = {
    "classification": (classification, vectors, F.cross_entropy),
    "segmentation": (
        OutputSegmentation,
        masks,
        lambda output, truth: cross_entropy_and_dice(output, truth)[TRUTH != -100].mean(),
    ),
    "segmentation by point": (segmentation_by_point, masks, F.cross_entropy),
}


@pytest.fixture
def counts_stay_elsewhere(monkeypatch) -> None:
    """To the heads no tensor says that it is on the CPU, so what they count stays a tensor, as of an accelerator."""
    reduced = OutputWithTarget._reduced

    def reduced_elsewhere(self, losses, truth):
        with monkeypatch.context() as patch:
            patch.setattr(torch.Tensor, "is_cpu", False)
            return reduced(self, losses, truth)

    monkeypatch.setattr(OutputWithTarget, "_reduced", reduced_elsewhere)


every_kind = pytest.mark.parametrize("kind", KINDS)


def by_hand(kind, model):
    """The loss over all that have a class."""
    whole, mean = KINDS[kind][1](), KINDS[kind][2]
    return mean(model(whole)["y"].output, whole["truth"])


@every_kind
def test_the_loss_of_a_split_is_the_mean_over_all_that_have_a_class(kind):
    head, whole, _ = KINDS[kind]
    model = Linear(head)
    outputs, history = evaluate(model, cut(whole()))
    expected = by_hand(kind, model).item()
    assert history["y"]["loss"] == pytest.approx(expected, rel=1e-12)
    assert history["overall_loss"]["loss"] == pytest.approx(expected, rel=1e-12)
    assert history["info"]["nb_samples"] == 11
    assert "nb_judged" not in outputs["y"]


@every_kind
@pytest.mark.parametrize("accumulate", [1, 2, 3, 4, 5])
def test_the_gradient_of_a_group_is_that_of_one_batch_of_all_its_samples(kind, accumulate):
    head, whole, mean = KINDS[kind]
    model = Linear(head)
    gradients, _ = trained(model, cut(whole()), accumulate=accumulate)
    start = 0
    for number, gradient in enumerate(gradients):
        group = SIZES[number * accumulate : (number + 1) * accumulate]
        end = start + sum(group)
        part = {name: value[start:end] for name, value in whole().items()}
        start = end
        model.zero_grad()
        if (part["truth"] != -100).any():
            output = model(part)["y"].output
            if kind == "segmentation":
                judged = (part["truth"] != -100).flatten(1).any(1)
                loss = cross_entropy_and_dice(output, part["truth"])[judged].mean()
            else:
                loss = mean(output, part["truth"])
            loss.backward()
            torch.testing.assert_close(gradient, model.weight.grad.flatten(), rtol=1e-9, atol=1e-12)
        else:
            assert not gradient.any()
    assert len(gradients) == math.ceil(len(SIZES) / accumulate)


def test_a_training_says_the_same_loss_whatever_the_group():
    losses = []
    for accumulate in (1, 2, 4):
        model = Linear(classification)
        _, run = trained(model, cut(vectors()), accumulate=accumulate)
        losses.append(run.history[0]["d"]["train"]["overall_loss"]["loss"])
    assert losses == pytest.approx([by_hand("classification", model).item()] * 3, rel=1e-12)


@pytest.mark.parametrize("where", ["on the CPU", "elsewhere"])
def test_where_nothing_has_a_class_there_is_no_loss(where, request):
    if where == "elsewhere":
        request.getfixturevalue("counts_stay_elsewhere")
    data = {"x": torch.ones(2, 3), "truth": torch.tensor([-100, -100])}
    model = Linear(classification)
    gradients, run = trained(model, [data], rate=1.0)
    assert np.isnan(run.history[0]["d"]["train"]["y"]["loss"])
    assert not gradients[0].any()
    assert model.weight.isfinite().all()


def test_weights_of_samples_weigh_the_mean_over_those_that_have_a_class():
    whole = {**vectors(), "weight": torch.rand(len(TRUTH), generator=torch.Generator().manual_seed(1))}
    model = Linear(lambda output, name: OutputClassification(output, name, weight_name="weight"))
    losses = F.cross_entropy(model(whole)["y"].output, TRUTH, reduction="none") * whole["weight"]
    expected = losses.sum().item() / 5
    assert evaluate(model, cut(whole))[1]["y"]["loss"] == pytest.approx(expected, rel=1e-12)


def test_a_reduction_of_the_users_sees_a_loss_of_zero_and_counts_by_samples():
    model = Linear(lambda output, name: OutputClassification(output, name, loss_reduction=torch.sum))
    sums = [F.cross_entropy(model(one)["y"].output, one["truth"], reduction="sum").item() for one in cut(vectors())]
    expected = sum(size * value for size, value in zip(SIZES, sums, strict=True)) / 11
    assert evaluate(model, cut(vectors()))[1]["y"]["loss"] == pytest.approx(expected, rel=1e-12)


def heads_with(*judged, losses=(1.0, 4.0)):
    """Heads of given losses; `judged` says how many samples each judged in each batch, None all."""

    class Head(Output):
        def __init__(self, loss, number):
            super().__init__(torch.zeros(1), None)
            self.loss, self.number = loss, number

        def evaluate_batch(self, batch, is_training):
            nb = judged[self.number][batch["number"]]
            return {"loss": torch.tensor(self.loss * (1 + batch["number"]))} | ({} if nb is None else {"nb_judged": nb})

        def extract_history(self, outputs):
            return {"loss": outputs["loss"]}

    return model_of(lambda batch: {str(number): Head(losses[number], number) for number in range(len(judged))})


DATA = [{"x": torch.zeros(4, 1), "number": number} for number in range(2)]


@pytest.mark.parametrize("kind", [float, torch.tensor], ids=["number", "tensor, as of an accelerator"])
def test_of_several_heads_the_one_that_judges_most_says_what_the_batch_counts_for(kind):
    history = evaluate(heads_with([kind(1.0), kind(3.0)], [kind(2.0), kind(1.0)]), DATA)[1]
    assert history["0"]["loss"] == pytest.approx((1 * 1 + 3 * 2) / 4)
    assert history["1"]["loss"] == pytest.approx((2 * 4 + 1 * 8) / 3)
    assert history["overall_loss"]["loss"] == pytest.approx((2 * 5 + 3 * 10) / 5)


@pytest.mark.parametrize("kind", [float, torch.tensor], ids=["number", "tensor"])
def test_a_head_that_judges_all_samples_makes_the_batch_count_for_all(kind):
    history = evaluate(heads_with([kind(1.0), kind(3.0)], [None, None]), DATA)[1]
    assert history["0"]["loss"] == pytest.approx((1 * 1 + 3 * 2) / 4)
    assert history["1"]["loss"] == pytest.approx((4 * 4 + 4 * 8) / 8)
    assert history["overall_loss"]["loss"] == pytest.approx((4 * 5 + 4 * 10) / 8)


@every_kind
@pytest.mark.parametrize("accumulate", [1, 2, 3, 4])
def test_counts_that_stay_on_an_accelerator_are_not_read_and_give_the_same(kind, accumulate, request):
    """T14."""
    head, whole, _ = KINDS[kind]
    expected, _ = trained(Linear(head), cut(whole()), accumulate=accumulate)
    request.getfixturevalue("counts_stay_elsewhere")
    with HostReads() as reads:
        gradients, run = trained(Linear(head), cut(whole()), accumulate=accumulate)
    assert reads.count == 0
    for one, other in zip(gradients, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-9)
    figures = run.history[0]["d"]["train"]
    assert figures["y"]["loss"] == pytest.approx(by_hand(kind, run.model).item(), rel=1e-6)
    assert figures["overall_loss"]["loss"] == pytest.approx(figures["y"]["loss"], rel=1e-12)


@pytest.mark.parametrize("kind", [float, torch.tensor], ids=["number", "tensor"])
def test_a_meter_that_is_saved_goes_on_with_what_was_judged(kind):
    def added(meter, *numbers):
        for number in numbers:
            nb = kind(1.0 + number)
            meter.add({"y": {"loss": torch.tensor(1.0 + number), "nb_judged": nb}}, torch.tensor(2.0), 4, nb_judged=nb)
        return meter

    resumed = SplitMeter()
    resumed.load_state_dict(added(SplitMeter(), 0, 1).state_dict(), CPU)
    outputs, history = added(resumed, 2).read()
    assert outputs["y"]["loss"] == pytest.approx((1 * 1 + 2 * 2 + 3 * 3) / 6)
    assert history["overall_loss"]["loss"] == pytest.approx(2.0)
