"""What every sequence promises: independent epochs, true lengths, an end, no trace in the caller's random numbers."""

from __future__ import annotations

import asyncio
import contextlib
import random

import blosc2
import cloudpickle
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from trw_pipeline.errors import ClosedError
from trw_pipeline.sequences.adaptor_torch import SequenceAdaptorTorch
from trw_pipeline.sequences.samplers import SamplerRandom, SamplerSequential
from trw_pipeline.sequences.sequence import Sequence, SequenceArray, SequenceDataset, SequenceIterable, SequenceShard

NB = 12


class Numbers(Sequence):
    """A user's own sequence, with nothing but `__iter__`."""

    def __iter__(self):
        return iter([{"x": np.array([i]), "id": [f"s{i}"], "sample_uid": np.array([i])} for i in range(NB)])


def array(sampler=None, **options):
    split = {"x": np.arange(NB), "id": [f"s{i}" for i in range(NB)]}
    return SequenceArray(split, SamplerSequential() if sampler is None else sampler, **options).with_seed(5)


def stored():
    split = {"x": blosc2.asarray(np.arange(NB)), "id": [f"s{i}" for i in range(NB)]}
    return SequenceArray(split, SamplerSequential()).with_seed(5)


def samples():
    return [{"x": np.int64(i), "id": f"s{i}"} for i in range(NB)]


def dataset(**options):
    return SequenceDataset(samples(), SamplerSequential(), **options).with_seed(5)


def as_dicts(samples):
    return {"x": torch.tensor([s for s in samples]), "id": [f"s{s}" for s in samples]}


def loader(batch_size=1):
    return DataLoader(range(NB), batch_size=batch_size, collate_fn=as_dicts)


def part(first, last):
    split = {"x": np.arange(first, last), "id": [f"s{i}" for i in range(first, last)]}
    return SequenceArray(split, SamplerSequential()).with_seed(5)


def beside():
    return SequenceArray({"y": np.arange(NB)}, SamplerSequential()).with_seed(5)


def same(batch):
    return batch


THREADS = {"nb_workers": 2, "backend": "thread"}
SEQUENCES = {
    "array": lambda: array(),
    "array, stored": lambda: stored(),
    "array, random": lambda: array(SamplerRandom(batch_size=5)),
    "map, inline": lambda: array().map(same),
    "map, threads": lambda: array().map(same, **THREADS),
    "map, processes": lambda: array().map(lambda batch: batch, nb_workers=2),
    "batch": lambda: array().batch(5),
    "rebatch": lambda: array(SamplerSequential(batch_size=3)).rebatch(5),
    "sub_batch": lambda: array(SamplerSequential(batch_size=5)).sub_batch(2),
    "collate": lambda: array().collate(),
    "adaptor": lambda: SequenceAdaptorTorch(loader()),
    "dataset, inline": lambda: dataset(),
    "dataset, threads": lambda: dataset(**THREADS),
    "iterable": lambda: SequenceIterable(samples()),
    "map over iterable": lambda: SequenceIterable(samples).map(same, **THREADS),
    "user's own": lambda: Numbers(),
    "map over user's own": lambda: Numbers().map(same, **THREADS),
    "max_samples": lambda: array().max_samples(NB),
    "prefetch": lambda: array().prefetch(2),
    "prefetch over and under map": lambda: array().map(same, **THREADS).prefetch(2, "cpu").map(same).prefetch(1),
    "shuffle": lambda: array().shuffle(5),
    "shuffle over user's own": lambda: Numbers().shuffle(NB).with_seed(5),
    "zip": lambda: array().zip(beside().map(same, **THREADS)),
    "mix": lambda: part(0, 8).mix(part(8, NB).map(same, **THREADS), weights=[2, 1]),
    "mix, repeated": lambda: array().mix(end="repeat"),
    "cache": lambda: array().map(same, **THREADS).cache(),
    "cache of few": lambda: array(SamplerRandom()).map(same).cache(max_bytes=1000),
    "shard": lambda: array(SamplerSequential(batch_size=5)).shard(0, 1),
    "shard of items": lambda: SequenceShard(Numbers(), 0, 1),
    "reservoir": lambda: array().async_reservoir(NB, same, NB, backend="inline").collate(),
    "reservoir, continuous": lambda: array().async_reservoir(NB, same, NB, **CONTINUOUS, **THREADS).collate(),
    "reservoir, compressed": lambda: array().async_reservoir(NB, same, NB, compression="lz4", **THREADS).collate(),
}
CONTINUOUS = {"replacement": "continuous"}
ENDLESS = ("reservoir", "reservoir, continuous", "reservoir, compressed")
"""What an epoch of a reservoir holds depends on the epochs before."""


OF_USERS = ("user's own", "map over user's own", "shuffle over user's own")
SHUFFLED = ("shuffle", "shuffle over user's own")


def every_sequence(*left_out):
    slow = {"map, processes": pytest.mark.slow}
    chosen = [
        pytest.param(make, id=name, marks=slow.get(name, ()))
        for name, make in SEQUENCES.items()
        if name not in left_out
    ]
    return pytest.mark.parametrize("make", chosen)


@pytest.fixture
def opened():
    """Closes the chains that are handed to it when the test ends."""
    with contextlib.ExitStack() as stack:
        yield stack.enter_context


def numbers(items):
    return [int(x) for item in items for x in item["x"]]


# Epochs


@every_sequence(*ENDLESS)
def test_two_epochs_open_at_once_do_not_mix(make, opened):
    sequence = opened(make())
    whole = numbers(sequence)
    epochs = []
    for _ in range(2):
        sequence.set_epoch(0)
        epochs.append(iter(sequence))
    alternated = [[], []]
    for pair in zip(*epochs, strict=True):
        for seen, item in zip(alternated, pair, strict=True):
            seen += numbers([item])
    assert alternated == [whole, whole]


@every_sequence(*ENDLESS, "max_samples")
def test_an_epoch_after_a_break_is_whole_wherever_the_break_was(make, opened):
    sequence = opened(make())
    for position in range(len(numbers(sequence)) + 1):
        for number, _ in enumerate(sequence):
            if number >= position:
                break
        assert sorted(numbers(sequence)) == list(range(NB))


@every_sequence(*ENDLESS)
def test_a_stale_epoch_goes_on(make, opened):
    sequence = opened(make())
    sequence.set_epoch(0)
    whole = numbers(sequence)
    sequence.set_epoch(0)
    stale = iter(sequence)
    first = numbers([next(stale)])
    assert sorted(numbers(sequence)) == list(range(NB))
    assert first + numbers(stale) == whole


@every_sequence()
def test_an_epoch_that_is_over_stays_over(make, opened):
    iterator = iter(opened(make()))
    for _ in iterator:
        pass
    assert [next(iterator, "over") for _ in range(3)] == ["over"] * 3


@every_sequence(*ENDLESS, *OF_USERS, "adaptor")
def test_five_random_epochs_hold_every_sample_once(make, opened):
    sequence = opened(make())
    assert [sorted(numbers(sequence)) for _ in range(5)] == [list(range(NB))] * 5


@every_sequence(*ENDLESS)
def test_an_event_loop_gets_the_items_of_the_plain_loop(make, opened):
    async def two_epochs():
        return [[numbers([item]) async for item in sequence] for _ in range(2)]

    sequence, twin = opened(make()), opened(make())
    assert asyncio.run(two_epochs()) == [[numbers([item]) for item in twin] for _ in range(2)]


@every_sequence(*ENDLESS)
def test_a_dataset_of_pytorch_gives_the_items_of_the_plain_loop(make, opened):
    sequence, twin = opened(make()), opened(make())
    loader = DataLoader(sequence.to_dataset(), batch_size=None)
    assert [[numbers([item]) for item in loader] for _ in range(2)] == [
        [numbers([item]) for item in twin] for _ in range(2)
    ]


@every_sequence(*ENDLESS, "array, stored")  # what lies in memory there, can not be pickled
def test_a_copy_as_another_process_gets_it_gives_the_same_items(make, opened):
    sequence = opened(make())
    pickled = cloudpickle.dumps(sequence)
    assert numbers(opened(cloudpickle.loads(pickled))) == numbers(sequence)


# Lengths


@every_sequence()
def test_a_length_is_true_or_a_type_error_that_says_why(make, opened):
    sequence = opened(make())
    with contextlib.suppress(TypeError):
        assert len(sequence) == sum(1 for _ in sequence)
        return
    with pytest.raises(TypeError, match=r"the length of .* is not known|has no len"):
        len(sequence)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 40), st.integers(1, 10), st.integers(1, 10), st.booleans())
def test_lengths_of_arrays_and_batches_are_true(nb, draw, size, discard):
    """BATCH-1."""
    source = SequenceArray({"x": np.arange(nb)}, SamplerRandom(batch_size=draw))
    for sequence in (source, source.batch(size, discard), source.batch(size, discard).collate()):
        assert len(sequence) == sum(1 for _ in sequence)


@pytest.mark.parametrize("size", range(1, 11))
def test_the_last_partial_batch_is_kept_unless_asked_otherwise(size):
    """BATCH-1."""
    for nb in range(41):
        source = SequenceArray({"x": np.arange(nb)}, SamplerSequential())
        expected = [list(range(start, min(start + size, nb))) for start in range(0, nb, size)]
        full = [batch for batch in expected if len(batch) == size]
        for verb in (source.batch, source.rebatch):
            assert [batch["x"].tolist() for batch in verb(size)] == expected
            assert [batch["x"].tolist() for batch in verb(size, discard_batch_not_full=True)] == full


# What it looks like


def test_repr_shows_the_chain_a_line_a_stage():
    chain = array().async_reservoir(6, same, nb_workers=3).collate().map(same, nb_workers=2, name="augment").batch(4)
    assert repr(chain).splitlines() == [
        "SequenceArray(12 samples of x, id, sample_uid; SamplerSequential(); state: by index)",
        "  .async_reservoir(6 results of same, 3 process workers)",
        "  .collate(device=cpu)",
        "  .map(augment, 2 process workers)",
        "  .batch(4)",
    ]


def test_repr_shows_chains_that_meet():
    masks = SequenceArray({"mask": [0]}, SamplerSequential(), sample_uid_name=None).map(same)
    chain = SequenceArray({"x": [0]}, SamplerSequential(), sample_uid_name=None).map(same).zip(masks, masks).batch(4)
    assert repr(chain).splitlines() == [
        "SequenceArray(1 samples of x; SamplerSequential(); state: by index)",
        "  .map(same, inline)",
        "  .zip(strict=True) with",
        "    SequenceArray(1 samples of mask; SamplerSequential(); state: by index)",
        "      .map(same, inline)",
        "    SequenceArray(1 samples of mask; SamplerSequential(); state: by index)",
        "      .map(same, inline)",
        "  .batch(4)",
    ]


@every_sequence(*OF_USERS)
def test_repr_has_as_many_lines_as_the_chain_has_stages(make, opened):
    def nb_stages(sequence):
        return 1 + sum(nb_stages(source) for source in sequence.sources)

    sequence = opened(make())
    assert len(repr(sequence).splitlines()) == nb_stages(sequence)


# What it tells of itself


def names_of_stages(sequence, prefix=""):
    """Numbers of the stages, from the sources on; where chains meet, with the number of the chain before them."""
    names = []
    for i, source in enumerate(sequence.sources):
        names += names_of_stages(source, f"{prefix}{i}/" if len(sequence.sources) > 1 else prefix)
    return [*names, f"{prefix}{sequence.number}"]


@every_sequence("user's own")
def test_every_stage_has_figures_and_the_last_one_counts_what_came(make, opened):
    sequence = opened(make())
    nb = len(list(sequence))
    figures = sequence.statistics()
    *stages, consumer = figures
    assert [name.partition(":")[0] for name in stages] == names_of_stages(sequence)
    assert consumer == "consumer"
    assert figures[stages[-1]]["epoch_items"] == figures["consumer"]["items"] == nb


@every_sequence()
def test_a_report_can_be_had_at_any_time(make):
    sequence = make()
    reports = [sequence.report()]
    for _ in sequence:
        reports.append(sequence.report())
    sequence.close()
    reports.append(sequence.report())
    assert all("consumer" in text for text in reports)


@every_sequence("user's own")
def test_a_description_shows_what_one_item_is_like_and_opens_no_epoch(make, opened):
    sequence = opened(make())
    assert "gives" not in sequence.describe()
    assert sequence.describe(sample=True).count("gives x: (N,) int64") >= 1
    assert sequence._next_epoch == 0


# The end


@every_sequence()
def test_close_may_be_called_twice(make):
    sequence = make()
    next(iter(sequence))
    sequence.close()
    sequence.close()
    assert sequence._is_closed


@every_sequence("user's own")
def test_after_close_nothing_can_be_opened(make):
    with make() as sequence:
        pass
    with pytest.raises(ClosedError, match="closed"):
        iter(sequence)


@every_sequence()
def test_after_close_the_own_cursor_is_closed(make):
    sequence = make()
    next(sequence)
    sequence.close()
    with pytest.raises(ClosedError, match="closed"):
        next(sequence)


@every_sequence("user's own")
def test_after_close_all_epochs_that_are_open_are_closed(make):
    sequence = make()
    iterators = [iter(sequence), iter(sequence)]
    for iterator in iterators:
        next(iterator)
    sequence.close()
    for iterator in iterators:
        with pytest.raises(ClosedError, match="closed"):
            next(iterator)


def test_a_closed_epoch_raises_and_leaves_the_sequence_usable(opened):
    sequence = opened(array().map(same, **THREADS))
    iterator = iter(sequence)
    next(iterator)
    iterator.close()
    iterator.close()
    with pytest.raises(ClosedError):
        next(iterator)
    assert numbers(sequence) == list(range(NB))


@pytest.mark.parametrize("source", [array, Numbers])
def test_a_source_shared_by_two_chains_survives_the_end_of_one(source, opened):
    shared = source()
    one, other = shared.map(same, **THREADS), opened(shared.batch(5))
    next(iter(one))
    one.close()
    assert numbers(other) == list(range(NB))
    assert numbers(shared) == list(range(NB))


def test_a_chain_over_a_closed_stage_says_so():
    stage = array().map(same)
    chain = stage.batch(2)
    stage.close()
    with pytest.raises(ClosedError):
        iter(chain)


def test_closing_the_last_stage_ends_the_workers_of_all(opened):
    """MEM-3."""
    chain = array().map(same, **THREADS).async_reservoir(4, same, backend="thread").collate().map(same, **THREADS)
    list(chain)

    def alive():
        return [figures["workers_alive"] for name, figures in chain.statistics().items() if name.endswith(":same")]

    assert alive() == [2, 1, 2]
    chain.close()
    assert alive() == [0, 0, 0]


# The caller's random numbers


def draws(batch):
    return {"x": batch["x"], "y": [[random.random(), np.random.rand(), torch.rand(1).item()]]}


@pytest.mark.parametrize(
    "make",
    [
        lambda: array(SamplerRandom(), transforms=draws),
        lambda: array(SamplerRandom()).map(draws),
        lambda: array(SamplerRandom()).map(same, **THREADS).map(draws).batch(3),
        lambda: array(SamplerRandom()).map(same, **THREADS).prefetch(3).map(draws),
        lambda: array(SamplerRandom()).async_reservoir(
            4, draws, 4, backend="inline", reservoir_sampler=SamplerRandom()
        ),
    ],
)
def test_iterating_leaves_the_callers_generators_as_they_were(make, opened):
    def state():
        return random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()

    random.seed(1), np.random.seed(2), torch.manual_seed(3)
    before = state()
    sequence = opened(make())
    iterator = iter(sequence)
    next(iterator)
    assert state() == before
    list(iterator)
    assert state() == before
    list(sequence.subsample(3))
    assert state() == before


# Smaller versions


@every_sequence()
def test_subsample_gives_that_many_samples(make, opened):
    smaller = opened(opened(make()).subsample(5))
    found = numbers(smaller)
    assert len(found) == len(set(found) & set(range(NB))) == 5


@every_sequence()
def test_subsample_of_more_than_there_are_gives_all(make, opened):
    assert sorted(numbers(opened(opened(make()).subsample(99)))) == list(range(NB))


@every_sequence("max_samples")
def test_a_smaller_sequence_gives_the_same_samples_in_every_epoch(make, opened):
    smaller = opened(opened(make()).subsample(5))
    first = sorted(numbers(smaller))
    assert [sorted(numbers(smaller)) for _ in range(3)] == [first] * 3


@every_sequence("array, random", "cache of few", *SHUFFLED)
def test_subsample_uids_keeps_the_order_of_the_uids_and_ignores_unknown_ones(make, opened):
    smaller = opened(opened(make()).subsample_uids(["s7", "nobody", "s2", "s11"], "id"))
    assert numbers(smaller) == [7, 2, 11]


@every_sequence()
def test_subsample_uids_takes_arrays_and_tensors(make, opened):
    sequence = opened(make())
    for uids in (np.array([3, 4]), torch.tensor([3, 4]), iter([3, 4])):
        assert sorted(numbers(opened(sequence.subsample_uids(uids, "x")))) == [3, 4]


@every_sequence()
def test_subsample_uids_of_unknown_ones_only_is_empty(make, opened):
    assert list(opened(opened(make()).subsample_uids(["nobody"], "id"))) == []


@every_sequence()
def test_subsample_uids_names_a_feature_that_is_missing(make, opened):
    with pytest.raises(ValueError, match="no feature 'patient'"):
        opened(make()).subsample_uids([1], "patient")


@every_sequence()
def test_subsample_uids_takes_another_sampler(make, opened):
    smaller = opened(opened(make()).subsample_uids(["s1", "s2", "s3"], "id", SamplerRandom(batch_size=2)))
    assert sorted(numbers(smaller)) == [1, 2, 3]


@every_sequence(*ENDLESS)
def test_a_smaller_version_leaves_the_sequence_as_it_was(make, opened):
    sequence, twin = opened(make()), opened(make())
    list(opened(sequence.subsample(3)))
    list(opened(sequence.subsample_uids(["s1"], "id")))
    assert [numbers(sequence) for _ in range(2)] == [numbers(twin) for _ in range(2)]


@every_sequence()
def test_a_smaller_version_has_no_workers(make, opened):
    smaller = opened(opened(make()).subsample(5))
    list(smaller)
    assert all(figures["workers"] == 0 for figures in smaller.statistics().values())


@every_sequence()
@pytest.mark.parametrize(("nb", "error"), [(0, ValueError), (1.5, TypeError)])
def test_a_number_of_samples_must_be_an_int_of_at_least_one(make, nb, error, opened):
    with pytest.raises(error, match="nb_samples must be"):
        opened(make()).subsample(nb)
