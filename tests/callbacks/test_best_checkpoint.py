"""The best checkpoint against the log and against a look at the model itself."""

from __future__ import annotations

import csv

import pytest
import torch
from toy_trainer import Net, batches, fitting_in, trainer

from trw_pipeline.callbacks.checkpoint import CallbackCheckpoint
from trw_pipeline.callbacks.train_log import CallbackTrainLog
from trw_pipeline.trainer import Trainer
from trw_pipeline.training.optimizers import create_sgd_optimizers_fn

LOSS = ("d", "valid", "overall_loss", "loss")


def noisy(nb_samples):
    """Classes drawn by chance: nothing can be learned, so the best epoch is anywhere."""
    generator = torch.Generator().manual_seed(nb_samples)
    split = batches(nb_samples, 3)
    return [batch | {"truth": torch.randint(0, 2, (len(batch["x"]),), generator=generator)} for batch in split]


@pytest.mark.parametrize(("nb_train", "nb_valid", "rate"), [(11, 7, 2.0), (24, 12, 1.0), (5, 3, 8.0)])
def test_the_best_epoch_is_the_first_lowest_of_the_log_and_its_weights_give_that_value(
    tmp_path, nb_train, nb_valid, rate
):
    """T17."""
    splits = {"train": noisy(nb_train), "valid": noisy(nb_valid)}
    fitting_in(tmp_path)(
        trainer(CallbackCheckpoint(metric=LOSS), CallbackTrainLog()),
        inputs=lambda: {"d": splits},
        optimizers_fn=lambda datasets, model: create_sgd_optimizers_fn(datasets, model, rate),
        num_epochs=8,
        seed=nb_train,
    )
    run = tmp_path / "default_r0"
    with (run / "trainlog.csv").open(newline="") as file:
        losses = [float(row["/".join(LOSS)]) for row in csv.DictReader(file)]
    (best,) = run.glob("checkpoints/best-*.pt")
    checkpoint = torch.load(best, weights_only=True)
    first_lowest = losses.index(min(losses))
    assert first_lowest < 7, "the last epoch would be the best by chance"
    assert best.name == f"best-{first_lowest}.pt"
    assert checkpoint["epoch"] == first_lowest + 1

    model = Net()
    model.load_state_dict(checkpoint["model"])
    again = Trainer.evaluate(model, splits["valid"])[1]["overall_loss"]["loss"]
    assert again == pytest.approx(min(losses), abs=1e-6)
