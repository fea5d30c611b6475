"""Compression loses nothing, whatever the buffer; a trial compresses where it pays; damage is an error."""

from __future__ import annotations

import importlib.resources
import itertools
import struct
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from toy_buffers import ct_like_volume, noise

from trw_pipeline.errors import CodecError
from trw_pipeline.executors import compression
from trw_pipeline.executors.compression import (
    LARGEST_CHUNK_BYTES,
    MEMORY_BYTES_PER_S,
    Compression,
    Trial,
    decompress,
    is_frame,
    load_blosc2,
    store,
)

HEADER_BYTES = 32
LZ4 = Compression("lz4")


@pytest.fixture(scope="module", autouse=True)
def _blosc2():
    """It takes a second to import, which no single test shall be charged with."""
    load_blosc2()


# Settings


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"codec": "snappy"}, r"codec must be one of .*, got 'snappy'"),
        ({"codec": "LZ4"}, r"codec must be one of .*, got 'LZ4'"),
        ({"level": 0}, r"level must be a whole number from 1 to 9, got 0"),
        ({"level": 10}, r"level must be a whole number from 1 to 9, got 10"),
        ({"level": 1.5}, r"level must be a whole number from 1 to 9, got 1\.5"),
        ({"level": True}, r"level must be a whole number from 1 to 9, got True"),
        ({"shuffle": "byte"}, r"shuffle must be one of .* or None, got 'byte'"),
    ],
)
def test_settings_that_are_not_there_are_refused(keywords, message):
    with pytest.raises(ValueError, match=message):
        Compression(**keywords)


def test_what_a_user_may_write_for_compression():
    ready, trial = Compression("zstd", 3, "bitshuffle"), Trial(min_ratio=2)
    assert Compression.of(None) is None
    assert Compression.of("lz4") == Compression("lz4", 1, "shuffle")
    assert Compression.of("zstd") == Compression("zstd", 1, "shuffle")
    assert Compression.of(ready) is ready
    assert Compression.of(trial) is trial


def test_auto_gets_the_goal_of_its_place():
    slow, memory = Compression.of("auto", link_bytes_per_s=1e6), Compression.of("auto", min_ratio=2)
    assert (slow.link_bytes_per_s, slow.min_ratio, slow.compression) == (1e6, None, Compression("lz4"))
    assert (memory.link_bytes_per_s, memory.min_ratio, memory.compression) == (None, 2, Compression("zstd"))
    assert Compression.of("auto").link_bytes_per_s == MEMORY_BYTES_PER_S


@pytest.mark.parametrize("value", ["gzip", "", 3, True, ["lz4"]])
def test_what_is_no_compression_is_refused(value):
    with pytest.raises(ValueError, match="compression must be None, one of"):
        Compression.of(value)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"nthreads": 0}, "nthreads must be at least 1, got 0"),
        ({"chunk_bytes": 0}, "chunk_bytes must be from 1 to 1073741824, got 0"),
        ({"chunk_bytes": 2**30 + 1}, "chunk_bytes must be from 1 to 1073741824, got 1073741825"),
    ],
)
def test_numbers_out_of_range_are_refused(keywords, message):
    with pytest.raises(ValueError, match=message):
        LZ4.compress(b"abc", **keywords)


def test_no_threads_to_decompress_with_are_refused():
    with pytest.raises(ValueError, match="nthreads must be at least 1, got -1"):
        decompress(store(b"abc"), nthreads=-1)


# Round trips


every_compression = st.builds(
    Compression,
    st.sampled_from(["lz4", "zstd", "zlib", "lz4hc", "blosclz"]),
    st.integers(1, 3),
    st.sampled_from(["shuffle", "bitshuffle", None]),
)
scalars = (
    hnp.boolean_dtypes()
    | hnp.integer_dtypes(endianness="?")
    | hnp.unsigned_integer_dtypes(endianness="?")
    | hnp.floating_dtypes(endianness="?", sizes=(16, 32, 64))
    | hnp.complex_number_dtypes(endianness="?")
    | hnp.byte_string_dtypes(max_len=300)
    | hnp.unicode_string_dtypes(max_len=5)
)
# NumPy itself gives out no buffer of an array with a field called ":".
fields = hnp.array_dtypes(scalars, max_size=3).filter(lambda dtype: not any(":" in name for name in dtype.names or ()))
arrays = hnp.arrays(
    scalars | fields,
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=30),
)


@pytest.mark.slow
@given(arrays, every_compression, st.integers(1, 500), st.booleans())
@settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.too_slow])
def test_any_array_makes_the_round_trip(array, how, chunk_bytes, fortran):
    array = np.asfortranarray(array) if fortran else array
    arrived = decompress(how.compress(array, chunk_bytes=chunk_bytes))
    assert arrived.tobytes() == array.tobytes(order="A")


@pytest.mark.parametrize("codec", ["lz4", "zstd", "lz4hc", "zlib", "blosclz"])
@pytest.mark.parametrize("dtype", ["<i2", ">i2", "<f2", "<f4", ">f8", "c8", "bool", "u1", "i8", "V300", "V0"])
def test_large_arrays_of_every_kind_make_the_round_trip(codec, dtype):
    array = (np.arange(20_000) % 50).astype("i4").view(np.uint8)[: 60_000 // 300 * 300].view(np.uint8)
    array = np.zeros(3, dtype) if dtype == "V0" else array.view(dtype)
    frame = Compression(codec).compress(array)
    assert decompress(frame).tobytes() == array.tobytes()
    assert len(frame) < array.nbytes / 2 or dtype == "V0"


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_bytes_make_the_round_trip(kind):
    data = kind(b"abcd" * 1000)
    frame = LZ4.compress(data)
    assert len(frame) < 200
    assert decompress(frame) == data


def test_an_array_that_is_not_contiguous_is_refused():
    with pytest.raises(ValueError, match=r"a buffer must be contiguous, got one with strides \(2,\)"):
        LZ4.compress(np.zeros(100, np.uint8)[::2])


@pytest.mark.parametrize("how", [LZ4.compress, store])
def test_an_empty_buffer_is_a_header(how):
    frame = how(b"")
    assert len(frame) == HEADER_BYTES
    assert decompress(frame).nbytes == 0


def test_noise_is_stored_as_it_is():
    data = noise(100_000)
    assert LZ4.try_compress(data) is None
    assert LZ4.compress(data) == store(data)
    assert store(data)[HEADER_BYTES:] == data.tobytes()


def test_a_frame_too_large_to_be_worth_it_is_not_made():
    data = ct_like_volume()
    size = len(LZ4.compress(data))
    assert LZ4.try_compress(data, at_most_bytes=size - 1) is None
    assert len(LZ4.try_compress(data, at_most_bytes=size)) == size


def test_what_can_not_get_small_enough_is_not_compressed_to_its_end(monkeypatch):
    seen = []
    chunk = Compression._chunk
    monkeypatch.setattr(Compression, "_chunk", lambda self, part, *rest: (seen.append(1), chunk(self, part, *rest))[1])
    assert LZ4.try_compress(noise(100_000), chunk_bytes=1000, at_most_bytes=10_400) is None
    assert len(seen) == 10, "each chunk takes 1,032 bytes, the header and the sizes of all 100 take 432"


@pytest.mark.parametrize("nb_items", [0, 1, 249, 250, 251, 500, 501, 1000])
@pytest.mark.parametrize("chunk_bytes", [1, 999, 1000, 1001])
def test_a_buffer_is_cut_into_chunks_of_whole_items(nb_items, chunk_bytes):
    data = np.zeros(nb_items, np.int32)
    frame = LZ4.try_compress(data, chunk_bytes=chunk_bytes, at_most_bytes=10**6)
    _, nb_bytes, step, nb_chunks, _ = struct.unpack_from("<8sQQII", frame)
    assert (nb_bytes, step) == (4 * nb_items, {1: 4, 999: 996, 1000: 1000, 1001: 1000}[chunk_bytes])
    assert nb_chunks == -(-4 * nb_items // step)
    assert decompress(frame) == data.tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("chunk_bytes", [compression.CHUNK_BYTES, LARGEST_CHUNK_BYTES])
def test_more_than_two_gigabytes_make_the_round_trip(chunk_bytes):
    data = np.zeros(2**31 + 12_345, np.uint8)
    marked = [0, 2**30, 2**31 - 1, 2**31, data.size - 1]
    data[marked] = 1, 2, 3, 4, 5
    arrived = np.frombuffer(decompress(LZ4.compress(data, chunk_bytes=chunk_bytes)), np.uint8)
    assert arrived.size == data.size
    assert arrived[marked].tolist() == [1, 2, 3, 4, 5]
    assert np.count_nonzero(arrived.view(np.bool_)) == 5


# How small it gets


def test_the_items_of_a_volume_are_shuffled_by_their_size():
    volume = ct_like_volume()
    by_item, by_byte = LZ4.compress(volume), LZ4.compress(volume.view(np.uint8))
    assert volume.nbytes / len(by_item) > 2.5
    assert len(by_byte) > 1.4 * len(by_item)


@pytest.mark.slow
def test_a_real_slice_of_a_ct_gets_smaller_by_the_size_of_its_items():
    folder = importlib.resources.files("pydicom")
    file = (folder / "data/test_files/CT_small.dcm").read_bytes()
    nb_bytes = 128 * 128 * 2
    at = file.rindex(b"\xe0\x7f\x10\x00" + b"OW\0\0" + struct.pack("<I", nb_bytes)) + 12
    pixels = np.frombuffer(file, "<i2", 128 * 128, at)
    assert len(Compression("zstd").compress(pixels)) < 0.8 * len(Compression("zstd", shuffle=None).compress(pixels))


# Into memory that is there


@pytest.mark.parametrize("frame", [LZ4.compress, store])
@pytest.mark.parametrize("more", [0, 7])
def test_memory_is_reused(frame, more):
    data = np.arange(1000, dtype=np.int16)
    out = np.full(data.nbytes + more, 9, np.uint8)
    arrived = decompress(frame(data), out)
    assert arrived == data.tobytes()
    assert np.shares_memory(np.frombuffer(arrived, np.uint8), out)
    assert out[data.nbytes :].tolist() == [9] * more


def test_new_memory_can_be_written_to():
    arrived = np.frombuffer(decompress(LZ4.compress(np.zeros(1000, np.uint8))), np.uint8)
    arrived += 1
    assert arrived.sum() == 1000


@pytest.mark.parametrize(
    ("out", "message"),
    [
        (bytearray(1999), "out must hold at least 2000 bytes, got 1999"),
        (bytes(2000), "out must be writable"),
        (np.zeros((2000, 2), np.uint8)[:, 0], "must be contiguous"),
    ],
)
@pytest.mark.parametrize("frame", [LZ4.compress, store])
def test_memory_that_does_not_fit_is_refused(frame, out, message):
    with pytest.raises(ValueError, match=message):
        decompress(frame(np.zeros(1000, np.int16)), out)


# Damage


def small_frame():
    """3 chunks, 348 bytes."""
    return LZ4.try_compress(np.repeat(np.arange(30, dtype=np.int16), 10), chunk_bytes=250)


def stored_frame():
    return store(b"some data")


@pytest.mark.parametrize("make", [small_frame, stored_frame])
def test_a_change_of_any_byte_is_an_error(make):
    frame = make()
    for place, change in itertools.product(range(len(frame)), (1, 0x80, 0xFF)):
        damaged = bytearray(frame)
        damaged[place] ^= change
        with pytest.raises(CodecError, match="can not be decompressed"):
            decompress(damaged)


@pytest.mark.parametrize("make", [small_frame, stored_frame])
def test_a_frame_of_any_other_length_is_an_error(make):
    frame = make()
    for other in [*(frame[:nb_bytes] for nb_bytes in range(len(frame))), frame + b"\0"]:
        with pytest.raises(CodecError, match="can not be decompressed"):
            decompress(other)


@given(st.binary(max_size=200), st.booleans())
@settings(deadline=None, max_examples=200)
def test_what_somebody_else_made_is_an_error(data, starts_like_ours):
    with pytest.raises(CodecError, match="can not be decompressed"):
        decompress(store(b"")[:8] + data if starts_like_ours else data)


def forged(frame, place, value, size=8):
    """The frame with another number at a place, and the checksum that belongs to it."""
    frame = bytearray(frame)
    frame[place : place + size] = value.to_bytes(size, "little")
    frame[28:32] = zlib.crc32(frame[32:], zlib.crc32(frame[:28])).to_bytes(4, "little")
    return bytes(frame)


def test_forging_nothing_changes_nothing():
    assert forged(small_frame(), 8, 600) == small_frame()


@pytest.mark.parametrize(
    ("place", "value", "size"),
    [
        (8, 0, 8),  # nb_bytes
        (8, 2**63, 8),
        (8, 601, 8),
        (16, 0, 8),  # chunk_bytes
        (16, 2**64 - 1, 8),
        (16, 249, 8),
        (24, 0, 4),  # nb_chunks
        (24, 2, 4),
        (24, 2**32 - 1, 4),
        (32, 0, 4),  # size of the first chunk
        (32, 2**32 - 1, 4),
        (48, 2**31 - 1, 4),  # nb_bytes in the first chunk, to blosc2
        (52, 1, 4),  # its block size
        (56, 2**31 - 1, 4),  # its size
        (56, 0, 4),
    ],
)
def test_sizes_that_do_not_fit_together_are_an_error_even_with_the_right_checksum(place, value, size):
    out = np.full(1000, 9, np.uint8)
    with pytest.raises(CodecError, match="can not be decompressed"):
        decompress(forged(small_frame(), place, value, size), out)
    assert out[600:].tolist() == [9] * 400, "nothing may be written past the end"


@pytest.mark.parametrize("nb_bytes", [2**40, 2**63, 2**64 - 1])
def test_a_forged_size_of_one_chunk_is_an_error_before_memory_is_asked_for(nb_bytes):
    frame = LZ4.compress(np.zeros(100, np.int64))
    with pytest.raises(CodecError, match="do not fit together"):
        decompress(forged(forged(frame, 8, nb_bytes), 16, nb_bytes))


def test_a_stored_frame_with_a_forged_size_is_an_error():
    with pytest.raises(CodecError, match="do not fit together"):
        decompress(forged(stored_frame(), 8, 8))


def test_only_what_begins_like_a_frame_is_one():
    assert is_frame(small_frame())
    assert is_frame(store(b""))
    assert not is_frame(b"")
    assert not is_frame(small_frame()[1:])


# Threads and processes


@pytest.mark.slow
def test_threads_compress_side_by_side():
    volume = ct_like_volume()

    def work(i):
        return decompress(LZ4.compress(volume, nthreads=1 + i % 2), nthreads=1 + i % 2).tobytes()

    with ThreadPoolExecutor(4) as threads:
        assert set(threads.map(work, range(100))) == {volume.tobytes()}


def test_workers_and_parent_compress_after_the_parent_has_used_threads(program, start_method):
    """FORK-2. The pool of threads behind `blosc2.compress` is gone in a forked child, which waits for it for ever."""
    result = program(f"""
        import numpy as np
        import blosc2
        from trw_pipeline.executors.compression import Compression, decompress
        from trw_pipeline.executors.job_executor import JobExecutor

        def there_and_back(i):
            array = (np.arange(200_000) // (i % 50 + 1)).astype(np.int32)
            how = Compression(["lz4", "zstd"][i % 2])
            frame = how.compress(array, nthreads=2)
            arrived = np.frombuffer(decompress(frame, nthreads=2), np.int32)
            return len(frame) < array.nbytes and bool((arrived == array).all())

        blosc2.set_nthreads(2)
        blosc2.decompress(blosc2.compress(np.arange(1_000_000), typesize=8))
        assert there_and_back(0)
        with JobExecutor(2, there_and_back, start_method={start_method!r}, max_jobs_at_once=0) as executor:
            for i in range(250):
                executor.put(i)
            here = [there_and_back(i) for i in range(250)]
            there = [executor.get(timeout=60).value for _ in range(250)]
            print(all(here), all(there), len(there))
        """).finish(timeout_s=90)
    assert result.stdout == "True True 250\n", result.stderr


def test_a_program_that_compresses_nothing_does_not_import_blosc2(program):
    result = program("""
        import sys
        import numpy as np
        from trw_pipeline.executors.blosc_codec import BloscCodec
        from trw_pipeline.executors.compression import Compression
        from trw_pipeline.executors.pickle_codec import PickleCodec

        def there_and_back(compression, array):
            codec = BloscCodec(PickleCodec("item"), Compression.of(compression))
            return (codec.decode(codec.encode(array)) == array).all()

        assert there_and_back("zstd", np.zeros(100))
        assert there_and_back("auto", np.zeros(100_000))
        print("blosc2" in sys.modules)
        assert there_and_back("zstd", np.zeros(100_000))
        print("blosc2" in sys.modules)
        """).finish()
    assert result.stdout == "False\nTrue\n", result.stderr


def test_single_bytes_are_not_shuffled_which_would_gain_nothing():
    """The frames are the same, to the byte, as those without a shuffle: there is nothing to put side by side."""
    volume = np.repeat(np.arange(256, dtype=np.uint8), 500)
    assert Compression("zstd").compress(volume) == Compression("zstd", 1, None).compress(volume)
    assert Compression("zstd").compress(volume) != Compression("zstd", 1, "bitshuffle").compress(volume)
