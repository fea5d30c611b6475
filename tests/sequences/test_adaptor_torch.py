"""`SequenceAdaptorTorch`: the batches of a PyTorch loader as a sequence."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from trw_pipeline.errors import CheckpointError
from trw_pipeline.sequences import iterable_iterator
from trw_pipeline.sequences.adaptor_torch import SequenceAdaptorTorch

NB = 5


class Dicts(Dataset):
    def __len__(self):
        return NB

    def __getitem__(self, i):
        return {"image": torch.full((2, 2), float(i)), "target": i, "name": f"s{i}"}


def tuples(**options):
    return DataLoader(TensorDataset(torch.arange(NB) * 10, torch.arange(NB)), batch_size=2, **options)


def numbers(items, name):
    return [int(x) for item in items for x in item[name]]


def test_dicts_pass_as_they_are():
    batches = list(SequenceAdaptorTorch(DataLoader(Dicts(), batch_size=2)))
    assert [batch["target"].tolist() for batch in batches] == [[0, 1], [2, 3], [4]]
    assert batches[0]["image"].shape == (2, 2, 2)
    assert batches[0]["name"] == ["s0", "s1"]


def test_tuples_get_the_names_that_are_given():
    batches = list(SequenceAdaptorTorch(tuples(), ["image", "target"]))
    assert numbers(batches, "image") == [0, 10, 20, 30, 40]
    assert numbers(batches, "target") == [0, 1, 2, 3, 4]


def test_tuples_get_numbered_names_by_default():
    batches = list(SequenceAdaptorTorch(tuples(collate_fn=tuple_of)))
    assert [list(batch) for batch in batches] == [["feature_0", "feature_1"]] * 3


def tuple_of(samples):
    images, targets = zip(*samples, strict=True)
    return torch.stack(images), torch.stack(targets)


@pytest.mark.parametrize("names", [["image"], ["image", "target", "uid"]])
def test_a_wrong_number_of_names_is_an_error(names):
    with pytest.raises(ValueError, match=rf"features names {len(names)} features .* an item of a loader has 2"):
        next(iter(SequenceAdaptorTorch(tuples(), names)))


def test_a_batch_of_another_kind_is_an_error():
    with pytest.raises(TypeError, match="dicts, tuples or lists, got Tensor"):
        next(iter(SequenceAdaptorTorch(DataLoader(range(4), batch_size=2))))


def test_the_length_is_the_loaders():
    sequence = SequenceAdaptorTorch(tuples())
    assert len(sequence) == 3
    assert len(sequence.batch(2)) == 2


def test_the_number_of_the_epoch_is_passed_on():
    sampler = DistributedSampler(range(8), num_replicas=1, rank=0, seed=3)
    loader = DataLoader(
        range(8), batch_size=8, sampler=sampler, collate_fn=lambda samples: {"x": torch.tensor(samples)}
    )
    sequence = SequenceAdaptorTorch(loader)
    orders = [numbers(sequence, "x") for _ in range(3)]
    sequence.set_epoch(1)
    assert numbers(sequence, "x") == orders[1] != orders[0] != orders[2]


def test_the_number_of_the_epoch_is_passed_on_by_the_chain():
    sampler = DistributedSampler(range(8), num_replicas=1, rank=0, seed=3)
    loader = DataLoader(range(8), sampler=sampler, collate_fn=lambda samples: {"x": torch.tensor(samples)})
    chain = SequenceAdaptorTorch(loader).batch(4)
    chain.set_epoch(6)
    list(chain)
    assert sampler.epoch == 6


def test_all_verbs_work_on_it():
    with SequenceAdaptorTorch(tuples(), ["image", "target"]).map(
        lambda batch: {"x": batch["image"] + 1}, nb_workers=2, backend="thread"
    ) as mapped:
        assert [batch["x"].tolist() for batch in mapped.rebatch(3)] == [[1, 11, 21], [31, 41]]


def test_a_loader_with_workers_of_its_own_is_ended_with_the_epoch():
    sequence = SequenceAdaptorTorch(DataLoader(Dicts(), batch_size=2, num_workers=1))
    assert numbers(sequence, "target") == list(range(NB))
    next(iter(sequence))
    sequence.close()


def test_a_smaller_version_keeps_names_and_kinds():
    smaller = SequenceAdaptorTorch(tuples(), ["image", "target"]).subsample(3)
    batches = list(smaller)
    assert numbers(batches, "image") == [0, 10, 20]
    assert all(isinstance(batch["target"], torch.Tensor) for batch in batches)
    assert [set(batch) for batch in batches] == [{"image", "target"}] * 3


def test_samples_of_a_loader_are_found_by_uid():
    smaller = SequenceAdaptorTorch(DataLoader(Dicts(), batch_size=2)).subsample_uids(["s3", "s0", "s9"], "name")
    assert numbers(smaller, "target") == [3, 0]
    assert next(iter(smaller))["image"].tolist() == [[[3, 3], [3, 3]]]


def test_a_dataset_instead_of_a_loader_is_an_error():
    with pytest.raises(TypeError, match=r"torch_dataloader must be a .*DataLoader, got Dicts"):
        SequenceAdaptorTorch(Dicts())


# Position


class Noisy(Dataset):
    """Augments with all global generators."""

    def __len__(self):
        return NB

    def __getitem__(self, i):
        return {"x": i, "noise": [random.random(), np.random.rand(), torch.rand(1).item()]}


class SamplerOfItsOwn:
    """Draws from the global generators, and as it goes."""

    def __iter__(self):
        numbers = list(range(NB))
        while numbers:
            yield numbers.pop(random.randrange(len(numbers)))

    def __len__(self):
        return NB


class Stateful(DataLoader):
    """A loader that tells its position: here, how many batches it gave."""

    begin = given = 0

    def __iter__(self):
        for self.given, batch in enumerate(super().__iter__(), 1):
            if self.given > self.begin:
                yield batch
        self.begin = 0

    def state_dict(self):
        return {"given": self.given}

    def load_state_dict(self, state):
        self.begin = state["given"]


def seeded_generator():
    return torch.Generator().manual_seed(7)


LOADERS = {
    "in order": lambda: DataLoader(Noisy()),
    "shuffled": lambda: DataLoader(Noisy(), shuffle=True),
    "generator": lambda: DataLoader(Noisy(), shuffle=True, generator=seeded_generator()),
    "generator of the sampler": lambda: DataLoader(
        Noisy(), sampler=RandomSampler(Noisy(), generator=seeded_generator())
    ),
    "weighted": lambda: DataLoader(Noisy(), sampler=WeightedRandomSampler([1, 2, 3, 4, 5], 8)),
    "batch sampler": lambda: DataLoader(
        Noisy(), batch_sampler=BatchSampler(RandomSampler(Noisy(), generator=seeded_generator()), 2, False)
    ),
    "own sampler": lambda: DataLoader(Noisy(), sampler=SamplerOfItsOwn()),
    "own state": lambda: Stateful(Noisy()),
}
WITH_WORKERS = {
    "in order, workers": lambda: DataLoader(Noisy(), num_workers=2),
    "shuffled, workers": lambda: DataLoader(Noisy(), shuffle=True, num_workers=2),
    "generator, workers": lambda: DataLoader(Noisy(), shuffle=True, num_workers=2, generator=seeded_generator()),
}
slow = pytest.mark.slow
every_loader = pytest.mark.parametrize(
    "make",
    [
        *(pytest.param(make, id=name) for name, make in LOADERS.items()),
        *(pytest.param(make, id=name, marks=slow) for name, make in WITH_WORKERS.items()),
    ],
)


def plain(batches):
    return [(batch["x"].tolist(), [noise.tolist() for noise in batch["noise"]]) for batch in batches]


@every_loader
def test_the_rest_of_an_epoch_is_the_same_from_every_position(make, monkeypatch):
    monkeypatch.setattr(iterable_iterator, "ASK_EVERY", 2)
    whole = SequenceAdaptorTorch(make()).with_seed(3)
    epochs = [plain(whole) for _ in range(3)]
    assert epochs[0] != epochs[1] != epochs[2]
    sequence = SequenceAdaptorTorch(make()).with_seed(3)
    list(sequence)
    epoch = iter(sequence)
    for position in range(len(epochs[1])):
        torch.rand(position)  # what the training draws meanwhile
        new = SequenceAdaptorTorch(make()).with_seed(99)
        new.load_state_dict(json.loads(json.dumps(sequence.state_dict())))
        assert plain(new) == epochs[1][position:]
        assert plain(new) == epochs[2]
        assert plain([next(epoch)]) == epochs[1][position : position + 1]
    assert next(epoch, None) is None
    new.load_state_dict(json.loads(json.dumps(sequence.state_dict())))
    assert plain(new) == epochs[2]


@every_loader
def test_the_callers_generators_stay_as_they_were(make):
    random.seed(1), np.random.seed(2), torch.manual_seed(3)
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    for _ in SequenceAdaptorTorch(make()):
        pass
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == before


def test_it_says_how_its_position_is_saved():
    assert repr(SequenceAdaptorTorch(DataLoader(Noisy()))) == "SequenceAdaptorTorch(DataLoader; state: replayed)"
    assert repr(SequenceAdaptorTorch(Stateful(Noisy()))) == "SequenceAdaptorTorch(Stateful; state: its own)"


def test_a_loader_with_state_loads_only_the_batches_since_it_was_asked(monkeypatch):
    monkeypatch.setattr(iterable_iterator, "ASK_EVERY", 2)
    sequence, loaded = SequenceAdaptorTorch(Stateful(Noisy())), Stateful(Noisy())
    epoch = iter(sequence)
    for _ in range(4):
        next(epoch)
    new = SequenceAdaptorTorch(loaded)
    new.load_state_dict(sequence.state_dict())
    next(iter(new))
    assert loaded.begin == 2


def test_a_loader_that_became_shorter_is_found_out():
    sequence = SequenceAdaptorTorch(DataLoader(Noisy()))
    epoch = iter(sequence)
    for _ in range(4):
        next(epoch)
    new = SequenceAdaptorTorch(DataLoader(Noisy(), batch_size=2))
    new.load_state_dict(sequence.state_dict())
    with pytest.raises(CheckpointError, match=r"after 4 items of SequenceAdaptorTorch, which now gives only 3"):
        list(new)


def test_a_state_of_other_generators_is_found_out():
    sequence = SequenceAdaptorTorch(LOADERS["generator"]())
    new = SequenceAdaptorTorch(LOADERS["shuffled"]())
    with pytest.raises(CheckpointError, match="1 generators, this one has 0"):
        new.load_state_dict(sequence.state_dict())
