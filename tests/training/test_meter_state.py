"""A meter that is saved and loaded between two batches measures what one does that never was."""

import copy
from itertools import combinations

import pytest
import torch

from trw_pipeline.outputs.classification import OutputClassification
from trw_pipeline.outputs.classification_metrics import MetricAUROC, default_classification_metrics
from trw_pipeline.outputs.embedding import OutputEmbedding
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


def measured(cuts, heads):
    """The history, with a new meter at each of the cuts."""
    meter = SplitMeter()
    for number, present in enumerate(heads):
        for _ in range(cuts.count(number)):
            state = copy.deepcopy(meter.state_dict())
            meter = SplitMeter()
            meter.load_state_dict(state, CPU)
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


def test_losses_go_on_where_they_are():
    """RES-6: those of a training that is resumed on another device, for which "meta" stands in."""
    meter = SplitMeter()
    meter.add({}, torch.ones(()), 2)
    resumed = SplitMeter()
    resumed.load_state_dict(meter.state_dict(), torch.device("meta"))
    resumed.add({}, torch.ones((), device="meta"), 2)
    assert resumed.nb_samples == 4
