"""The documented cursor of a sequence, and the queues that it lets be filled by hand."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from trw_pipeline.errors import WouldBlock
from trw_pipeline.sequences.samplers import SamplerSequential
from trw_pipeline.sequences.sequence import Sequence, SequenceArray

THREADS = {"nb_workers": 2, "backend": "thread"}


def array(nb=6):
    return SequenceArray({"x": np.arange(nb)}, SamplerSequential())


def number(item):
    return int(item["x"][0])


class Gate:
    """A function that waits until it is opened, and tells how many jobs have begun."""

    def __init__(self):
        self.open = threading.Event()
        self.begun = threading.Semaphore(0)

    def __call__(self, batch):
        self.begun.release()
        self.open.wait(20)
        return batch

    def wait_for(self, nb_jobs, fill):
        """Fills by hand until so many jobs have begun: nothing moves in the background by itself."""
        for _ in range(nb_jobs):
            while not self.begun.acquire(timeout=0.001):
                fill()


@pytest.fixture
def gate():
    made = Gate()
    yield made
    made.open.set()


def test_next_advances_the_cursor_and_begins_another_epoch_at_its_end():
    sequence = array(3).map(lambda batch: batch)
    assert [number(next(sequence)) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(StopIteration):
        next(sequence)
    assert number(next(sequence)) == 0


def test_initializer_begins_a_new_epoch():
    sequence = array(3).batch(1)
    next(sequence)
    sequence.initializer()
    assert number(next(sequence)) == 0


def test_the_cursor_and_an_iterator_do_not_disturb_each_other():
    sequence = array(3).map(lambda batch: batch)
    iterator = iter(sequence)
    assert [number(next(one)) for one in (sequence, iterator, sequence, iterator)] == [0, 0, 1, 1]


def test_the_cursor_works_on_a_users_own_sequence():
    class Own(Sequence):
        def __iter__(self):
            return iter([{"x": [7]}, {"x": [8]}])

    sequence = Own()
    assert [number(sequence.next_item(blocking=True)) for _ in range(2)] == [7, 8]
    assert sequence.has_background_jobs() is False
    assert sequence.has_background_jobs_previous_sequences() == 0


def test_without_waiting_what_is_not_ready_would_block(gate):
    with array(2).map(gate, **THREADS) as sequence:
        with pytest.raises(WouldBlock):
            sequence.next_item(blocking=False)
        gate.open.set()
        assert [number(sequence.next_item(blocking=True)) for _ in range(2)] == [0, 1]
        with pytest.raises(StopIteration):
            sequence.next_item(blocking=False)


def test_without_waiting_every_item_comes_sooner_or_later():
    with array(20).map(lambda batch: batch, **THREADS).batch(3).map(lambda batch: batch, **THREADS) as sequence:
        iterator = iter(sequence)
        found = []
        while True:
            try:
                found += iterator.next_item(blocking=False)["x"].tolist()
            except WouldBlock:
                continue
            except StopIteration:
                break
    assert found == list(range(20))


def test_without_workers_nothing_would_block():
    iterator = iter(array(2).map(lambda batch: batch).batch(2))
    assert iterator.next_item(blocking=False)["x"].tolist() == [0, 1]


def test_fill_queue_sends_jobs_as_far_as_there_is_room(gate):
    with array(9).map(gate, max_jobs_at_once=3, **THREADS) as sequence:
        assert not sequence.has_background_jobs()
        gate.wait_for(2, sequence.fill_queue)
        assert sequence.has_background_jobs()
        assert sequence.statistics()["1:Gate"]["jobs_in_flight"] == 3
        gate.open.set()
        sequence.fill_queue()
        assert [number(next(sequence)) for _ in range(9)] == list(range(9))
        assert not sequence.has_background_jobs()


def test_fill_queue_is_for_this_stage_alone():
    with array().map(lambda batch: batch, name="load", **THREADS).collate() as sequence:
        sequence.fill_queue()
        assert sequence.statistics()["1:load"]["jobs_in_flight"] == 0


def test_fill_queue_all_sequences_sends_jobs_in_every_stage(gate):
    chain = array(9).map(gate, max_jobs_at_once=2, name="first", **THREADS).collate()
    with chain.map(lambda batch: batch, name="second", **THREADS).collate() as sequence:
        gate.wait_for(2, sequence.fill_queue_all_sequences)
        assert sequence.has_background_jobs_previous_sequences() == 1
        gate.open.set()
        while sequence.has_background_jobs_previous_sequences() < 2:
            sequence.fill_queue_all_sequences()
        assert not sequence.has_background_jobs()
        assert [number(next(sequence)) for _ in range(9)] == list(range(9))


def test_stages_under_a_reservoir_are_counted_too(gate):
    chain = array(9).map(gate, max_jobs_at_once=2, **THREADS)
    with chain.async_reservoir(3, lambda batch: batch, **THREADS).collate() as sequence:
        gate.wait_for(2, sequence.fill_queue_all_sequences)
        assert sequence.has_background_jobs_previous_sequences() == 1
        gate.open.set()
        while sequence.has_background_jobs_previous_sequences() < 2:
            sequence.fill_queue_all_sequences()


def test_filling_by_hand_is_bounded(gate):
    with array(50).async_reservoir(5, gate, max_jobs_at_once=2, **THREADS) as sequence:
        for _ in range(20):
            sequence.fill_queue()
        assert sequence.statistics()["1:Gate"]["jobs_in_flight"] == 2
        gate.open.set()


# What an open epoch says of itself


@pytest.mark.parametrize(
    ("chain", "stage"),
    [
        (lambda source: source, "array"),
        (lambda source: source.map(lambda batch: batch), "map"),
        (lambda source: source.batch(1), "batch"),
        (lambda source: source.async_reservoir(4, lambda batch: batch, backend="thread"), "async_reservoir"),
    ],
)
def test_an_iterator_says_its_stage_and_how_far_it_is(chain, stage):
    with chain(SequenceArray({"x": np.arange(2)})) as sequence:
        iterator = iter(sequence)
        assert repr(iterator) == f"<{type(iterator).__name__} of {stage!r}: 0 items given>"
        next(iterator)
        assert repr(iterator) == f"<{type(iterator).__name__} of {stage!r}: 1 items given>"
        list(iterator)
        assert repr(iterator).endswith("items given, over>")
        iterator.close()
        assert repr(iterator).endswith("items given, closed>")
