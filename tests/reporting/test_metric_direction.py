import math

import pytest

from trw_pipeline.reporting.metric_direction import best_index, metric_direction


@pytest.mark.parametrize(
    "metric",
    ["loss", "classification error", "overall_loss", "MSE", "dice_loss", "false positive rate", "hausdorff 95", "mine"],
)
def test_what_goes_wrong_and_what_says_nothing_is_better_when_lower(metric):
    assert metric_direction(metric) == "lower"


@pytest.mark.parametrize(
    "metric",
    ["accuracy", "Sensitivity", "specificity", "dice 2", "1-auroc", "mean_iou", "F1", "R2", "balanced accuracy"],
)
def test_what_goes_right_is_better_when_higher(metric):
    assert metric_direction(metric) == "higher"


def test_a_word_within_another_does_not_count():
    assert metric_direction("accident") == "lower", "not acc"
    assert metric_direction("terror accuracy") == "higher", "not error"


def test_what_our_metrics_measure_is_judged():
    """Heads of classification, segmentation and regression give these names."""
    names = ["f1", "auroc", "r2", "dice 1", "iou 2", "mean absolute error", "root mean squared error"]
    assert [name for name in names if metric_direction(name) == "lower"] == names[-2:]


def test_the_best_is_the_first_of_equals_and_never_a_nan():
    assert best_index("loss", [math.nan, 0.5, 0.25, 0.25, None, -math.inf]) == 2
    assert best_index("dice", [0.5, math.inf, 0.75, 0.75, math.nan]) == 2
    assert best_index("loss", [math.nan, None]) is None
    assert best_index("loss", []) is None
