"""Samples are dealt out to the ranks of a training: each goes to one of them, and no other does work for it."""

from __future__ import annotations

import contextlib
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, DistributedSampler

from trw_pipeline.errors import CheckpointError
from trw_pipeline.sequences.adaptor_torch import SequenceAdaptorTorch
from trw_pipeline.sequences.samplers import Sampler, SamplerClassResampling, SamplerRandom, SamplerSequential
from trw_pipeline.sequences.sequence import Sequence, SequenceArray, SequenceShard

SEED = 3
THREADS = {"nb_workers": 2, "backend": "thread"}
REMAINDERS = ["keep", "pad", "drop"]

numbers_of_samples = st.integers(0, 40)
world_sizes = st.integers(1, 9)
batch_sizes = st.integers(1, 6)
remainders = st.sampled_from(REMAINDERS)


class Numbers(Sequence):
    """A user's own source, which knows its length."""

    def __init__(self, nb):
        super().__init__()
        self.nb = nb

    def __iter__(self):
        return iter([{"x": np.array([i])} for i in range(self.nb)])

    def __len__(self):
        return self.nb


def array(nb, sampler=None):
    return SequenceArray({"x": np.arange(nb)}, SamplerSequential() if sampler is None else sampler).with_seed(SEED)


def numbers(items):
    return [int(x) for item in items for x in item["x"]]


def on_each_rank(chain, world_size, remainder="keep"):
    return [chain.shard(rank, world_size, remainder=remainder) for rank in range(world_size)]


def dealt_out(order, world_size, remainder):
    """The model: cards are dealt round by round; the last round is as it is, filled up or left."""
    order = list(order)
    left = len(order) % world_size
    if left and remainder == "pad":
        order += list(itertools.islice(itertools.cycle(order), world_size - left))
    if left and remainder == "drop":
        order = order[:-left]
    return [order[rank::world_size] for rank in range(world_size)]


def in_batches(samples, size):
    return [samples[start : start + size] for start in range(0, len(samples), size)]


# Which samples


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(numbers_of_samples, world_sizes, batch_sizes, batch_sizes, remainders)
def test_samples_are_dealt_out_one_by_one_and_then_batched(nb, world_size, drawn_at_once, size, remainder):
    chain = array(nb, SamplerSequential(batch_size=drawn_at_once))
    for sequence, expected in zip(
        on_each_rank(chain, world_size, remainder), dealt_out(range(nb), world_size, remainder), strict=True
    ):
        assert [batch["x"].tolist() for batch in sequence] == in_batches(expected, drawn_at_once)
        rebatched = sequence.rebatch(size)
        assert [batch["x"].tolist() for batch in rebatched] == in_batches(expected, size)
        for one in (sequence, sequence.batch(size)):
            assert len(one) == sum(1 for _ in one)


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(numbers_of_samples, world_sizes, batch_sizes, remainders)
def test_items_of_a_source_of_the_users_are_dealt_out_the_same_way(nb, world_size, size, remainder):
    chain = Numbers(nb).with_seed(SEED).batch(size)
    for sequence, expected in zip(
        on_each_rank(chain, world_size, remainder), dealt_out(range(nb), world_size, remainder), strict=True
    ):
        assert [batch["x"].tolist() for batch in sequence] == in_batches(expected, size)
        assert len(sequence) == sum(1 for _ in sequence)


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(numbers_of_samples, world_sizes, batch_sizes, st.booleans())
def test_all_ranks_have_as_many_batches_where_asked_for(nb, world_size, size, drop):
    chain = array(nb, SamplerRandom()).batch(size)
    shapes = [
        [len(batch["x"]) for batch in sequence]
        for sequence in on_each_rank(chain, world_size, "drop" if drop else "pad")
    ]
    assert shapes == [shapes[0]] * world_size


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(st.integers(1, 40), world_sizes, st.booleans())
def test_padded_and_dropped_shares_are_those_of_distributed_sampler(nb, world_size, drop):
    remainder = "drop" if drop else "pad"
    ordered, shuffled = (
        on_each_rank(array(nb, sampler), world_size, remainder) for sampler in (SamplerSequential(), SamplerRandom())
    )
    for rank in range(world_size):
        theirs = DistributedSampler(range(nb), world_size, rank, shuffle=False, drop_last=drop)
        assert numbers(ordered[rank]) == list(theirs)
        assert len(shuffled[rank]) == len(numbers(shuffled[rank])) == len(theirs)


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(numbers_of_samples, world_sizes, st.integers(0, 3))
def test_the_ranks_share_the_shuffle_of_every_epoch(nb, world_size, epoch):
    whole = array(nb, SamplerRandom())
    whole.set_epoch(epoch)
    expected = dealt_out(numbers(whole), world_size, "keep")
    for sequence, share in zip(on_each_rank(array(nb, SamplerRandom()), world_size), expected, strict=True):
        sequence.set_epoch(epoch)
        assert numbers(sequence) == share


def test_a_rank_gets_other_samples_in_every_epoch():
    sequence = array(60, SamplerRandom()).shard(0, 2)
    assert len({tuple(sorted(numbers(sequence))) for _ in range(5)}) == 5


@pytest.mark.parametrize(
    "sampler", [SamplerRandom(True, 13, batch_size=3), SamplerClassResampling("y", 14, batch_size=4)]
)
def test_what_a_sampler_draws_several_times_is_dealt_out_as_often(sampler):
    chain = SequenceArray({"x": np.arange(10), "y": np.arange(10) % 2}, sampler).with_seed(SEED)
    whole = numbers(chain)
    shares = on_each_rank(chain, 3)
    for one in shares:
        one.set_epoch(0)
        assert len(one) == sum(1 for _ in one)
        one.set_epoch(0)
    assert [numbers(one) for one in shares] == dealt_out(whole, 3, "keep")


class SamplerOfStrangers(Sampler):
    """A user's own that draws what is not there."""

    def __iter__(self):
        return iter([0, 99])

    def __len__(self):
        return 2


def test_a_row_that_is_not_there_is_named_whoever_would_get_it():
    with pytest.raises(ValueError, match="below the number of samples, 5, got 99"):
        iter(array(5, SamplerOfStrangers()).shard(0, 2))


# Whose work


class Watched(list):
    """Notes which rows were read."""

    def __init__(self, values):
        super().__init__(values)
        self.read = []

    def __getitem__(self, row):
        self.read.append(int(row))
        return super().__getitem__(row)


def test_rows_of_other_ranks_are_not_read():
    rows = Watched(range(10))
    list(SequenceArray({"x": rows}, SamplerSequential()).with_seed(0).shard(1, 3))
    assert rows.read == [1, 4, 7]


@pytest.mark.parametrize("source", [array(10), Numbers(10).with_seed(0)], ids=["array", "own"])
def test_a_shard_at_the_end_of_a_chain_leaves_the_work_for_other_ranks_undone(source):
    made = []

    def note(batch):
        made.extend(numbers([batch]))
        return batch

    chain = source.map(note).batch(2).collate()
    assert numbers(chain.shard(1, 3)) == made == [1, 4, 7]
    assert numbers(SequenceShard(chain.with_seed(0), 1, 3)) == [2, 3, 8, 9]
    assert made[3:] == list(range(10))


def test_every_stage_keeps_what_it_was_told():
    chain = array(10).map(lambda batch: [batch, batch], max_jobs_at_once=1).sub_batch(1).rebatch(3, True, None)
    assert [numbers(item) for item in chain.shard(0, 2)] == [[0, 0, 2], [2, 4, 4], [6, 6, 8]]
    assert repr(chain.shard(0, 2, remainder="pad")).splitlines()[0].endswith(".shard(rank 0 of 2, remainder='pad')")
    assert repr(SequenceShard(array(3), 1, 2)).splitlines()[1] == "  .shard(rank 1 of 2)"


def test_a_reservoir_of_each_rank_holds_its_own_samples():
    chain = array(8).async_reservoir(8, lambda batch: batch, 4, backend="inline", max_jobs_at_once=4)
    shares = [numbers(one) for sequence in on_each_rank(chain, 2) for one in [next(iter(sequence))]]
    assert shares == [[0], [1]]


def test_an_items_last_round_is_read_before_it_is_given_only_as_far_as_needed():
    """Reading ahead is bounded: one round."""
    pulled = itertools.count()

    class Endless(Sequence):
        def __iter__(self):
            return ({"x": np.array([i])} for i in pulled)

    iterator = iter(SequenceShard(Endless().with_seed(0), 2, 4))
    assert numbers([next(iterator), next(iterator)]) == [2, 6]
    assert next(pulled) == 8


def test_the_batches_of_a_loader_are_dealt_out():
    loader = SequenceAdaptorTorch(DataLoader(range(10), batch_size=2, collate_fn=lambda x: {"x": x})).with_seed(0)
    assert [list(one) for one in on_each_rank(loader, 2)] == [
        [{"x": [0, 1]}, {"x": [4, 5]}, {"x": [8, 9]}],
        [{"x": [2, 3]}, {"x": [6, 7]}],
    ]


# Random numbers


def draw(batch, rng):
    return {"x": batch["x"], "drawn": rng.random(len(batch["x"]))}


def drawn(items):
    return [float(value) for item in items for value in item["drawn"]]


def test_a_sample_has_the_same_augmentation_however_many_ranks_there_are():
    chain = array(12, SamplerRandom()).map(draw)
    alone = {int(item["x"][0]): float(item["drawn"][0]) for item in chain}
    for world_size in (2, 5):
        shares = on_each_rank(chain, world_size)
        for share in shares:
            share.set_epoch(0)
        together = {int(item["x"][0]): float(item["drawn"][0]) for share in shares for item in share}
        assert together == alone


def as_they_are(batch):
    return batch


class Pairs(Sequence):
    """A user's own stage."""

    def __iter__(self):
        items = list(self.source_split)
        return ({"x": np.concatenate([a["x"], b["x"]])} for a, b in zip(items[::2], items[1::2], strict=False))


@pytest.mark.parametrize(
    "regroup",
    [
        lambda chain: chain,
        lambda chain: chain.batch(3),
        lambda chain: chain.rebatch(3),
        lambda chain: chain.batch(3).sub_batch(2),
        lambda chain: chain.max_samples(9),
        lambda chain: Pairs(chain),
        lambda chain: chain.async_reservoir(6, as_they_are, 6, backend="inline", max_jobs_at_once=6).collate(),
    ],
    ids=["items", "batch", "rebatch", "sub_batch", "max_samples", "own", "reservoir"],
)
@pytest.mark.parametrize("source", [array(24, SamplerRandom()), Numbers(24).with_seed(SEED)], ids=["array", "own"])
def test_no_two_ranks_share_a_draw(source, regroup):
    with contextlib.ExitStack() as stack:
        shares = [stack.enter_context(one) for one in on_each_rank(regroup(source).map(draw), 2)]
        values = [value for share in shares for value in drawn(share)]
    assert len(values) == len(set(values)) >= 12


# One seed


@pytest.mark.parametrize("source", [lambda: SequenceArray({"x": np.arange(9)}), lambda: Numbers(9)])
@pytest.mark.parametrize(
    "make",
    [
        lambda source: source.shard(0, 2),
        lambda source: source.batch(2).shard(0, 2),
        lambda source: SequenceShard(source.batch(2), 0, 2),
        lambda source: (list(source), source.shard(0, 2))[1],
        lambda source: source.subsample(5).shard(0, 2),
    ],
    ids=["source", "chain", "class", "after an epoch", "after subsample"],
)
def test_several_ranks_without_a_seed_of_all_are_refused(source, make):
    sequence = make(source())
    for use in (iter, lambda sequence: sequence.state_dict(), lambda sequence: sequence.subsample(2)):
        with pytest.raises(ValueError, match=r"one seed, this is rank 0 of 2: give it by with_seed\(seed\)"):
            use(sequence)
    assert len(numbers(sequence.with_seed(1))) > 0


def test_one_rank_needs_no_seed():
    assert sorted(numbers(SequenceArray({"x": np.arange(9)}).shard(0, 1))) == list(range(9))


def test_the_seed_may_be_given_before_or_after():
    before = array(9, SamplerRandom()).with_seed(8).batch(2).shard(1, 2)
    after = array(9, SamplerRandom()).batch(2).shard(1, 2).with_seed(8)
    assert numbers(before) == numbers(after)


def test_a_smaller_version_is_the_same_on_all_ranks():
    for make in (lambda chain, rank: chain.shard(rank, 2), lambda chain, rank: SequenceShard(chain, rank, 2)):
        shares = [make(array(20, SamplerRandom()).map(as_they_are), rank) for rank in (0, 1)]
        looks = [sorted(numbers(share.subsample(5))) for share in shares]
        assert looks[0] == looks[1]
        assert len(looks[0]) == 5
        assert [numbers(share.subsample_uids([7, 8], "x", SamplerSequential())) for share in shares] == [[7, 8]] * 2


# Resume


@pytest.mark.parametrize("remainder", REMAINDERS)
@pytest.mark.parametrize("nb", [0, 1, 2, 7, 8, 11])
@pytest.mark.parametrize(
    "deal",
    [
        lambda nb, rank, remainder: array(nb, SamplerRandom(batch_size=2)).shard(rank, 4, remainder=remainder),
        lambda nb, rank, remainder: SequenceShard(
            array(nb, SamplerRandom()).map(as_they_are, **THREADS), rank, 4, remainder=remainder
        ),
    ],
    ids=["array", "items"],
)
def test_each_rank_goes_on_from_every_position(deal, nb, remainder):
    for rank in range(4):
        with deal(nb, rank, remainder) as sequence, deal(nb, rank, remainder) as new:
            whole = [numbers([item]) for item in sequence]
            sequence.set_epoch(0)
            iterator = iter(sequence)
            for position in range(len(whole) + 1):
                new.load_state_dict(sequence.state_dict())
                assert [numbers([item]) for item in new] == whole[position:]
                next(iterator, None)


def position_of(chain):
    iterator = iter(chain)
    next(iterator)
    return chain.state_dict()


@pytest.mark.parametrize(
    "deal",
    [
        lambda *rank, **how: array(20).batch(2).shard(*rank, **how),
        lambda *rank, **how: SequenceShard(array(20), *rank, **how),
    ],
    ids=["array", "items"],
)
def test_another_number_of_ranks_is_refused_within_an_epoch(deal):
    state = position_of(deal(0, 2))
    for other, name in ((deal(0, 4), "rank 0 of 4"), (deal(1, 2), "rank 1 of 2"), (deal(0, 2, remainder="pad"), "pad")):
        other.load_state_dict(state)
        with pytest.raises(CheckpointError, match=rf"saved by rank 0 of 2, this is .*{name}.*set_epoch"):
            iter(other)


def test_between_two_epochs_the_number_of_ranks_may_change():
    saved = array(20, SamplerRandom()).shard(0, 2)
    list(saved)
    state = saved.state_dict()
    whole = array(20, SamplerRandom())
    whole.set_epoch(1)
    expected = dealt_out(numbers(whole), 3, "keep")
    for share, samples in zip(on_each_rank(array(20, SamplerRandom()), 3), expected, strict=True):
        share.load_state_dict(state)
        assert numbers(share) == samples


# Which rank


def test_without_ranks_in_the_environment_there_is_one(monkeypatch):
    monkeypatch.delenv("RANK", raising=False), monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert numbers(array(3).shard()) == [0, 1, 2]


def test_the_environment_tells_the_rank(monkeypatch):
    monkeypatch.setenv("RANK", "1"), monkeypatch.setenv("WORLD_SIZE", "3")
    assert numbers(array(9).batch(2).shard()) == [1, 4, 7]
    assert numbers(SequenceShard(array(9))) == [1, 4, 7]


@pytest.mark.parametrize("given", [{"RANK": "1"}, {"WORLD_SIZE": "2"}, {"RANK": "one", "WORLD_SIZE": "2"}])
def test_half_an_environment_is_refused(monkeypatch, given):
    monkeypatch.delenv("RANK", raising=False), monkeypatch.delenv("WORLD_SIZE", raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match="RANK and WORLD_SIZE as numbers"):
        array(3).shard()


@pytest.mark.parametrize(
    ("arguments", "options", "error", "text"),
    [
        ((0,), {}, ValueError, "both or not at all, got 0 and None"),
        ((None, 2), {}, ValueError, "both or not at all, got None and 2"),
        ((2, 2), {}, ValueError, "rank must be at least 0 and below world_size=2, got 2"),
        ((-1, 2), {}, ValueError, "got -1"),
        ((0, 0), {}, ValueError, "below world_size=0"),
        ((0.0, 2), {}, TypeError, "rank must be an int, got 0.0"),
        ((0, True), {}, TypeError, "world_size must be an int, got True"),
        ((0, 2), {"remainder": "fill"}, ValueError, "remainder must be 'keep', 'pad' or 'drop', got 'fill'"),
    ],
)
def test_a_wrong_argument_is_named(arguments, options, error, text):
    for deal in (array(3).shard, array(3).batch(2).shard, lambda *given, **how: SequenceShard(array(3), *given, **how)):
        with pytest.raises(error, match=text):
            deal(*arguments, **options)


def test_samples_are_dealt_out_once():
    for chain in (array(9).shard(0, 2).batch(2), SequenceShard(array(9), 0, 2).batch(2)):
        for again in (chain.shard, lambda *rank, chain=chain: SequenceShard(chain, *rank)):
            with pytest.raises(ValueError, match=r"must be dealt out once, they are already: this is rank . of 2"):
                again(1, 2)


@pytest.mark.parametrize(
    "unordered",
    [
        lambda: array(9).map(as_they_are, in_order=False, **THREADS).batch(2),
        lambda: array(9).async_reservoir(3, as_they_are, **THREADS).map(as_they_are),
    ],
)
def test_items_whose_order_depends_on_workers_are_not_dealt_out(unordered):
    with unordered() as chain:
        with pytest.raises(ValueError, match="in the same order on all ranks"):
            SequenceShard(chain, 0, 2)
        SequenceShard(chain, 0, 1)


def test_a_source_that_is_no_sequence_is_refused():
    with pytest.raises(TypeError, match="source_split must be a Sequence, got list"):
        SequenceShard([1, 2], 0, 2)


def test_where_chains_meet_each_of_them_is_dealt_out():
    """Side by side rows stay together; mixed, every sample of both is at one rank; the seed given above them holds."""
    x, y = (SequenceArray({name: list(range(7))}, SamplerRandom()) for name in "xy")
    zipped = x.zip(y).with_seed(3)
    rows = [[(*item["x"], *item["y"]) for item in zipped.shard(rank, 2)] for rank in (0, 1)]
    assert sorted(rows[0] + rows[1]) == [(i, i) for i in range(7)]
    assert [(*item["x"], *item["y"]) for item in zipped] == [
        row for pair in itertools.zip_longest(*rows) for row in pair if row is not None
    ]
    mixed = SequenceArray({"x": list(range(7))}).mix(SequenceArray({"x": list(range(7, 12))})).with_seed(3)
    parts = [[*itertools.chain.from_iterable(item["x"] for item in mixed.shard(rank, 2))] for rank in (0, 1)]
    assert sorted(parts[0] + parts[1]) == list(range(12))
    assert all(parts)


def test_where_chains_meet_ranks_need_one_seed_too():
    chain = SequenceArray({"x": [1, 2]}).mix(SequenceArray({"x": [3]})).shard(0, 2)
    with pytest.raises(ValueError, match="all ranks must have one seed"):
        iter(chain)
