import math

import numpy as np
import pytest
from sklearn import metrics

from trw_pipeline.reporting.classification_report import classification_report, list_classes_from_mapping


def samples(nb_samples, nb_classes, seed=0):
    generator = np.random.default_rng(seed)
    truth = generator.integers(0, nb_classes, nb_samples)
    scores = generator.normal(size=(nb_samples, nb_classes))
    scores[np.arange(nb_samples), truth] += 1
    return scores, truth


def fields_of(table):
    """The words of each line that has some, a name of two words as one."""
    text = table.replace("macro avg", "macro").replace("weighted avg", "weighted")
    return [line.split() for line in text.splitlines() if line.strip()]


@pytest.mark.parametrize("nb_classes", [2, 5])
@pytest.mark.parametrize("seed", range(3))
def test_figures_are_those_of_scikit_learn(nb_classes, seed):
    scores, truth = samples(60, nb_classes, seed)
    found = scores.argmax(1)
    report = classification_report(scores, truth)
    assert report["accuracy"] == report["accuracty"] == pytest.approx(metrics.accuracy_score(truth, found))
    np.testing.assert_array_equal(report["confusion_matrix"], metrics.confusion_matrix(truth, found))
    assert fields_of(report["sklearn_report"]) == fields_of(metrics.classification_report(truth, found))
    recalls = metrics.recall_score(truth, found, average=None)
    assert [report[f"error_{index}"] for index in range(nb_classes)] == pytest.approx(list(1 - recalls))


def test_two_classes_have_rates_and_auroc():
    scores, truth = samples(50, 2)
    found = scores.argmax(1)
    report = classification_report(scores, truth)
    (tn, fp), (fn, tp) = metrics.confusion_matrix(truth, found)
    expected = {
        "tpr": tp / (tp + fn),
        "tnr": tn / (tn + fp),
        "ppv": tp / (tp + fp),
        "npv": tn / (tn + fn),
        "fpr": fp / (fp + tn),
        "fnr": fn / (fn + tp),
        "pdr": fp / (fp + tp),
        "sensitivity": metrics.recall_score(truth, found),
        "specificity": metrics.recall_score(truth, found, pos_label=0),
        "auroc": metrics.roc_auc_score(truth, scores[:, 1] - scores[:, 0]),
    }
    assert {name: report[name] for name in expected} == pytest.approx(expected)


def test_more_classes_have_no_figures_of_two():
    assert not {"tpr", "auroc", "sensitivity"} & classification_report(*samples(50, 3)).keys()


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.UndefinedMetricWarning")
def test_a_class_that_is_nowhere_has_a_row_in_the_matrix_but_none_in_the_table():
    scores = np.eye(4)[[0, 1, 3, 1]]
    report = classification_report(scores, [0, 1, 1, 1])
    assert report["confusion_matrix"].shape == (4, 4)
    assert fields_of(report["sklearn_report"]) == fields_of(metrics.classification_report([0, 1, 1, 1], [0, 1, 3, 1]))
    assert report["error_1"] == pytest.approx(1 / 3)
    assert math.isnan(report["error_2"])


def test_one_class_absent_has_no_rate():
    report = classification_report(np.eye(2)[[0, 0]], [0, 0])
    assert report["specificity"] == 1.0
    assert math.isnan(report["sensitivity"])
    assert math.isnan(report["auroc"])


def test_classes_have_their_names():
    report = classification_report(*samples(20, 2), {0: "cat", 1: "a long name of a dog"})
    table = report["sklearn_report"]
    assert "cat" in table
    assert "a long name of a dog" in table
    assert len({len(line) for line in table.splitlines() if line.strip()}) == 1


@pytest.mark.parametrize(
    ("scores", "truth", "found"),
    [
        (np.zeros(3), [0, 0, 0], r"got \(3,\) and \(3,\)"),
        (np.zeros((3, 2)), [0, 0], r"got \(3, 2\) and \(2,\)"),
        (np.zeros((0, 2)), [], r"N at least 1, got \(0, 2\)"),
        (np.zeros((2, 2)), [0, 2], r"integers in \[0, 2\)"),
        (np.zeros((2, 2)), [-1, 0], r"integers in \[0, 2\)"),
        (np.zeros((2, 2)), [0.0, 1.0], "float64"),
    ],
)
def test_what_does_not_fit_is_refused(scores, truth, found):
    with pytest.raises(ValueError, match=found):
        classification_report(scores, truth)


def test_names_are_listed_by_number():
    assert list_classes_from_mapping({2: "c", 0: "a"}) == ["a", "unknown", "c"]
    assert list_classes_from_mapping({1: "b"}, default_name="?") == ["?", "b"]
    assert list_classes_from_mapping({}) == []
    assert list_classes_from_mapping(None) is None
