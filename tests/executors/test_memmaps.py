"""Arrays that are mapped from a file travel as a reference to it, and what a job writes stays in the job."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from trw_pipeline.errors import CodecError
from trw_pipeline.executors.codec import OUT_OF_BAND_BYTES
from trw_pipeline.executors.pickle_codec import PickleCodec

ROWS = 400
REFERENCE_BYTES = 1500
"""A reference takes less than this, however large the array."""


@pytest.fixture
def volume(tmp_path) -> np.memmap:
    """(400, 300) int32 of its own indices, 480 KB, 17 bytes into its file."""
    array = np.memmap(tmp_path / "volume", np.int32, "w+", 17, (ROWS, 300))
    array[:] = np.arange(ROWS * 300).reshape(ROWS, 300)
    array.flush()
    return array


def encoded(obj) -> list:
    return PickleCodec("item", by_file=True).encode(obj)


def trip(obj):
    return PickleCodec("item", by_file=True).decode([bytearray(frame) for frame in encoded(obj)])


def nb_bytes(frames) -> int:
    return sum(memoryview(frame).nbytes for frame in frames)


def reopened(volume: np.memmap, mode: str) -> np.memmap:
    return np.memmap(volume.filename, volume.dtype, mode, 17, volume.shape)


VIEWS = {
    "whole": lambda a: a,
    "one row of many": lambda a: a[3:300],
    "every second column": lambda a: a[:, ::2],
    "backwards": lambda a: a[::-1, ::-3],
    "transposed": lambda a: a.T,
    "another type": lambda a: a.view(np.uint16),
    "another shape": lambda a: a.reshape(-1, 100, 4),
    "new axis": lambda a: a[None, :, None],
    "structured": lambda a: a.reshape(-1).view([("a", "i4"), ("b", ">u4")]),
    "view of a view": lambda a: a[10:][5:200].T[3:],
}


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_of_a_file_arrives_as_a_reference(volume, view):
    sent = VIEWS[view](volume)
    arrived = trip({"x": sent})["x"]
    assert type(arrived) is np.memmap
    assert (arrived.dtype, arrived.shape, arrived.strides) == (sent.dtype, sent.shape, sent.strides)
    assert arrived.tobytes() == sent.tobytes()
    assert nb_bytes(encoded({"x": sent})) < REFERENCE_BYTES


@pytest.mark.slow
@given(st.data())
@settings(deadline=None, max_examples=60)
def test_any_view_of_a_file_arrives_as_it_was(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("memmap") / "file"
    dtype = data.draw(st.sampled_from(["u1", "<i2", ">f4", "f8", "c16"]))
    offset = data.draw(st.integers(0, 9000))
    array = np.memmap(path, dtype, "w+", offset, (40, 30, 20))
    array.reshape(-1).view(np.uint8)[:] = 7 * np.arange(array.nbytes) % 251
    sent = array[data.draw(hnp.basic_indices(array.shape, allow_newaxis=True, allow_ellipsis=True))]
    arrived = trip([sent])[0]
    assert (arrived.dtype.newbyteorder("="), arrived.shape) == (sent.dtype.newbyteorder("="), sent.shape)
    assert arrived.astype(dtype.strip("<>")).tobytes() == sent.astype(dtype.strip("<>")).tobytes()


def test_a_file_of_numpy_arrives_as_a_reference(tmp_path):
    np.save(tmp_path / "a.npy", np.asfortranarray(np.arange(60_000.0).reshape(200, 300)))
    sent = np.load(tmp_path / "a.npy", mmap_mode="r")
    assert trip(sent).tolist() == sent.tolist()
    assert trip(sent).flags.f_contiguous
    assert nb_bytes(encoded(sent)) < REFERENCE_BYTES


def test_a_path_that_is_relative_is_found_from_elsewhere(volume, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    sent = np.memmap("volume", np.int32, "r", 17, (ROWS, 300))
    frames = encoded(sent)
    monkeypatch.chdir("/")
    assert PickleCodec("item").decode(frames).tolist() == volume.tolist()


# Writing


@pytest.mark.parametrize("mode", ["r+", "w+", "c"])
def test_what_is_written_there_does_not_reach_the_file(volume, mode):
    sent = volume if mode == "w+" else reopened(volume, mode)
    arrived = trip(sent)
    arrived[:] = -1
    assert volume[3, 5] == 905
    assert sent[3, 5] == 905


def test_what_was_written_and_not_flushed_is_seen(volume):
    volume[0, 0] = 77
    assert trip(volume)[0, 0] == 77


def test_a_read_only_map_arrives_read_only(volume):
    assert not trip(reopened(volume, "r")).flags.writeable
    assert trip(reopened(volume, "r+")).flags.writeable


def test_a_read_only_view_of_a_map_that_can_be_written_arrives_read_only(volume):
    view = volume[10:]
    view.flags.writeable = False
    assert not trip(view).flags.writeable


# Where a reference would not do


def test_what_was_changed_in_a_private_map_arrives_changed(volume):
    private = reopened(volume, "c")
    private[0, 0] = 77
    arrived = trip(private)
    assert (arrived[0, 0], arrived[0, 1], volume[0, 0]) == (77, 1, 0)


def test_what_was_computed_from_a_map_is_no_reference(volume):
    made = volume + 1
    assert (trip(made) == made).all()
    assert nb_bytes(encoded(made)) > made.nbytes


def test_a_map_of_a_file_that_was_removed_is_copied(volume):
    os.remove(volume.filename)
    assert (trip(volume) == volume).all()


def test_small_parts_are_copied(volume):
    few = volume[0, : OUT_OF_BAND_BYTES // 8]
    arrived = trip(few)
    assert (arrived.tolist(), type(arrived)) == (few.tolist(), np.ndarray)


def test_an_array_over_a_map_is_copied(volume):
    """It does not say of which file it is."""
    plain = np.asarray(volume)
    assert (trip(plain) == volume).all()


def test_a_file_that_is_gone_when_it_arrives_is_one_error(volume):
    frames = encoded(volume)
    os.remove(volume.filename)
    with pytest.raises(CodecError, match=r"item can not be unpickled: FileNotFoundError"):
        PickleCodec("item").decode(frames)


def test_a_file_that_became_shorter_is_one_error(volume):
    frames = encoded(volume)
    os.truncate(volume.filename, 1000)
    with pytest.raises(CodecError, match="item can not be unpickled"):
        PickleCodec("item").decode(frames)


# Through a pool


def test_a_job_sees_the_file_and_what_it_writes_stays_there(executor_of, volume):
    def spoil(x):
        seen = type(x).__name__, int(x["v"].sum())
        x["v"][:] = -1
        return seen, type(x["v"]).__name__

    executor = executor_of(1, spoil)
    for _ in range(3):
        executor.put({"v": volume})
        assert executor.get(timeout=30).value == (("dict", int(volume.sum())), "memmap")
    assert volume[3, 5] == 905


def test_a_result_that_is_mapped_travels_by_value(executor_of, tmp_path):
    """The function may use the same file for the next one."""

    def write(x):
        array = np.memmap(tmp_path / "scratch", np.float64, "w+", shape=(50_000,))
        array[:] = x
        return {"x": array}

    executor = executor_of(1, write, in_order=True)
    for i in range(6):
        executor.put(i)
    values = [executor.get(timeout=30).value["x"] for _ in range(6)]
    values[0][:] = -1
    assert [set(np.unique(value).tolist()) for value in values] == [{-1.0}, *({float(i)} for i in range(1, 6))]
    assert np.fromfile(tmp_path / "scratch")[0] == 5


def test_an_item_whose_file_is_gone_is_one_failed_job(executor_of, volume):
    executor = executor_of(1, lambda x: int(x[0, 1]), on_error="return", in_order=True)
    executor.put(volume)
    assert executor.get(timeout=30).value == 1
    executor.put(volume)
    gone = executor.put(volume)
    os.remove(volume.filename)
    results = [executor.get(timeout=30) for _ in range(2)]
    assert results[-1].ticket == gone
    assert all(result.error is None or "FileNotFoundError" in str(result.error) for result in results)
