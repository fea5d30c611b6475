"""Features in files: HDF5, Zarr, Blosc2 and memmaps are read row by row, in the worker where there is one."""

from __future__ import annotations

import asyncio
import copy
import os
import pickle
import sys
import threading

import blosc2
import cloudpickle
import h5py
import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.core import sync as zarr_sync

from trw_pipeline.errors import FailedJobError
from trw_pipeline.sequences import file_rows as file_rows_module
from trw_pipeline.sequences.file_rows import LARGE_ROW_BYTES, OPEN_AT_MOST, _opened, file_rows, read_rows
from trw_pipeline.sequences.samplers import SamplerClassResampling, SamplerRandom, SamplerSequential
from trw_pipeline.sequences.sequence import SequenceArray

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # so that workers need not import this file
NB = 23
X = np.arange(NB * 6, dtype=np.int32).reshape(NB, 2, 3)
CHUNK = 4


def hdf5(folder, array=X, chunks=CHUNK):
    with h5py.File(folder / "a.h5", "w") as file:
        layout = {"chunks": (chunks, *array.shape[1:]), "compression": "gzip"} if chunks else {}
        file.create_dataset("group/x", data=array, **layout)
    return h5py.File(folder / "a.h5", "r")["group/x"]


def hdf5_contiguous(folder, array=X):
    return hdf5(folder, array, chunks=0)


def zarr_array(folder, array=X):
    zarr.create_array(folder / "a.zarr", name="group/x", data=array, chunks=(CHUNK, *array.shape[1:]))
    return zarr.open_array(folder / "a.zarr", path="group/x", mode="r")


def blosc(folder, array=X):
    blosc2.asarray(array, chunks=(CHUNK, *array.shape[1:]), urlpath=str(folder / "a.b2nd"), mode="w")
    return blosc2.open(str(folder / "a.b2nd"), mode="r")


def mapped(folder, array=X):
    np.save(folder / "a.npy", array)
    return np.load(folder / "a.npy", mmap_mode="r")


STORED = {"hdf5": hdf5, "hdf5, contiguous": hdf5_contiguous, "zarr": zarr_array, "blosc2": blosc}
FILES = {**STORED, "memmap": mapped}
every_stored = pytest.mark.parametrize("stored", STORED.values(), ids=STORED.keys())
every_file = pytest.mark.parametrize("stored", FILES.values(), ids=FILES.keys())

NEVER_HERE = "rows were read in this process"


def with_origin(batch):
    """A worker's answer: the rows it saw, of which type, and where."""
    return {"x": batch["x"], "type": [type(batch["x"]).__name__], "pid": [os.getpid()], "uid": batch["sample_uid"]}


@pytest.fixture(autouse=True)
def threads_of_zarr():
    """Ends those that zarr keeps for the next time."""

    async def end():
        await asyncio.get_running_loop().shutdown_default_executor()

    yield
    if zarr_sync.loop[0] is not None:
        zarr_sync.sync(end())
        zarr_sync.cleanup_resources()


@pytest.fixture
def large_rows(monkeypatch):
    """Rows of a memmap count as large."""
    monkeypatch.setattr(file_rows_module, "LARGE_ROW_BYTES", 1)


@pytest.fixture
def not_here(monkeypatch):
    """Fails where rows are read in this process."""

    def read(self, rows):
        raise AssertionError(NEVER_HERE)

    for kind in (file_rows_module.StoredRows, file_rows_module.MappedRows):
        monkeypatch.setattr(kind, "read", read)


def check(batches, sampled=None):
    seen = rows_by_uid(batches)
    assert seen == {uid: X[uid].tolist() for uid in (range(NB) if sampled is None else sampled)}


def rows_by_uid(batches):
    seen = {}
    for batch in batches:
        uids = batch["uid" if "uid" in batch else "sample_uid"]
        seen.update(zip(np.asarray(uids).tolist(), np.asarray(batch["x"]).tolist(), strict=True))
    return seen


# What is read


@every_file
@pytest.mark.parametrize("size", [1, 5])
def test_a_batch_holds_plain_arrays_of_its_rows(stored, size, tmp_path):
    sequence = SequenceArray({"x": stored(tmp_path)}, SamplerRandom(batch_size=size))
    batches = list(sequence)
    check(batches)
    assert {(type(batch["x"]), batch["x"].dtype) for batch in batches} == {(np.ndarray, X.dtype)}


@every_file
def test_what_is_written_into_a_batch_stays_there(stored, tmp_path):
    sequence = SequenceArray({"x": stored(tmp_path)}, SamplerSequential(batch_size=4))
    for batch in sequence:
        batch["x"][:] = -1
    check(sequence)


@every_stored
@given(rows=st.lists(st.integers(0, NB - 1), max_size=30))
@settings(deadline=None, max_examples=40)
def test_rows_come_in_any_order_and_more_than_once(stored, rows, tmp_path_factory):
    array = stored(tmp_path_factory.mktemp("rows"))
    found = read_rows(array, np.array(rows, np.int64))
    assert (found.tolist(), found.dtype) == (X[rows].tolist(), X.dtype)


class Counted:
    """An array in chunks of four rows that notes which slices are read of it."""

    def __init__(self):
        self.shape, self.dtype, self.chunks, self.slices = X.shape, X.dtype, (CHUNK, 2, 3), []

    def __getitem__(self, rows):
        self.slices.append((rows.start, rows.stop))
        return X[rows]


def test_each_chunk_is_read_once():
    array = Counted()
    rows = np.array([21, 2, 0, 9, 11, 2, 12, 8])
    assert (read_rows(array, rows) == X[rows]).all()
    assert array.slices == [(0, 3), (8, 13), (21, 22)]


@every_stored
def test_without_advanced_indexing_a_batch_is_a_list_of_rows(stored, tmp_path):
    sequence = SequenceArray({"x": stored(tmp_path)}, SamplerSequential(batch_size=4), use_advanced_indexing=False)
    rows = [np.asarray(row).tolist() for batch in sequence for row in batch["x"]]
    assert rows == X.tolist()


@every_stored
def test_classes_are_resampled_from_a_file(stored, tmp_path):
    target = np.arange(NB) % 3
    sampler = SamplerClassResampling("target", 30)
    sequence = SequenceArray({"x": X, "target": stored(tmp_path, target)}, sampler)
    assert np.bincount([int(batch["target"][0]) for batch in sequence]).tolist() == [10, 10, 10]


@every_stored
def test_subsamples_hold_their_rows(stored, tmp_path):
    sequence = SequenceArray({"x": stored(tmp_path), "id": stored_ids(stored, tmp_path)}, SamplerSequential())
    check(sequence.subsample_uids([9, 3, 12], "sample_uid"), [9, 3, 12])
    check(sequence.subsample_uids([109, 103], "id"), [9, 3])
    assert len(list(sequence.subsample(5))) == 5


def stored_ids(stored, folder):
    other = folder / "ids"
    other.mkdir()
    return stored(other, np.arange(NB) + 100)


# What counts as one value for each sample


@every_file
def test_another_length_is_an_error_as_of_any_array(stored, tmp_path):
    with pytest.raises(ValueError, match="'x' has 23 and feature 'y' has 5"):
        SequenceArray({"x": stored(tmp_path), "y": np.zeros(5)})


@every_stored
def test_a_shared_feature_is_handed_on_as_it_is(stored, tmp_path):
    array = stored(tmp_path)
    batch = next(iter(SequenceArray({"y": np.zeros(5), "x": array}, shared_features=("x",))))
    assert batch["x"] is array


def test_a_value_without_dimensions_is_batch_wide(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["scale"] = 3.0
        batch = next(iter(SequenceArray({"y": np.zeros(5), "scale": file["scale"]})))
        assert batch["scale"][()] == 3.0


# In a worker


@every_file
@pytest.mark.usefixtures("large_rows", "not_here")
@pytest.mark.parametrize("size", [1, 5])
def test_a_worker_reads_the_rows_itself(stored, size, tmp_path):
    sequence = SequenceArray({"x": stored(tmp_path)}, SamplerRandom(batch_size=size)).map(with_origin, nb_workers=2)
    with sequence:
        batches = list(sequence)
    check(batches)
    assert os.getpid() not in {batch["pid"][0] for batch in batches}
    assert {batch["type"][0] for batch in batches} == {"ndarray"}


@pytest.mark.slow
@pytest.mark.usefixtures("large_rows", "not_here")
@every_file
def test_a_forked_worker_shares_no_handle(stored, tmp_path):
    array = stored(tmp_path)
    assert (np.asarray(array[:3]) == X[:3]).all()
    sequence = SequenceArray({"x": array}).map(with_origin, nb_workers=2, start_method="fork")
    with sequence:
        for _ in range(3):
            check(sequence)


@every_file
@pytest.mark.usefixtures("large_rows")
@pytest.mark.parametrize("options", [{}, {"nb_workers": 3, "backend": "thread"}], ids=["inline", "threads"])
def test_a_thread_reads_the_rows_itself(stored, options, tmp_path, monkeypatch):
    readers = set()
    for kind in (file_rows_module.StoredRows, file_rows_module.MappedRows):
        read = kind.read
        monkeypatch.setattr(
            kind, "read", lambda *given, read=read: readers.add(threading.current_thread().name) or read(*given)
        )
    with SequenceArray({"x": stored(tmp_path)}).map(with_origin, **options) as sequence:
        for _ in range(4):
            check(sequence)
    assert ("MainThread" in readers) == (not options)


@every_file
@pytest.mark.usefixtures("large_rows")
def test_preprocess_sees_rows_that_were_read(stored, tmp_path):
    def twice(batch, source):
        return {**batch, "x": batch["x"] * 2}

    with SequenceArray({"x": stored(tmp_path)}).map(
        lambda batch: {**batch, "x": batch["x"] // 2}, nb_workers=1, preprocess_fn=twice
    ) as sequence:
        check(sequence)


@every_file
@pytest.mark.usefixtures("large_rows")
def test_transforms_see_rows_that_were_read(stored, tmp_path):
    sequence = SequenceArray({"x": stored(tmp_path)}, transforms=lambda batch: {**batch, "x": batch["x"] + 0})
    with sequence.map(with_origin, nb_workers=1) as mapped_sequence:
        check(mapped_sequence)


@every_file
@pytest.mark.usefixtures("large_rows", "not_here")
def test_a_reservoir_reads_in_its_workers(stored, tmp_path):
    with (
        SequenceArray({"x": stored(tmp_path)}).async_reservoir(NB, with_origin, NB, nb_workers=2).collate()
    ) as sequence:
        seen = rows_by_uid(sequence)
    assert seen == {uid: X[uid].tolist() for uid in seen}
    assert len(seen) > NB // 2


@every_file
@pytest.mark.usefixtures("large_rows")
def test_a_description_says_that_rows_are_in_a_file(stored, tmp_path):
    sequence = SequenceArray({"x": stored(tmp_path)}).map(lambda batch: batch)
    list(sequence)
    assert "gives x: (N, 2, 3) int32, in a file; " in sequence.describe()
    assert "gives x: (N, 2, 3) int32; " in sequence.describe()


@every_file
@pytest.mark.usefixtures("large_rows")
def test_a_cached_map_knows_rows_by_what_they_hold(stored, tmp_path):
    for offset in range(2):
        folder = tmp_path / str(offset)
        folder.mkdir()
        sequence = SequenceArray({"x": stored(folder, X + offset)}, SamplerSequential()).map(lambda batch: batch)
        with sequence.cache(folder=tmp_path / "cache") as cached:
            assert [batch["x"][0].tolist() for batch in cached] == (X + offset).tolist()


def test_a_file_that_is_gone_is_the_error_of_its_jobs(tmp_path):
    sequence = SequenceArray({"x": hdf5(tmp_path)}, SamplerSequential()).map(with_origin, nb_workers=1)
    with sequence:
        epoch = iter(sequence)
        os.remove(tmp_path / "a.h5")
        with pytest.raises(FailedJobError, match=r"a\.h5.*No such file") as caught:
            next(epoch)
    assert caught.value.uid == 0


def test_a_file_that_was_replaced_is_opened_again(tmp_path):
    for offset in range(3):
        (tmp_path / "a.h5").unlink(missing_ok=True)
        array = hdf5(tmp_path, X + offset)
        found = pickle.loads(pickle.dumps(unread(array, [2, 0])))
        assert found.tolist() == (X[[2, 0]] + offset).tolist()


def unread(array, rows):
    feature = file_rows(array)
    feature.unread = True
    return feature[np.array(rows)]


# What travels


@every_stored
def test_a_reference_is_small(stored, tmp_path):
    assert len(pickle.dumps(unread(stored(tmp_path), [5]))) < 500


@every_stored
def test_copies_are_arrays(stored, tmp_path):
    rows = unread(stored(tmp_path), [5, 1])
    assert copy.deepcopy({"x": rows})["x"].tolist() == X[[5, 1]].tolist()
    assert pickle.loads(pickle.dumps(rows)).tolist() == X[[5, 1]].tolist()


def hdf5_to_write(folder):
    hdf5(folder)
    return h5py.File(folder / "a.h5", "r+")["group/x"]


def hdf5_in_memory(folder):
    file = h5py.File(folder / "none.h5", "w", driver="core", backing_store=False)
    return file.create_dataset("x", data=X)


def blosc_to_write(folder):
    return blosc2.asarray(X, urlpath=str(folder / "b.b2nd"), mode="w")


HERE = {
    "hdf5 to write": hdf5_to_write,
    "hdf5 in memory": hdf5_in_memory,
    "zarr in memory": lambda folder: zarr.array(X),
    "blosc2 to write": blosc_to_write,
    "blosc2 in memory": lambda folder: blosc2.asarray(X),
    "memmap, small rows": mapped,
    "memmap, private": lambda folder: np.load(path_of(mapped(folder)), mmap_mode="c"),
}


def path_of(array):
    return array.filename


@pytest.mark.parametrize("stored", HERE.values(), ids=HERE.keys())
def test_what_another_process_can_not_read_is_read_here(stored, tmp_path):
    sequence = SequenceArray({"x": stored(tmp_path)})
    with sequence.map(with_origin, nb_workers=1) as mapped_sequence:
        check(mapped_sequence)


def test_what_was_written_and_not_flushed_reaches_the_worker(tmp_path):
    array = hdf5_to_write(tmp_path)
    array[:] = X + 1
    with SequenceArray({"x": array}, SamplerSequential()).map(with_origin, nb_workers=1) as sequence:
        assert [batch["x"][0].tolist() for batch in sequence] == (X + 1).tolist()
    array.file.close()


def test_small_rows_of_a_memmap_travel_with_others_and_large_ones_alone(tmp_path):
    small = np.memmap(tmp_path / "a", np.uint8, "w+", shape=(3, LARGE_ROW_BYTES - 1))
    large = np.memmap(tmp_path / "b", np.uint8, "w+", shape=(3, LARGE_ROW_BYTES))
    assert not file_rows(small).can_travel
    assert file_rows(large).can_travel


def test_files_that_are_open_in_a_worker_are_bounded(tmp_path):
    _opened.cache_clear()
    nb_open = len(os.listdir("/proc/self/fd"))
    for number in range(OPEN_AT_MOST + 20):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert pickle.loads(pickle.dumps(unread(hdf5(folder), [3]))).tolist() == X[[3]].tolist()
    assert len(os.listdir("/proc/self/fd")) <= nb_open + OPEN_AT_MOST
    _opened.cache_clear()
    assert len(os.listdir("/proc/self/fd")) == nb_open


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "batch_size", "nb_workers"), [((32768, 1 << 14), 128, 0), ((512, 1 << 22), 1, 0), ((512, 1 << 22), 1, 2)]
)
def test_this_process_holds_a_batch_of_a_large_map_and_not_the_file(program, tmp_path, shape, batch_size, nb_workers):
    """MEM-5, with the pages that are the system's too: of 0.5 or 2 GB, what was mapped to be read is let go of."""
    result = program(f"""
        import numpy as np, psutil
        from trw_pipeline import SamplerRandom, SequenceArray

        scans = np.memmap({str(tmp_path / "scans")!r}, np.uint8, "w+", shape={shape})
        scans[5, 5] = 7

        def mean(batch):
            return {{"mean": [float(batch["x"].mean())], "uid": batch["sample_uid"]}}

        samples = SequenceArray({{"x": scans}}, SamplerRandom(batch_size={batch_size}))
        with samples.map(mean, nb_workers={nb_workers}) as sequence:
            next(iter(sequence))
            before = psutil.Process().memory_info().rss
            most, nb = 0, 0
            for batch in sequence:
                nb += len(batch["uid"])
                most = max(most, psutil.Process().memory_info().rss - before)
        print(nb, most / 1e6)
        """).finish(timeout_s=110)
    assert result.stderr == ""
    nb, grown_mb = result.stdout.split()
    assert int(nb) == shape[0]
    assert float(grown_mb) < 150
