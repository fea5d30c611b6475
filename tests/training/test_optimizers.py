import pytest
import torch
from torch import nn

from trw_pipeline.training.optimizers import (
    create_adam_optimizers_fn,
    create_adam_optimizers_scheduler_step_lr_fn,
    create_optimizers_fn,
    create_scheduler_step_lr,
    create_sgd_optimizers_fn,
    create_sgd_optimizers_scheduler_step_lr_fn,
    learning_rates,
    set_optimizer_learning_rate,
)

DATASETS = {"a": {}, "b": {}}


def parameters_of(optimizer):
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def same(some, others):
    return [id(parameter) for parameter in some] == [id(parameter) for parameter in others]


def test_each_dataset_gets_an_optimizer_of_the_whole_model():
    model = nn.Linear(2, 1)
    optimizers, schedulers = create_optimizers_fn(DATASETS, model, torch.optim.Adagrad)
    assert list(optimizers) == ["a", "b"]
    assert all(same(parameters_of(optimizer), model.parameters()) for optimizer in optimizers.values())
    assert schedulers is None


def test_a_module_dict_gives_each_dataset_its_own_parameters():
    model = nn.ModuleDict({"a": nn.Linear(2, 1), "b": nn.Linear(3, 1)})
    optimizers, _ = create_optimizers_fn(DATASETS, model, torch.optim.Adagrad)
    assert same(parameters_of(optimizers["a"]), model["a"].parameters())
    assert same(parameters_of(optimizers["b"]), model["b"].parameters())


def test_a_module_dict_without_a_dataset_is_refused_with_its_name():
    with pytest.raises(ValueError, match="'b'"):
        create_optimizers_fn(DATASETS, nn.ModuleDict({"a": nn.Linear(1, 1)}), torch.optim.Adagrad)


def test_sgd_has_the_arguments_of_the_reference_in_their_order():
    optimizers, schedulers = create_sgd_optimizers_fn(DATASETS, nn.Linear(1, 1), 0.5, 0.25, 0.125)
    group = optimizers["b"].param_groups[0]
    assert type(optimizers["b"]) is torch.optim.SGD
    assert (group["lr"], group["momentum"], group["weight_decay"]) == (0.5, 0.25, 0.125)
    assert schedulers is None
    default = create_sgd_optimizers_fn(DATASETS, nn.Linear(1, 1), 0.5)[0]["a"].param_groups[0]
    assert (default["momentum"], default["weight_decay"]) == (0.9, 0)


def test_adam_has_the_arguments_of_the_reference_in_their_order():
    optimizers, schedulers = create_adam_optimizers_fn(DATASETS, nn.Linear(1, 1), 0.5, 0.125)
    group = optimizers["a"].param_groups[0]
    assert type(optimizers["a"]) is torch.optim.Adam
    assert (group["lr"], group["weight_decay"]) == (0.5, 0.125)
    assert schedulers is None


def rates_over(optimizer, scheduler, nb_epochs):
    rates = []
    for _ in range(nb_epochs):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


def test_step_scheduler_multiplies_every_step_size_epochs():
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=1.0)
    assert rates_over(optimizer, create_scheduler_step_lr(optimizer, 2, 0.5), 5) == [1.0, 1.0, 0.5, 0.5, 0.25]


@pytest.mark.parametrize(
    "create", [create_sgd_optimizers_scheduler_step_lr_fn, create_adam_optimizers_scheduler_step_lr_fn]
)
def test_optimizers_with_step_schedulers(create):
    optimizers, schedulers = create(DATASETS, nn.Linear(1, 1), 1.0, 1, 0.5)
    assert list(schedulers) == ["a", "b"]
    assert rates_over(optimizers["a"], schedulers["a"], 3) == [1.0, 0.5, 0.25]
    assert optimizers["b"].param_groups[0]["lr"] == 1.0


def test_the_last_arguments_of_sgd_with_steps_are_weight_decay_and_momentum():
    optimizers, _ = create_sgd_optimizers_scheduler_step_lr_fn(DATASETS, nn.Linear(1, 1), 1.0, 1, 0.5, 0.125, 0.25)
    group = optimizers["a"].param_groups[0]
    assert (group["weight_decay"], group["momentum"]) == (0.125, 0.25)


def two_groups(**kwargs):
    return torch.optim.SGD([{"params": nn.Linear(1, 1).parameters(), "lr": rate} for rate in (0.1, 1e-7)], **kwargs)


def test_set_learning_rate_reaches_every_group():
    optimizer = two_groups()
    set_optimizer_learning_rate(optimizer, 0.25)
    assert [group["lr"] for group in optimizer.param_groups] == [0.25, 0.25]


def test_set_learning_rate_keeps_the_tensor_that_a_captured_graph_reads():
    rate = torch.tensor(0.1)
    optimizer = torch.optim.Adam(nn.Linear(1, 1).parameters(), lr=rate)
    set_optimizer_learning_rate(optimizer, 0.25)
    assert rate.item() == 0.25
    assert optimizer.param_groups[0]["lr"] is rate


def test_learning_rates_name_further_groups_by_number():
    assert learning_rates({"a": two_groups()}) == {"a": 0.1, "a/1": 1e-7}
    assert learning_rates(None) == {}
