"""The position of a reservoir: what it holds, and that a run which was killed goes on as if nothing had happened."""

from __future__ import annotations

import contextlib
import json
import sys
import time

import cloudpickle
import numpy as np
import pytest

from trw_pipeline.errors import CheckpointError, JobError
from trw_pipeline.sequences.samplers import SamplerRandom
from trw_pipeline.sequences.sequence import SequenceArray

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # so that workers need not import this file
SEED = 11
THREADS = {"nb_workers": 2, "backend": "thread"}
RENEWED = {"deterministic": True, "max_reservoir_replacement_size": 4}


def array(nb=15):
    uids = [f"patient {i}" for i in range(nb)]
    return SequenceArray({"x": np.arange(nb), "sample_uid": uids}, SamplerRandom()).with_seed(SEED)


def noisy(batch, rng):
    time.sleep(float(rng.uniform(0, 0.002)))
    return {**batch, "noise": rng.random(1)}


def plain(item):
    return str([{name: np.asarray(value).tolist() for name, value in one.items()} for one in item])


def rest_of(iterator):
    return [plain(item) for item in iterator]


def through_json(state):
    return json.loads(json.dumps(state))


@pytest.fixture
def opened():
    """Closes the chains that are handed to it when the test ends."""
    with contextlib.ExitStack() as stack:
        yield stack.enter_context


def chain(**options):
    options = {**THREADS, **RENEWED, "reservoir_sampler": SamplerRandom(), **options}
    return array().async_reservoir(7, noisy, 6, **options)


def two_reservoirs():
    below = array().async_reservoir(5, noisy, 5, **THREADS, **RENEWED).batch(2)
    return below.async_reservoir(6, noisy, 5, **THREADS, **RENEWED)


CHAINS = {
    "random": chain,
    "most served": lambda: chain(replace_policy="most_served"),
    "compressed": lambda: chain(compression="zstd"),
    "inline": lambda: chain(backend="inline"),
    "processes": lambda: chain(backend="process"),
    "bounded by bytes": lambda: chain(max_reservoir_bytes=2500),
    "over map": lambda: array().map(noisy, **THREADS).async_reservoir(7, noisy, 6, **THREADS, **RENEWED),
    "twice": two_reservoirs,
}
every_chain = pytest.mark.parametrize("make", CHAINS.values(), ids=CHAINS.keys())


@pytest.mark.slow
@every_chain
@pytest.mark.parametrize("nb_epochs", [0, 1, 4])
@pytest.mark.parametrize("nb_items", [0, 3, 99])
def test_a_resumed_run_equals_the_uninterrupted_one(make, nb_epochs, nb_items, opened):
    """Through this epoch and the next four, where other jobs enter and leave; wherever it was saved."""
    run, resumed = opened(make()), opened(make())
    for _ in range(nb_epochs):
        rest_of(run)
    iterator = iter(run)
    for _ in zip(range(nb_items), iterator, strict=False):
        pass
    if nb_items == 99:
        assert next(iterator, None) is None
    resumed.load_state_dict(through_json(run.state_dict()))
    rest = [] if nb_items == 99 else [rest_of(iterator)]
    expected = [*rest, *(rest_of(run) for _ in range(4))]
    assert [rest_of(resumed) for _ in range(len(expected))] == expected


@pytest.mark.slow
def test_a_resumed_run_can_be_saved_and_resumed_again(opened):
    run = opened(chain())
    for _ in range(3):
        rest_of(run)
    expected = [rest_of(run) for _ in range(5)]
    again, found = opened(chain()), []
    for _ in range(3):
        rest_of(again)
    for epoch in range(5):
        iterator = iter(again)
        found.append([plain(next(iterator)) for _ in range(epoch)])
        resumed = opened(chain())
        resumed.load_state_dict(through_json(again.state_dict()))
        found[-1] += rest_of(resumed)
        again = resumed
    assert found == expected


def test_a_state_names_what_is_held_and_has_no_sample_in_it(opened):
    sequence = opened(chain())
    rest_of(sequence)
    iterator = iter(sequence)
    uids = [next(iterator)[0]["sample_uid"][0] for _ in range(3)]
    state = through_json(sequence.state_dict())["position"]
    held = [entry for group in state["reservoir"]["entries"] for entry in group["entries"]]
    assert len(held) == 7
    assert set(held[0]) == {"key", "uid", "served", "age"}
    assert set(uids) <= {entry["uid"] for entry in held}
    assert sorted(entry["age"] for entry in held) == list(range(7))
    assert sum(entry["served"] for entry in held) >= 3 + 3  # three that were there in the first epoch, three draws
    assert (state["begun"], state["count"], state["drawn"]) == (True, 3, 3)
    assert "noise" not in json.dumps(state)


def test_entries_that_lie_close_share_the_place_where_the_source_is_opened(opened):
    sequence = opened(chain())
    rest_of(sequence)
    assert len(sequence.state_dict()["held"][0]["entries"]) == 1


def test_a_state_stays_as_it_is_while_iteration_goes_on(opened):
    sequence = opened(chain())
    next(iter(sequence))
    state = sequence.state_dict()
    before = repr(state)
    for _ in range(3):
        rest_of(sequence)
    assert repr(state) == before


def test_without_deterministic_the_epoch_goes_on_and_the_rest_is_refilled(opened):
    """What enters later depends on speed; what was held, and the order of the epoch, does not."""
    make = lambda: array().async_reservoir(8, noisy, 8, reservoir_sampler=SamplerRandom(), **THREADS)  # noqa: E731
    run, resumed = opened(make()), opened(make())
    for _ in range(4):
        rest_of(run)
    iterator = iter(run)
    next(iterator), next(iterator)
    resumed.load_state_dict(through_json(run.state_dict()))
    expected = rest_of(iterator)
    assert rest_of(resumed) == expected
    assert len(rest_of(resumed)) == 8


def test_a_continuous_one_is_refilled_with_what_it_held_first(opened):
    make = lambda: array().async_reservoir(8, noisy, 8, replacement="continuous", **THREADS)  # noqa: E731
    run, resumed = opened(make()), opened(make())
    for _ in range(4):
        iterator = iter(run)
        next(iterator)
    state = through_json(run.state_dict())
    held = [entry["uid"] for group in state["position"]["reservoir"]["entries"] for entry in group["entries"]]
    assert len(held) == 8
    resumed.load_state_dict(state)
    assert len(rest_of(resumed)) == 7
    assert resumed._reservoir.entries._next_number >= 8
    assert len(rest_of(resumed)) == 8


def test_results_are_made_again_and_no_others(opened):
    calls = []

    def count(batch):
        calls.append(batch["sample_uid"][0])
        return batch

    def make():
        return array(100).async_reservoir(6, count, 6, **RENEWED, backend="inline")

    run, resumed = opened(make()), opened(make())
    for _ in range(5):
        rest_of(run)
    iterator = iter(run)
    held = {plain(next(iterator)) for _ in range(6)}
    state = run.state_dict()
    calls.clear()
    resumed.load_state_dict(state)
    assert rest_of(resumed) == []
    assert len(calls) <= 6 + 1
    assert len(held) == 6


def test_a_source_that_has_not_the_sample_any_more_is_an_error(opened):
    run = opened(chain())
    next(iter(run))
    state = through_json(run.state_dict())
    other = SequenceArray({"x": np.arange(15), "sample_uid": [f"other {i}" for i in range(15)]}, SamplerRandom())
    resumed = opened(other.async_reservoir(7, noisy, 6, **THREADS, **RENEWED, reservoir_sampler=SamplerRandom()))
    resumed.load_state_dict(state)
    with pytest.raises(CheckpointError, match=r"gives sample 'other \d+' where the state has 'patient \d+'"):
        next(iter(resumed))


def test_a_job_that_fails_when_it_is_made_again_is_raised(opened):
    state_of = opened(chain(backend="inline"))
    next(iter(state_of))

    def fails(batch):
        raise ValueError("bad header")

    resumed = opened(array().async_reservoir(7, fails, 6, **RENEWED, backend="inline"))
    resumed.load_state_dict(through_json(state_of.state_dict()))
    with pytest.raises(JobError, match="bad header"):
        next(iter(resumed))


@pytest.mark.parametrize(
    "damage",
    [
        lambda state: state.pop("reservoir"),
        lambda state: state["reservoir"].pop("entries"),
        lambda state: state["reservoir"].update(seed="x"),
        lambda state: state["reservoir"]["entries"][0].pop("source"),
        lambda state: state["reservoir"]["entries"][0]["entries"][0].update(key=5),
        lambda state: state["reservoir"]["after"].pop("pass"),
        lambda state: state.update(count=None),
    ],
)
def test_a_damaged_state_is_refused(damage, opened):
    run, resumed = opened(chain(backend="inline")), opened(chain(backend="inline"))
    next(iter(run))
    state = through_json(run.state_dict())
    damage(state["position"])
    state["held"] = [None] * len(state["held"])
    resumed.load_state_dict(state)
    with pytest.raises(CheckpointError, match="damaged"):
        next(iter(resumed))
