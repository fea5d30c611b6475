"""What the user's own code raises is an error, never taken for the end of an epoch or for "not ready"."""

from __future__ import annotations

import numpy as np
import pytest

from trw_pipeline.errors import WouldBlock
from trw_pipeline.sequences.samplers import Sampler, SamplerSequential
from trw_pipeline.sequences.sequence import Sequence, SequenceArray


def array(**options):
    return SequenceArray({"x": np.arange(4)}, SamplerSequential(), **options)


def raises(signal):
    def function(*arguments, **keywords):
        raise signal("from the user's code")

    return function


def same(batch):
    return batch


PLACES = {
    "preprocess": lambda function: array().map(same, preprocess_fn=function),
    "preprocess with workers": lambda function: array().map(
        same, nb_workers=1, backend="thread", preprocess_fn=function
    ),
    "collate of map": lambda function: array().map(same, collate_fn=function),
    "transforms": lambda function: array(transforms=function),
    "collate of batch": lambda function: array().batch(2, collate_fn=function),
    "collate of rebatch": lambda function: array().rebatch(2, collate_fn=function),
    "collate": lambda function: array().collate(function),
    "collate of a reservoir": lambda function: array().async_reservoir(4, same, backend="thread", collate_fn=function),
}


@pytest.mark.parametrize("signal", [StopIteration, WouldBlock])
@pytest.mark.parametrize("chain", PLACES.values(), ids=PLACES.keys())
def test_a_function_that_raises_a_signal_of_ours_is_an_error(chain, signal):
    with chain(raises(signal)) as sequence, pytest.raises(RuntimeError, match=f"raised {signal.__name__}") as caught:
        list(sequence)
    assert isinstance(caught.value.__cause__, signal)


class Blocking(Sequence):
    """A user's own, whose iterator raises `WouldBlock` after one item."""

    def __iter__(self):
        yield {"x": np.zeros(1)}
        raise WouldBlock("not ours")


@pytest.mark.parametrize("nb_workers", [0, 1])
def test_a_users_iterator_that_would_block_is_an_error_that_names_it(nb_workers):
    with Blocking().map(same, nb_workers=nb_workers, backend="thread") as sequence:
        iterator = iter(sequence)
        next(iterator)
        with pytest.raises(RuntimeError, match="'Blocking' raised WouldBlock"):
            next(iterator)


class Draws(Sampler):
    """A user's own: draws what it is told to."""

    def __init__(self, *draws):
        self.draws = draws

    def __iter__(self):
        return iter(self.draws)

    def __len__(self):
        return len(self.draws)


class DrawsNothingReady(Draws):
    def __iter__(self):
        raise_it = raises(WouldBlock)
        return (raise_it() for _ in range(1))


def test_a_sampler_that_would_block_is_an_error():
    sequence = SequenceArray({"x": np.arange(4)}, DrawsNothingReady()).batch(1)
    with pytest.raises(RuntimeError, match="'DrawsNothingReady' raised WouldBlock"):
        list(sequence)


# What a user's sampler draws


@pytest.mark.parametrize("draw", [np.array([True, False, True, False]), True, [0.0, 1.0], 1.5, "x", ["a"]])
def test_draws_that_are_not_integers_are_refused(draw):
    with pytest.raises(TypeError, match="must be integers, got dtype"):
        list(SequenceArray({"x": np.arange(4)}, Draws(draw)))


@pytest.mark.parametrize(("draw", "value"), [(-1, "-1"), ([0, -2], "-2"), (4, "4"), (np.array([3, 9]), "9")])
def test_draws_out_of_range_are_refused_by_their_value(draw, value):
    with pytest.raises(ValueError, match=rf"rows to draw must be .*, got {value}$"):
        list(SequenceArray({"x": np.arange(4)}, Draws(draw)))


def test_draws_of_any_integers_are_rows():
    sequence = SequenceArray({"x": np.arange(4) * 10}, Draws(3, np.uint8(2), [0, 1], ()))
    assert [batch["x"].tolist() for batch in sequence] == [[30], [20], [0, 10], []]


def test_draws_of_a_reservoir_are_checked_too():
    chain = array().async_reservoir(4, same, 4, reservoir_sampler=Draws(-1), backend="thread")
    with chain as sequence, pytest.raises(ValueError, match="at least 0, got -1"):
        list(sequence)
