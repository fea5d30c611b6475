"""SEED-3: a function may know the epoch, or anything else that changes between two of them; it is never the old one."""

from __future__ import annotations

import itertools
import os

import numpy as np
import pytest

from trw_pipeline.sequences.samplers import SamplerSequential
from trw_pipeline.sequences.sequence import SequenceArray

NB = 12


def array():
    return SequenceArray({"x": np.arange(NB)}, SamplerSequential())


def notes():
    """A transform that writes the epoch that it knows, and who ran it, into each item.

    Of a class that is made here, it travels by value: a worker that imported this module would import torch.
    """

    class Notes:
        epoch = 0

        def __call__(self, batch):
            return {"x": batch["x"], "epoch": np.array([self.epoch]), "pid": np.array([os.getpid()])}

    return Notes()


EVERY_WAY = {
    "inline": {"nb_workers": 0},
    "threads": {"nb_workers": 2, "backend": "thread"},
    "processes": {"nb_workers": 2},
    "processes that are replaced": {"nb_workers": 2, "max_tasks_per_worker": 3},
    "in any order": {"nb_workers": 2, "in_order": False},
}
every_way = pytest.mark.parametrize("options", EVERY_WAY.values(), ids=EVERY_WAY.keys())


def learned(batches):
    return [int(batch["epoch"][0]) for batch in batches]


@every_way
def test_an_attribute_changed_between_two_epochs_has_effect_in_all_of_the_next(options):
    transform = notes()
    with array().map(transform, **options) as sequence:
        for epoch in range(4):
            transform.epoch = epoch
            assert learned(sequence) == [epoch] * NB


@every_way
def test_an_attribute_changed_after_an_interrupted_epoch_has_effect_in_all_of_the_next(options):
    """Also for the items that had been sent when the epoch was given up."""
    transform = notes()
    with array().map(transform, **options) as sequence:
        for epoch in range(4):
            transform.epoch = epoch
            assert learned(itertools.islice(sequence, 3)) == [epoch] * 3
        transform.epoch = 4
        assert learned(sequence) == [4] * NB


def test_workers_that_learn_an_epoch_are_those_of_the_epoch_before():
    transform = notes()
    pids = []
    with array().map(transform, nb_workers=1) as sequence:
        for epoch in range(3):
            transform.epoch = epoch
            pids.append({int(batch["pid"][0]) for batch in sequence})
    assert len(pids[0]) == 1
    assert pids[0] == pids[1] == pids[2]


def test_each_of_the_stages_of_a_chain_learns_the_epoch():
    first, second = notes(), notes()
    chain = array().map(first, nb_workers=1).map(lambda batch: {"x": batch["x"], "first": batch["epoch"]})
    with chain.map(lambda batch: {**second(batch), "first": batch["first"]}, nb_workers=1) as sequence:
        for epoch in range(3):
            first.epoch, second.epoch = epoch, 10 + epoch
            found = [(int(batch["first"][0]), int(batch["epoch"][0])) for batch in sequence]
            assert found == [(epoch, 10 + epoch)] * NB


@pytest.mark.parametrize("backend", ["thread", "process"])
def test_results_that_enter_a_reservoir_are_of_the_function_as_it_has_become(backend):
    """Those that are kept, or were on their way, are older: that is what a reservoir is for."""
    transform, below = notes(), notes()
    source = array().map(lambda batch: {**batch, "below": below(batch)["epoch"]}, nb_workers=1, backend=backend)
    chain = source.async_reservoir(
        4,
        lambda batch: {**transform(batch), "below": batch["below"]},
        min_reservoir_samples=4,
        nb_workers=1,
        backend=backend,
        max_jobs_at_once=4,
    )
    with chain.collate() as sequence:
        for epoch in range(12):
            transform.epoch, below.epoch = epoch, 100 + epoch
            found = [
                (int(one), int(other)) for b in sequence for one, other in zip(b["epoch"], b["below"], strict=True)
            ]
    assert max(one for one, _ in found) >= 8
    assert max(other for _, other in found) >= 105


@pytest.mark.parametrize("nb_workers", [0, 2])
def test_an_epoch_that_goes_on_where_the_one_before_stopped_learns_it_too(nb_workers):
    transform = notes()
    with array().map(transform, nb_workers=nb_workers).max_samples(3) as sequence:
        for epoch in range(8):
            transform.epoch = epoch
            found = [(int(batch["x"][0]), int(batch["epoch"][0])) for batch in sequence]
            assert found == [((3 * epoch + i) % NB, epoch) for i in range(3)]


def test_an_epoch_goes_on_though_the_workers_of_a_stage_that_is_done_have_been_closed():
    """Two passes are open at once, and one pool is kept of two."""
    transform = notes()
    mapped = array().map(transform, nb_workers=1)
    with mapped.map(lambda batch: batch, nb_workers=1).max_samples(NB - 1) as sequence:
        assert learned(sequence) == [0] * (NB - 1)
        others = [iter(mapped), iter(mapped)]
        assert [learned(other) for other in others] == [[0] * NB] * 2
        transform.epoch = 1
        assert learned(sequence) == [1]
        assert learned(sequence) == [1] * (NB - 1)
