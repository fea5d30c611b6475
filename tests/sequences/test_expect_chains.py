"""What is expected of whole chains, at the sizes where others have failed."""

from __future__ import annotations

import logging
import sys
from collections import Counter

import cloudpickle
import numpy as np
import pytest
import torch

from trw_pipeline.sequences.samplers import SamplerRandom, SamplerSequential
from trw_pipeline.sequences.sequence import SequenceArray

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # so that workers need not import this file, and torch
INLINE = {"nb_workers": 0}
PROCESSES = {"nb_workers": 2}
THREADS = {"nb_workers": 2, "backend": "thread"}
NB_PATCHES = 4


def same(batch):
    return batch


def numbers(items):
    return [int(x) for item in items for x in item["x"]]


@pytest.mark.slow
def test_a_chain_over_a_memory_mapped_array_reads_the_rows_of_its_samples(program, tmp_path):
    """MEM-5: 2 GB in a file, shuffled, of which the program keeps no more than what is on its way."""
    result = program(f"""
        import numpy as np, psutil
        from trw_pipeline import SequenceArray

        volumes = np.memmap({str(tmp_path / "volumes")!r}, np.uint8, "w+", shape=(2000, 1_000_000))
        volumes[:, 0] = np.arange(2000) % 251
        data = SequenceArray({{"x": volumes}}).with_seed(0)

        def private():
            memory = psutil.Process().memory_info()
            return memory.rss - memory.shared  # what of the file is mapped is shared with the system's cache

        def look(batch):
            return {{"first": batch["x"][:, 0], "nb_bytes": [batch["x"].nbytes], "sample_uid": batch["sample_uid"]}}

        with data.map(look, nb_workers=2, max_jobs_at_once=8) as sequence:
            next(iter(sequence))
            before, most, seen = private(), 0, []
            for batch in sequence:
                assert batch["nb_bytes"] == [1_000_000] and batch["first"] == batch["sample_uid"] % 251, batch
                seen += batch["sample_uid"].tolist()
                most = max(most, private())
        assert sorted(seen) == list(range(2000))
        print((most - before) / 1e6)
        """).finish(timeout_s=100)
    assert result.stderr == ""
    assert float(result.stdout) < 50


MIXED = {
    "ints and floats": ([1, 2, 2.5, 4], torch.float32),
    "floats and ints": ([1.5, 2.5, 3, 4], torch.float32),
    "bools and ints": ([True, False, 3, 4], torch.int64),
    "bools and floats": ([True, False, True, 0.5], torch.float32),
}


@pytest.mark.parametrize(("values", "dtype"), MIXED.values(), ids=MIXED.keys())
@pytest.mark.parametrize("size", [1, 2, 3])
def test_numbers_of_several_kinds_in_one_feature_have_one_type_in_all_batches(values, dtype, size):
    """BATCH-3: whichever comes first, and whatever stands beside it in a batch."""
    chain = SequenceArray({"x": values}, SamplerSequential()).batch(size)
    batches = list(chain)
    assert {batch["x"].dtype for batch in batches} == {dtype}
    assert [x for batch in batches for x in batch["x"].tolist()] == values


def read_only(array):
    array.flags.writeable = False
    return array


UNUSUAL = {
    "reversed": np.arange(12.0).reshape(6, 2)[::-1],
    "columns reversed": np.arange(12.0).reshape(6, 2)[:, ::-1],
    "transposed": np.arange(12).reshape(2, 6).T,
    "one column, reversed": np.zeros((6, 1))[:, ::-1],
    "broadcast": np.broadcast_to(np.arange(3), (6, 3)),
    "big-endian": np.arange(6, dtype=">f4"),
    "big-endian ints": np.arange(12, dtype=">i8").reshape(6, 2),
    "read-only": read_only(np.arange(6)),
    "no columns": np.zeros((6, 0), np.uint8),
}


@pytest.mark.slow
@pytest.mark.parametrize("workers", [INLINE, THREADS, PROCESSES], ids=["inline", "threads", "processes"])
def test_unusual_arrays_keep_their_values_on_the_way_in_and_out_of_workers(workers):
    """BATCH-5: the function gets them, and makes such ones itself."""

    def checked(batch):
        row = int(batch["sample_uid"][0])
        for name, value in UNUSUAL.items():
            assert batch[name].tolist() == value[row : row + 1].tolist(), name
        return {name: value[row : row + 1] for name, value in UNUSUAL.items()}

    source = SequenceArray(UNUSUAL, SamplerSequential())
    with source.map(checked, **workers).map(same, **workers).batch(4).collate() as sequence:
        batches = list(sequence)
    for name, value in UNUSUAL.items():
        assert [row for batch in batches for row in batch[name].tolist()] == value.tolist(), name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "nb_columns"), [(INLINE, 2), (THREADS, 2), (PROCESSES, 30_000)], ids=["inline", "threads", "processes"]
)
def test_writing_into_a_batch_changes_neither_the_source_nor_another_batch(workers, nb_columns):
    """BATCH-6: also where results are views of shared memory, and rows of a split are read-only."""
    split = {"x": read_only(np.ones((6, nb_columns))), "t": torch.ones(6, nb_columns), "sample_uid": np.arange(6)}
    source = SequenceArray(split, SamplerSequential(batch_size=2))
    with source.map(same, **workers) as mapped:
        for chain in (source, mapped, mapped.batch(1), mapped.rebatch(4), mapped.collate(), source.sub_batch(1)):
            batches = list(chain)
            for batch in batches:
                assert (batch["x"] == 1).all()
                assert (batch["t"] == 1).all()
                batch["x"][:] = 0
                batch["t"][:] = 0
    assert (split["x"] == 1).all()
    assert (split["t"] == 1).all()


def patches(batch):
    return [{"x": batch["x"], "place": np.array([i])} for i in range(NB_PATCHES)]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [INLINE, THREADS], ids=["inline", "threads"])
def test_every_volume_gives_its_number_of_patches_whatever_the_capacity(workers):
    """BATCH-9."""
    expected = {(x, place): 1 for x in range(7) for place in range(NB_PATCHES)}
    for capacity in range(1, 31):
        source = SequenceArray({"x": np.arange(7)}, SamplerRandom())
        with source.map(patches, max_jobs_at_once=capacity, **workers).rebatch(3) as sequence:
            for _ in range(2):
                found = Counter(
                    pair for b in sequence for pair in zip(b["x"].tolist(), b["place"].tolist(), strict=True)
                )
                assert found == expected, capacity


@pytest.mark.slow
def test_no_volume_is_starved_by_a_reservoir_whatever_its_capacity():
    """BATCH-9: each epoch serves whole results; after a pass of the source every volume was served as a whole."""
    nb_volumes, max_jobs = 7, 2
    for capacity in range(1, 31):
        source = SequenceArray({"x": np.arange(nb_volumes)}, SamplerRandom())
        with source.async_reservoir(
            capacity, patches, 1, backend="inline", max_jobs_at_once=max_jobs
        ).collate() as sequence:
            served = Counter()
            for _ in range(2 * nb_volumes + 1):
                epoch = Counter(numbers(sequence))
                assert all(count % NB_PATCHES == 0 for count in epoch.values()), capacity
                served += epoch
        assert set(served) == set(range(nb_volumes)), capacity


@pytest.mark.slow
@pytest.mark.parametrize("limit", [1, 5, 11, 28, 30])
def test_a_maximum_of_patches_is_kept_exactly_and_loses_none(limit):
    """BATCH-9: 28 patches are given by epochs of any limit, one after the other."""
    source = SequenceArray({"x": np.arange(7)}, SamplerRandom())
    with source.map(patches, max_jobs_at_once=5, **THREADS).max_samples(limit) as sequence:
        epochs = [numbers(sequence) for _ in range(-(-28 // limit))]
    assert [len(epoch) for epoch in epochs[:-1]] == [limit] * (len(epochs) - 1)
    assert Counter(x for epoch in epochs for x in epoch) == dict.fromkeys(range(7), NB_PATCHES)


@pytest.mark.parametrize("workers", [INLINE, THREADS], ids=["inline", "threads"])
def test_what_a_chain_has_to_say_goes_to_loggers_of_the_package_alone(capsys, caplog, workers):
    """USE-4."""

    def odd_fails(batch):
        if batch["x"][0] % 2:
            raise ValueError("odd")
        return batch

    chain = SequenceArray({"x": np.arange(6)}).map(odd_fails, on_error="skip", **workers).batch(2)
    with caplog.at_level(logging.DEBUG), chain as sequence:
        assert sorted(numbers(sequence)) == [0, 2, 4]
    assert caplog.records
    assert {record.name.split(".")[0] for record in caplog.records} == {"trw_pipeline"}
    assert capsys.readouterr() == ("", "")
