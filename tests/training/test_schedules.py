"""When learning rates change, and which of them is told."""

import csv

import pytest
import torch
from toy_trainer import Net, fitting_in, trainer
from toy_training import batches

from trw_pipeline.callbacks.train_log import CallbackTrainLog
from trw_pipeline.outputs.classification import OutputClassification
from trw_pipeline.training.callback import Callback
from trw_pipeline.training.optimizers import Schedule, learning_rates
from trw_pipeline.training.split import judge


class Rates(Callback):
    """The learning rate of each step."""

    def __init__(self):
        self.of_steps = []
        self.at_epoch_starts = []

    def on_epoch_start(self, run):
        self.at_epoch_starts.append(learning_rates(run.optimizers))

    def on_step_start(self, run):
        self.of_steps.append(run.optimizer.param_groups[0]["lr"])


def inputs():
    return {"d": {"train": batches(6, 2), "valid": batches(4, 2)}}


def fit(tmp_path, make, num_epochs=2, rate=1.0, also=(), **arguments):
    """`make(optimizer)` gives the scheduler or schedulers; the rate begins at 1."""
    rates = Rates()

    def optimizers_fn(datasets, model):
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        return {"d": optimizer}, {"d": make(optimizer)}

    arguments = {"inputs": inputs, "optimizers_fn": optimizers_fn, "model_fn": lambda options: Net()} | arguments
    fitting_in(tmp_path)(trainer(rates, *also, CallbackTrainLog()), num_epochs=num_epochs, **arguments)
    return rates


def halved(optimizer):
    return torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)


def test_a_plain_scheduler_steps_once_an_epoch(tmp_path):
    rates = fit(tmp_path, halved)
    assert rates.of_steps == [1.0] * 3 + [0.5] * 3
    assert rates.at_epoch_starts == [{"d": 1.0}, {"d": 0.5}]


@pytest.mark.parametrize(
    ("rate", "make"),
    [
        (1e-7, halved),
        (1 / 3, lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)),
        (0.1, lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 1e-4)),
    ],
)
def test_the_rate_in_the_log_is_exactly_that_which_the_epoch_was_trained_with(tmp_path, rate, make):
    """T10."""
    of_steps = fit(tmp_path, make, num_epochs=4, rate=rate).of_steps
    with (tmp_path / "default_r0" / "trainlog.csv").open(newline="") as file:
        logged = [float(row["learning_rate[d]"]) for row in csv.DictReader(file)]
    assert logged == of_steps[::3]
    assert logged[0] == rate
    assert len(set(logged)) == 4


def test_a_scheduler_may_step_after_every_step(tmp_path):
    rates = fit(tmp_path, lambda optimizer: Schedule(halved(optimizer), every="step"))
    assert rates.of_steps == [0.5**n for n in range(6)]


def test_steps_are_those_of_the_optimizer_not_batches(tmp_path):
    """LOOP-3."""
    rates = fit(tmp_path, lambda optimizer: Schedule(halved(optimizer), every="step"), accumulate=2)
    assert rates.of_steps == [0.5**n for n in range(4)]


class Steep(torch.nn.Module):
    """Its gradients overflow in half precision until their scale has fallen far enough."""

    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(3, 2)

    def forward(self, batch):
        return {"y": OutputClassification(self.inner(batch["x"]), "truth", loss_scaling=200.0)}


def test_steps_that_an_overflow_prevented_do_not_count(tmp_path):
    """LOOP-3: neither for a scheduler, which would warn of it, nor in the number of steps or the average."""
    seen = []
    made = []

    def make(optimizer):
        optimizer.register_step_post_hook(lambda *arguments: made.append(1))
        return Schedule(halved(optimizer), every="step")

    class Sees(Callback):
        def on_step_start(self, run):
            seen.append((run.optimizer.param_groups[0]["lr"], 0.5 ** len(made), run.nb_steps, len(made)))

    fit(tmp_path, make, 6, also=[Sees()], model_fn=lambda options: Steep(), amp="fp16", ema=0.9)
    assert 0 < len(made) < len(seen) == 18
    assert all(rate == expected and counted == steps for rate, expected, counted, steps in seen)


def test_of_several_optimizers_each_has_the_steps_of_its_own_counted(tmp_path):
    """One of them steps with every batch, the other with every second; torch would warn of one that goes ahead."""
    rates = []

    class OfParts(Net):
        def __init__(self):
            super().__init__()
            self.other = torch.nn.Linear(3, 2)

    def step(run):
        judge(run)
        for name in ("first", "second"):
            if name == "first" or run.batch_index % 2:
                run.backward(run.model.inner(run.batch["x"]).sum() + run.model.other(run.batch["x"]).sum())
                run.step(name)
                rates.append({name: one.param_groups[0]["lr"] for name, one in run.optimizer.items()})

    def optimizers_fn(datasets, model):
        optimizers = {
            "second": torch.optim.SGD(model.other.parameters(), lr=1.0),
            "first": torch.optim.SGD(model.inner.parameters(), lr=1.0),
        }
        schedules = [Schedule(halved(optimizer), every="step") for optimizer in optimizers.values()]
        return {"d": optimizers}, {"d": schedules}

    fitting_in(tmp_path)(
        trainer(),
        inputs=lambda: {"d": {"train": batches(8, 2)}},
        optimizers_fn=optimizers_fn,
        model_fn=lambda options: OfParts(),
        num_epochs=1,
        step=step,
    )
    assert [rate["first"] for rate in rates] == [0.5, 0.25, 0.25, 0.125, 0.0625, 0.0625]
    assert [rate["second"] for rate in rates] == [1.0, 1.0, 0.5, 0.5, 0.5, 0.25]


def test_several_schedulers_of_one_optimizer_each_step_when_they_should(tmp_path):
    rates = fit(
        tmp_path,
        lambda optimizer: [
            Schedule(torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5), every="step"),
            torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.1),
        ],
    )
    assert rates.of_steps == pytest.approx([1.0, 0.5, 0.25, 0.0125, 0.00625, 0.003125])


def test_a_scheduler_may_follow_a_metric(tmp_path):
    """The rate falls after the first epoch whose metric is no better; epochs without the metric count for nothing."""
    rates = fit(
        tmp_path,
        lambda optimizer: Schedule(
            torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="max", factor=0.5, patience=0),
            metric=("d", "valid", "info", "nb_samples"),  # always the same
        ),
        num_epochs=5,
        eval_every_X_epoch=2,  # evaluates in the epochs 0, 1 and 3
    )
    assert [start["d"] for start in rates.at_epoch_starts] == [1.0, 1.0, 0.5, 0.5, 0.25]


def test_a_metric_that_is_not_there_is_named(tmp_path):
    """LOOP-5: else the scheduler would wait for ever."""
    with pytest.raises(ValueError, match=r"no metric \('d', 'valid', 'y', 'dice'\).*'classification error'"):
        fit(
            tmp_path,
            lambda optimizer: Schedule(
                torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer), metric=("d", "valid", "y", "dice")
            ),
        )


def test_a_plateau_without_a_metric_is_refused_before_anything_is_trained(tmp_path):
    """Torch would miss an argument of `step` when the first epoch is done."""
    folder = tmp_path / "runs"
    with pytest.raises(ValueError, match=r"ReduceLROnPlateau follows a metric, got none: give Schedule\("):
        fit(folder, torch.optim.lr_scheduler.ReduceLROnPlateau)
    assert not list(folder.rglob("*.csv"))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"every": "batch"}, "every must be 'epoch' or 'step', got 'batch'"),
        ({"every": "step", "metric": "dsom"}, "metric"),
    ],
)
def test_wrong_schedules_are_refused(arguments, named):
    with pytest.raises(ValueError, match=named):
        Schedule(None, **arguments)


def test_rates_are_named_by_dataset_optimizer_and_group():
    a, b, c = (torch.nn.Parameter(torch.zeros(1)) for _ in range(3))
    of_d = torch.optim.SGD([{"params": [b], "lr": 0.2}, {"params": [c], "lr": 0.3}])
    several = {"g": torch.optim.SGD([a], 0.1), "d": of_d}
    assert learning_rates({"gan": several, "x": torch.optim.SGD([a], 0.4)}) == {
        "gan/g": 0.1,
        "gan/d": 0.2,
        "gan/d/1": 0.3,
        "x": 0.4,
    }
