"""What a saved position holds, and what is refused. That it leads back is a contract of its own."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections import Counter

import numpy as np
import pytest

from trw_pipeline.errors import CheckpointError, JobError
from trw_pipeline.sequences.samplers import SamplerRandom, SamplerSequential
from trw_pipeline.sequences.sequence import Sequence, SequenceArray

SEED = 11
NB = 13
THREADS = {"nb_workers": 2, "backend": "thread"}


def array(sampler=None, **options):
    split = {"x": np.arange(NB)}
    return SequenceArray(split, SamplerRandom() if sampler is None else sampler, **options).with_seed(SEED)


def uneven(batch, rng):
    time.sleep(float(rng.uniform(0, 0.003)))
    return {"x": batch["x"], "sample_uid": batch["sample_uid"]}


def tenfold_x(batch):
    return {"x": batch["x"] * 10}


def tenfold_list(batch):
    return {"x": [10 * x for x in batch["x"]]}


def split_rows(batch):
    return [{"x": batch["x"][i : i + 1]} for i in range(len(batch["x"]))]


def odd_fails(batch):
    if batch["x"][0] % 2:
        raise ValueError("odd")
    return {"x": batch["x"]}


def plain(item):
    """An item as something that can be compared and counted."""
    return tuple(sorted((name, str(np.asarray(value).tolist())) for name, value in item.items()))


def samples(items):
    """How often each sample came, whatever the batches."""
    return Counter(int(x) for item in items for x in item["x"])


def rest_of(iterator):
    return [plain(item) for item in iterator]


def through_json(state):
    return json.loads(json.dumps(state))


def positions_of(sequence):
    """Yields, at every position of an epoch from its start to its end, what was seen before and the state there."""
    iterator = iter(sequence)
    seen = []
    while True:
        yield list(seen), sequence.state_dict()
        try:
            seen.append(next(iterator))
        except StopIteration:
            return


@pytest.fixture
def opened():
    """Closes the chains that are handed to it when the test ends."""
    with contextlib.ExitStack() as stack:
        yield stack.enter_context


def test_a_state_that_was_loaded_can_be_saved_before_iteration():
    sequence = array()
    iterator = iter(sequence)
    next(iterator)
    state = sequence.state_dict()
    new = array()
    new.load_state_dict(state)
    assert new.state_dict() == state


def test_writing_into_items_does_not_change_a_state_that_was_saved_before(opened):
    unordered = array(SamplerRandom(batch_size=5)).map(uneven, in_order=False, **THREADS)
    sequence = opened(unordered.sub_batch(2))
    iterator = iter(sequence)
    next(iterator)
    states = [sequence.state_dict(), iterator.state_dict()]
    before = repr(states)
    for item in iterator:
        item["x"][:] = -1
    assert repr(states) == before


def test_an_iterator_writing_into_its_items_does_not_change_the_state_it_came_from(opened):
    make = lambda: array(SamplerRandom(batch_size=5)).map(uneven, in_order=False, **THREADS).sub_batch(2)  # noqa: E731
    sequence, new = opened(make()), opened(make())
    iterator = iter(sequence)
    next(iterator)
    state = sequence.state_dict()
    before = repr(state)
    new.load_state_dict(state)
    for item in new:
        item["x"][:] = -1
    assert repr(state) == before


@pytest.mark.parametrize("in_order", [True, False])
def test_samples_already_seen_are_not_made_again(opened, in_order):
    def make():
        calls = []

        def count(batch):
            calls.append(int(batch["x"][0]))
            return batch

        return opened(array().map(count, in_order=in_order, max_jobs_at_once=3, **THREADS)), calls

    (sequence, _), (new, calls) = make(), make()
    for seen, state in positions_of(sequence):
        calls.clear()
        new.load_state_dict(state)
        list(new)
        assert len(calls) == NB - len(seen)


@pytest.mark.parametrize(
    "make",
    [
        lambda: array(SamplerRandom(batch_size=2)).map(tenfold_x, **THREADS).max_samples(5),
        lambda: array(SamplerRandom(batch_size=2)).max_samples(5).map(tenfold_x, **THREADS),
        lambda: array(SamplerRandom(batch_size=2)).map(tenfold_x, **THREADS).prefetch(2).max_samples(5),
    ],
    ids=["last", "first", "over prefetch"],
)
def test_epochs_of_max_samples_go_on_from_every_position(make, opened):
    """13 samples in epochs of 5: what is left of a pass is part of the state, at the end of an epoch too."""
    whole = [rest_of(sequence) for sequence in [opened(make())] for _ in range(7)]
    sequence, new = opened(make()), opened(make())
    for epoch in range(6):
        for seen, state in positions_of(sequence):
            new.load_state_dict(through_json(state))
            assert rest_of(new) == whole[epoch][len(seen) :]
            assert rest_of(new) == whole[epoch + 1]


def test_a_position_takes_the_place_of_what_the_epoch_before_left(opened):
    def make():
        return opened(array(SamplerRandom(batch_size=2)).map(uneven, **THREADS).max_samples(5))

    sequence, new = make(), make()
    iterator = iter(sequence)
    next(iterator)
    list(new)
    restored = iter(new)
    restored.load_state_dict(iterator.state_dict())
    assert rest_of(restored) == rest_of(iterator)
    assert rest_of(new) == rest_of(sequence)


@pytest.mark.slow
def test_the_rest_of_max_samples_in_any_order_holds_no_sample_twice(opened):
    make = lambda: array(SamplerRandom(batch_size=2)).map(uneven, in_order=False, **THREADS).max_samples(7)  # noqa: E731
    sequence, new = opened(make()), opened(make())
    for seen, state in positions_of(sequence):
        new.load_state_dict(state)
        both = samples(seen) + samples(new)
        assert (both.total(), max(both.values())) == (7, 1)


def test_the_rest_of_a_batch_survives_when_another_batch_comes_first(opened):
    """The race staged: a batch is half read, and after the restart a batch that was slow before comes first."""
    gate = threading.Event()

    def slow_at_first(batch):
        if batch["x"][0] == 0:
            gate.wait(20)
        return batch

    make = lambda: array(SamplerSequential(batch_size=4)).map(slow_at_first, in_order=False, **THREADS)  # noqa: E731
    sequence, new = opened(make().rebatch(3)), opened(make().rebatch(3))
    iterator = iter(sequence)
    seen = [next(iterator)]
    state = sequence.state_dict()
    gate.set()
    new.load_state_dict(state)
    assert seen[0]["x"].tolist() == [4, 5, 6]
    assert samples(seen) + samples(new) == Counter(range(NB))


def test_elements_of_a_list_survive_when_items_are_grouped_otherwise(opened):
    """The race staged: a list made of a group is half read, and after the restart the groups are others."""
    gate = threading.Event()

    def slow_at_first(batch):
        if batch["x"][0] == 0:
            gate.wait(20)
        return batch

    def make():
        unordered = array(SamplerSequential()).map(slow_at_first, in_order=False, **THREADS)
        return opened(unordered.batch(2).map(split_rows, **THREADS))

    sequence, new = make(), make()
    iterator = iter(sequence)
    seen = [next(iterator)]
    state = sequence.state_dict()
    gate.set()
    new.load_state_dict(state)
    assert samples(seen) + samples(new) == Counter(range(NB))


def test_an_error_on_its_way_is_raised_after_the_restart_too(opened):
    """The first stage has failed at sample 3 while sample 0 is being delivered."""

    def fails_at_3(batch):
        if batch["x"][0] == 3:
            raise ValueError("three")
        return batch

    make = lambda: array(SamplerSequential()).map(fails_at_3).map(tenfold_x, max_jobs_at_once=8, **THREADS)  # noqa: E731
    sequence, new = opened(make()), opened(make())
    iterator = iter(sequence)
    assert [int(next(iterator)["x"][0]) for _ in range(3)] == [0, 10, 20]
    new.load_state_dict(sequence.state_dict())
    with pytest.raises(JobError, match="three"):
        next(iter(new))


def test_failures_of_before_the_restart_are_reported_at_its_end(opened, caplog):
    make = lambda: array(SamplerSequential()).map(odd_fails, on_error="skip")  # noqa: E731
    sequence, new = opened(make()), opened(make())
    iterator = iter(sequence)
    assert [int(next(iterator)["x"][0]) for _ in range(4)] == [0, 2, 4, 6]
    new.load_state_dict(through_json(sequence.state_dict()))
    list(new)
    assert [failure.uid for failure in new.failures] == [1, 3, 5, 7, 9, 11]
    assert "skipped 6 of 13 jobs" in caplog.text


def test_the_epoch_that_was_saved_is_kept_by_set_epoch():
    sequence = array()
    sequence.set_epoch(4)
    iterator = iter(sequence)
    next(iterator)
    new = array()
    new.load_state_dict(sequence.state_dict())
    new.set_epoch(4)
    assert rest_of(new) == rest_of(iterator)


def test_another_epoch_gives_up_the_position_that_was_loaded():
    sequence = array()
    next(iter(sequence))
    new, fresh = array(), array()
    new.load_state_dict(sequence.state_dict())
    new.set_epoch(5)
    fresh.set_epoch(5)
    assert rest_of(new) == rest_of(fresh)


def test_a_state_carries_the_seed():
    sequence = SequenceArray({"x": np.arange(NB)})
    new = SequenceArray({"x": np.arange(NB)})
    new.load_state_dict(sequence.state_dict())
    assert rest_of(new) == rest_of(sequence)


@pytest.mark.parametrize(
    "other",
    [
        lambda: array().batch(2),
        lambda: array().map(tenfold_x).batch(2).batch(2),
        lambda: array().rebatch(2),
        lambda: array().collate().batch(2),
    ],
)
def test_a_state_of_another_chain_is_refused(other):
    sequence = array().map(tenfold_x).batch(2)
    next(iter(sequence))
    with pytest.raises(CheckpointError, match="SequenceBatch"):
        other().load_state_dict(sequence.state_dict())


def test_a_state_of_another_number_of_samples_is_refused():
    sequence = array()
    next(iter(sequence))
    other = SequenceArray({"x": np.arange(NB + 1)})
    other.load_state_dict(sequence.state_dict())
    with pytest.raises(CheckpointError, match="13 samples, here are 14"):
        iter(other)


@pytest.mark.parametrize(
    ("sampler", "found"),
    [(SamplerRandom(batch_size=4), "SamplerRandom, batches of 4"), (SamplerSequential(batch_size=3), "Sequential")],
)
def test_a_state_of_an_epoch_in_other_batches_is_refused(sampler, found):
    """Five batches of three are other samples than five of four: some would be missing, in silence."""
    old = array(SamplerRandom(batch_size=3)).batch(1)
    next(iter(old))
    new = array(sampler).batch(1)
    new.load_state_dict(old.state_dict())
    with pytest.raises(CheckpointError, match=f"SamplerRandom, batches of 3, here it is .*{found}"):
        next(iter(new))


@pytest.mark.parametrize("state", [{}, {"format": 99}, {"model": 1}, [], None])
def test_something_else_than_a_state_is_refused(state):
    with pytest.raises(CheckpointError, match="a state of a sequence"):
        array().load_state_dict(state)


def test_an_iterator_refuses_a_position_of_another_engine():
    state = iter(array()).state_dict()
    with pytest.raises(CheckpointError, match="'batch' was expected, got one of 'array'"):
        iter(array().batch(2)).load_state_dict(state)


class Plain(Sequence):
    """A user's own, which can not tell its position."""

    def __iter__(self):
        return iter([{"x": [i]} for i in range(4)])


@pytest.mark.parametrize(
    "make",
    [
        lambda: Plain().map(tenfold_list),
        lambda: Plain().batch(2),
        lambda: Plain().rebatch(2),
        lambda: Plain().sub_batch(2),
        lambda: Plain().max_samples(3),
        lambda: Plain().collate(),
        lambda: Plain().shard(0, 1),
        lambda: Plain().async_reservoir(3, tenfold_x, backend="inline").collate(),
    ],
)
def test_a_chain_that_can_not_tell_its_position_says_so_within_an_epoch(make, opened):
    sequence = opened(make())
    iterator = iter(sequence)
    next(iterator)
    with pytest.raises(TypeError, match="can not be resumed"):
        sequence.state_dict()


def test_a_chain_that_can_not_tell_its_position_starts_the_next_epoch(opened):
    make = lambda: Plain().map(lambda batch, rng: {"x": rng.random(1)})  # noqa: E731
    sequence, new = opened(make()), opened(make())
    list(sequence)
    new.load_state_dict(through_json(sequence.state_dict()))
    assert rest_of(new) == rest_of(sequence)
