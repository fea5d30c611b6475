"""`SequenceDataset`: a map-style dataset whose samples are read in workers."""

from __future__ import annotations

import os
import sys
from collections import Counter

import cloudpickle
import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

from trw_pipeline.errors import JobError
from trw_pipeline.sequences.samplers import SamplerRandom, SamplerSequential
from trw_pipeline.sequences.sequence import SequenceDataset

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # so that workers need not import this file
NB = 11
THREADS = {"nb_workers": 2, "backend": "thread"}
PROCESSES = {"nb_workers": 2}
every_backend = pytest.mark.parametrize("options", [{}, THREADS, PROCESSES], ids=["inline", "threads", "processes"])


class Images:
    """Dicts of everything that a sample may hold."""

    def __len__(self):
        return NB

    def __getitem__(self, i):
        return {
            "image": np.full((2, 3), i, np.float32),
            "tensor": torch.full((2,), i),
            "scalar": np.float64(i),
            "target": i,
            "name": f"s{i}",
            "boxes": [i] * (i % 3),
            "pid": os.getpid(),
        }


class Fetched(Images):
    """Gives several at once."""

    def __getitems__(self, numbers):
        return [{"x": number, "together": len(numbers)} for number in numbers]


def pairs(options=None):
    return SequenceDataset([(np.array([i]), i) for i in range(NB)], SamplerSequential(), **(options or {}))


def uids(batches):
    return [uid for batch in batches for uid in batch["sample_uid"].tolist()]


# What a sample becomes


def test_a_sample_becomes_a_batch_of_one():
    batch = list(SequenceDataset(Images(), SamplerSequential()))[5]
    del batch["pid"]
    kinds = {name: type(value).__name__ for name, value in batch.items()}
    assert {name for name, kind in kinds.items() if kind == "list"} == {"target", "name", "boxes"}
    assert {name for name, kind in kinds.items() if kind == "Tensor"} == {"tensor"}
    assert {name for name, kind in kinds.items() if kind == "ndarray"} == {"image", "scalar", "sample_uid"}
    assert (batch["image"].shape, batch["image"].dtype, batch["tensor"].shape) == ((1, 2, 3), np.float32, (1, 2))
    assert batch["scalar"].tolist() == batch["target"] == [5] == batch["sample_uid"].tolist()
    assert (batch["name"], batch["boxes"]) == (["s5"], [[5, 5]])


def test_tuples_get_names():
    data = TensorDataset(torch.arange(NB) * 10, torch.arange(NB))
    assert list(next(iter(SequenceDataset(data)))) == ["feature_0", "feature_1", "sample_uid"]
    batches = list(SequenceDataset(data, SamplerSequential(), features=["x", "y"]))
    assert [batch["x"].tolist() for batch in batches] == [[10 * i] for i in range(NB)]


def test_several_that_are_drawn_together_are_one_batch():
    batch = next(iter(SequenceDataset(Images(), SamplerSequential(batch_size=3))))
    assert (batch["image"].shape, batch["tensor"].tolist()) == ((3, 2, 3), [[0, 0], [1, 1], [2, 2]])
    assert (batch["boxes"], batch["sample_uid"].tolist()) == ([[], [1], [2, 2]], [0, 1, 2])


@pytest.mark.parametrize("data", [Fetched(), Subset(Fetched(), range(NB))], ids=["own", "Subset"])
def test_several_are_read_together_where_the_dataset_can(data):
    batches = list(SequenceDataset(data, SamplerSequential(batch_size=4)))
    assert [(batch["x"], batch["together"]) for batch in batches] == [
        ([0, 1, 2, 3], [4] * 4),
        ([4, 5, 6, 7], [4] * 4),
        ([8, 9, 10], [3] * 3),
    ]


def test_a_sample_may_have_a_uid_of_its_own():
    sequence = SequenceDataset([{"sample_uid": f"s{i}", "x": i} for i in range(4)])
    assert sorted(batch["sample_uid"][0] for batch in sequence) == ["s0", "s1", "s2", "s3"]
    assert [batch["x"] for batch in sequence.subsample_uids(["s2", "s0"], "sample_uid", SamplerSequential())] == [
        [2],
        [0],
    ]


def test_samples_of_different_shapes_are_named_where_they_are_joined():
    data = [{"x": np.zeros((3, 4))}, {"x": np.zeros((3, 5))}]
    with pytest.raises(JobError, match=r"arrays of feature 'x' must have one shape .*\(1, 3, 4\), \(1, 3, 5\)"):
        list(SequenceDataset(data, SamplerSequential(batch_size=2)))
    assert len(list(SequenceDataset(data))) == 2


# Who reads


@every_backend
@pytest.mark.parametrize("size", [1, 4])
def test_each_sample_comes_once_whatever_the_workers(options, size):
    with SequenceDataset(Images(), SamplerRandom(batch_size=size), **options) as sequence:
        epochs = [list(sequence) for _ in range(3)]
        assert len(sequence) == len(epochs[0])
    assert [Counter(uids(epoch)) for epoch in epochs] == [Counter(range(NB))] * 3
    pids = {pid for epoch in epochs for batch in epoch for pid in batch["pid"]}
    assert (os.getpid() in pids) == (options is not PROCESSES)


def test_the_order_does_not_depend_on_the_workers():
    orders = []
    for options in ({}, THREADS, PROCESSES):
        with SequenceDataset(Images(), **options).with_seed(7) as sequence:
            orders.append([uids(sequence) for _ in range(2)])
    assert orders[0] == orders[1] == orders[2]
    assert orders[0][0] != orders[0][1]


class Noisy(Images):
    def __getitem__(self, i):
        return {"noise": [np.random.rand(), torch.rand(1).item()]}


def test_random_augmentation_follows_from_the_seed_and_the_epoch():
    found = []
    for options in ({}, PROCESSES):
        with SequenceDataset(Noisy(), **options).with_seed(7) as sequence:
            found.append([{uid: b["noise"][0] for b in sequence for uid in b["sample_uid"].tolist()} for _ in range(2)])
    assert found[0] == found[1]
    assert len({tuple(noise) for epoch in found[0] for noise in epoch.values()}) == 2 * NB


class Counted(Images):
    """Counts in a file how often it is made again."""

    def __init__(self, log):
        self.log = log
        self.table = np.zeros(100_000)

    def __getstate__(self):
        return vars(self)

    def __setstate__(self, state):
        vars(self).update(state)
        with open(self.log, "a") as log:
            log.write("x")


def test_the_dataset_goes_to_each_worker_once(tmp_path):
    log = tmp_path / "log"
    with SequenceDataset(Counted(log), nb_workers=1) as sequence:
        for _ in range(3):
            list(sequence)
    assert log.read_text() == "x"


# Failures


class Damaged(Images):
    def __getitem__(self, i):
        if i == 4:
            raise OSError("scan 4 is damaged")
        return {"x": i}


@every_backend
def test_a_sample_that_can_not_be_read_is_named(options):
    with (
        SequenceDataset(Damaged(), **options) as sequence,
        pytest.raises(JobError, match="scan 4 is damaged") as caught,
    ):
        list(sequence)
    assert caught.value.uid == 4


def test_a_sample_that_can_not_be_read_may_be_skipped():
    with SequenceDataset(Damaged(), on_error="skip", **THREADS) as sequence:
        assert sorted(uids(sequence)) == [0, 1, 2, 3, 5, 6, 7, 8, 9, 10]
        assert [failure.uid for failure in sequence.failures] == [4]
        with pytest.raises(TypeError, match=r"length .* skipped is not known"):
            len(sequence)


def test_names_that_do_not_fit_are_an_error():
    with pytest.raises(JobError, match=r"features names 1 features \['x'\], but an item of list has 2"):
        list(SequenceDataset([(1, 2)], features=["x"]))


class Stream(IterableDataset):
    def __iter__(self):
        return iter([{"x": i} for i in range(NB)])

    def __len__(self):
        return NB


class WithoutLength(Dataset):
    def __getitem__(self, i):
        return {"x": i}


@pytest.mark.parametrize("data", [Stream(), WithoutLength(), (i for i in range(3)), {"x": [1, 2]}, 5])
def test_what_is_no_dataset_is_refused(data):
    with pytest.raises(TypeError, match=r"dataset must have .*see SequenceArray|read by SequenceIterable"):
        SequenceDataset(data)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"features": "xy"}, TypeError),
        ({"nb_workers": -1}, ValueError),
        ({"sampler": 3}, TypeError),
        ({"a": 3}, TypeError),
    ],
)
def test_wrong_arguments_are_refused(options, error):
    with pytest.raises(error, match=next(iter(options))):
        SequenceDataset(Images(), **options)


# In a chain


def test_all_verbs_follow():
    with SequenceDataset(Images(), SamplerSequential(), **THREADS).map(
        lambda batch: {"x": batch["image"] * 2, "y": batch["target"]}, **THREADS
    ) as chain:
        batches = list(chain.batch(4).collate())
    assert [batch["y"].tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]
    assert batches[1]["x"][:, 0, 0].tolist() == [8, 10, 12, 14]


def test_smaller_versions_read_from_the_dataset():
    smaller = SequenceDataset(Images(), **PROCESSES).subsample_uids(["s7", "s2"], "name", SamplerSequential())
    assert [batch["target"] for batch in smaller] == [[7], [2]]
    assert repr(smaller).splitlines()[1] == "  .dataset(Images, inline; state: by index)"
    assert len(smaller.subsample(1)) == 1


def test_an_empty_dataset_has_empty_epochs():
    assert list(SequenceDataset([])) == list(SequenceDataset([]).subsample_uids([1], "x")) == []


def test_it_says_that_its_position_is_saved_by_index():
    assert repr(pairs({"nb_workers": 3})).splitlines() == [
        "SequenceArray(11 samples of sample_uid; SamplerSequential(); state: by index)",
        "  .dataset(list, 3 process workers; state: by index)",
    ]


class Log(list):
    """Notes which samples are read."""

    def __init__(self):
        super().__init__({"x": i} for i in range(NB))
        self.read = []

    def __getitem__(self, i):
        self.read.append(i)
        return super().__getitem__(i)


def test_no_sample_is_read_again_to_go_to_a_position():
    data, again = Log(), Log()
    sequence, new = SequenceDataset(data), SequenceDataset(again)
    epoch = iter(sequence)
    for _ in range(6):
        next(epoch)
    new.load_state_dict(sequence.state_dict())
    list(new)
    assert sorted(data.read + again.read) == list(range(NB))
