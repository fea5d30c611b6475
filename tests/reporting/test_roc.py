import numpy as np
import pytest
from sklearn import metrics

from trw_pipeline.outputs.auroc import auroc
from trw_pipeline.reporting.roc import plot_roc, roc_curve


def samples(seed, nb_samples=60, nb_scores=20):
    generator = np.random.default_rng(seed)
    truth = generator.integers(0, 2, nb_samples)
    return truth, generator.integers(0, nb_scores, nb_samples) + 3.0 * truth


@pytest.mark.parametrize("seed", range(5))
def test_points_are_those_of_scikit_learn(seed):
    truth, scores = samples(seed)
    false_rates, true_rates, _ = metrics.roc_curve(truth, scores, drop_intermediate=False)
    ours = roc_curve(truth, scores)
    np.testing.assert_allclose(ours, (false_rates, true_rates))
    assert metrics.auc(*ours) == pytest.approx(auroc(truth, scores))


def test_the_points_of_a_few_samples():
    false_rates, true_rates = roc_curve([True, False, True, False], [4, 3, 3, 1])
    assert false_rates.tolist() == [0, 0, 0.5, 1]
    assert true_rates.tolist() == [0, 0.5, 1, 1]


@pytest.mark.parametrize(
    ("trues", "scores", "message"),
    [
        ([0, 1], [1.0], r"one shape \(N,\)"),
        ([0, 0], [1.0, 2.0], "0 of 2 of class 1"),
        ([1, 1], [1.0, 2.0], "2 of 2 of class 1"),
        ([], [], "0 of 0"),
        ([0, 1], [1.0, np.nan], "must not be NaN"),
    ],
)
def test_what_has_no_curve_is_refused_before_anything_is_written(tmp_path, trues, scores, message):
    with pytest.raises(ValueError, match=message):
        plot_roc(tmp_path / "new", trues, np.array(scores), "title")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_one_curve_with_its_area(tmp_path, drawn):
    truth, scores = samples(0)
    path = plot_roc(tmp_path / "new", truth, scores, "a title", "net $")
    assert path == tmp_path / "new" / "a title.png"
    assert path.read_bytes()[:4] == b"\x89PNG"
    axes = drawn[0].axes[0]
    np.testing.assert_allclose(axes.lines[1].get_xydata().T, roc_curve(truth, scores))
    (text,) = axes.get_legend().get_texts()
    assert text.get_text() == f"net $ AUC = {metrics.roc_auc_score(truth, scores):.3f}"
    assert axes.get_xlabel().startswith("False positive")
    assert axes.get_ylabel().startswith("True positive")


@pytest.mark.slow
def test_several_curves_have_names_and_colours_of_their_own(tmp_path, drawn):
    several = [samples(seed) for seed in range(3)]
    truths, scores = [list(truth) for truth, _ in several], [score for _, score in several]
    colors = np.array([[1.0, 0, 0], [0, 0, 1.0]])
    path = plot_roc(tmp_path, truths, scores, "title", ["a", "b", "c"], colors, name="file")
    assert path.name == "file.png"
    axes = drawn[0].axes[0]
    curves = axes.lines[1:]
    for curve, truth, score in zip(curves, truths, scores, strict=True):
        np.testing.assert_allclose(curve.get_xydata().T, roc_curve(truth, score))
    assert [tuple(curve.get_color()) for curve in curves] == [(1, 0, 0), (0, 0, 1), (1, 0, 0)]
    areas = [auroc(truth, score) for truth, score in zip(truths, scores, strict=True)]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        f"{name} AUC = {area:.3f}" for name, area in zip("abc", areas, strict=True)
    ]


@pytest.mark.slow
def test_curves_without_names_that_are_equal_are_all_in_the_legend(tmp_path, drawn):
    truth, scores = samples(0)
    plot_roc(tmp_path, [truth, truth], [scores, scores], "title")
    assert len(drawn[0].axes[0].get_legend().get_texts()) == 2


def test_several_curves_need_as_many_scores_and_names(tmp_path):
    truth, scores = samples(0)
    for wrong in ({"found_scores_1": [scores]}, {"label_name": ["a"]}, {"label_name": "a"}):
        arguments = {"trues": [truth, truth], "found_scores_1": [scores, scores], "title": "t"} | wrong
        with pytest.raises(ValueError, match="lists of one length, got 2"):
            plot_roc(tmp_path, **arguments)
