import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset
from toy_binseg import CPU, CRITERION, Images, batches, new_model

from trw_pipeline import binseg
from trw_pipeline.errors import NonFiniteLossError


def true_loss(model, dataset):
    with torch.no_grad():
        return float(CRITERION(model(dataset.images), dataset.targets))


def gradients_of(model, images, targets):
    grads = torch.autograd.grad(CRITERION(model(images), targets), list(model.parameters()))
    return torch.cat([grad.flatten() for grad in grads])


def train(loader, model, rate=0.0, chunks=1, optimizer=None):
    optimizer = torch.optim.SGD(model.parameters(), rate) if optimizer is None else optimizer
    return binseg.train_epoch(loader, model, optimizer, CPU, CRITERION, chunks)


@pytest.mark.parametrize("chunks", [1, 2, 4])
def test_a_loss_is_the_mean_over_the_samples(chunks):
    """T07, T11: 11 samples in batches of 2."""
    model, loader = new_model(), DataLoader(Images(11), 2)
    expected = true_loss(model, Images(11))
    assert train(loader, model, chunks=chunks) == pytest.approx(expected, abs=1e-6)
    assert binseg.validate_epoch(loader, model, CPU, CRITERION, "valid") == pytest.approx(expected, abs=1e-6)


def test_a_group_of_chunks_has_the_gradient_of_all_its_samples_also_at_the_end():
    """T02: 11 samples, batches of 2, groups of 4: a step for the samples 0 to 7, and one for 8 to 10."""
    model, data = new_model(), Images(11)
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    seen = []
    optimizer.register_step_pre_hook(
        lambda *_: seen.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))
    )
    train(DataLoader(data, 2), model, chunks=4, optimizer=optimizer)
    expected = [gradients_of(model, data.images[part], data.targets[part]) for part in (slice(8), slice(8, 11))]
    assert len(seen) == 2
    for got, wanted in zip(seen, expected, strict=True):
        assert torch.linalg.norm(got - wanted) <= 1e-6 * torch.linalg.norm(wanted)


def test_gradients_from_before_count_for_nothing_and_none_are_left():
    model, other = new_model(), new_model()
    CRITERION(model(torch.ones(1, 1, 2, 2)), torch.ones(1, 1, 2, 2)).backward()
    for each in (model, other):
        train(batches(3), each, rate=0.5, chunks=4)
        assert all(parameter.grad is None for parameter in each.parameters())
    assert all(torch.equal(*pair) for pair in zip(model.parameters(), other.parameters(), strict=True))


def test_masks_are_the_third_argument_of_the_criterion():
    def masked(output, target, mask):
        return ((output - target).abs() * mask).mean()

    model = nn.Identity()
    images, targets = torch.full((2, 1, 2, 2), 3.0), torch.ones(2, 1, 2, 2)
    mask = torch.zeros(2, 1, 2, 2)
    mask[0] = 1
    loss = binseg.validate_epoch([(["a", "b"], images, targets, mask)], model, CPU, masked, "valid")
    assert loss == 1.0


def test_a_model_with_several_outputs_is_judged_as_the_criterion_likes():
    class Deep(nn.Module):
        def forward(self, images):
            return [images, 2 * images]

    loss = binseg.validate_epoch(
        [(["a"], torch.ones(1, 1, 2, 2), torch.ones(1, 1, 2, 2))],
        Deep(),
        CPU,
        lambda outputs, target: sum((output - target).mean() for output in outputs),
        "valid",
    )
    assert loss == 1.0


def test_the_model_is_in_its_mode_and_then_in_the_one_it_was_in():
    modes = []

    class Notes(nn.Module):
        def forward(self, images):
            modes.append((self.training, torch.is_grad_enabled()))
            return images.requires_grad_() if self.training else images

    model = Notes().eval()
    train(batches(2), model, optimizer=torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.1))
    binseg.validate_epoch(batches(2), model.train(), CPU, CRITERION, "valid")
    assert modes == [(True, True), (False, False)]
    assert model.training


@pytest.mark.parametrize(
    ("batch", "error", "message"),
    [
        ({"image": torch.ones(1)}, TypeError, "batch 0 of 'valid' is a dict"),
        ((torch.ones(1), torch.ones(1)), ValueError, "batch 0 of 'valid' has 2"),
    ],
)
def test_a_batch_of_another_form_is_refused(batch, error, message):
    with pytest.raises(error, match=message):
        binseg.validate_epoch([batch], new_model(), CPU, CRITERION, "valid")


def test_a_loader_without_batches_is_refused():
    with pytest.raises(ValueError, match="gave no batch"):
        train([], new_model())
    with pytest.raises(ValueError, match="'xval@1' gave none"):
        binseg.validate_epoch([], new_model(), CPU, CRITERION, "xval@1")


def test_a_loss_that_is_no_number_ends_the_training_before_a_step():
    model = new_model()
    before = [parameter.clone() for parameter in model.parameters()]
    with pytest.raises(NonFiniteLossError, match="image-7"):
        train([(["image-7"], torch.full((1, 1, 2, 2), torch.nan), torch.ones(1, 1, 2, 2))], model, rate=0.1)
    assert all(torch.equal(*pair) for pair in zip(before, model.parameters(), strict=True))


def test_a_loader_that_does_not_know_its_length_trains_as_one_that_does():
    class Stream(IterableDataset):
        def __len__(self):
            return 4  # wrong, as it is where workers do not divide the data

        def __iter__(self):
            dataset = Images(7)
            return (dataset[i] for i in range(7))

    losses, models = [], [new_model(), new_model()]
    for model, loader in zip(models, (DataLoader(Stream(), 2), DataLoader(Images(7), 2)), strict=True):
        losses.append(train(loader, model, rate=0.5, chunks=3))
    assert losses[0] == losses[1]
    assert torch.equal(models[0][0].weight, models[1][0].weight)


def test_evaluation_mode_ends_with_its_block_whatever_happens():
    model = nn.Sequential(nn.Dropout(), nn.Dropout())
    model[1].eval()

    def fail():
        with binseg.torch_evaluation(model) as same:
            assert same is model
            assert not any(module.training for module in model.modules())
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        fail()
    assert [module.training for module in model.modules()] == [True, True, False]


def test_there_is_a_bar_on_a_terminal_and_nothing_elsewhere(capsys, monkeypatch):
    binseg.validate_epoch(batches(4), new_model(), CPU, CRITERION, "xval@1")
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("FORCE_COLOR", "1")
    binseg.validate_epoch(batches(4), new_model(), CPU, CRITERION, "one [/two]")
    out, errors = capsys.readouterr()
    assert out == ""
    assert "binseg/one [/two]" in errors
    assert "epoch" not in errors
