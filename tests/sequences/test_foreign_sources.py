"""Hugging Face datasets and webdatasets, the real ones, as sources."""

from __future__ import annotations

import gc
import io
import json
import tarfile
import threading
from collections import Counter

import datasets
import numpy as np
import pytest
import torch
import webdataset
from torch.utils.data import DataLoader

from trw_pipeline.sequences import iterable_iterator
from trw_pipeline.sequences.adaptor_torch import SequenceAdaptorTorch
from trw_pipeline.sequences.samplers import SamplerRandom, SamplerSequential
from trw_pipeline.sequences.sequence import SequenceArray, SequenceDataset, SequenceIterable

NB = 24
THREADS = {"nb_workers": 2, "backend": "thread"}
PROCESSES = {"nb_workers": 2}


@pytest.fixture(autouse=True)
def threads_of_hugging_face():
    """Waits for those of streams that were not read to their end: they go when their pool is collected."""
    yield
    gc.collect()
    for thread in threading.enumerate():
        if thread.name.startswith("ThreadPoolExecutor"):
            thread.join(timeout=10)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A dataset on disk, as they are when they are large."""
    folder = tmp_path_factory.mktemp("hugging_face")
    made = datasets.Dataset.from_dict({"image": [[i, i + 1] for i in range(NB)], "target": list(range(NB))})
    made.save_to_disk(str(folder))
    return datasets.load_from_disk(str(folder))


@pytest.fixture
def tars(tmp_path):
    """Two shards of a webdataset, of twelve samples each: an array and a class."""
    for shard in range(2):
        with tarfile.open(tmp_path / f"shard-{shard}.tar", "w") as tar:
            for i in range(12 * shard, 12 * shard + 12):
                array = io.BytesIO()
                np.save(array, np.array([i, i + 1]))
                for name, content in (("npy", array.getvalue()), ("cls", str(i).encode())):
                    entry = tarfile.TarInfo(f"{i:04d}.{name}")
                    entry.size = len(content)
                    tar.addfile(entry, io.BytesIO(content))
    return str(tmp_path / "shard-{0..1}.tar")


def targets(batches, name="target"):
    return [int(target) for batch in batches for target in batch[name]]


def rests_are_right(make, name, monkeypatch, positions=range(0, NB, 5)):
    """From every position the rest of the second epoch comes, and then the third."""
    monkeypatch.setattr(iterable_iterator, "ASK_EVERY", 4)
    whole = make().with_seed(1)
    epochs = [targets(whole, name) for _ in range(3)]
    for position in positions:
        sequence, new = make().with_seed(1), make().with_seed(2)
        list(sequence)
        epoch = iter(sequence)
        seen = targets([next(epoch) for _ in range(position)], name)
        new.load_state_dict(json.loads(json.dumps(sequence.state_dict())))
        assert seen + targets(new, name) == epochs[1]
        new.set_epoch(1)
        assert targets(new, name) == epochs[1]
        assert targets(new, name) == epochs[2]
    return epochs


# Hugging Face


@pytest.mark.parametrize(
    ("size", "options"),
    [(1, {}), (5, {}), (1, THREADS), pytest.param(5, PROCESSES, marks=pytest.mark.slow)],
    ids=["one, inline", "several, inline", "one, threads", "several, processes"],
)
def test_rows_of_a_table_are_read_by_the_workers(table, size, options):
    with SequenceDataset(table.with_format("numpy"), SamplerRandom(batch_size=size), **options) as sequence:
        batches = list(sequence)
    assert Counter(targets(batches)) == Counter(range(NB))
    rows = [row.tolist() for batch in batches for row in batch["image"]]
    assert rows == [[target, target + 1] for target in targets(batches)]
    assert {type(batch["image"]) for batch in batches} == {np.ndarray}


def test_rows_of_a_table_may_be_tensors(table):
    batch = next(iter(SequenceDataset(table.with_format("torch"), SamplerSequential(batch_size=2))))
    assert torch.equal(batch["image"], torch.tensor([[0, 1], [1, 2]]))


def test_a_stream_tells_its_own_state(table, monkeypatch):
    def make():
        return SequenceIterable(table.to_iterable_dataset(num_shards=3))

    assert repr(make()) == "SequenceIterable(IterableDataset; state: its own)"
    epochs = rests_are_right(make, "target", monkeypatch)
    assert [sorted(epoch) for epoch in epochs] == [list(range(NB))] * 3  # it shuffles its shards


def test_a_stream_that_shuffles_a_buffer_is_replayed_and_loses_nothing(table, monkeypatch):
    def make():
        return SequenceIterable(table.to_iterable_dataset(num_shards=3).shuffle(seed=3, buffer_size=7))

    assert repr(make()) == "SequenceIterable(IterableDataset; state: replayed)"
    epochs = rests_are_right(make, "target", monkeypatch)
    assert [sorted(epoch) for epoch in epochs] == [list(range(NB))] * 3
    assert epochs[0] != epochs[1] != epochs[2]


def test_a_buffer_that_is_shuffled_is_found_below_other_parts(table):
    stream = table.to_iterable_dataset(num_shards=3)
    shuffled = stream.shuffle(seed=3, buffer_size=7)
    for part in (shuffled.map(dict).take(5), datasets.interleave_datasets([stream, shuffled])):
        assert repr(SequenceIterable(part)).endswith("state: replayed)")
    for part in (stream.map(dict).take(5), datasets.interleave_datasets([stream, stream])):
        assert repr(SequenceIterable(part)).endswith("state: its own)")


@pytest.mark.parametrize("options", [THREADS, PROCESSES], ids=["threads", "processes"])
def test_a_stream_gives_each_item_once(table, options):
    with SequenceIterable(table.to_iterable_dataset(num_shards=4)).map(lambda batch: batch, **options) as sequence:
        assert [sorted(targets(sequence)) for _ in range(2)] == [list(range(NB))] * 2


@pytest.mark.slow
def test_a_stream_in_a_loader_gets_the_number_of_the_epoch(table, monkeypatch):
    def make():
        stream = table.to_iterable_dataset(num_shards=3).shuffle(seed=3, buffer_size=7).with_format("torch")
        return SequenceAdaptorTorch(DataLoader(stream, batch_size=2))

    epochs = rests_are_right(make, "target", monkeypatch, [0, 3, 7])
    assert epochs[0] != epochs[1] != epochs[2]


# webdataset


leaves_files_open = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
"""webdataset does, until they are collected."""


def webdata(tars):
    return webdataset.WebDataset(tars, shardshuffle=False).decode()


@leaves_files_open
@pytest.mark.parametrize("options", [{}, THREADS, PROCESSES], ids=["inline", "threads", "processes"])
def test_samples_of_tar_files_come_once(tars, options):
    with SequenceIterable(webdata(tars)).map(lambda batch: batch, **options) as sequence:
        for _ in range(2):
            batches = list(sequence)
            assert targets(batches, "cls") == list(range(NB))
    assert [batch["npy"].tolist() for batch in batches] == [[[i, i + 1]] for i in range(NB)]
    assert batches[3]["__key__"] == ["0003"]


@leaves_files_open
def test_tar_files_are_replayed(tars, monkeypatch):
    epochs = rests_are_right(lambda: SequenceIterable(webdata(tars)), "cls", monkeypatch)
    assert epochs == [list(range(NB))] * 3


@leaves_files_open
def test_tuples_of_tar_files_get_names(tars):
    batch = next(iter(SequenceIterable(webdata(tars).to_tuple("npy", "cls"), ["image", "target"])))
    assert (batch["image"].tolist(), batch["target"]) == ([[0, 1]], [0])


def test_a_split_may_mix_what_is_in_memory_and_in_files(table, tmp_path):
    np.save(tmp_path / "a.npy", np.arange(NB))
    split = {"x": np.load(tmp_path / "a.npy", mmap_mode="r"), "y": torch.arange(NB), "z": list(range(NB))}
    for batch in SequenceArray(split, SamplerRandom(batch_size=4)):
        assert batch["x"].tolist() == batch["y"].tolist() == batch["z"]
