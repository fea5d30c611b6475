"""`SequenceIterable`: whatever can be iterated as a source, with a position all the same."""

from __future__ import annotations

import io
import json
import random
from collections import Counter

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset

from trw_pipeline.errors import CheckpointError, WouldBlock
from trw_pipeline.sequences import iterable_iterator
from trw_pipeline.sequences.sequence import SequenceArray, SequenceIterable

NB = 11
THREADS = {"nb_workers": 2, "backend": "thread"}
PROCESSES = {"nb_workers": 2}


class Stream(IterableDataset):
    """An `IterableDataset` of PyTorch, which knows the number of its epoch."""

    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return ({"x": 100 * self.epoch + i, "draw": random.random()} for i in range(NB))


class Stateful(Stream):
    """One that tells its position, and counts what it reads."""

    begin = given = nb_read = 0

    def __iter__(self):
        begin, self.begin = self.begin, 0
        for self.given, sample in enumerate(super().__iter__(), 1):
            if self.given > begin:
                self.nb_read += 1
                yield sample

    def state_dict(self):
        return {"given": self.given}

    def load_state_dict(self, state):
        self.begin = state["given"]


def generator():
    for i in range(NB):
        yield {"x": i, "draw": [np.random.rand(), torch.rand(1).item()]}


SOURCES = {
    "list": lambda: [{"x": i} for i in range(NB)],
    "function": lambda: generator,
    "IterableDataset": Stream,
    "its own state": Stateful,
}
every_source = pytest.mark.parametrize("make", SOURCES.values(), ids=SOURCES.keys())


def numbers(batches):
    return [x for batch in batches for x in batch["x"]]


# What comes out


def test_samples_become_batches_of_one():
    batch = next(iter(SequenceIterable([{"a": np.zeros(3), "b": torch.zeros(2), "c": 5, "d": "s"}])))
    assert {name: getattr(value, "shape", value) for name, value in batch.items()} == {
        "a": (1, 3), "b": (1, 2), "c": [5], "d": ["s"],
    }  # fmt: skip


def test_batches_pass_as_they_are():
    batches = [{"x": [1, 2], "name": "a"}, {"x": [3], "name": "b"}]
    assert list(SequenceIterable(batches, batched=True)) == batches


def test_tuples_get_names():
    assert list(SequenceIterable([(1, "a")])) == [{"feature_0": [1], "feature_1": ["a"]}]
    assert list(SequenceIterable([(1, "a")], ["x", "y"])) == [{"x": [1], "y": ["a"]}]


@every_source
@pytest.mark.parametrize("options", [{}, THREADS, PROCESSES], ids=["inline", "threads", "processes"])
def test_each_item_comes_once_whatever_the_workers(make, options):
    """SEED-4."""
    with SequenceIterable(make()).map(lambda batch: batch, **options) as sequence:
        for _ in range(3):
            assert sorted(x % 100 for x in numbers(sequence)) == list(range(NB))


def test_the_number_of_the_epoch_is_passed_on():
    sequence = SequenceIterable(Stream())
    assert [numbers(sequence)[0] for _ in range(3)] == [0, 100, 200]
    chain = sequence.map(lambda batch: batch)
    chain.set_epoch(7)
    assert numbers(chain)[0] == 700


def test_what_is_drawn_from_the_global_generators_follows_from_the_seed():
    def draws(seed):
        sequence = SequenceIterable(generator).with_seed(seed)
        return [tuple(draw) for _ in range(2) for batch in sequence for draw in batch["draw"]]

    before = np.random.get_state()[1].tolist()
    assert draws(1) == draws(1) != draws(2)
    assert len(set(draws(1))) == 2 * NB
    assert np.random.get_state()[1].tolist() == before


def test_the_length_is_that_of_the_iterable():
    assert len(SequenceIterable([{"x": 1}] * 3)) == 3
    with pytest.raises(TypeError, match="length of generator is not known"):
        len(SequenceIterable(generator))


def test_an_endless_iterable_is_cut():
    def endless():
        i = 0
        while True:
            yield {"x": i}
            i += 1

    with SequenceIterable(endless).map(lambda batch: batch, **THREADS).max_samples(25) as sequence:
        assert numbers(sequence) == list(range(25))


# What can be read once


@pytest.mark.parametrize("once", [lambda: generator(), lambda: map(dict, [{"x": 1}] * NB)], ids=["generator", "map"])
def test_a_second_epoch_of_what_can_be_read_once_is_an_error(once):
    sequence = SequenceIterable(once())
    assert len(list(sequence)) == NB
    for again in (sequence, sequence.with_seed(3), sequence.batch(2)):
        with pytest.raises(RuntimeError, match="can be read only once, and was: give a function"):
            list(again)


def test_a_chain_tells_whether_it_can_be_read_again():
    once, again = SequenceIterable(iter([{"x": 1}])), SequenceIterable([{"x": 1}])
    assert again.batch(2).can_be_read_again
    assert SequenceIterable(lambda: iter([{"x": 1}])).can_be_read_again
    assert not once.batch(2).can_be_read_again
    assert not again.zip(once).can_be_read_again


def test_an_epoch_that_was_broken_off_can_not_be_begun_again():
    sequence = SequenceIterable(generator())
    next(iter(sequence))
    with pytest.raises(RuntimeError, match="only once"):
        next(iter(sequence))


def test_to_open_an_epoch_reads_nothing():
    sequence = SequenceIterable(generator())
    iter(sequence), iter(sequence)
    assert len(list(sequence)) == NB


# What is refused


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"x": [1, 2]}, "features of all samples are for SequenceArray"),
        ("text", "got str"),
        (5, "got int"),
        (SequenceArray({"x": [1]}), "must not be a sequence"),
    ],
)
def test_what_gives_no_samples_is_refused(given, why):
    with pytest.raises(TypeError, match=why):
        SequenceIterable(given)


def test_items_of_another_kind_are_an_error():
    with pytest.raises(TypeError, match="StringIO must give dicts, tuples or lists, got str"):
        list(SequenceIterable(io.StringIO("a\nb")))


def test_a_signal_of_ours_does_not_end_the_epoch():
    def blocked():
        yield {"x": 1}
        raise WouldBlock("not ours")

    epoch = iter(SequenceIterable(blocked))
    next(epoch)
    with pytest.raises(RuntimeError, match="raised WouldBlock"):
        next(epoch)


# Position


@every_source
@pytest.mark.parametrize(
    "options", [{}, THREADS, {**THREADS, "in_order": False}], ids=["inline", "threads", "any order"]
)
def test_the_rest_of_an_epoch_is_the_same_from_every_position(make, options, monkeypatch):
    monkeypatch.setattr(iterable_iterator, "ASK_EVERY", 3)

    def chain(seed):
        return SequenceIterable(make()).with_seed(seed).map(lambda batch: batch, **options)

    def plain(batches):
        return Counter(str(batch) for batch in batches) if "in_order" in options else [str(batch) for batch in batches]

    with chain(3) as whole, chain(3) as sequence, chain(99) as new:
        list(whole), list(sequence)
        expected, after = plain(whole), plain(whole)
        epoch, seen = iter(sequence), []
        for position in range(NB):
            state = json.loads(json.dumps(sequence.state_dict()))
            new.load_state_dict(state)
            rest = list(new)
            assert plain([*seen, *rest]) == expected
            assert len(rest) == NB - position
            assert plain(new) == after
            seen.append(next(epoch))


def test_a_restored_epoch_can_be_saved_again(monkeypatch):
    monkeypatch.setattr(iterable_iterator, "ASK_EVERY", 3)
    for make in SOURCES.values():
        whole = numbers(SequenceIterable(make()))
        state = None
        for position in range(NB):
            sequence = SequenceIterable(make())
            if state is not None:
                sequence.load_state_dict(state)
            epoch = iter(sequence)
            assert next(epoch)["x"] == [whole[position]]
            state = sequence.state_dict()


def test_what_tells_its_state_reads_only_what_came_since(monkeypatch):
    monkeypatch.setattr(iterable_iterator, "ASK_EVERY", 4)
    sequence, source = SequenceIterable(Stateful()), Stateful()
    epoch = iter(sequence)
    for _ in range(10):
        next(epoch)
    new = SequenceIterable(source)
    new.load_state_dict(sequence.state_dict())
    assert numbers(new) == [10]
    assert source.nb_read == 3


def test_two_epochs_at_once_keep_their_positions(monkeypatch):
    """The state of an iterable is that of who reads it last."""
    monkeypatch.setattr(iterable_iterator, "ASK_EVERY", 2)
    sequence = SequenceIterable(Stateful()).with_seed(1)
    epochs = []
    for nb in (5, 3):
        sequence.set_epoch(0)
        epochs.append(iter(sequence))
        for _ in range(nb):
            next(epochs[-1])
    for epoch, nb in zip(epochs, (5, 3), strict=True):
        next(epoch)
        restored = iter(SequenceIterable(Stateful()).with_seed(1))
        restored.load_state_dict(epoch.state_dict())
        assert numbers(restored) == list(range(nb + 1, NB))


def test_an_iterable_that_became_shorter_is_found_out():
    sequence = SequenceIterable([{"x": i} for i in range(5)])
    epoch = iter(sequence)
    for _ in range(4):
        next(epoch)
    new = SequenceIterable([{"x": i} for i in range(2)])
    new.load_state_dict(sequence.state_dict())
    with pytest.raises(CheckpointError, match="after 4 items of list, which now gives only 2"):
        next(iter(new))


def test_it_says_how_its_position_is_saved():
    assert repr(SequenceIterable(generator)) == "SequenceIterable(generator; state: replayed)"
    assert repr(SequenceIterable(Stateful())) == "SequenceIterable(Stateful; state: its own)"


# Smaller versions


def test_smaller_versions_are_read_into_memory():
    sequence = SequenceIterable(Stream())
    assert numbers(sequence.subsample(3)) == [0, 1, 2]
    assert numbers(sequence.subsample_uids([7, 3], "x")) == [7, 3]
    assert numbers(sequence) == list(range(NB))


def test_an_iterable_that_is_dropped_is_closed():
    closed = []

    def watched():
        try:
            yield from generator()
        finally:
            closed.append(True)

    sequence = SequenceIterable(watched)
    epoch = iter(sequence)
    next(epoch)
    sequence.close()
    assert closed == [True]
