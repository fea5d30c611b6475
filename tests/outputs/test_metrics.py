import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, recall_score

from trw_pipeline.outputs.metrics import ClassificationError, SensitivitySpecificity, default_classification_metrics


def measured(metric, raw, truth):
    return metric.measure(raw, raw.argmax(1), truth)


def scores_of(classes, nb_classes):
    return torch.eye(nb_classes)[torch.tensor(classes, dtype=torch.int64)]


def figures_by_batch(metric, found, truth, nb_classes, batch_size):
    totals = {}
    for start in range(0, len(truth), batch_size):
        raw = scores_of(found[start : start + batch_size], nb_classes)
        for name, value in measured(metric, raw, torch.tensor(truth[start : start + batch_size])).items():
            totals[name] = totals.get(name, 0) + value
    return metric.figures({name: int(value) for name, value in totals.items()})


labels = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=30)


@pytest.mark.slow
@given(labels, st.integers(1, 7))
def test_error_is_that_of_scikit_learn_however_samples_are_cut_into_batches(pairs, batch_size):
    found, truth = zip(*pairs, strict=True)
    figures = figures_by_batch(ClassificationError(), found, truth, 2, batch_size)
    assert figures == {"classification error": pytest.approx(1 - accuracy_score(truth, found), abs=1e-12)}


@pytest.mark.slow
@given(labels, st.integers(1, 7))
def test_sensitivity_and_specificity_are_those_of_scikit_learn(pairs, batch_size):
    found, truth = zip(*pairs, strict=True)
    expected = {}
    if 1 in truth:
        expected["sensitivity"] = pytest.approx(recall_score(truth, found, pos_label=1), abs=1e-12)
    if 0 in truth:
        expected["specificity"] = pytest.approx(recall_score(truth, found, pos_label=0), abs=1e-12)
    assert figures_by_batch(SensitivitySpecificity(), found, truth, 2, batch_size) == expected


def test_by_hand():
    found, truth = [1, 1, 1, 0, 0, 0, 0, 1], [1, 1, 0, 0, 0, 1, 1, 1]
    assert figures_by_batch(ClassificationError(), found, truth, 2, 3) == {"classification error": 3 / 8}
    assert figures_by_batch(SensitivitySpecificity(), found, truth, 2, 3) == {
        "sensitivity": 3 / 5,
        "specificity": 2 / 3,
    }


def test_three_classes_have_no_sensitivity():
    metric = SensitivitySpecificity()
    assert measured(metric, scores_of([0, 1, 2], 3), torch.tensor([0, 1, 1])) == {}
    assert metric.figures({}) == {}


def test_no_sample_no_error():
    assert ClassificationError().figures({}) == {}


def test_defaults_are_made_anew():
    first, second = default_classification_metrics(), default_classification_metrics()
    first.clear()
    assert [type(metric) for metric in second] == [ClassificationError, SensitivitySpecificity]
