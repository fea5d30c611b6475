import functools

import pytest
import torch
import torch.nn.functional as F
from split_figures import scores_of
from torch import nn

from trw_pipeline.outputs.losses import LossDiceMulticlass, cross_entropy_and_dice

SHAPES = [(7,), (5, 4), (3, 4, 2)]
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


def samples(shape, nb_samples=3, nb_classes=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    output = 3 * torch.randn(nb_samples, nb_classes, *shape, generator=generator)
    return output, torch.randint(0, nb_classes, (nb_samples, *shape), generator=generator)


def of_monai(output, target, **arguments):
    """MONAI's losses `(N, C, 1, ...)`, as their mean by sample."""
    from monai.losses import DiceLoss

    loss = DiceLoss(to_onehot_y=True, smooth_nr=1e-4, smooth_dr=1e-4, reduction="none", **arguments)
    return loss(output, target.unsqueeze(1)).flatten(1).mean(1)


@pytest.mark.slow
@every_shape
@pytest.mark.parametrize(
    ("normalization", "arguments"),
    [(nn.Sigmoid, {"sigmoid": True}), (functools.partial(nn.Softmax, dim=1), {"softmax": True})],
    ids=["sigmoid", "softmax"],
)
def test_it_is_that_of_monai_for_each_sample(shape, normalization, arguments):
    output, target = samples(shape)
    target[0] = 0  # three classes have no point
    mine, theirs = output.clone().requires_grad_(), output.clone().requires_grad_()
    losses, expected = LossDiceMulticlass(normalization)(mine, target), of_monai(theirs, target, **arguments)
    assert losses.shape == (3,)
    assert torch.allclose(losses, expected, atol=1e-6)
    losses.sum().backward()
    expected.sum().backward()
    assert torch.allclose(mine.grad, theirs.grad, atol=1e-7)


def test_by_hand():
    probability = torch.tensor([[[0.25, 1.0], [0.75, 0.0]]])
    losses = LossDiceMulticlass(None, eps=0.5)(probability, torch.tensor([[1, 0]]))
    of_class_0 = 1 - (2 * 1.0 + 0.5) / (1.25 + 1 + 0.5)
    of_class_1 = 1 - (2 * 0.75 + 0.5) / (0.75 + 1 + 0.5)
    assert losses.tolist() == pytest.approx([(of_class_0 + of_class_1) / 2], rel=1e-6)


def test_the_defaults_are_those_of_the_reference():
    loss = LossDiceMulticlass()
    assert isinstance(loss.normalization, nn.Sigmoid)
    assert loss.eps == 0.0001


@every_shape
def test_a_column_of_the_target_changes_nothing(shape):
    output, target = samples(shape)
    assert torch.equal(LossDiceMulticlass()(output, target), LossDiceMulticlass()(output, target.unsqueeze(1)))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_any_integers_are_classes(dtype):
    output, target = samples((5, 4))
    assert torch.equal(LossDiceMulticlass()(output, target), LossDiceMulticlass()(output, target.to(dtype)))


def test_a_perfect_answer_has_no_loss_and_a_wrong_one_that_of_one():
    target = torch.tensor([[0, 1, 1, 0]])
    right, wrong = scores_of(target, 2), scores_of(1 - target, 2)
    assert LossDiceMulticlass(None)(right, target).item() == pytest.approx(0, abs=1e-6)
    assert LossDiceMulticlass(None)(wrong, target).item() == pytest.approx(1, abs=1e-4)


def test_a_class_that_is_neither_there_nor_predicted_has_no_loss():
    target = torch.tensor([[0, 0, 0]])
    assert LossDiceMulticlass(None)(scores_of(target, 3), target).item() == pytest.approx(0, abs=1e-6)


def test_one_column_is_class_1_against_0():
    output, target = torch.tensor([[[0.5, 1.0, 0.0]]]), torch.tensor([[1, 1, 0]])
    assert LossDiceMulticlass(None, eps=0)(output, target).item() == pytest.approx(1 - 3 / 3.5, rel=1e-6)


@pytest.mark.parametrize("criterion", [LossDiceMulticlass(), cross_entropy_and_dice], ids=["dice", "default"])
@pytest.mark.parametrize("label", [-100])
def test_points_of_no_class_are_as_if_they_were_not_there(criterion, label):
    output, target = samples((9,))
    target[:, 5:] = label
    output.requires_grad_()
    losses = criterion(output, target)
    assert torch.allclose(losses, criterion(output[:, :, :5], target[:, :5]), atol=1e-6)
    losses.sum().backward()
    assert output.grad[:, :, 5:].abs().sum() == 0


def test_another_label_can_be_passed_over():
    output, target = samples((9,))
    target[:, 5:] = 255
    expected = LossDiceMulticlass()(output[:, :, :5], target[:, :5])
    assert torch.allclose(LossDiceMulticlass(ignore_index=255)(output, target), expected, atol=1e-6)


def test_half_precision_does_not_overflow_over_a_large_image():
    output = torch.full((1, 2, 300, 300), 8.0, dtype=torch.float16)
    target = torch.ones(1, 300, 300, dtype=torch.int64)
    loss = LossDiceMulticlass()(output, target)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(LossDiceMulticlass()(output.double(), target).item(), abs=1e-5)


@every_shape
def test_the_default_of_a_segmentation_is_half_cross_entropy_and_half_dice(shape):
    output, target = samples(shape)
    expected = [
        0.5 * F.cross_entropy(output[n : n + 1], target[n : n + 1]).item()
        + 0.5 * LossDiceMulticlass()(output[n : n + 1], target[n : n + 1]).item()
        for n in range(3)
    ]
    assert cross_entropy_and_dice(output, target).tolist() == pytest.approx(expected, rel=1e-5)


def test_a_sample_without_any_class_has_a_loss_of_zero():
    output = samples((4,))[0].requires_grad_()
    losses = cross_entropy_and_dice(output, torch.full((3, 4), -100))
    assert losses.tolist() == pytest.approx([0, 0, 0], abs=1e-6)
    losses.sum().backward()
    assert torch.isfinite(output.grad).all()


def test_one_column_is_refused_by_the_default_of_a_segmentation():
    with pytest.raises(ValueError, match=r"a column for each class, background included.*\(2, 1, 3\)"):
        cross_entropy_and_dice(torch.zeros(2, 1, 3), torch.zeros(2, 3, dtype=torch.int64))


@pytest.mark.parametrize(
    ("target", "found"),
    [
        (torch.zeros(2, 4, dtype=torch.int64), r"\(2, 4\)"),
        (torch.zeros(2, 3, 5, dtype=torch.int64), r"\(2, 3, 5\)"),
        (torch.zeros(3, 5, dtype=torch.int64), r"\(3, 5\)"),
        (torch.zeros(2, 5), "torch.float32"),
        (torch.zeros(2, 5, dtype=torch.bool), "torch.bool"),
    ],
)
def test_a_target_that_does_not_fit_is_refused(target, found):
    with pytest.raises(ValueError, match=rf"the target of a Dice loss must be of.*{found}"):
        LossDiceMulticlass()(torch.zeros(2, 3, 5), target)
