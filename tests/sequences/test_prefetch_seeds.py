"""`SequencePrefetch` changes no number of a function, nor, where workers run that, one that the loop draws."""

from __future__ import annotations

import itertools
import random
import sys

import cloudpickle
import numpy as np
import pytest
import torch

from trw_pipeline.sequences.samplers import SamplerRandom
from trw_pipeline.sequences.sequence import SequenceArray

cloudpickle.register_pickle_by_value(sys.modules[__name__])
NB = 12


def array(**options):
    return SequenceArray({"x": np.arange(NB)}, SamplerRandom(), **options).with_seed(7)


def drawn(batch, rng):
    """What a job draws from each generator."""
    draws = [random.random(), np.random.random(), np.random.standard_normal(), rng.random()]
    return {**batch, "draws": [*batch.get("draws", []), *draws]}


def drawn_with_torch(batch):
    return {**batch, "draws": [*batch.get("draws", []), *torch.rand(100).tolist()]}


def draws_of(items):
    return [item["draws"] for item in items]


CHAINS = {
    "map": lambda: array().map([drawn, drawn_with_torch]),
    "transforms": lambda: array(transforms=[drawn, drawn_with_torch]),
    "two maps": lambda: array().map(drawn).map(drawn_with_torch),
    "processes": lambda: array().map(drawn, nb_workers=2),
}
every_chain = pytest.mark.parametrize("make", CHAINS.values(), ids=CHAINS.keys())


@every_chain
def test_a_function_draws_what_it_draws_without_it(make):
    with make() as plain, make().prefetch(3) as ahead:
        for _ in range(2):
            assert draws_of(ahead) == draws_of(plain)


@every_chain
def test_two_threads_do_not_disturb_each_other(make):
    with make() as plain, make().prefetch(3) as one, make().prefetch(2).map(drawn) as other:
        expected = draws_of(plain)
        both = [(first["draws"], second["draws"]) for first, second in zip(one, other, strict=True)]
        assert [first for first, _ in both] == expected
        assert [second[: len(first)] for first, second in both] == expected


def test_functions_below_and_above_it_do_not_disturb_each_other():
    with array().map(drawn).map(drawn) as plain, array().map(drawn).prefetch(3).map(drawn) as ahead:
        expected = [item["draws"][:4] for item in plain]
        assert [item["draws"][:4] for item in ahead] == expected
        numbers = [item["draws"][4:] for item in ahead]
        ahead.set_epoch(1)
        assert [item["draws"][4:] for item in ahead] == numbers


@pytest.mark.parametrize(
    "options", [{"nb_workers": 2}, {"nb_workers": 1, "backend": "thread"}], ids=["processes", "threads"]
)
def test_a_loop_draws_what_it_draws_without_it_where_workers_run_the_functions(options):
    def loop(chain):
        random.seed(1), np.random.seed(2), torch.manual_seed(3)
        found = []
        with chain:
            for _ in chain:
                found.append((random.random(), np.random.standard_normal(), torch.rand(3).tolist()))
        return found

    def only_rng(batch, rng):
        return {**batch, "draws": rng.random(5)}

    function = drawn if options["nb_workers"] == 2 else only_rng
    plain = loop(array().map(function, **options))
    assert loop(array().map(function, **options).prefetch(3)) == plain


@every_chain
def test_after_the_epoch_the_generators_of_the_loop_are_as_they_were(make):
    random.seed(1), np.random.seed(2), torch.manual_seed(3)
    np.random.standard_normal()  # leaves another one in reserve
    before = random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()
    with make().prefetch(3) as ahead:
        list(ahead)
    assert (random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()) == before


def test_a_function_may_read_from_another_chain_that_is_made_ahead():
    """More than it has ready: neither waits for ever for the other, though both have functions without workers."""

    def chain(source):
        def function(batch):
            own = drawn(batch, np.random.default_rng(0))
            return {**own, "others": [next(source)["draws"] for _ in range(4)]}

        return itertools.islice(array().map(function).prefetch(1), 2)

    with array().map(drawn) as plain, array().map(drawn).prefetch(1) as ahead:
        source, source_ahead = iter(plain), iter(ahead)
        assert next(source_ahead)["draws"] == next(source)["draws"]  # its thread began outside of any job
        expected = [(item["draws"], item["others"]) for item in chain(source)]
        found = [(item["draws"], item["others"]) for item in chain(source_ahead)]
    assert len(found) == 2
    assert found == expected
