import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from trw_pipeline.outputs.classification import OutputClassification
from trw_pipeline.outputs.classification_metrics import MetricClassificationError

LOGITS = [[2.0, 0.0], [0.0, 1.0], [3.0, 0.0]]
TRUTH = [0, 1, 1]


def logits(**kwargs):
    return torch.tensor(LOGITS, requires_grad=True, **kwargs)


def batch(**features):
    return {"truth": torch.tensor(TRUTH), **features}


def by_hand(scores, truth):
    """Cross entropy of one sample, from its definition."""
    return math.log(sum(math.exp(score) for score in scores)) - scores[truth]


LOSSES = [by_hand(scores, truth) for scores, truth in zip(LOGITS, TRUTH, strict=True)]


def judge(is_training=False, features=None, **arguments):
    return OutputClassification(logits(), "truth", **arguments).evaluate_batch(batch(**(features or {})), is_training)


def test_loss_is_the_mean_cross_entropy():
    assert judge()["loss"].item() == pytest.approx(sum(LOSSES) / 3, rel=1e-6)


def test_losses_are_by_sample():
    assert judge()["losses"].tolist() == pytest.approx(LOSSES, rel=1e-6)


def test_only_the_loss_has_a_graph():
    term = judge(features={"weight": torch.ones(3)}, weight_name="weight")
    assert [name for name, value in term.items() if getattr(value, "requires_grad", False)] == ["loss"]
    assert not any(getattr(count, "requires_grad", False) for count in term["metrics"].values())


def test_gradient_is_that_of_torch():
    mine, theirs = logits(), logits()
    OutputClassification(mine, "truth").evaluate_batch(batch(), True)["loss"].backward()
    F.cross_entropy(theirs, torch.tensor(TRUTH)).backward()
    assert torch.allclose(mine.grad, theirs.grad, atol=1e-7)


def test_outputs_are_collected():
    term = judge()
    assert term["output_raw"].tolist() == LOGITS
    assert term["output"].tolist() == [0, 1, 0]
    assert term["output_truth"].tolist() == TRUTH


@pytest.mark.parametrize(
    ("collect", "only_evaluation", "is_training", "expected"),
    [
        (True, False, True, True),
        (True, False, False, True),
        (True, True, True, False),
        (True, True, False, True),
        (False, False, False, False),
        (False, True, False, False),
    ],
)
def test_when_outputs_are_collected(collect, only_evaluation, is_training, expected):
    term = judge(is_training, collect_output=collect, collect_only_non_training_output=only_evaluation)
    assert [name in term for name in ("output_raw", "output", "output_truth")] == [expected] * 3


def test_weights_weigh_samples():
    term = judge(features={"weight": torch.tensor([1.0, 0.0, 2.0])}, weight_name="weight")
    assert term["losses"].tolist() == pytest.approx([LOSSES[0], 0.0, 2 * LOSSES[2]], rel=1e-6)
    assert term["loss"].item() == pytest.approx((LOSSES[0] + 2 * LOSSES[2]) / 3, rel=1e-6)


def test_weights_weigh_samples_when_each_has_several_losses_even_if_the_batch_is_square():
    losses = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    head = OutputClassification(
        torch.zeros(2, 2), "truth", criterion_fn=lambda: lambda output, truth: losses, weight_name="weight"
    )
    term = head.evaluate_batch({"truth": torch.tensor([0, 1]), "weight": torch.tensor([1.0, 0.0])}, False)
    assert term["losses"].tolist() == [[1.0, 2.0], [0.0, 0.0]]
    assert term["loss"].item() == 0.75


def test_loss_scaling_scales_the_loss_alone():
    term = judge(loss_scaling=10.0)
    assert term["loss"].item() == pytest.approx(10 * sum(LOSSES) / 3, rel=1e-6)
    assert term["losses"].tolist() == pytest.approx(LOSSES, rel=1e-6)


def test_loss_reduction():
    assert judge(loss_reduction=torch.max)["loss"].item() == pytest.approx(max(LOSSES), rel=1e-6)


def test_criterion():
    term = judge(criterion_fn=lambda: torch.nn.CrossEntropyLoss(reduction="none", label_smoothing=0.5))
    expected = F.cross_entropy(torch.tensor(LOGITS), torch.tensor(TRUTH), label_smoothing=0.5)
    assert term["loss"].item() == pytest.approx(expected.item(), rel=1e-6)


def test_output_postprocessing():
    term = judge(output_postprocessing=lambda raw: torch.ones(len(raw), dtype=torch.int64))
    assert term["output"].tolist() == [1, 1, 1]


def test_uid_is_kept_in_its_own_kind():
    assert judge(features={"sample_uid": ["a", "b", "c"]})["uid"] == ["a", "b", "c"]
    assert judge(features={"patient": torch.arange(3)}, sample_uid_name="patient")["uid"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("features", [{}, {"sample_uid": ["a", "b", "c"]}])
def test_no_uid_unless_there_is_one_and_it_is_wanted(features):
    assert "uid" not in judge(features=features, sample_uid_name=None)
    assert ("uid" in judge(features=features)) == bool(features)


def test_optional_head_passes_over_a_batch_without_classes():
    assert OutputClassification(logits(), "absent", maybe_optional=True).evaluate_batch(batch(), True) is None


def test_missing_classes_are_named():
    with pytest.raises(ValueError, match=r"'absent'.*'truth'"):
        OutputClassification(logits(), "absent").evaluate_batch(batch(), True)


@pytest.mark.parametrize(
    ("truth", "found"),
    [
        (np.array(TRUTH), "ndarray"),
        (TRUTH, "list"),
        (torch.tensor(TRUTH, dtype=torch.int32), r"torch.int32 of shape \(3,\)"),
        (torch.tensor(TRUTH, dtype=torch.uint8), "torch.uint8"),
        (torch.tensor([[0], [1], [1]]), r"\(3, 1\)"),
        (torch.tensor([0, 1]), r"\(2,\)"),
    ],
)
def test_classes_of_another_kind_are_refused_with_name_and_finding(truth, found):
    with pytest.raises(ValueError, match=f"'truth'.*{found}"):
        OutputClassification(logits(), "truth").evaluate_batch({"truth": truth}, True)


@pytest.mark.parametrize(
    ("weight", "found"),
    [(None, "'truth'"), ([1.0] * 3, "list"), (torch.ones(2), r"\(2,\)"), (torch.ones(3, 1), "3, 1")],
)
def test_weights_of_another_kind_are_refused_with_name_and_finding(weight, found):
    with pytest.raises(ValueError, match=f"'weight'.*{found}"):
        judge(features={} if weight is None else {"weight": weight}, weight_name="weight")


@pytest.mark.parametrize("shape", [(3, 1), (3,)])
def test_the_default_criterion_refuses_scores_of_one_column(shape):
    """Torch gives 0 for the first, whatever the scores, and complains of the classes of the second."""
    with pytest.raises(ValueError, match="a column for each class, got outputs of shape"):
        OutputClassification(torch.randn(shape), "truth").evaluate_batch({"truth": torch.zeros(3).long()}, False)


def test_a_criterion_that_reduces_is_refused():
    with pytest.raises(ValueError, match="reduction='none'"):
        judge(criterion_fn=torch.nn.CrossEntropyLoss)


def test_a_postprocessing_that_gives_no_classes_is_refused():
    with pytest.raises(ValueError, match=r"output_postprocessing of 'truth'.*\(3, 2\)"):
        judge(output_postprocessing=torch.sigmoid)


def test_a_head_judges_one_batch():
    head = OutputClassification(logits(), "truth")
    head.loss_term_cleanup(head.evaluate_batch(batch(), True))
    with pytest.raises(RuntimeError, match="judges one batch"):
        head.evaluate_batch(batch(), True)


def test_history_has_the_loss_and_the_figures_of_its_metrics():
    head = OutputClassification(logits(), "truth", metrics=[MetricClassificationError()])
    outputs = {"loss": 0.5, "metrics": {(0, "nb_wrong"): 1, (0, "nb_samples"): 4}}
    assert head.extract_history(outputs) == {"loss": 0.5, "classification error": 0.25}


def test_without_metrics_there_is_the_loss():
    assert OutputClassification(logits(), "truth", metrics=()).extract_history({"loss": 0.5, "metrics": {}}) == {
        "loss": 0.5
    }


def test_the_defaults_are_those_of_the_reference():
    head = OutputClassification(logits(), "truth")
    assert head.collect_output
    assert not head.collect_only_non_training_output
    assert (head.loss_reduction, head.weight_name, head.loss_scaling) == (torch.mean, None, 1.0)
    assert (head.maybe_optional, head.sample_uid_name) == (False, "sample_uid")
