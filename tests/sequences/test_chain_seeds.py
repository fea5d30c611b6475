"""Random numbers follow from the seed, the epoch, the stage and the sample; never from who ran the job, or when."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import time

import numpy as np
import pytest
import torch

from trw_pipeline.sequences.samplers import SamplerRandom, SamplerSequential
from trw_pipeline.sequences.sequence import Sequence, SequenceArray

NB = 12
WORKERS = {
    "inline": {"nb_workers": 0},
    "1 process": {"nb_workers": 1},
    "4 processes": {"nb_workers": 4},
}


def array(seed=7, nb=NB):
    source = SequenceArray({"x": np.arange(nb)}, SamplerRandom())
    return source if seed is None else source.with_seed(seed)


def drawing():
    """A function whose result holds draws from three generators; as a closure it travels by value."""

    def function(batch, rng):
        time.sleep(float(np.random.uniform(0, 0.002)))
        return {"x": batch["x"], "drawn": np.array([[rng.random(), random.random(), np.random.rand()]])}

    return function


def drawing_with_torch():
    draw = drawing()

    def function(batch, rng):
        result = draw(batch, rng)
        return {**result, "drawn": np.append(result["drawn"], [torch.rand(3, dtype=torch.float64).numpy()], axis=1)}

    return function


def rng_only():
    def function(batch, rng):
        return {"x": batch["x"], "drawn": rng.random((1, 4))}

    return function


def items_of(sequence):
    return [(int(batch["x"][0]), tuple(batch["drawn"][0])) for batch in sequence]


def epochs(function, nb=2, seed=7, **options):
    with array(seed).map(function, **options) as sequence:
        return [items_of(sequence) for _ in range(nb)]


def all_draws(items):
    return [draw for _, drawn in items for draw in drawn]


@pytest.mark.slow
def test_batches_are_the_same_bit_by_bit_whatever_the_number_of_workers():
    found = [epochs(drawing(), nb=3, **workers) for workers in WORKERS.values()]
    assert found[0] == found[1] == found[2]
    assert len(set(all_draws(itertools.chain(*found[0])))) == 3 * NB * 3


@pytest.mark.slow
def test_draws_of_torch_are_the_same_in_a_process():
    found = epochs(drawing_with_torch(), nb_workers=1)
    assert found == epochs(drawing_with_torch())
    assert len(set(all_draws(itertools.chain(*found)))) == 2 * NB * 6


@pytest.mark.slow
def test_in_any_order_the_items_are_the_same():
    found = [epochs(drawing(), in_order=False, **workers) for workers in WORKERS.values()]
    in_order = epochs(drawing())
    assert [[sorted(epoch) for epoch in one] for one in found] == [[sorted(epoch) for epoch in in_order]] * 3


@pytest.mark.slow
@pytest.mark.parametrize("in_order", [True, False])
def test_a_killed_worker_changes_no_number(tmp_path, in_order):
    marker = str(tmp_path / "killed")
    draw = drawing()

    def function(batch, rng):
        if batch["x"][0] == 5 and not os.path.exists(marker):
            open(marker, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return draw(batch, rng)

    found = epochs(function, nb_workers=2, in_order=in_order)
    expected = epochs(draw)
    assert os.path.exists(marker)
    if in_order:
        assert found == expected
    assert [sorted(epoch) for epoch in found] == [sorted(epoch) for epoch in expected]


@pytest.mark.parametrize("backend", ["thread", "process"])
def test_the_keyword_rng_gives_the_same_everywhere(backend):
    assert epochs(rng_only(), nb_workers=2, backend=backend) == epochs(rng_only())


def test_no_two_jobs_epochs_or_generators_share_a_draw():
    drawn = all_draws(itertools.chain(*epochs(drawing_with_torch(), nb=3)))
    assert len(set(drawn)) == 3 * NB * 6


def test_two_stages_with_the_same_function_share_no_draw():
    def function(batch, rng):
        drawn = [rng.random(), np.random.rand(), random.random()]
        return {"x": batch["x"], "drawn": [*batch.get("drawn", []), *drawn]}

    with array().map(function).map(function) as sequence:
        drawn = [draw for batch in sequence for draw in batch["drawn"]]
    assert len(set(drawn)) == NB * 6


class Passing(Sequence):
    """A user's own stage over another sequence."""

    def __init__(self, source):
        super().__init__(source)

    def __iter__(self):
        return iter(self.source_split)


def test_stages_around_a_users_own_stage_share_no_draw():
    def function(batch, rng):
        return {"x": batch["x"], "drawn": [*batch.get("drawn", []), rng.random()]}

    with Passing(array().map(function)).map(function) as sequence:
        drawn = [draw for batch in sequence for draw in batch["drawn"]]
    assert len(set(drawn)) == NB * 2


def test_seed_and_epoch_pass_through_a_users_own_stage():
    def found(chain):
        chain.set_epoch(3)
        with chain as sequence:
            return items_of(sequence)

    expected = found(array().map(rng_only()))
    assert found(Passing(array().map(rng_only()))) == expected
    assert found(Passing(array(None).map(rng_only())).collate().with_seed(7)) == expected


def test_transforms_and_the_first_stage_share_no_draw():
    def transform(batch, rng):
        return {**batch, "drawn": [rng.random(), np.random.rand()]}

    def function(batch, rng):
        return {"drawn": [*batch["drawn"], rng.random(), np.random.rand()]}

    source = SequenceArray({"x": np.arange(NB)}, transforms=transform)
    drawn = [draw for batch in source.map(function) for draw in batch["drawn"]]
    assert len(set(drawn)) == NB * 4


def test_elements_of_a_list_share_no_draw_in_the_next_stage():
    def function(batch, rng):
        return {"x": batch["x"], "drawn": rng.random((1, 1))}

    with array().map(lambda b: [b, b, b]).map(function) as sequence:
        drawn = all_draws(items_of(sequence))
    assert len(set(drawn)) == NB * 3


@pytest.mark.parametrize("workers", [{"nb_workers": 0}, {"nb_workers": 3, "backend": "thread"}])
def test_a_stage_that_regroups_is_followed_by_the_same_numbers(workers):
    def function(batch, rng):
        return {"x": batch["x"][:1], "drawn": rng.random((1, 1))}

    def found(options):
        with array().map(lambda b: b, **options).batch(3).map(function, **options) as sequence:
            return items_of(sequence)

    assert found(workers) == found({})
    assert len(set(all_draws(found(workers)))) == NB // 3


def test_without_a_seed_two_chains_differ():
    one, other = (all_draws(epochs(rng_only(), nb=1, seed=None)[0]) for _ in range(2))
    assert not set(one) & set(other)


def test_without_a_seed_a_chain_keeps_the_one_it_drew():
    with array(None).map(rng_only()) as sequence:
        sequence.set_epoch(0)
        first = items_of(sequence)
        sequence.set_epoch(0)
        assert items_of(sequence) == first


def test_another_seed_gives_other_numbers_and_another_order():
    one, other = (epochs(rng_only(), nb=1, seed=seed)[0] for seed in (1, 2))
    assert not set(all_draws(one)) & set(all_draws(other))
    assert [x for x, _ in one] != [x for x, _ in other]


def test_with_seed_gives_a_new_chain_and_leaves_the_old_one_alone():
    chain = array(1).map(rng_only()).batch(2)
    other = chain.with_seed(2)
    assert type(other) is type(chain)
    assert (chain.seed, other.seed) == (1, 2)
    assert other.source_split is not chain.source_split
    assert repr(other) == repr(chain)


def test_with_seed_works_on_a_users_own_sequence():
    class Own(Sequence):
        def __iter__(self):
            return iter([{"x": [i]} for i in range(3)])

    found = [items_of(Own().map(rng_only()).with_seed(seed)) for seed in (1, 1, 2)]
    assert found[0] == found[1] != found[2]


def test_a_smaller_version_of_a_users_own_sequence_keeps_the_seed():
    class Own(Sequence):
        def __iter__(self):
            return iter([{"x": [i]} for i in range(3)])

    found = [items_of(Own().map(rng_only()).with_seed(seed).subsample(2)) for seed in (1, 1, 2)]
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize("seed", [1.5, "1", None])
def test_a_seed_must_be_an_int(seed):
    with pytest.raises(TypeError):
        array().with_seed(seed)


# Orders


def orders(sequence, nb):
    return [tuple(int(batch["x"][0]) for batch in sequence) for _ in range(nb)]


def test_the_orders_of_five_epochs_are_different_permutations():
    """SEED-5."""
    found = orders(array(), 5)
    assert len(set(found)) == 5
    assert {tuple(sorted(order)) for order in found} == {tuple(range(NB))}


def test_a_second_run_has_the_same_five_orders():
    """SEED-5."""
    assert orders(array(), 5) == orders(array(), 5)


def test_an_epoch_can_be_made_without_those_before_it():
    """SEED-5."""
    expected = epochs(drawing(), nb=4)[3]
    with array().map(drawing()) as sequence:
        sequence.set_epoch(3)
        assert items_of(sequence) == expected


def test_epochs_count_on_from_the_one_that_was_set():
    found = orders(array(), 5)
    sequence = array()
    sequence.set_epoch(3)
    assert orders(sequence, 2) == found[3:]


def test_stages_of_a_chain_count_no_epochs_of_their_own():
    source = array()
    expected = orders(array(), 2)
    chain = source.map(lambda b: b)
    assert orders(chain, 2) == expected
    assert orders(source, 2) == expected


def test_each_item_of_a_source_is_mapped_once_by_any_number_of_workers():
    class Endless(Sequence):
        def __iter__(self):
            return ({"x": [i]} for i in itertools.count())

    for nb_workers in (0, 1, 2, 8):
        with Endless().map(lambda b: b, nb_workers=nb_workers, backend="thread").max_samples(20) as sequence:
            assert [x for batch in sequence for x in batch["x"]] == list(range(20))


def test_a_reservoir_draws_the_same_numbers_for_a_sample_whoever_makes_it():
    """Which results are in depends on how fast they were made; what each of them is does not."""

    def found(**options):
        source = SequenceArray({"x": np.arange(6)}, SamplerSequential()).with_seed(1)
        with source.async_reservoir(40, rng_only(), 12, in_order=True, **options) as sequence:
            return [item for drawn in sequence for item in items_of(drawn)][:12]

    inline = found(backend="inline")
    assert inline == found(nb_workers=1) == found(nb_workers=2, backend="thread")
    assert len(set(all_draws(inline))) == 12 * 4


# Numbers of any kind


def drawn(sequence):
    return [batch["x"].tolist() for batch in sequence]


def test_numbers_of_numpy_give_the_same_epoch_as_pythons():
    sequences = [SequenceArray({"x": np.arange(50)}).with_seed(kind(5)) for kind in (int, np.int64, np.uint8)]
    for sequence, kind in zip(sequences, (int, np.int64, np.uint8), strict=True):
        sequence.set_epoch(kind(7))
    first, second, third = map(drawn, sequences)
    assert first == second == third


def test_a_state_after_numbers_of_numpy_is_plain_data():
    sequence = SequenceArray({"x": np.arange(3)}).with_seed(np.int64(5)).batch(1)
    sequence.set_epoch(np.int64(7))
    assert json.loads(json.dumps(sequence.state_dict()))["epoch"] == 7


class OwnSource(Sequence):
    def __iter__(self):
        return iter([])


@pytest.mark.parametrize("make", [lambda: SequenceArray({"x": [1]}), lambda: OwnSource(), lambda: OwnSource().batch(1)])
@pytest.mark.parametrize(("epoch", "kind"), [(True, TypeError), (7.0, TypeError), ("a", TypeError), (-1, ValueError)])
def test_an_epoch_that_is_no_number_of_one_is_refused_by_its_value(make, epoch, kind):
    with pytest.raises(kind, match=f"epoch must be .*, got {epoch!r}"):
        make().set_epoch(epoch)


@pytest.mark.parametrize("seed", [True, 7.0, "a", None])
def test_a_seed_that_is_no_integer_is_refused_by_its_value(seed):
    with pytest.raises(TypeError, match=f"seed must be .*, got {seed!r}"):
        SequenceArray({"x": [1]}).batch(1).with_seed(seed)
