"""`Compressed`: results that are kept compressed, and made again for each use."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from trw_pipeline.errors import CodecError
from trw_pipeline.executors.compressed import Compressed, Compressor, ReusedBuffers
from trw_pipeline.executors.compression import Compression, Trial, store
from trw_pipeline.executors.pickle_codec import PickleCodec

KB = 1024
CODEC = PickleCodec("result")


def kept(result, compression=None):
    """What arrives of a result that a worker compressed."""
    compressor = Compressor(compression or Compression("zstd"))
    return CODEC.decode([bytes(frame) for frame in CODEC.encode(compressor(result))])


def volume(dtype, nb=64 * KB):
    return (np.arange(nb) % 1000).astype(dtype).reshape(64, -1)


@pytest.mark.parametrize("dtype", ["<i2", ">i2", "u1", ">f4", "f8", "?", "c8", "M8[s]"])
@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_values_dtype_and_byte_order_are_kept(dtype, codec):
    result = {"large": volume(dtype), "small": volume(dtype)[:2, :2].copy(), "name": "scan"}
    found = kept(result, Compression(codec)).open(ReusedBuffers())
    for name in ("large", "small"):
        assert found[name].dtype == result[name].dtype
        assert found[name].dtype.byteorder == result[name].dtype.byteorder
        np.testing.assert_array_equal(found[name], result[name])
    assert found["name"] == "scan"


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    hnp.arrays(
        st.sampled_from([np.dtype(code) for code in ("<u2", ">i4", "f2", ">f8", "u1")]),
        hnp.array_shapes(max_dims=4, max_side=12),
    ),
    st.integers(1, 300),
)
def test_a_result_of_any_structure_makes_the_round_trip(array, repeats):
    """Lists of dicts too, and arrays that are not contiguous, of which NumPy may change the byte order; of any size."""
    large = np.repeat(array, repeats, axis=0)
    result = [{"x": array, "many": large}, (large.T, large[::2], "text", 5)]
    found = kept(result).open(ReusedBuffers())
    for one, other in [(found[0]["x"], array), (found[0]["many"], large), (found[1][0], large.T)]:
        assert one.dtype == other.dtype
        assert one.tobytes() == other.tobytes()  # NaN too
    assert found[1][1].astype(large.dtype).tobytes() == large[::2].tobytes()
    assert found[1][2:] == ("text", 5)


def test_tensors_come_back_as_tensors():
    found = kept({"x": torch.arange(100_000, dtype=torch.int16)}).open(ReusedBuffers())
    assert found["x"].dtype == torch.int16
    assert torch.equal(found["x"], torch.arange(100_000, dtype=torch.int16))


def test_shuffled_numbers_take_several_times_less_memory():
    result = {"x": np.arange(200_000, dtype=np.int32)}
    assert kept(result).nb_bytes * 20 < result["x"].nbytes


def test_noise_is_stored_and_takes_hardly_more_than_it_is():
    noise = np.random.default_rng(0).integers(0, 256, 100 * KB, np.uint8)
    stored = kept({"x": noise})
    assert noise.nbytes <= stored.nb_bytes < noise.nbytes + 2 * KB
    np.testing.assert_array_equal(stored.open(ReusedBuffers())["x"], noise)


def test_a_trial_decides_for_each_buffer():
    noise = np.random.default_rng(0).integers(0, 256, 100 * KB, np.uint8)
    found = kept({"noise": noise, "flat": np.zeros(100 * KB, np.uint8)}, Trial(min_ratio=1.1))
    assert 100 * KB < found.nb_bytes < 110 * KB
    np.testing.assert_array_equal(found.open(ReusedBuffers())["noise"], noise)


@pytest.mark.parametrize("nothing", [None, []])
def test_what_says_that_there_is_no_result_goes_through(nothing):
    assert Compressor(Compression())(nothing) is nothing


def test_what_can_not_be_pickled_is_named():
    with pytest.raises(CodecError, match=r"result\['lock'\] can not be pickled"):
        Compressor(Compression())({"lock": threading.Lock()})


def test_a_frame_that_is_damaged_is_refused_when_it_comes():
    frame = bytearray(store(b"head"))
    frame[-1] ^= 1
    with pytest.raises(CodecError, match="damaged"):
        Compressed([bytes(frame)])


def test_each_opening_is_writable_and_of_its_own():
    compressed, buffers = kept([{"x": volume("i2")}]), ReusedBuffers()
    first, second = compressed.open(buffers)[0]["x"], compressed.open(buffers)[0]["x"]
    first += 1
    np.testing.assert_array_equal(second, volume("i2"))
    np.testing.assert_array_equal(compressed.open(buffers)[0]["x"], volume("i2"))


def address(array):
    return array.__array_interface__["data"][0]


def test_memory_is_used_again_only_when_the_last_view_is_gone():
    compressed, buffers = kept({"x": volume("i2")}), ReusedBuffers()
    first = compressed.open(buffers)["x"]
    where, view = address(first), first[3:]
    del first
    gc.collect()
    second = compressed.open(buffers)["x"]
    assert address(second) != where
    np.testing.assert_array_equal(view, volume("i2")[3:])
    del view
    gc.collect()
    assert address(compressed.open(buffers)["x"]) == where


def test_a_tensor_over_a_result_keeps_its_memory():
    compressed, buffers = kept({"x": volume("i2")}), ReusedBuffers()
    tensor = torch.from_numpy(compressed.open(buffers)["x"])
    others = [compressed.open(buffers)["x"] for _ in range(3)]
    for other in others:
        other[:] = 0
    np.testing.assert_array_equal(tensor.numpy(), volume("i2"))


def test_unused_memory_is_bounded():
    buffers = ReusedBuffers(free_bytes=250 * KB)
    held = [buffers.take(100 * KB) for _ in range(8)]
    del held
    gc.collect()
    last = buffers.take(100 * KB)
    assert sum(map(len, buffers._home)) <= 250 * KB
    assert len(last) == 100 * KB


def test_memory_serves_buffers_that_are_a_little_smaller():
    buffers = ReusedBuffers()
    first = buffers.take(100 * KB)
    del first
    smaller = buffers.take(90 * KB)
    assert len(smaller) == 90 * KB
    assert not buffers._home  # it has the memory of the first one
    del smaller
    assert len(buffers.take(20 * KB)) == 20 * KB  # of much less, memory of its own
    assert [len(memory) for memory in buffers._home] == [100 * KB, 20 * KB]
