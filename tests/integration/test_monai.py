"""Transforms of MONAI as mapped functions: their randomness is that of the item, whichever worker it is at (SEED-1)."""

from __future__ import annotations

import functools
import warnings

import numpy as np
import pytest
import torch

from trw_pipeline.executors.transforms import random_transforms
from trw_pipeline.sequences.samplers import SamplerSequential
from trw_pipeline.sequences.sequence import SequenceArray

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it imports what others have deprecated
    from monai.data import MetaTensor
    from monai.transforms import Compose, EnsureTyped, RandFlipd, RandGaussianNoised

pytestmark = pytest.mark.slow
NB, EPOCHS = 6, 2
IN_FORKS = {"start_method": "fork"}  # to import MONAI once more takes seconds


def noise():
    return RandGaussianNoised(keys="x", prob=1.0, std=1.0)


def nested():
    return Compose([EnsureTyped("x"), RandFlipd("x", prob=0.5), Compose([noise()])])


class Augment:
    """An object of the user's that has transforms, and is one of his functions."""

    def __init__(self, transform):
        self.transforms = {"train": [transform]}

    def __call__(self, batch):
        return self.transforms["train"][0](batch)

    def run(self, batch):
        return self(batch)


def in_closure(transform):
    return lambda batch: next(transform(one) for one in [batch])


def with_default(default):
    def run(batch, transform=default):
        return transform(batch)

    return run


GLOBAL = noise()


def by_name(batch):
    return next(GLOBAL(one) for one in [batch])


WAYS = {
    "itself": noise,
    "within another": nested,
    "in a closure": lambda: in_closure(nested()),
    "an attribute": lambda: Augment(nested()),
    "of a bound method": lambda: Augment(nested()).run,
    "bound": lambda: functools.partial(lambda batch, transform: transform(batch), transform=nested()),
    "a default": lambda: with_default(nested()),
    "a global": lambda: by_name,
    "one of a list": lambda: [nested(), noise()],
}


def chain(function, **workers):
    split = {"x": np.zeros((NB, 4, 4), np.float32)}
    return SequenceArray(split, SamplerSequential()).with_seed(1).map(function, **workers)


def epochs_of(sequence):
    with sequence:
        return [[np.asarray(batch["x"]) for batch in sequence] for _ in range(EPOCHS)]


@pytest.mark.parametrize("make", WAYS.values(), ids=WAYS.keys())
def test_no_two_items_share_a_draw_and_workers_change_nothing(make):
    with_workers = epochs_of(chain(make(), nb_workers=2, **IN_FORKS))
    assert np.array_equal(with_workers, epochs_of(chain(make())))
    assert len({x.tobytes() for epoch in with_workers for x in epoch}) == EPOCHS * NB


def test_another_seed_draws_otherwise():
    one, other = chain(nested()), chain(nested()).with_seed(2)
    assert not np.array_equal(epochs_of(one), epochs_of(other))


def test_transforms_of_an_array_follow_its_seed_too():
    def array():
        return SequenceArray({"x": np.zeros((NB, 4, 4))}, SamplerSequential(), transforms=nested()).with_seed(1)

    first = epochs_of(array())
    assert np.array_equal(first, epochs_of(array()))
    assert len({x.tobytes() for epoch in first for x in epoch}) == EPOCHS * NB


def test_a_meta_tensor_arrives_with_its_affine():
    affine = torch.diag(torch.tensor([2.0, 2.0, 3.0, 1.0], dtype=torch.float64))

    def load(batch):
        return {"x": MetaTensor(batch["x"], affine=affine, meta={"name": "scan"})}

    with chain([load, noise()], nb_workers=1, **IN_FORKS) as sequence:
        x = next(iter(sequence))["x"]
    assert isinstance(x, MetaTensor)
    assert torch.equal(x.affine, affine)
    assert x.meta["name"] == "scan"


def test_a_search_ends_in_what_refers_to_itself():
    itself = Augment(noise())
    itself.transforms["me"] = itself
    assert random_transforms([itself]) == [itself.transforms["train"][0]]


def test_functions_of_other_packages_are_not_looked_into():
    assert random_transforms([np.linalg.norm, lambda batch: torch.stack(batch), in_closure(len)]) == []


def test_data_that_a_function_refers_to_are_not_read_in_search_of_transforms():
    def refuse(self, *arguments):
        raise AssertionError("a sample was read")

    kinds = [type(base.__name__, (base,), dict.fromkeys(names, refuse)) for base, names in READERS.items()]
    data = [kind() for kind in kinds]
    assert random_transforms([lambda: data]) == []


READERS = {
    list: ("__getitem__", "__iter__"),
    tuple: ("__getitem__", "__iter__"),
    dict: ("__getitem__", "__iter__", "values", "items"),
}
