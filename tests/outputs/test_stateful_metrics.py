"""Metrics with a state of their own, such as those of torchmetrics, in a head."""

import copy
import functools

import pytest
import torch
from split_figures import figures
from torch import nn

from trw_pipeline.outputs.classification import OutputClassification
from trw_pipeline.outputs.metrics import Metric, MetricStateful, as_metrics
from trw_pipeline.outputs.regression import OutputRegression
from trw_pipeline.outputs.segmentation import OutputSegmentation
from trw_pipeline.training.history import SplitMeter
from trw_pipeline.training.loop import default_sum_all_losses, eval_loop, train_loop


class Seen:
    """The mean of what it was called with, kept as a torchmetrics would."""

    def __init__(self, start=0.0):
        self.start = start
        self.reset()

    def reset(self):
        self.values, self.grads = [], []

    def update(self, predicted, truth):
        self.values.append(predicted.sum() + self.start)
        self.grads.append(torch.is_grad_enabled())

    def compute(self):
        assert not any(self.grads)
        return torch.stack(self.values).sum()


class Net(nn.Module):
    """Two classes from three numbers, with metrics that it keeps, or makes anew at each forward pass."""

    def __init__(self, create_metrics, keeps_them=True):
        super().__init__()
        self.body = nn.Linear(3, 2)
        self.create_metrics = create_metrics
        self.kept = create_metrics() if keeps_them else None

    def forward(self, batch):
        metrics = self.kept if self.kept is not None else self.create_metrics()
        return {"y": OutputClassification(self.body(batch["x"]), "truth", metrics=metrics)}


def samples(nb_samples, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(nb_samples, 3, generator=generator)
    return {"x": x, "truth": (x.sum(1) + torch.randn(nb_samples, generator=generator) > 0).long()}


def batches(whole, batch_size):
    return [
        {name: value[start : start + batch_size] for name, value in whole.items()}
        for start in range(0, len(whole["x"]), batch_size)
    ]


def evaluate(model, split):
    return eval_loop(torch.device("cpu"), "d", "valid", split, model, default_sum_all_losses, [])[1]["y"]


def torchmetrics_of_classes():
    from torchmetrics.classification import MulticlassAUROC, MulticlassF1Score

    quiet = {"validate_args": False}
    return [MulticlassAUROC(2, **quiet), MulticlassF1Score(2, average=None, **quiet)]


@pytest.mark.slow
@pytest.mark.parametrize("keeps_them", [True, False])
def test_metrics_of_torchmetrics_are_those_of_all_samples_at_once_in_each_split(keeps_them):
    torch.manual_seed(0)
    model = Net(torchmetrics_of_classes, keeps_them)
    whole = [samples(67, seed=seed) for seed in range(2)]
    for split in (*whole, whole[0]):
        auroc, f1 = torchmetrics_of_classes()
        with torch.no_grad():
            scores = model.body(split["x"]).softmax(1)
        for metric in (auroc, f1):
            metric.update(scores, split["truth"])
        measured = evaluate(model, batches(split, 4))
        del measured["loss"]
        assert measured == {
            "MulticlassAUROC": pytest.approx(auroc.compute().item(), abs=1e-6),
            "MulticlassF1Score 0": pytest.approx(f1.compute()[0].item(), abs=1e-6),
            "MulticlassF1Score 1": pytest.approx(f1.compute()[1].item(), abs=1e-6),
        }


@pytest.mark.slow
def test_a_collection_names_its_figures():
    from torchmetrics import MetricCollection
    from torchmetrics.classification import MulticlassAccuracy

    collection = MetricCollection({"balanced": MulticlassAccuracy(2), "plain": MulticlassAccuracy(2, average="micro")})
    model = Net(lambda: [collection])
    whole = samples(20)
    measured = evaluate(model, batches(whole, 8))
    found = model.body(whole["x"]).argmax(1)
    assert list(measured) == ["loss", "balanced", "plain"]
    assert measured["plain"] == pytest.approx((found == whole["truth"]).double().mean().item(), abs=1e-6)


@pytest.mark.slow
def test_metrics_of_regression_and_segmentation():
    from torchmetrics.classification import MulticlassJaccardIndex
    from torchmetrics.regression import MeanSquaredError

    generator = torch.Generator().manual_seed(0)
    output, truth = torch.randn(9, 2, generator=generator), torch.randn(9, 2, generator=generator)
    head = OutputRegression(output, "t", metrics=[MeanSquaredError()])
    assert history_of(head, {"t": truth})["MeanSquaredError"] == pytest.approx(
        (output - truth).square().mean().item(), rel=1e-6
    )
    scores, mask = torch.randn(4, 3, 5, 6, generator=generator), torch.randint(0, 3, (4, 5, 6), generator=generator)
    head = OutputSegmentation(scores, "t", metrics=[MulticlassJaccardIndex(3)])
    expected = MulticlassJaccardIndex(3)(scores.argmax(1), mask).item()
    assert history_of(head, {"t": mask})["MulticlassJaccardIndex"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.slow
def test_metrics_of_two_classes_get_what_they_ask_for():
    from torchmetrics.classification import BinaryAUROC

    raw, truth = torch.tensor([[0.0, 1.0], [0.0, 3.0], [0.0, 2.0]]), torch.tensor([0, 1, 1])
    metric = MetricStateful(BinaryAUROC(), inputs=lambda raw, output, truth: (raw.softmax(1)[:, 1], truth))
    assert figures(metric, raw, truth, batch_size=2) == {"BinaryAUROC": 1.0}


def history_of(head, batch):
    meter = SplitMeter()
    term = head.evaluate_batch(batch, False)
    meter.add({"y": term}, term["loss"], len(head.output))
    return meter.read()[1]["y"]


def test_the_object_that_was_given_is_never_updated_nor_reset():
    metric = Seen()
    metric.values.append(torch.tensor(100.0))
    raw = torch.tensor([[0.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    assert figures(metric, raw, torch.tensor([0, 1, 0]), batch_size=2) == {"Seen": 3.0}
    assert [value.item() for value in metric.values] == [100.0]


def test_a_metric_made_at_each_batch_is_one_over_the_split_as_the_first_batch_made_it():
    starts = iter([0.0, 50.0, 70.0])
    raw, truth = torch.zeros(5, 2), torch.zeros(5, dtype=torch.int64)
    meter = SplitMeter()
    for start in (0, 2, 4):
        head = OutputClassification(raw[start : start + 2], "t", metrics=[Seen(next(starts))])
        term = head.evaluate_batch({"t": truth[start : start + 2]}, False)
        meter.add({"y": term}, term["loss"], len(head.output))
    assert meter.read()[1]["y"]["Seen"] == 5.0


@pytest.mark.parametrize("mode", ["training", "evaluation"])
def test_it_gets_probabilities_without_a_graph(mode):
    model = Net(lambda: [Seen()])
    split = batches(samples(10), 4)
    if mode == "evaluation":
        measured = evaluate(model, split)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loop = functools.partial(train_loop, torch.device("cpu"), "d", "train", split, optimizer, model)
        measured = loop(default_sum_all_losses, [], None, None)[1]["y"]
    assert measured["Seen"] == pytest.approx(10, rel=1e-6)


def test_a_regression_on_integers_gets_the_output_not_probabilities():
    output = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    head = OutputRegression(output, "t", metrics=[Seen()])
    assert history_of(head, {"t": torch.tensor([[1, 2], [3, 4]])})["Seen"] == 10.0


def test_it_is_moved_to_the_device_of_the_output():
    class Placed(nn.Module, Seen):
        def __init__(self):
            nn.Module.__init__(self)
            Seen.__init__(self)
            self.register_buffer("total", torch.zeros(()))

        def update(self, predicted, truth):
            assert self.total.device == predicted.device
            self.total = self.total + 1

    raw = torch.zeros(4, 2, device="meta")
    metric = Placed()
    update = as_metrics([metric])[0].measure(raw, raw.argmax(1), torch.zeros(4, dtype=torch.int64))["update"]
    assert update.new_metric().total.device.type == "meta"
    assert metric.total.device.type == "cpu"


def test_two_figures_of_one_name_are_refused():
    head = OutputClassification(torch.zeros(3, 2), "t", metrics=[Seen(), Seen()])
    with pytest.raises(ValueError, match=r"two metrics of 't' must not have.*\['Seen'\]"):
        history_of(head, {"t": torch.zeros(3, dtype=torch.int64)})


def test_what_a_metric_computes_is_named():
    class Computes(Seen):
        computed = None

        def compute(self):
            return self.computed

    for computed, expected in (
        (torch.tensor(0.5), {"Computes": 0.5}),
        (0.5, {"Computes": 0.5}),
        (torch.tensor([0.5]), {"Computes": 0.5}),
        (torch.tensor([0.5, 1.0]), {"Computes 0": 0.5, "Computes 1": 1.0}),
        ({"a": torch.tensor(0.5), "b": [1, 2]}, {"a": 0.5, "b 0": 1.0, "b 1": 2.0}),
    ):
        metric = Computes()
        metric.computed = computed
        assert figures(metric, torch.zeros(2, 2), torch.zeros(2, dtype=torch.int64)) == expected


def test_a_metric_of_ours_stays_what_it_is():
    class Own(Metric):
        def measure(self, raw, output, truth):
            return {}

        def figures(self, totals):
            return {}

    own = Own()
    assert as_metrics([own]) == [own]
    assert MetricStateful(Seen()).figures({}) == {}


def test_it_can_be_copied_with_the_model_that_keeps_it():
    model = Net(lambda: [Seen()])
    assert evaluate(copy.deepcopy(model), batches(samples(6), 4))["Seen"] == pytest.approx(6, rel=1e-6)
