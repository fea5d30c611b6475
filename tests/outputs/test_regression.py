import pytest
import torch
import torch.nn.functional as F

from trw_pipeline.outputs.regression import OutputRegression

OUTPUT = [[1.0, 2.0], [0.0, 4.0], [3.0, 3.0]]
TRUTH = [[0.0, 2.0], [2.0, 4.0], [3.0, 0.0]]


def judge(is_training=False, features=None, **arguments):
    output = torch.tensor(OUTPUT, requires_grad=True)
    batch = {"target": torch.tensor(TRUTH), **(features or {})}
    return OutputRegression(output, "target", **arguments).evaluate_batch(batch, is_training)


def test_loss_is_the_mean_of_all_squared_errors():
    term = judge()
    assert term["losses"].tolist() == [[1.0, 0.0], [4.0, 0.0], [0.0, 9.0]]
    assert term["loss"].item() == pytest.approx(14 / 6, rel=1e-6)


def test_without_collecting_losses_are_a_number_a_sample():
    assert judge(collect_output=False)["losses"].tolist() == [0.5, 2.0, 4.5]


def test_weights_weigh_samples_that_have_several_numbers_even_if_the_batch_is_square():
    head = OutputRegression(torch.tensor(OUTPUT[:2]), "target", weight_name="weight")
    term = head.evaluate_batch({"target": torch.tensor(TRUTH[:2]), "weight": torch.tensor([1.0, 0.0])}, False)
    assert term["losses"].tolist() == [[1.0, 0.0], [0.0, 0.0]]
    assert term["loss"].item() == 0.25


def test_criterion():
    term = judge(criterion_fn=lambda: torch.nn.SmoothL1Loss(reduction="none"))
    assert term["loss"].item() == pytest.approx(F.smooth_l1_loss(torch.tensor(OUTPUT), torch.tensor(TRUTH)).item())


def test_outputs_are_collected_after_postprocessing():
    term = judge(output_postprocessing=lambda raw: 10 * raw)
    assert term["output_raw"].tolist() == OUTPUT
    assert term["output"].tolist() == [[10 * value for value in row] for row in OUTPUT]
    assert term["output_truth"].tolist() == TRUTH


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool, torch.float64, torch.float16])
def test_numbers_of_any_type_are_targets(dtype):
    output = torch.tensor([1.0, 0.0, 1.0], requires_grad=True)
    truth = torch.tensor([1, 1, 0]).to(dtype)
    term = OutputRegression(output, "target").evaluate_batch({"target": truth}, True)
    term["loss"].backward()
    assert term["loss"].item() == pytest.approx(2 / 3, rel=1e-6)
    assert output.grad.tolist() == pytest.approx([0.0, -2 / 3, 2 / 3], rel=1e-6)


def test_squares_of_half_precision_do_not_overflow():
    output = torch.full((2,), 400.0, dtype=torch.float16)
    term = OutputRegression(output, "target").evaluate_batch({"target": torch.zeros(2)}, False)
    assert term["loss"].item() == 160_000.0


@pytest.mark.parametrize(
    ("target", "found"),
    [
        (TRUTH, "list"),
        (torch.zeros(3), r"\(3,\)"),
        (torch.zeros(3, 1), r"\(3, 1\)"),
        (torch.zeros(2, 2), r"\(2, 2\)"),
        (torch.zeros(3, 2, dtype=torch.complex64), "torch.complex64"),
    ],
)
def test_targets_that_do_not_fit_are_refused_with_name_and_finding(target, found):
    with pytest.raises(ValueError, match=f"'target'.*{found}"):
        judge(features={"target": target})


def test_a_postprocessing_of_another_shape_is_refused():
    with pytest.raises(ValueError, match=r"output_postprocessing of 'target'.*\(3, 2\), got \(3,\)"):
        judge(output_postprocessing=lambda raw: raw[:, 0])


def test_the_defaults_are_those_of_the_reference():
    head = OutputRegression(torch.zeros(3, 2), "target")
    assert (head.collect_output, head.collect_only_non_training_output) == (True, False)
    assert (head.loss_reduction, head.weight_name, head.loss_scaling) == (torch.mean, None, 1.0)
    assert head.sample_uid_name == "sample_uid"
