import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, f1_score, recall_score, roc_auc_score
from split_figures import figures, scores_of

from trw_pipeline.outputs.auroc import auroc
from trw_pipeline.outputs.classification_metrics import (
    MetricAUROC,
    MetricClassificationError,
    MetricF1,
    MetricSensitivitySpecificity,
    default_classification_metrics,
)

METRICS = [MetricClassificationError(), MetricSensitivitySpecificity(), MetricF1(), MetricAUROC()]


def of_classes(metric, found, truth, nb_classes, batch_size=None):
    return figures(metric, scores_of(found, nb_classes), torch.tensor(truth), batch_size=batch_size)


def pairs_of(nb_classes):
    pair = st.tuples(st.integers(0, nb_classes - 1), st.integers(0, nb_classes - 1))
    return st.lists(pair, min_size=1, max_size=30)


@pytest.mark.slow
@settings(deadline=None)
@given(pairs_of(2), st.integers(1, 7))
def test_error_is_that_of_scikit_learn_however_samples_are_cut_into_batches(pairs, batch_size):
    found, truth = zip(*pairs, strict=True)
    measured = of_classes(MetricClassificationError(), found, truth, 2, batch_size)
    assert measured == {"classification error": pytest.approx(1 - accuracy_score(truth, found), abs=1e-12)}


@pytest.mark.slow
@settings(deadline=None)
@given(pairs_of(2), st.integers(1, 7))
def test_sensitivity_and_specificity_are_those_of_scikit_learn(pairs, batch_size):
    found, truth = zip(*pairs, strict=True)
    expected = {}
    if 1 in truth:
        expected["sensitivity"] = pytest.approx(recall_score(truth, found, pos_label=1), abs=1e-12)
    if 0 in truth:
        expected["specificity"] = pytest.approx(recall_score(truth, found, pos_label=0), abs=1e-12)
    assert of_classes(MetricSensitivitySpecificity(), found, truth, 2, batch_size) == expected


@pytest.mark.slow
@settings(deadline=None)
@given(pairs_of(2), st.integers(1, 7))
def test_f1_of_two_classes_is_that_of_class_1_in_scikit_learn(pairs, batch_size):
    found, truth = zip(*pairs, strict=True)
    expected = {"f1": pytest.approx(f1_score(truth, found), abs=1e-12)} if 1 in found + truth else {}
    assert of_classes(MetricF1(), found, truth, 2, batch_size) == expected


@pytest.mark.slow
@settings(deadline=None)
@given(pairs_of(4), st.integers(1, 7))
def test_f1_of_more_classes_is_the_mean_over_those_that_are_there_or_found(pairs, batch_size):
    found, truth = zip(*pairs, strict=True)
    expected = {"f1": pytest.approx(f1_score(truth, found, average="macro"), abs=1e-12)}
    assert of_classes(MetricF1(), found, truth, 4, batch_size) == expected


# Few different scores, so that there are ties.
scored = st.lists(st.tuples(st.integers(0, 1), st.integers(-3, 3)), min_size=1, max_size=30)


@pytest.mark.slow
@settings(deadline=None)
@given(scored, st.integers(1, 7))
def test_auroc_is_that_of_scikit_learn_also_with_ties(samples, batch_size):
    truth, scores = (np.array(values) for values in zip(*samples, strict=True))
    measured = figures(
        MetricAUROC(),
        torch.tensor(np.stack([-scores, scores], 1)).float(),
        torch.tensor(truth),
        batch_size=batch_size,
    )
    if len(set(truth)) < 2:
        assert measured == {}
        assert np.isnan(auroc(truth, scores))
    else:
        expected = pytest.approx(roc_auc_score(truth, scores), abs=1e-12)
        assert measured == {"auroc": expected}
        assert auroc(truth, scores.astype(float)) == expected


def test_by_hand():
    found, truth = [1, 1, 1, 0, 0, 0, 0, 1], [1, 1, 0, 0, 0, 1, 1, 1]
    assert of_classes(MetricClassificationError(), found, truth, 2, 3) == {"classification error": 3 / 8}
    assert of_classes(MetricSensitivitySpecificity(), found, truth, 2, 3) == {
        "sensitivity": 3 / 5,
        "specificity": 2 / 3,
    }
    assert of_classes(MetricF1(), found, truth, 2, 3) == {"f1": 2 * 3 / (4 + 5)}


def test_auroc_by_hand():
    assert auroc([0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8]) == 0.75
    assert auroc([1, 0, 1], [2.0, 2.0, 2.0]) == 0.5
    assert auroc([True, False], [1.0, 0.0]) == 1.0


@pytest.mark.parametrize(("trues", "scores"), [([0, 1], [0.5]), ([[0, 1]], [[0.5, 0.1]]), (1, 0.5)])
def test_auroc_of_shapes_that_do_not_fit_is_refused(trues, scores):
    with pytest.raises(ValueError, match=r"must be of one shape \(N,\)"):
        auroc(trues, scores)


def test_a_score_that_is_nan_is_seen():
    assert np.isnan(auroc([0, 1], [0.5, float("nan")]))


def test_auroc_ranks_logits_whose_probabilities_are_equal_in_float32():
    raw = torch.tensor([[0.0, 40.0], [0.0, 50.0]])
    assert raw.softmax(1)[:, 1].unique().numel() == 1
    assert figures(MetricAUROC(), raw, torch.tensor([0, 1])) == {"auroc": 1.0}


def test_half_precision_is_ranked_as_it_is():
    raw = torch.tensor([[2048.0, -2048.0], [2048.0, -2046.0], [-4.0, 8.0]], dtype=torch.float16)
    assert figures(MetricAUROC(), raw, torch.tensor([0, 1, 1])) == {"auroc": 1.0}


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: type(metric).__name__)
def test_samples_of_no_class_do_not_count(metric):
    generator = torch.Generator().manual_seed(0)
    raw, truth = torch.randn(40, 2, generator=generator), torch.randint(0, 2, (40,), generator=generator)
    some = truth.clone()
    some[::3] = -100
    valid = some != -100
    assert figures(metric, raw, some, batch_size=7) == figures(metric, raw[valid], truth[valid])
    assert figures(metric, raw, torch.full((40,), -100)) == {}


def test_the_class_that_is_passed_over_can_be_another():
    found, truth = [0, 1, 1], [0, 2, 0]
    assert of_classes(MetricClassificationError(ignore_index=2), found, truth, 3) == {"classification error": 0.5}
    assert of_classes(MetricF1(ignore_index=2), found, truth, 3) == {"f1": (2 / 3 + 0) / 2}


def test_a_postprocessing_that_finds_classes_without_a_column_is_only_wrong():
    raw, truth = scores_of([0, 1, 1], 3), torch.tensor([0, 1, 1])
    found = torch.tensor([0, 1, 7])
    assert figures(MetricF1(), raw, truth, output=found) == {"f1": (1 + 2 / 3) / 2}
    assert figures(MetricClassificationError(), raw, truth, output=found) == {"classification error": 1 / 3}


@pytest.mark.parametrize("metric", [MetricSensitivitySpecificity(), MetricAUROC()])
def test_three_classes_have_no_figure_of_two(metric):
    assert metric.measure(scores_of([0, 1, 2], 3), torch.tensor([0, 1, 2]), torch.tensor([0, 1, 1])) == {}


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: type(metric).__name__)
def test_no_sample_no_figure(metric):
    assert metric.figures({}) == {}


def test_defaults_are_made_anew():
    first, second = default_classification_metrics(), default_classification_metrics()
    first.clear()
    assert [type(metric) for metric in second] == [MetricClassificationError, MetricSensitivitySpecificity]
