"""The codec that compresses what another codec made: what it touches, and what it leaves alone."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
import zmq
from toy_buffers import noise

from trw_pipeline.errors import CodecError
from trw_pipeline.executors.blosc_codec import BloscCodec
from trw_pipeline.executors.codec import OUT_OF_BAND_BYTES, ReferenceCodec
from trw_pipeline.executors.compression import Compression, Trial, load_blosc2, store
from trw_pipeline.executors.pickle_codec import PickleCodec


@pytest.fixture(scope="module", autouse=True)
def _blosc2():
    """It takes a second to import, which no single test shall be charged with."""
    load_blosc2()


@pytest.fixture(params=["lz4", "zstd"])
def codec(request):
    return BloscCodec(PickleCodec("item"), Compression(request.param))


def sizes(frames):
    return [memoryview(frame).nbytes for frame in frames]


COPIES = {"bytes": bytes, "bytearray": bytearray, "zmq.Frame": zmq.Frame}


@pytest.mark.parametrize("copy", COPIES)
def test_a_batch_arrives_as_it_was_sent(codec, copy):
    batch = {
        "image": np.arange(100_000, dtype=">i2").reshape(10, 100, 100),
        "mask": torch.zeros(10, 100, 100),
        "noise": noise(50_000),
        "half": np.linspace(0, 1, 30_000).astype(np.float16),
        "fortran": np.asfortranarray(np.arange(40_000.0).reshape(200, 200)),
        "small": np.arange(3),
        "uid": ["a", "b"],
    }
    arrived = codec.decode([COPIES[copy](frame) for frame in codec.encode(batch)])
    assert list(arrived) == list(batch)
    assert torch.equal(arrived["mask"], batch["mask"])
    assert arrived["uid"] == batch["uid"]
    for name in ("image", "noise", "half", "fortran", "small"):
        assert np.array_equal(arrived[name], batch[name])
        assert arrived[name].dtype.newbyteorder("=") == batch[name].dtype.newbyteorder("=")


def test_the_head_is_left_alone_and_buffers_get_smaller(codec):
    batch = {"image": np.arange(100_000, dtype=np.int16), "mask": np.zeros((100, 100, 10), np.uint8)}
    plain, frames = PickleCodec("item").encode(batch), codec.encode(batch)
    assert frames[0] == plain[0]
    assert len(frames) == len(plain) == 3
    assert sizes(frames)[1] < 40_000
    assert sizes(frames)[2] < 1000


@pytest.mark.parametrize(("nb_bytes", "is_compressed"), [(29_999, False), (30_000, True)])
def test_buffers_are_compressed_from_the_threshold_on(nb_bytes, is_compressed):
    codec = BloscCodec(PickleCodec("item"), Compression("lz4"), at_least_bytes=30_000)
    _, frame = codec.encode(np.zeros(nb_bytes, np.uint8))
    assert (memoryview(frame).nbytes < nb_bytes) == is_compressed


def test_a_buffer_that_does_not_get_smaller_is_not_copied(codec):
    array = noise(100_000)
    _, frame = codec.encode(array)
    assert np.shares_memory(np.frombuffer(frame, np.uint8), array)


def test_arrays_arrive_writable_and_in_memory_of_their_own(codec):
    array = np.zeros(100_000)
    frames = codec.encode(array)
    first, second = codec.decode(frames), codec.decode(frames)
    first += 1
    assert (array.sum(), second.sum(), first.sum()) == (0, 0, 100_000)


def test_a_read_only_array_arrives_read_only(codec):
    array = np.zeros(100_000)
    array.flags.writeable = False
    assert not codec.decode(codec.encode(array)).flags.writeable


@pytest.mark.parametrize("make", [store, Compression("lz4").compress])
@pytest.mark.parametrize("cut", [None, 20_000])
def test_data_that_look_like_a_frame_travel_too(codec, make, cut):
    """Also where they are a damaged one, since they are only data here."""
    array = np.frombuffer(make(noise(50_000) // 32)[:cut], np.uint8).copy()
    assert array.size >= 20_000 > OUT_OF_BAND_BYTES
    assert np.array_equal(codec.decode([bytes(frame) for frame in codec.encode(array)]), array)


def test_one_codec_inside_another_makes_the_round_trip(codec):
    twice = BloscCodec(codec, Compression("zstd"))
    array = np.arange(200_000)
    assert np.array_equal(twice.decode(twice.encode(array)), array)


def test_a_trial_decides_what_is_compressed():
    codec = BloscCodec(PickleCodec("item"), Trial(min_ratio=2))
    for _ in range(4):
        _, volume, grain = codec.encode([np.arange(100_000, dtype=np.int16), noise(100_000)])
        assert memoryview(volume).nbytes < 100_000
        assert memoryview(grain).nbytes == 100_000


@pytest.mark.slow
def test_damage_to_a_compressed_buffer_is_an_error(codec):
    frames = codec.encode(np.arange(20_000))
    for place in range(0, sizes(frames)[1], 7):
        damaged = bytearray(frames[1])
        damaged[place] ^= 0x10
        with pytest.raises(CodecError, match=r"can not be (decompressed|unpickled)"):
            codec.decode([frames[0], damaged])


@pytest.mark.parametrize("nb_bytes", [0, 5, 32, 100])
def test_a_compressed_buffer_that_was_cut_is_an_error(codec, nb_bytes):
    head, frame = codec.encode(np.arange(20_000))
    with pytest.raises(CodecError, match=r"can not be (decompressed|unpickled)"):
        codec.decode([head, frame[:nb_bytes]])


def test_what_the_inner_codec_refuses_is_refused(codec):
    with pytest.raises(CodecError, match=r"item\['a'\]\[1\] can not be pickled"):
        codec.encode({"a": [np.zeros(100_000), threading.Lock()]})


class WithBuffer(ReferenceCodec):
    """Owns the object until it is decoded or discarded, and adds a buffer."""

    def __init__(self, buffer):
        super().__init__()
        self.buffer = buffer

    def encode(self, obj):
        return [*super().encode(obj), self.buffer]


def is_waiting(inner, frames):
    try:
        inner.decode(frames)
    except KeyError:
        return False
    return True


def test_a_discarded_object_is_discarded_in_the_inner_codec():
    inner = WithBuffer(bytes(50_000))
    codec = BloscCodec(inner, Compression("lz4"))
    kept, gone = codec.encode([1]), codec.encode([2])
    codec.discard(gone)
    assert (is_waiting(inner, gone), is_waiting(inner, kept)) == (False, True)


def test_an_object_with_a_damaged_buffer_is_discarded_in_the_inner_codec():
    inner = WithBuffer(bytes(50_000))
    codec = BloscCodec(inner, Compression("lz4"))
    head, frame = codec.encode([1])
    with pytest.raises(CodecError):
        codec.decode([head, frame + b"\0"])
    assert not is_waiting(inner, [head])


def test_an_object_with_a_buffer_that_can_not_be_compressed_is_discarded_in_the_inner_codec():
    inner = WithBuffer(np.zeros((50_000, 2), np.uint8)[:, 0])
    with pytest.raises(ValueError, match="must be contiguous"):
        BloscCodec(inner, Compression("lz4")).encode([1])
    assert not is_waiting(inner, [(0).to_bytes(8, "little")])


def test_close_closes_the_inner_codec_as_often_as_asked():
    inner = ReferenceCodec()
    codec = BloscCodec(inner, Compression("lz4"))
    frames = codec.encode([1])
    codec.close()
    codec.close()
    assert not is_waiting(inner, frames)


def test_no_threads_to_compress_with_are_refused():
    with pytest.raises(ValueError, match="nthreads must be at least 1, got 0"):
        BloscCodec(PickleCodec("item"), Compression("lz4"), nthreads=0)
