"""Who looks at a split beside the training leaves no trace."""

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from trw_pipeline.sequences.samplers import SamplerRandom
from trw_pipeline.sequences.sequence import SequenceArray
from trw_pipeline.training.looking import beside, first_batch, split_to_look_at

SPLITS = {"train": [], "valid": [], "test": []}


def chain():
    return SequenceArray({"x": np.arange(10.0)}, SamplerRandom()).with_seed(1).batch(2).collate()


def orders(split, nb_epochs=2):
    return [[value for batch in split for value in batch["x"].tolist()] for _ in range(nb_epochs)]


def test_a_chain_opens_the_epochs_it_would_have_opened():
    looked_at, expected = chain(), orders(chain())
    state = looked_at.state_dict()
    batch = first_batch(nn.Identity(), {"d": {"train": looked_at}}, "d", "train")
    assert batch["x"].tolist() == expected[0][:2], "it is the batch that comes next"
    assert looked_at.state_dict() == state
    assert orders(looked_at) == expected


@pytest.mark.parametrize("own", [True, False])
def test_a_loader_shuffles_as_it_would_have(own):
    def loader():
        torch.manual_seed(5)
        return DataLoader(torch.arange(10.0), 2, shuffle=True, generator=torch.Generator() if own else None)

    expected = [batch.tolist() for batch in loader()]
    looked_at = loader()
    with beside(looked_at) as split:
        for _ in range(2):
            list(split)
    assert [batch.tolist() for batch in looked_at] == expected


def test_the_global_generators_are_put_back():
    def draws():
        return random.random(), np.random.rand(), torch.rand(1).item()

    class Draws:
        def __iter__(self):
            draws()
            yield {"x": torch.ones(1)}

    def seed():
        random.seed(0)
        np.random.seed(0)
        torch.manual_seed(0)

    seed()
    expected = draws()
    seed()
    first_batch(nn.Identity(), {"d": {"train": Draws()}}, "d", "train")
    assert draws() == expected


def test_callbacks_of_batches_see_the_batch_and_can_not_end_anything():
    def edit(dataset, split, batch):
        batch["x"] = batch["x"] + 1
        raise StopIteration

    given = {"x": torch.zeros(2)}
    batch = first_batch(nn.Identity(), {"d": {"v": [given]}}, "d", "v", [edit, edit])
    assert batch["x"].tolist() == [2.0, 2.0]
    assert (batch["dataset_name"], batch["split_name"]) == ("d", "v")
    assert given["x"].tolist() == [0.0, 0.0]
    assert set(given) == {"x"}


def test_of_a_split_without_batches_there_is_none_and_a_warning_names_it(caplog):
    assert first_batch(nn.Identity(), {"d": {"v": []}}, "d", "v") is None
    assert "the split d/v has no batch" in caplog.text


@pytest.mark.parametrize(
    ("asked", "datasets", "chosen"),
    [
        ((None, None), {"a": SPLITS}, ("a", "valid")),
        ((None, "train"), {"a": SPLITS}, ("a", "train")),
        ((None, None), {"a": {"train": []}}, ("a", "train")),
        ((None, None), {"a": {"train": []}, "b": SPLITS}, ("b", "valid")),
        (("a", None), {"a": {"train": []}, "b": SPLITS}, ("a", "train")),
        (("b", "test"), {"a": SPLITS, "b": SPLITS}, ("b", "test")),
    ],
)
def test_the_split_to_look_at_is_best_not_the_one_that_is_trained_on(asked, datasets, chosen):
    assert split_to_look_at(datasets, *asked, "train") == chosen


@pytest.mark.parametrize("asked", [("c", None), (None, "absent"), ("a", "absent")])
def test_what_is_not_there_is_refused(asked):
    with pytest.raises(ValueError, match=r"'c'|'absent'"):
        split_to_look_at({"a": SPLITS}, *asked, "train")
