"""A position saved anywhere in an epoch leads back there: one test for every kind of chain, at every position."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections import Counter

import blosc2
import cloudpickle
import numpy as np
import pytest
from torch.utils.data import DataLoader

from trw_pipeline.sequences.adaptor_torch import SequenceAdaptorTorch
from trw_pipeline.sequences.samplers import (
    Sampler,
    SamplerClassResampling,
    SamplerRandom,
    SamplerSequential,
    SamplerSubsetRandom,
)
from trw_pipeline.sequences.sequence import SequenceArray, SequenceDataset, SequenceIterable, SequenceShard

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # so that workers need not import this file
SEED = 11
NB = 13
THREADS = {"nb_workers": 2, "backend": "thread"}
PROCESSES = {"nb_workers": 2}


class SamplerBackwards(Sampler):
    """A user's own, as documented: `initializer(data_source)`, and the global generator of NumPy."""

    def initializer(self, data_source):
        self.order = np.random.permutation(len(data_source["x"]))[::-1]

    def __iter__(self):
        return iter(self.order.tolist())

    def __len__(self):
        return len(self.order)


def array(sampler=None, **options):
    split = {"x": np.arange(NB), "target": np.arange(NB) % 3, "name": "numbers"}
    return SequenceArray(split, SamplerRandom() if sampler is None else sampler, **options).with_seed(SEED)


def other(nb=NB, sampler=None, uid_name=None):
    split = {"x": np.arange(100, 100 + nb)}
    sampler = SamplerRandom() if sampler is None else sampler
    return SequenceArray(split, sampler, sample_uid_name=uid_name).with_seed(SEED)


def renamed(batch):
    return {"y": batch["x"]}


def stored():
    return SequenceArray({"x": blosc2.asarray(np.arange(NB), chunks=(4,))}, SamplerRandom(batch_size=3)).with_seed(SEED)


def listed():
    return [{"x": np.int64(i), "target": i % 3} for i in range(NB)]


def dataset(**options):
    return SequenceDataset(listed(), **options).with_seed(SEED)


def drawn():
    """Samples that are drawn from the global generator as they come."""
    for i in range(NB):
        yield {"x": np.int64(i), "noise": np.random.rand()}


def loader():
    return SequenceAdaptorTorch(DataLoader(listed(), batch_size=2, shuffle=True)).with_seed(SEED)


def tenfold(batch, rng):
    return {"x": batch["x"] * 10, "noise": rng.random(1), "sample_uid": batch["sample_uid"]}


def uneven(batch, rng):
    time.sleep(float(rng.uniform(0, 0.003)))
    return {"x": batch["x"], "sample_uid": batch["sample_uid"]}


def several(batch):
    """0, 1, 2 or 3 items."""
    return [{"x": batch["x"] * 10 + i} for i in range(int(batch["x"][0]) % 4)]


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


def noisy(batch, rng):
    return {**batch, "x": batch["x"] + rng.integers(1000)}


def twice(sequence):
    return sequence.mix(sequence)


def rebatch_zip(sequence):
    return sequence.map(tenfold_x).zip(sequence.map(renamed)).rebatch(4)


IN_ORDER = {
    "array sequential": lambda: array(SamplerSequential(batch_size=2)),
    "array random": lambda: array(SamplerRandom(batch_size=3)),
    "array with replacement": lambda: array(SamplerRandom(replacement=True, nb_samples_to_generate=9)),
    "array subset": lambda: array(SamplerSubsetRandom([3, 4, 5, 9])),
    "array classes": lambda: array(SamplerClassResampling("target", 12)),
    "array own sampler": lambda: array(SamplerBackwards()),
    "array with transforms": lambda: array(transforms=[noisy, noisy]),
    "array stored": stored,
    "dataset inline": dataset,
    "dataset threads": lambda: dataset(**THREADS),
    "dataset processes": lambda: dataset(**PROCESSES),
    "iterable": lambda: SequenceIterable(drawn).with_seed(SEED),
    "map over iterable": lambda: SequenceIterable(drawn).with_seed(SEED).map(several, **THREADS),
    "batch over iterable": lambda: SequenceIterable(drawn).with_seed(SEED).batch(3),
    "loader": loader,
    "map over loader": lambda: loader().map(split_rows, **THREADS),
    "map inline": lambda: array().map(tenfold),
    "map threads": lambda: array().map(tenfold, **THREADS),
    "map processes": lambda: array().map(tenfold, **PROCESSES),
    "map to lists inline": lambda: array().map(several),
    "map to lists threads": lambda: array().map(several, **THREADS),
    "map with preprocess": lambda: array().map(
        several, preprocess_fn=lambda item, source: {"x": item["x"] + 1}, collate_fn=lambda item, source: item
    ),
    "batch": lambda: array().batch(4),
    "batch of the full only": lambda: array().batch(4, discard_batch_not_full=True),
    "rebatch": lambda: array(SamplerRandom(batch_size=3)).rebatch(4),
    "rebatch smaller": lambda: array(SamplerRandom(batch_size=5)).rebatch(2),
    "sub_batch": lambda: array(SamplerRandom(batch_size=5)).sub_batch(2),
    "max_samples": lambda: array(SamplerRandom(batch_size=3)).max_samples(7),
    "collate": lambda: array(SamplerRandom(batch_size=2)).collate(),
    "shard": lambda: array(SamplerRandom(batch_size=2)).shard(1, 2),
    "map over shard": lambda: array().shard(0, 2, remainder="pad").map(tenfold, **THREADS).batch(2),
    "shard of items": lambda: SequenceShard(array().map(several, **THREADS), 1, 3, remainder="drop"),
    "map over lists over map": lambda: array().map(several, **THREADS).map(tenfold_x, **THREADS),
    "map over batch over map": lambda: array().map(uneven, **THREADS).batch(3).map(split_rows, **THREADS),
    "rebatch over map over sub_batch": lambda: (
        array(SamplerRandom(batch_size=5)).sub_batch(2).map(tenfold_x, **THREADS).rebatch(3)
    ),
    "skip": lambda: array().map(odd_fails, on_error="skip", **THREADS),
    "prefetch": lambda: array(SamplerRandom(batch_size=2)).prefetch(3),
    "prefetch over map": lambda: array().map(several, **THREADS).prefetch(2),
    "prefetch under map": lambda: array().map(tenfold).prefetch(2).map(several, **THREADS),
    "prefetch twice": lambda: array().map(tenfold, **PROCESSES).prefetch(2).rebatch(3).prefetch(1),
    "max_samples over prefetch": lambda: array(SamplerRandom(batch_size=3)).prefetch(2).max_samples(7),
    "shuffle": lambda: array().shuffle(4),
    "shuffle of one": lambda: array().shuffle(1),
    "shuffle of all": lambda: array(SamplerSequential()).shuffle(99),
    "shuffle over map to lists": lambda: array().map(several, **THREADS).shuffle(5),
    "map over shuffle over shuffle": lambda: array().shuffle(3).shuffle(4).map(tenfold, **THREADS),
    "cache": lambda: array().map(several, **THREADS).cache().map(tenfold_x, **THREADS),
    "cache, compressed": lambda: array().map(tenfold_x).cache(compression="lz4").batch(4),
    "cache of few": lambda: array(SamplerRandom(replacement=True)).map(several, **THREADS).cache(max_bytes=900),
    "cache, skip": lambda: array().map(odd_fails, on_error="skip", **THREADS).cache(),
    "zip": lambda: array().zip(other().map(renamed, **THREADS)),
    "zip of one source with itself": lambda: rebatch_zip(array(SamplerRandom(batch_size=3)).map(tenfold, **THREADS)),
    "zip of the shortest": lambda: array().zip(other(5).map(renamed, **THREADS), strict=False),
    "mix": lambda: array().map(tenfold, **THREADS).mix(other(5), other(2).map(several, **THREADS), weights=[3, 2, 1]),
    "mix of one source with itself": lambda: twice(array().map(tenfold, **THREADS)),
    "mix to the first end": lambda: array().mix(other(5).map(tenfold_x, **THREADS), end="first"),
    "mix with repetition": lambda: array().mix(other(3).map(several, **THREADS), end="repeat").shuffle(4),
    "mix over mix over zip": lambda: (
        other().mix(other().mix(other(4)).zip(other(NB + 4).map(renamed)).map(tenfold_x, **THREADS)).batch(3)
    ),
    "mix of max_samples": lambda: array(SamplerRandom(batch_size=3)).max_samples(7).mix(other(4)),
}


IN_ANY_ORDER = {
    "map": lambda: array().map(uneven, in_order=False, **THREADS),
    "map processes": lambda: array().map(uneven, in_order=False, **PROCESSES),
    "dataset": lambda: dataset(in_order=False, **THREADS),
    "map over iterable": lambda: SequenceIterable(listed()).map(split_rows, in_order=False, **THREADS),
    "map to lists": lambda: array().map(several, in_order=False, **THREADS),
    "lists over lists": lambda: (
        array().map(several, in_order=False, **THREADS).map(split_rows, in_order=False, **THREADS)
    ),
    "map in order over it": lambda: array().map(uneven, in_order=False, **THREADS).map(several, **THREADS),
    "map over shard": lambda: array().shard(1, 2).map(uneven, in_order=False, **THREADS),
    "skip": lambda: array().map(odd_fails, on_error="skip", in_order=False, **THREADS),
    "batch": lambda: array().map(uneven, in_order=False, **THREADS).batch(3),
    "prefetch": lambda: array().map(uneven, in_order=False, **THREADS).prefetch(2),
    "prefetch under map": lambda: array().map(uneven, in_order=False, **THREADS).prefetch(2).map(several, **THREADS),
    "rebatch": lambda: array(SamplerRandom(batch_size=3)).map(uneven, in_order=False, **THREADS).rebatch(4),
    "sub_batch": lambda: array(SamplerRandom(batch_size=5)).map(uneven, in_order=False, **THREADS).sub_batch(2),
    "map in order over batch": lambda: (
        array().map(uneven, in_order=False, **THREADS).batch(3).map(split_rows, **THREADS)
    ),
    "map over batch": lambda: (
        array().map(uneven, in_order=False, **THREADS).batch(3).map(split_rows, in_order=False, **THREADS)
    ),
    "cache": lambda: array(SamplerRandom(replacement=True)).map(split_rows, in_order=False, **THREADS).cache(),
    "shuffle": lambda: array().map(uneven, in_order=False, **THREADS).shuffle(4),
    "map over shuffle": lambda: array().map(uneven, in_order=False, **THREADS).shuffle(4).map(several, **THREADS),
    "mix": lambda: array().map(uneven, in_order=False, **THREADS).mix(other(5)).map(several, **THREADS),
    "mix with repetition": lambda: other(4).mix(array().map(uneven, in_order=False, **THREADS), end="repeat"),
    "zip": lambda: array().map(uneven, in_order=False, **THREADS).zip(other().map(renamed)).map(several, **THREADS),
    "map over batch with preprocess": lambda: (
        array()
        .map(uneven, in_order=False, **THREADS)
        .batch(3)
        .map(split_rows, in_order=False, preprocess_fn=lambda item, source: {"x": item["x"] + 100}, **THREADS)
    ),
    "map over map over sub_batch": lambda: (
        array(SamplerRandom(batch_size=5))
        .map(uneven, in_order=False, **THREADS)
        .sub_batch(2)
        .map(tenfold_x, in_order=False, **THREADS)
        .map(split_rows, in_order=False, **THREADS)
    ),
}


RENEWED = {"deterministic": True, "max_reservoir_replacement_size": 4, "max_jobs_at_once": 3}
IN_ORDER |= {
    "reservoir inline": lambda: array().async_reservoir(8, noisy, 6, backend="inline", **RENEWED).collate(),
    "reservoir threads": lambda: (
        array().async_reservoir(8, uneven, 7, reservoir_sampler=SamplerRandom(), **RENEWED, **THREADS).collate()
    ),
    "reservoir processes, most served first": lambda: (
        array()
        .async_reservoir(8, noisy, 8, compression="lz4", replace_policy="most_served", **RENEWED, **PROCESSES)
        .collate()
    ),
    "reservoir with a maximum": lambda: (
        array()
        .async_reservoir(
            6,
            noisy,
            6,
            reservoir_sampler=SamplerRandom(batch_size=2),
            maximum_number_of_samples_per_epoch=5,
            **RENEWED,
            **THREADS,
        )
        .collate()
    ),
    "map over reservoir over map": lambda: (
        array().map(uneven, **THREADS).async_reservoir(6, noisy, 5, **RENEWED, **THREADS).collate().map(tenfold_x)
    ),
    "reservoir over reservoir": lambda: (
        array()
        .async_reservoir(4, noisy, 4, **RENEWED, **THREADS)
        .collate()
        .async_reservoir(7, noisy, 6, **RENEWED, **THREADS)
        .collate()
    ),
}


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


chains_in_order = pytest.mark.parametrize("make", IN_ORDER.values(), ids=IN_ORDER.keys())
chains_in_any_order = pytest.mark.parametrize("make", IN_ANY_ORDER.values(), ids=IN_ANY_ORDER.keys())


every_chain = pytest.mark.parametrize(
    "make",
    [*IN_ORDER.values(), *IN_ANY_ORDER.values()],
    ids=[*(f"{name}, in order" for name in IN_ORDER), *(f"{name}, in any order" for name in IN_ANY_ORDER)],
)


@pytest.fixture
def opened():
    """Closes the chains that are handed to it when the test ends."""
    with contextlib.ExitStack() as stack:
        yield stack.enter_context


@pytest.mark.slow
@chains_in_order
def test_the_rest_is_the_same_from_every_position(make, opened):
    sequence, same, new = opened(make()), opened(make()), opened(make())
    whole = rest_of(opened(make()))
    assert len(whole) > 2
    for seen, state in positions_of(sequence):
        expected = whole[len(seen) :]
        state = through_json(state)
        same.load_state_dict(state)
        assert rest_of(same) == expected
        new.load_state_dict(state)
        assert rest_of(new) == expected


@pytest.mark.slow
@chains_in_any_order
def test_the_rest_is_the_same_multiset_from_every_position(make, opened):
    sequence, new = opened(make()), opened(make())
    whole = samples(opened(make()))
    for seen, state in positions_of(sequence):
        new.load_state_dict(state)
        assert samples(seen) + samples(new) == whole


@pytest.mark.slow
@every_chain
def test_iteration_does_not_change_a_state(make, opened):
    sequence = opened(make())
    kept = [(state, repr(state)) for _, state in positions_of(sequence)]
    assert all(repr(state) == before for state, before in kept)


@pytest.mark.slow
@chains_in_order
def test_a_restored_epoch_can_be_saved_again_at_every_position(make, opened):
    sequence, first, second = opened(make()), opened(make()), opened(make())
    whole = rest_of(opened(make()))
    iterator = iter(sequence)
    next(iterator)
    first.load_state_dict(sequence.state_dict())
    for seen, state in positions_of(first):
        second.load_state_dict(through_json(state))
        assert rest_of(second) == whole[1 + len(seen) :]


@pytest.mark.slow
@chains_in_any_order
def test_a_restored_epoch_in_any_order_can_be_saved_again_at_every_position(make, opened):
    sequence, first, second = opened(make()), opened(make()), opened(make())
    whole = samples(opened(make()))
    once = [next(iter(sequence))]
    first.load_state_dict(sequence.state_dict())
    for seen, state in positions_of(first):
        second.load_state_dict(state)
        assert samples(once) + samples(seen) + samples(second) == whole


@pytest.mark.slow
@chains_in_order
def test_the_state_at_the_end_of_an_epoch_starts_the_next(make, opened):
    sequence, new = opened(make()), opened(make())
    for _ in sequence:
        pass
    new.load_state_dict(through_json(sequence.state_dict()))
    assert rest_of(new) == rest_of(sequence)


@chains_in_order
def test_an_iterator_gives_its_position_too(make, opened):
    sequence, new = opened(make()), opened(make())
    iterator, restored = iter(sequence), iter(new)
    next(iterator)
    restored.load_state_dict(through_json(iterator.state_dict()))
    assert rest_of(restored) == rest_of(iterator)


@pytest.mark.slow
@every_chain
def test_a_mark_stays_the_position_where_it_was_taken(make, opened):
    iterator = iter(opened(make()))
    marks, positions = [], []
    while True:
        marks.append(iterator.mark())
        positions.append(repr(iterator.state_dict()))
        if next(iterator, None) is None:
            break
    assert [repr(iterator.position_at(mark)) for mark in marks] == positions


@pytest.mark.slow
@every_chain
def test_a_mark_outlives_a_restart(make, opened):
    """What was delivered before the restart is passed over while the epoch goes on; a mark must not forget it."""
    sequence, new = opened(make()), opened(make())
    iterator = iter(sequence)
    next(iterator), next(iterator)
    new.load_state_dict(sequence.state_dict())
    restored = iter(new)
    mark, position = restored.mark(), repr(restored.state_dict())
    rest_of(restored)
    assert repr(restored.position_at(mark)) == position


@pytest.mark.slow
@every_chain
def test_a_closed_epoch_keeps_its_position(make, opened):
    """Whoever gives up an epoch may still save where it was."""
    sequence, new = opened(make()), opened(make())
    whole = samples(opened(make()))
    iterator = iter(sequence)
    seen = [next(iterator), next(iterator)]
    iterator.close()
    new.load_state_dict(sequence.state_dict())
    assert samples(seen) + samples(new) == whole
