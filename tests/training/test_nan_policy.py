"""A loss that is no number: found before it reaches the weights."""

import logging

import pytest
import torch
from toy_resume import Breaks, Broken
from toy_trainer import fitting_in, trainer
from toy_training import CPU, batches

from trw_pipeline.callbacks.checkpoint import CallbackCheckpoint
from trw_pipeline.errors import NonFiniteLossError
from trw_pipeline.outputs.classification import OutputClassification
from trw_pipeline.training.callback import Callback
from trw_pipeline.training.optimizers import Schedule, create_adam_optimizers_fn


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.inner = torch.nn.Linear(3, 2)

    def forward(self, batch):
        bad, good = self.inner(batch["x"]), self.inner(torch.ones_like(batch["x"]))
        return {"bad": OutputClassification(bad, "truth"), "good": OutputClassification(good, "truth")}


def data(bad_batch=5, value=torch.nan):
    made = batches(20, 2)
    made[bad_batch]["x"] = made[bad_batch]["x"] * value
    for number, batch in enumerate(made):
        batch["sample_uid"] = torch.tensor([2 * number, 2 * number + 1])
    return {"d": {"train": made, "valid": batches(4, 2)}}


class Weights(Callback):
    """The weights as they were when the training ended, and after each step."""

    def __init__(self):
        self.of_steps, self.at_error = [], None

    def on_step_end(self, run):
        self.of_steps.append(run.model.inner.weight.detach().clone())

    def on_exception(self, run):
        self.at_error = run.model.inner.weight.detach().clone()


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_by_default_the_training_ends_before_the_weights_are_touched_and_says_where(tmp_path, value):
    """LOOP-4, T49."""
    weights = Weights()
    with pytest.raises(NonFiniteLossError) as raised:
        fitting_in(tmp_path)(trainer(weights), inputs=lambda: data(value=value), model_fn=lambda options: Net())
    text = str(raised.value)
    assert "epoch 0, d/train, batch 5, after 5 steps" in text
    assert "bad=nan" in text
    assert "good" not in text
    assert "sample_uid of the batch: [10, 11]" in text
    assert isinstance(raised.value, FloatingPointError)
    assert len(weights.of_steps) == 5
    assert torch.equal(weights.at_error, weights.of_steps[-1])


@pytest.mark.parametrize("bad_epoch", [1, 2])
def test_the_last_good_checkpoint_stays_and_goes_on_with_moments_that_are_numbers(tmp_path, bad_epoch):
    """LOOP-4: from it the training ends as one that never met the bad batch."""

    class Spoils(Callback):
        def on_forward_start(self, run):
            if run.training and (run.epoch, run.batch_index) == (bad_epoch, 5):
                run.batch["x"] = run.batch["x"] * torch.nan

    def fit(folder, *callbacks, **arguments):
        return fitting_in(folder)(
            trainer(*callbacks, CallbackCheckpoint()),
            inputs=lambda: {"d": {"train": batches(20, 2), "valid": batches(4, 2)}},
            model_fn=lambda options: Net(),
            optimizers_fn=lambda datasets, model: create_adam_optimizers_fn(datasets, model, 0.01),
            num_epochs=4,
            seed=3,
            **arguments,
        )[0]

    with pytest.raises(NonFiniteLossError, match=f"epoch {bad_epoch}"):
        fit(tmp_path, Spoils())
    checkpoint = torch.load(tmp_path / "default_r0" / "checkpoints" / "last.pt", weights_only=True)
    assert checkpoint["epoch"] == bad_epoch
    moments = [value for state in checkpoint["optimizers"]["d"][""]["state"].values() for value in state.values()]
    assert len(moments) == 6
    assert all(value.isfinite().all() for value in (*checkpoint["model"].values(), *moments))
    again = fit(tmp_path, resume=tmp_path / "default_r0")
    assert torch.equal(again.inner.weight, fit(tmp_path / "whole").inner.weight)


def test_a_batch_may_be_left_out_and_counts_nowhere(tmp_path, caplog):
    weights = Weights()
    with caplog.at_level(logging.WARNING):
        model, result = fitting_in(tmp_path)(
            trainer(weights), inputs=data, model_fn=lambda options: Net(), nan_policy="skip"
        )
    assert len(weights.of_steps) == 18  # of two epochs
    assert all(weight.isfinite().all() for weight in weights.of_steps)
    entry = result["history"][0]["d"]["train"]
    assert entry["info"]["nb_samples"] == 18
    assert torch.isfinite(torch.tensor(entry["overall_loss"]["loss"]))
    (record,) = [record for record in caplog.records if "batch 5, after 5 steps" in record.getMessage()]
    assert "left a batch out" in record.getMessage()
    assert "[10, 11]" in record.getMessage()

    without = data()
    del without["d"]["train"][5]
    by_hand, _ = fitting_in(tmp_path)(trainer(), inputs=lambda: without, model_fn=lambda options: Net())
    assert torch.equal(model.inner.weight, by_hand.inner.weight)


def test_a_batch_that_is_left_out_of_a_group_leaves_the_others_exact(tmp_path):
    arguments = {"model_fn": lambda options: Net(), "accumulate": 4, "num_epochs": 1}
    skipped, _ = fitting_in(tmp_path)(trainer(), inputs=lambda: data(1), nan_policy="skip", **arguments)
    without = data(1)
    del without["d"]["train"][1]
    by_hand, _ = fitting_in(tmp_path)(trainer(), inputs=lambda: without, **arguments)
    torch.testing.assert_close(skipped.inner.weight, by_hand.inner.weight)


def test_the_training_may_stop_in_order(tmp_path, caplog):
    weights = Weights()
    _, result = fitting_in(tmp_path)(
        trainer(weights), inputs=data, model_fn=lambda options: Net(), nan_policy="stop", num_epochs=9
    )
    assert len(weights.of_steps) == 5
    assert len(result["history"]) == 2  # the epoch, and the final evaluation
    assert "the training stops because the loss is not finite" in caplog.text


def test_a_loss_that_is_only_evaluated_may_be_no_number(tmp_path):
    def inputs():
        valid = batches(4, 2)
        valid[0]["x"] = valid[0]["x"] * torch.nan
        return {"d": {"train": batches(4, 2), "valid": valid}}

    _, result = fitting_in(tmp_path)(trainer(), inputs=inputs, model_fn=lambda options: Net(), num_epochs=1)
    assert torch.isnan(torch.tensor(result["history"][0]["d"]["valid"]["overall_loss"]["loss"]))


def spoiled_gradients(bad_batch, epoch=0):
    """A loss function; in the batch of this number it adds 0, whose gradient is NaN. With the batches to train on."""
    model = Net()
    made = batches(20, 2)
    for number, batch in enumerate(made):
        batch["number"] = torch.tensor([number, number])

    class Epoch(Callback):
        now = 0

        def on_epoch_start(self, run):
            self.now = run.epoch

    seen = Epoch()

    def loss(dataset_name, batch, terms):
        whole = terms["bad"]["loss"] + terms["good"]["loss"]
        is_bad = batch["split_name"] == "train" and seen.now == epoch and batch["number"][0] == bad_batch
        return whole + (model.inner.weight.sum() * 0).sqrt() if is_bad else whole

    return model, seen, loss, made


def fit_adam(folder, model, made, *callbacks, num_epochs=1, **arguments):
    return fitting_in(folder)(
        trainer(*callbacks),
        inputs=lambda: {"d": {"train": made}},
        model_fn=lambda options: model,
        optimizers_fn=adam,
        num_epochs=num_epochs,
        **arguments,
    )


def adam(datasets, model):
    optimizers, _ = create_adam_optimizers_fn(datasets, model, 0.01)
    return optimizers, {"d": Schedule(torch.optim.lr_scheduler.StepLR(optimizers["d"], 3, 0.5), every="step")}


@pytest.mark.parametrize("policy", ["raise", "skip"])
@pytest.mark.parametrize(
    ("bad_batch", "named"),
    [
        (5, "the weights are not finite, since a batch before: epoch 0, d/train, batch 6, after 6 steps"),
        (9, "the weights are not finite after d/train in epoch 0"),
    ],
)
def test_a_gradient_that_is_no_number_ends_the_training_and_is_not_laid_to_the_next_batch(
    tmp_path, policy, bad_batch, named
):
    """LOOP-4: to leave batches out would leave out all that follow."""
    model, seen, loss, made = spoiled_gradients(bad_batch)
    with pytest.raises(NonFiniteLossError, match=named):
        fit_adam(tmp_path, model, made, seen, losses_fn=loss, nan_policy=policy)


@pytest.mark.parametrize("bad_batch", [5, 9])
def test_a_training_whose_weights_are_spoiled_stops_in_order(tmp_path, bad_batch):
    model, seen, loss, made = spoiled_gradients(bad_batch)
    _, result = fit_adam(tmp_path, model, made, seen, losses_fn=loss, nan_policy="stop", num_epochs=5)
    assert len(result["history"]) == 2


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_training_may_go_back_to_where_its_split_began_with_weights_optimizer_and_rates(tmp_path, accumulate, caplog):
    """LOOP-4: what follows is what a training would have done that began there."""
    arguments = {"accumulate": accumulate, "with_final_evaluation": False}
    made = data()["d"]["train"]
    weights = Weights()
    model, result = fit_adam(tmp_path, Net(), made, weights, nan_policy="revert", **arguments)
    by_hand, _ = fit_adam(tmp_path, Net(), made[6:], **arguments)
    assert torch.equal(model.inner.weight, by_hand.inner.weight)
    assert len(weights.of_steps) > len(made[6:]) // accumulate  # those that were taken back
    assert "went back to where d/train began: the loss is not finite: epoch 0, d/train, batch 5" in caplog.text
    assert result["history"][0]["d"]["train"]["info"]["nb_samples"] == 18


def test_spoiled_weights_go_back_to_where_the_split_began(tmp_path):
    model, seen, loss, made = spoiled_gradients(5)
    fit_adam(tmp_path, model, made, seen, losses_fn=loss, nan_policy="revert")
    by_hand, _ = fit_adam(tmp_path, Net(), made[7:])  # the next batch finds them
    assert torch.equal(model.inner.weight, by_hand.inner.weight)


def test_weights_that_the_last_batch_spoils_go_back_too(tmp_path):
    model, seen, loss, made = spoiled_gradients(9, epoch=1)
    fit_adam(tmp_path, model, made, seen, losses_fn=loss, nan_policy="revert", num_epochs=2)
    by_hand, _ = fit_adam(tmp_path, Net(), made, num_epochs=1)
    assert torch.equal(model.inner.weight, by_hand.inner.weight)


def test_there_is_nothing_to_go_back_to_for_weights_that_never_were_numbers(tmp_path):
    model = Net()
    model.inner.weight.data[0, 0] = torch.nan
    with pytest.raises(NonFiniteLossError, match="weights are not finite"):
        fit_adam(tmp_path, model, batches(20, 2), nan_policy="revert")


@pytest.mark.parametrize("break_at", [2, 4, 7])
def test_a_training_that_is_resumed_goes_back_as_far_as_one_that_was_not(tmp_path, break_at):
    """The bad batch is number 5; by the last of the three the training has gone back before it is broken off."""
    made = data()["d"]["train"]

    def fit(folder, *callbacks, **arguments):
        checkpoint = CallbackCheckpoint(every_n_steps=1)
        return fit_adam(folder, Net(), made, *callbacks, checkpoint, nan_policy="revert", num_epochs=2, **arguments)[0]

    whole = fit(tmp_path / "whole")
    with pytest.raises(Broken):
        fit(tmp_path, Breaks(break_at))
    again = fit(tmp_path, resume=tmp_path / "default_r0")
    assert torch.equal(whole.inner.weight, again.inner.weight)


@pytest.mark.parametrize("policy", ["skip", "stop"])
def test_a_batch_that_is_left_out_leaves_no_trace_in_the_statistics_of_batch_normalisation(tmp_path, policy):
    class Normed(Net):
        def __init__(self):
            super().__init__()
            self.norm = torch.nn.BatchNorm1d(3)

        def forward(self, batch):
            return super().forward({**batch, "x": self.norm(batch["x"])})

    made = data()["d"]["train"]
    model, _ = fit_adam(tmp_path, Normed(), made, nan_policy=policy)
    without = made[:5] + (made[6:] if policy == "skip" else [])
    by_hand, _ = fit_adam(tmp_path, Normed(), without)
    for (name, one), other in zip(model.state_dict().items(), by_hand.state_dict().values(), strict=True):
        assert torch.equal(one, other), name


def test_an_unknown_policy_is_refused_before_anything_is_made(tmp_path):
    with pytest.raises(ValueError, match="nan_policy must be one of"):
        fitting_in(tmp_path)(trainer(), nan_policy="ignore")
    assert list(tmp_path.iterdir()) == []


def test_no_value_is_read_from_the_device_while_batches_run(tmp_path):
    """T14: at most two reads for a split."""
    from torch.profiler import ProfilerActivity, profile

    inputs = {"d": {"train": batches(200, 2)}}
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        fitting_in(tmp_path)(
            trainer(), inputs=lambda: inputs, model_fn=lambda options: Net(), num_epochs=1, with_final_evaluation=False
        )
    reads = sum(event.count for event in seen.key_averages() if event.key == "aten::_local_scalar_dense")
    assert reads <= 2, CPU
