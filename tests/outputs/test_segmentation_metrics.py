import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import f1_score, jaccard_score
from split_figures import figures, scores_of

from trw_pipeline.outputs.segmentation_metrics import MetricDice, MetricIoU, default_segmentation_metrics

SHAPES = [(9,), (5, 4), (3, 4, 2)]


def masks(seed, nb_samples, nb_classes, shape):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, nb_classes, (nb_samples, *shape), generator=generator) for _ in range(2)]


def of_masks(metric, found, truth, nb_classes, batch_size=None):
    return figures(metric, scores_of(found, nb_classes), truth, output=found, batch_size=batch_size)


def approximately(figures_of_classes, name):
    """The mean, and each class of several that has a figure."""
    values = [value for value in figures_of_classes.values() if value is not None]
    named = {f"{name} {index}": value for index, value in figures_of_classes.items() if value is not None}
    return pytest.approx({name: sum(values) / len(values)} | named, abs=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), batch_size=st.integers(1, 6))
def test_overlaps_of_all_points_are_those_of_scikit_learn(shape, seed, batch_size):
    found, truth = masks(seed, 5, 3, shape)
    flat = truth.flatten().numpy(), found.flatten().numpy()
    for metric, oracle in ((MetricDice, f1_score), (MetricIoU, jaccard_score)):
        by_class = oracle(*flat, average=None, labels=[0, 1, 2])
        measured = of_masks(metric(include_background=True), found, truth, 3, batch_size)
        assert measured == approximately(dict(enumerate(by_class)), metric.name)
        without = of_masks(metric(), found, truth, 3, batch_size)
        assert without == approximately({1: by_class[1], 2: by_class[2]}, metric.name)


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES[1:], ids=str)
def test_overlaps_by_sample_are_those_of_monai_also_where_masks_are_empty(shape):
    from monai.metrics import DiceMetric, MeanIoU

    found, truth = masks(0, 6, 4, shape)
    truth[:3][truth[:3] == 2] = 0  # one sample where it is found although it is not there, two where it is nowhere
    found[1:4][found[1:4] == 2] = 1
    one_hot = [scores_of(classes, 4) for classes in (found, truth)]
    for metric, oracle in ((MetricDice, DiceMetric), (MetricIoU, MeanIoU)):
        of_samples = oracle(include_background=True, reduction="none", ignore_empty=False)(*one_hot)
        # MONAI counts what is neither there nor found as 1 or leaves out all where the truth is empty, also what is
        # found there; here only what has no value is left out.
        is_there = sum(one_hot).flatten(2).any(2)
        expected = dict(enumerate(((of_samples * is_there).sum(0) / is_there.sum(0)).tolist()))
        measured = of_masks(metric(by_sample=True, include_background=True), found, truth, 4, 4)
        assert measured == approximately(expected, metric.name)


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_overlaps_are_those_of_torchmetrics(shape):
    from torchmetrics.classification import MulticlassF1Score, MulticlassJaccardIndex

    found, truth = masks(1, 6, 4, shape)
    truth[truth == 3] = 255
    for metric, oracle in ((MetricDice, MulticlassF1Score), (MetricIoU, MulticlassJaccardIndex)):
        of_classes = oracle(4, average=None, ignore_index=255)
        of_classes.update(found, truth)
        expected = dict(enumerate(of_classes.compute().tolist()))
        measured = of_masks(metric(include_background=True, ignore_index=255), found, truth, 4, 4)
        assert measured == approximately(expected, metric.name)


def test_by_hand():
    found, truth = torch.tensor([[0, 1, 1, 1], [0, 0, 0, 1]]), torch.tensor([[0, 0, 1, 1], [0, 0, 1, 0]])
    assert of_masks(MetricDice(), found, truth, 2) == {"dice": 2 * 2 / (4 + 3)}
    assert of_masks(MetricIoU(), found, truth, 2) == {"iou": 2 / 5}
    assert of_masks(MetricDice(by_sample=True), found, truth, 2) == {"dice": (0.8 + 0) / 2}
    assert of_masks(MetricDice(include_background=True), found, truth, 2) == pytest.approx(
        {"dice": (4 / 7 + 6 / 9) / 2, "dice 0": 6 / 9, "dice 1": 4 / 7}
    )


def test_a_class_that_is_nowhere_has_no_figure_and_takes_no_part():
    found, truth = torch.tensor([[0, 1]]), torch.tensor([[0, 1]])
    assert of_masks(MetricDice(), found, truth, 4) == {"dice": 1.0, "dice 1": 1.0}


@pytest.mark.parametrize("metric", [MetricDice(), MetricIoU(), MetricDice(by_sample=True), MetricIoU(by_sample=True)])
def test_empty_masks_have_no_figure(metric):
    nothing = torch.zeros(2, 3, 3, dtype=torch.int64)
    assert of_masks(metric, nothing, nothing, 2) == {}
    assert of_masks(metric, nothing, torch.full((2, 3, 3), -100), 2) == {}
    assert metric.figures({}) == {}


def test_a_sample_with_an_empty_mask_takes_no_part_by_sample():
    found, truth = torch.tensor([[0, 0], [1, 1]]), torch.tensor([[0, 0], [1, 0]])
    assert of_masks(MetricDice(by_sample=True), found, truth, 2, 1) == {"dice": pytest.approx(2 / 3)}


def test_what_is_found_where_the_truth_is_passed_over_does_not_count():
    found, truth = torch.tensor([[1, 1, 1]]), torch.tensor([[1, -100, -100]])
    assert of_masks(MetricDice(), found, truth, 2) == {"dice": 1.0}


def test_one_column_is_for_two_classes():
    raw, truth = torch.tensor([[[2.0, -1.0, 3.0]]]), torch.tensor([[1, 0, 0]])
    assert figures(MetricDice(), raw, truth, output=(raw[:, 0] > 0).long()) == {"dice": 2 / 3}


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool, torch.float32])
def test_what_is_found_may_be_of_any_type(dtype):
    found, truth = torch.tensor([[1, 1, 0]]), torch.tensor([[1, 0, 0]])
    raw = torch.zeros(1, 256, 3)
    assert figures(MetricDice(), raw, truth, output=found.to(dtype)) == {"dice": 2 / 3, "dice 1": 2 / 3}


def test_defaults():
    assert [type(metric) for metric in default_segmentation_metrics()] == [MetricDice]
    assert default_segmentation_metrics()[0] is not default_segmentation_metrics()[0]
