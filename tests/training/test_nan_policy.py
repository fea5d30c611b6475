"""A loss that is no number: found before it reaches the weights."""

import logging

import pytest
import torch
from toy_trainer import fitting_in, trainer
from toy_training import CPU, batches

from trw_pipeline.callbacks.checkpoint import CallbackCheckpoint
from trw_pipeline.errors import NonFiniteLossError
from trw_pipeline.outputs.classification import OutputClassification
from trw_pipeline.training.callback import Callback
from trw_pipeline.training.optimizers import create_adam_optimizers_fn


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
