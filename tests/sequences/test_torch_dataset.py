"""A sequence within a `DataLoader`: each item comes once an epoch, whatever workers the loader has."""

from __future__ import annotations

import numpy as np
import pytest
from torch.utils.data import DataLoader

from trw_pipeline.sequences.samplers import SamplerRandom
from trw_pipeline.sequences.sequence import SequenceArray

NB = 10
EPOCHS = 3


def chain(**workers):
    offset = 100
    return (
        SequenceArray({"x": np.arange(NB)}, SamplerRandom())
        .with_seed(7)
        .map(lambda batch, rng: {"x": batch["x"] + offset, "noise": rng.random(1)}, **workers)
        .batch(4)
    )


def contents(batches):
    return [(batch["x"].tolist(), batch["noise"].tolist()) for batch in batches]


def epochs_of(batches):
    return [contents(batches) for _ in range(EPOCHS)]


@pytest.fixture(scope="module")
def expected():
    with chain() as plain:
        return epochs_of(plain)


def test_without_workers_of_the_loader_the_sequence_is_its_own(expected):
    with chain() as sequence:
        loader = DataLoader(sequence.to_dataset(), batch_size=None)
        assert epochs_of(loader) == expected
        first = next(iter(loader))
        other = chain()
        other.load_state_dict(sequence.state_dict())
        assert contents([first]) + contents(other) == contents(sequence_of_epoch(EPOCHS))


def sequence_of_epoch(number):
    sequence = chain()
    sequence.set_epoch(number)
    return sequence


@pytest.mark.slow
@pytest.mark.parametrize("nb_loader_workers", [1, 2])
@pytest.mark.parametrize("persistent", [False, True])
def test_with_workers_of_the_loader_items_and_epochs_are_the_same(expected, nb_loader_workers, persistent):
    with chain() as sequence:
        loader = DataLoader(
            sequence.to_dataset(),
            batch_size=None,
            num_workers=nb_loader_workers,
            multiprocessing_context="fork",
            persistent_workers=persistent,
        )
        assert epochs_of(loader) == expected
        del loader


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_chain_has_its_own_workers_within_one_of_the_loader(program, expected, method):
    """Daemons of `multiprocessing` may have no children of its kind; ours are not. Nor need lambdas be importable."""
    result = program(f"""
        import sys
        import numpy as np
        from torch.utils.data import DataLoader
        from trw_pipeline import SamplerRandom, SequenceArray

        if __name__ == "__main__":
            offset = 100
            sequence = (
                SequenceArray({{"x": np.arange({NB})}}, SamplerRandom())
                .with_seed(7)
                .map(lambda batch, rng: {{"x": batch["x"] + offset, "noise": rng.random(1)}}, nb_workers=2)
                .batch(4)
            )
            loader = DataLoader(
                sequence.to_dataset(), batch_size=None, num_workers=2, multiprocessing_context={method!r}
            )
            print([[(b["x"].tolist(), b["noise"].tolist()) for b in loader] for _ in range(2)])
        """).finish(timeout_s=100)
    assert result.stdout == f"{expected[:2]}\n", result.stderr


@pytest.mark.slow
def test_the_epoch_can_be_set_for_workers_of_the_loader(expected):
    with chain() as sequence:
        dataset = sequence.to_dataset()
        dataset.set_epoch(2)
        loader = DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context="fork")
        assert contents(loader) == expected[2]


def test_len_is_that_of_the_sequence():
    array = SequenceArray({"x": np.arange(NB)})
    assert len(DataLoader(array.batch(4).to_dataset(), batch_size=None)) == 3
    with pytest.raises(TypeError, match="the length of map is not known"):
        len(DataLoader(array.map(lambda batch: batch).to_dataset(), batch_size=None))
