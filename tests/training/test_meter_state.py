"""A meter that is saved and loaded between two batches measures what one does that never was."""

import copy
from itertools import combinations

import numpy as np
import pytest
import torch
from torchmetrics import MeanMetric
from torchmetrics.classification import MulticlassAccuracy

from trw_pipeline.outputs.classification import OutputClassification
from trw_pipeline.outputs.classification_metrics import MetricAUROC, default_classification_metrics
from trw_pipeline.outputs.embedding import OutputEmbedding
from trw_pipeline.outputs.output import Output, Rows, Totals, Update
from trw_pipeline.training.history import SplitMeter

CPU = torch.device("cpu")
HEADS = ["ab", "a", "", "b", "ab"]
"""Of each batch; a batch without the classes of an optional head has nothing of that head."""


def batch_of(number, heads):
    generator = torch.Generator().manual_seed(number)
    truth = torch.tensor([0, 1, number % 2])
    terms = {"e": OutputEmbedding(torch.ones(3, 1)).evaluate_batch({}, False)}
    for name in heads:
        metrics = [*default_classification_metrics(), MetricAUROC()]
        head = OutputClassification(torch.randn(3, 2, generator=generator), "truth", metrics=metrics)
        terms[name] = head.evaluate_batch({"truth": truth}, False)
    return terms, sum((terms[name]["loss"] for name in heads), torch.zeros(())), 3


def resumed(meter):
    state = copy.deepcopy(meter.state_dict())
    meter = SplitMeter()
    meter.load_state_dict(state, CPU)
    return meter


def measured(cuts, heads):
    """The history, with a new meter at each of the cuts."""
    meter = SplitMeter()
    for number, present in enumerate(heads):
        for _ in range(cuts.count(number)):
            meter = resumed(meter)
        meter.add(*batch_of(number, present))
    return meter.read()[1]


@pytest.mark.parametrize("heads", [HEADS, HEADS[::-1], ["a", "b", "b"], ["ab", "", "a"]], ids="-".join)
def test_figures_are_those_of_a_meter_that_was_never_saved(heads):
    expected = measured((), heads)
    assert set(expected) == {*"".join(heads), "overall_loss"}
    moments = range(1, len(heads))
    for cuts in [*combinations(moments, 1), *combinations(moments, 2), *((one, one) for one in moments)]:
        history = measured(cuts, heads)
        assert list(history) == list(expected)
        for output in expected:
            assert history[output] == pytest.approx(expected[output], abs=1e-12)


class Highest(Output):
    """Has totals of each kind of the classes that are in a batch, and of no others."""

    def __init__(self, classes):
        super().__init__(torch.zeros(1), None)
        self.classes = classes

    def evaluate_batch(self, batch, is_training):
        totals = Totals()
        for number in self.classes:
            value = torch.tensor([1.0, number])
            totals |= {
                ("number", number): number,
                ("sum", number): value,
                ("rows", number): Rows(value),
                ("update", number): Update(MeanMetric(), (value,)),
            }
        return self._term(batch, totals=totals)

    def extract_history(self, outputs):
        return {f"{kind} {number}": float(np.sum(value)) for (kind, number), value in outputs["totals"].items()}


@pytest.mark.parametrize("nb_resumed", [1, 2, 3])
def test_totals_of_which_no_batch_has_more_keep_their_values(nb_resumed):
    def added(classes_of_batches, is_resumed):
        meter = SplitMeter()
        for number, classes in enumerate(classes_of_batches):
            if is_resumed and number == 2:
                for _ in range(nb_resumed):
                    meter = resumed(meter)
            meter.add({"y": Highest(classes).evaluate_batch({}, False)}, 0.0, 1)
        return meter.read()[1]["y"]

    batches = [[1, 2], [2, 3], [3], [3]]  # 1 and 2 do not come again
    expected = added(batches, is_resumed=False)
    assert expected["sum 2"] == 6
    assert expected["update 1"] == 1
    assert len(expected) == 12
    assert added(batches, is_resumed=True) == expected


def test_a_head_of_which_no_batch_has_more_keeps_its_figures_and_the_metrics_of_its_own():
    def with_metric(name):
        head = OutputClassification(torch.eye(2)[:1], "truth", metrics=[MulticlassAccuracy(2)])
        return {name: head.evaluate_batch({"truth": torch.tensor([0])}, False)}

    meter = SplitMeter()
    meter.add(with_metric("gone"), 1.0, 1)
    expected = meter.read()[1]["gone"]
    meter = resumed(resumed(meter))
    meter.add(with_metric("stays"), 1.0, 1)
    assert resumed(meter).read()[1]["gone"] == expected == meter.read()[1]["gone"]


def test_losses_go_on_where_they_are():
    """RES-6: those of a training that is resumed on another device, for which "meta" stands in."""
    meter = SplitMeter()
    meter.add({}, torch.ones(()), 2)
    resumed = SplitMeter()
    resumed.load_state_dict(meter.state_dict(), torch.device("meta"))
    resumed.add({}, torch.ones((), device="meta"), 2)
    assert resumed.nb_samples == 4
