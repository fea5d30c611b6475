import pytest
import torch

from trw_pipeline.outputs.losses import cross_entropy_and_dice
from trw_pipeline.outputs.segmentation import OutputSegmentation

SHAPES = [(6,), (4, 5), (3, 4, 2)]
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


def samples(shape, nb_samples=3, nb_classes=3):
    generator = torch.Generator().manual_seed(0)
    output = torch.randn(nb_samples, nb_classes, *shape, generator=generator)
    return output, torch.randint(0, nb_classes, (nb_samples, *shape), generator=generator)


def judge(output, mask, is_training=False, **arguments):
    return OutputSegmentation(output, "mask", **arguments).evaluate_batch({"mask": mask}, is_training)


@every_shape
def test_loss_is_the_mean_over_samples_of_half_cross_entropy_and_half_dice(shape):
    output, mask = samples(shape)
    term = judge(output, mask)
    expected = cross_entropy_and_dice(output, mask)
    assert torch.equal(term["losses"], expected)
    assert term["loss"].item() == pytest.approx(expected.mean().item(), rel=1e-6)


@every_shape
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int64])
def test_masks_may_have_a_column_and_any_integers(shape, dtype):
    output, mask = samples(shape)
    plain, other = judge(output, mask), judge(output, mask.unsqueeze(1).to(dtype))
    assert torch.equal(other["losses"], plain["losses"])
    assert torch.equal(other["output_truth"], mask)


@every_shape
def test_outputs_are_collected_in_evaluation_alone(shape):
    output, mask = samples(shape)
    term = judge(output, mask)
    assert torch.equal(term["output_raw"], output)
    assert torch.equal(term["output"], output.argmax(1))
    assert not {"output_raw", "output", "output_truth"} & judge(output, mask, is_training=True).keys()


def test_weights_of_points_weigh_points():
    output, mask = samples((4, 5))
    weight = torch.zeros(3, 4, 5)
    weight[0, 1, 2] = 2.0
    head = OutputSegmentation(output, "mask", lambda: torch.nn.CrossEntropyLoss(reduction="none"), weight_name="weight")
    term = head.evaluate_batch({"mask": mask, "weight": weight}, False)
    expected = 2 * torch.nn.functional.cross_entropy(output[:1, :, 1, 2], mask[:1, 1, 2]).item()
    assert term["losses"].sum().item() == pytest.approx(expected, rel=1e-6)
    assert term["loss"].item() == pytest.approx(expected / 60, rel=1e-6)


def test_one_column_with_a_criterion_and_a_postprocessing_for_it():
    output, mask = torch.tensor([[[2.0, -1.0, 3.0]]]), torch.tensor([[1, 0, 0]])
    term = judge(
        output,
        mask,
        criterion_fn=lambda: lambda raw, truth: (raw[:, 0] - truth).square(),
        output_postprocessing=lambda raw: (raw[:, 0] > 0).long(),
    )
    assert term["output"].tolist() == [[1, 0, 1]]
    assert term["losses"].tolist() == [[1.0, 1.0, 9.0]]


@pytest.mark.parametrize(
    ("mask", "found"),
    [
        ([[0]], "list"),
        (torch.zeros(3, 4, dtype=torch.int64), r"\(3, 4\)"),
        (torch.zeros(3, 3, 4, 5, dtype=torch.int64), r"\(3, 3, 4, 5\)"),
        (torch.zeros(3, 4, 5), "torch.float32"),
    ],
)
def test_masks_that_do_not_fit_are_refused_with_name_and_finding(mask, found):
    with pytest.raises(ValueError, match=f"'mask'.*{found}"):
        judge(samples((4, 5))[0], mask)


def test_the_defaults_are_those_of_the_reference():
    head = OutputSegmentation(samples((4,))[0], "mask")
    assert (head.collect_output, head.collect_only_non_training_output) == (True, True)
    assert (head.loss_reduction, head.weight_name, head.loss_scaling) == (torch.mean, None, 1.0)
    assert head.sample_uid_name == "sample_uid"
