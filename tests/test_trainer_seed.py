"""The seed of a training: everything random in it follows from it, and nothing outside changes."""

import random

import numpy as np
import pytest
import torch
from torch import nn
from toy_trainer import Net, fitting_in, trainer

from trw_pipeline.errors import ClosedError
from trw_pipeline.outputs.classification import OutputClassification
from trw_pipeline.sequences.sequence import SequenceArray
from trw_pipeline.training.callback import Callback


class Dropout(Net):
    def forward(self, batch):
        return {"y": OutputClassification(nn.functional.dropout(self.inner(batch["x"]), 0.5, self.training), "truth")}


class Draws(Callback):
    def __init__(self):
        self.seen = []

    def on_batch_start(self, run):
        self.seen.append((run.split, run.batch["sample_uid"].tolist(), random.random(), np.random.random()))


def augment(batch, rng):
    return {**batch, "x": batch["x"] + rng.normal(size=batch["x"].shape).astype(np.float32)}


def inputs(**workers):
    x = np.random.default_rng(0).normal(size=(12, 3)).astype(np.float32)
    split = {"x": x, "truth": (x[:, 0] > 0).astype(np.int64)}
    return {"d": {name: SequenceArray(split).map(augment, **workers).batch(4).collate() for name in ("train", "valid")}}


def fit(tmp_path, inputs=inputs, **arguments):
    draws = Draws()
    model, result = fitting_in(tmp_path)(trainer(draws), inputs=inputs, model_fn=lambda options: Dropout(), **arguments)
    losses = [entry["d"][name]["y"]["loss"] for entry in result["history"] for name in ("train", "valid")]
    return model.inner.weight, losses, draws.seen


def test_the_same_seed_gives_the_same_training_and_another_one_another(tmp_path):
    weight, losses, seen = fit(tmp_path, seed=7)
    again, losses_again, seen_again = fit(tmp_path, seed=7)
    assert torch.equal(weight, again)
    assert (losses, seen) == (losses_again, seen_again)
    other, _, seen_other = fit(tmp_path, seed=8)
    assert not torch.equal(weight, other)
    assert [uids for _, uids, *_ in seen] != [uids for _, uids, *_ in seen_other]


@pytest.mark.slow
@pytest.mark.parametrize(
    "workers",
    [{"nb_workers": 1, "backend": "thread"}, {"nb_workers": 3, "backend": "thread"}, {"nb_workers": 2}],
    ids=["one thread", "three threads", "two processes"],
)
def test_the_training_does_not_depend_on_the_workers(tmp_path, workers):
    """SEED-2, of weights, losses, orders and what is drawn beside: bit by bit."""
    made = []

    def of_workers():
        made.append(inputs(**workers))
        return made[-1]

    try:
        weight, *others = fit(tmp_path, of_workers, seed=7)
    finally:
        for split in made[0]["d"].values():
            split.close()
    expected, *expected_others = fit(tmp_path, seed=7)
    assert torch.equal(weight, expected)
    assert others == expected_others


def test_splits_of_one_source_are_shuffled_apart(tmp_path):
    _, _, seen = fit(tmp_path, seed=7)
    orders = {name: [uids for split, uids, *_ in seen if split == name] for name in ("train", "valid")}
    assert orders["train"] != orders["valid"]


def test_the_generators_are_put_back_as_they_were(tmp_path):
    for seed in (lambda: random.seed(1), lambda: np.random.seed(1), lambda: torch.manual_seed(1)):
        seed()
    before = random.random(), np.random.random(), np.random.normal(), torch.rand(1).item()
    for seed in (lambda: random.seed(1), lambda: np.random.seed(1), lambda: torch.manual_seed(1)):
        seed()
    fit(tmp_path, seed=7)
    assert (random.random(), np.random.random(), np.random.normal(), torch.rand(1).item()) == before


def test_without_a_seed_two_trainings_differ(tmp_path):
    assert not torch.equal(fit(tmp_path)[0], fit(tmp_path)[0])


def test_the_chains_made_for_a_seed_are_closed_and_the_users_own_are_not(tmp_path):
    split = {"x": np.zeros((4, 3), np.float32), "truth": np.zeros(4, int)}
    given = SequenceArray(split).map(augment, 1).batch(2).collate()
    trained_on = []

    class Note(Callback):
        def on_fit_start(self, run):
            trained_on.append(run.datasets["d"]["train"])

    fitting_in(tmp_path)(trainer(Note()), inputs=lambda: {"d": {"train": given}}, num_epochs=1, seed=1)
    assert trained_on[0] is not given
    with pytest.raises(ClosedError):
        iter(trained_on[0])
    with given:
        assert len(list(given)) == 2
