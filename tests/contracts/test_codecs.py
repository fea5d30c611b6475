"""What every codec promises: an object arrives as it was sent, whatever it is made of."""

from __future__ import annotations

import collections

import numpy as np
import pytest
import torch
from codec_trips import BYTES_TRIPS, Marked, Meta, MetaArray, Patient, Point, assert_same, by_reference

from trw_pipeline.executors.arena import Arena, ArenaCodec
from trw_pipeline.executors.blosc_codec import BloscCodec
from trw_pipeline.executors.codec import ReferenceCodec
from trw_pipeline.executors.compression import Compression
from trw_pipeline.executors.pickle_codec import OUT_OF_BAND_BYTES, PickleCodec

pytestmark = pytest.mark.usefixtures("echo", "echo_without_arena")


@pytest.fixture(params=["reference", *BYTES_TRIPS, "process", "process without arena"])
def trip(request):
    """Sends an object and returns what arrives. "process" is a real trip to a worker process and back."""

    def by_process(obj):
        echo.put(obj)
        return echo.get(timeout=30).value

    if request.param.startswith("process"):
        echo = request.getfixturevalue("echo" if request.param == "process" else "echo_without_arena")
        return by_process
    return by_reference if request.param == "reference" else BYTES_TRIPS[request.param]


@pytest.fixture(params=BYTES_TRIPS)
def bytes_trip(request):
    """A trip as bytes, within this program."""
    return BYTES_TRIPS[request.param]


BIG = OUT_OF_BAND_BYTES // 8  # float64 values: exactly at the border

TENSORS = {
    "float32": torch.linspace(-1, 1, 30).reshape(5, 6),
    "large": torch.arange(100_000, dtype=torch.float64),
    "bfloat16": torch.linspace(-1, 1, 30).bfloat16(),
    "large bfloat16": torch.linspace(-1, 1, 30_000).bfloat16().reshape(100, 300),
    "float16": torch.linspace(-1, 1, 30).half(),
    "float8": torch.linspace(-1, 1, 30).to(torch.float8_e4m3fn).view(torch.uint8),
    "bool": torch.tensor([True, False, True]),
    "uint8": torch.arange(256).to(torch.uint8),
    "complex64": torch.complex(torch.arange(4.0), torch.ones(4)),
    "conjugate": torch.complex(torch.arange(4.0), torch.ones(4)).conj(),
    "transposed": torch.arange(60_000).reshape(200, 300).t(),
    "strided": torch.arange(60_000).reshape(200, 300)[::2, 1::3],
    "expanded": torch.arange(4.0).expand(5000, 4),
    "no elements": torch.zeros(0, 3),
    "no elements bfloat16": torch.zeros(0, 3).bfloat16(),
    "0-dim": torch.tensor(3.5),
    "0-dim bfloat16": torch.tensor(3.5).bfloat16(),
    "0-dim bool": torch.tensor(True),
    "large float16": torch.linspace(-1, 1, 30_000).half(),
    "large complex128": torch.complex(torch.arange(30_000.0).double(), torch.ones(30_000).double()),
    "large bool": torch.arange(90_000) % 3 == 0,
    "large expanded": torch.arange(300.0).expand(100, 300),
    "negative": torch.complex(torch.arange(4.0), torch.ones(4)).conj().imag,
    "large float8": torch.linspace(-1, 1, 30_000).to(torch.float8_e5m2),
    "uint16": torch.arange(100).to(torch.uint16),
    "subclass": torch.arange(5.0).as_subclass(Marked),
    "large subclass": torch.arange(50_000.0).as_subclass(Marked),
    "subclass with attributes": Meta(torch.arange(5.0)),
    "large subclass with attributes": Meta(torch.arange(50_000).reshape(100, 500).t(), affine=torch.ones(4, 4)),
    "bfloat16 subclass": Meta(torch.linspace(-1, 1, 30_000).bfloat16()),
    "parameter": torch.nn.Parameter(torch.ones(3)),
}

ARRAYS = {
    "float64": np.linspace(-1, 1, 30).reshape(5, 6),
    "big-endian": np.arange(10_000, dtype=">f8"),
    "negative strides": np.arange(20_000)[::-1],
    "negative strides of size 1": np.zeros((1, 4))[::-1],
    "strided": np.arange(60_000).reshape(200, 300)[::2, 1::3],
    "column-major": np.asfortranarray(np.arange(60_000.0).reshape(200, 300)),
    "no elements": np.zeros((0, 4), np.int16),
    "0-dim": np.array(3.0),
    "structured": np.array([(1, 2.5), (3, 4.5)], dtype=[("a", "i4"), ("b", ">f4")]),
    "large structured": np.zeros(3000, dtype=[("a", "i4"), ("b", "f8")]),
    "objects": np.array([{"k": 1}, None, "s"], dtype=object),
    "float16": np.linspace(-1, 1, 30, dtype=np.float16),
    "large float16": np.linspace(-1, 1, 30_000, dtype=np.float16).reshape(100, 300),
    "longdouble": np.linspace(-1, 1, 30, dtype=np.longdouble),
    "large longdouble": np.linspace(-1, 1, 30_000, dtype=np.longdouble),
    "large complex longdouble": np.full((100, 100), 1 + 2j, np.clongdouble),
    "large big-endian": np.arange(30_000, dtype=">i2").reshape(3, 100, 100),
    "large structured of 8 bytes": np.ones(5000, dtype=[("a", ">i4"), ("b", "f4")]),
    "nested structured": np.zeros(3000, dtype=[("a", [("x", "i4", (2, 3)), ("y", "S5")]), ("b", "f8")]),
    "record array": np.rec.array([(1, 2.5)], dtype=[("a", "i4"), ("b", "f8")]),
    "large bool": np.arange(90_000) % 3 == 0,
    "large texts": np.array(["ab", "ü"] * 10_000),
    "large dates": np.arange(30_000).astype("datetime64[s]"),
    "bytes": np.array([b"ab", b"c"] * 10_000),
    "subclass": np.arange(5.0).view(MetaArray),
    "masked": np.ma.masked_less(np.arange(30_000), 100),
    "repeated": np.broadcast_to(np.arange(300), (100, 300)),
    "texts": np.array(["ab", "c"]),
    "dates": np.array(["2020-02-29"], dtype="datetime64[D]"),
    "one byte below out of band": np.arange(OUT_OF_BAND_BYTES - 1, dtype=np.int64).astype(np.uint8),
    "at out of band": np.arange(BIG, dtype=np.float64),
    "above out of band": np.arange(BIG + 1, dtype=np.float64),
}

OBJECTS = {
    "nested": {"a": [1, (2.5, {"b": None}), "text"], "c": {"d": b"bytes"}},
    "namedtuple": Point(np.arange(3), torch.arange(3)),
    "dataclass": Patient("p1", np.arange(100_000)),
    "tuple of large arrays": (np.arange(100_000), np.arange(100_000)[::-1]),
    "text": "x" * 100_000,
    "bytes": b"y" * 100_000,
    "bytearray": bytearray(b"z" * 100_000),
    "numpy scalar": np.float32(2.5),
    "large int": 1 << 200,
    "set": {1, 2, 3},
    "tuple of a namedtuple": (Point(1, Point([2], {"x": torch.arange(9000)})),),
    "list of dataclasses": [Patient("p1", np.arange(9000)), Patient("p2", np.arange(10))],
    "many small arrays": [np.full(100, i) for i in range(1000)],
    "many large arrays": [np.full(20_000, i, np.uint8) for i in range(100)],
    "large beside small": {
        "a": np.arange(9),
        "b": np.arange(9000),
        "c": torch.arange(9),
        "d": torch.arange(9000),
        "e": 1,
    },
    "numpy scalars": [
        np.float16(1.5),
        np.longdouble(2) / 3,
        np.complex64(1j),
        np.datetime64("2020-01-01"),
        np.str_("a"),
    ],
    "names of all kinds": {1: "a", (2, "b"): np.arange(3), None: 3.5},
    "frozenset": frozenset({1, "a"}),
    "complex": 1 + 2j,
    "ordered": collections.OrderedDict(b=np.arange(3), a=1),
    "nothing": [None],
    "empty": {},
}


@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_arrives_as_it_was(trip, name):
    assert_same(TENSORS[name], trip(TENSORS[name]))


@pytest.mark.parametrize("name", ARRAYS)
def test_an_array_arrives_as_it_was(trip, name):
    assert_same(ARRAYS[name], trip(ARRAYS[name]))


@pytest.mark.parametrize("name", OBJECTS)
def test_an_object_arrives_as_it_was(trip, name):
    assert_same(OBJECTS[name], trip(OBJECTS[name]))


@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_inside_a_batch_arrives_as_it_was(trip, name):
    batch = {"x": TENSORS[name], "list": [TENSORS[name]], "uid": ["a"]}
    assert_same(batch, trip(batch))


@pytest.mark.parametrize("size", [10, BIG, 10 * BIG])
@pytest.mark.parametrize("packed", [lambda x: {"x": x}, lambda x: {"x": x, "y": [x]}])
def test_arrays_arrive_writable_and_in_memory_of_their_own(bytes_trip, size, packed):
    array, tensor = np.zeros(size), torch.zeros(size)
    arrived = bytes_trip(packed(array))["x"]
    arrived += 1
    arrived_tensor = bytes_trip(packed(tensor))["x"]
    arrived_tensor += 1
    assert (array.sum(), tensor.sum()) == (0, 0)
    assert (arrived.sum(), arrived_tensor.sum()) == (size, size)


@pytest.mark.parametrize("size", [10, 10 * BIG])
def test_arrays_from_a_process_can_be_written_to_one_by_one(echo, size):
    for _ in range(2):
        echo.put({"x": np.zeros(size), "t": torch.zeros(size)})
    first, second = (echo.get(timeout=30).value for _ in range(2))
    first["x"] += 1
    first["t"] += 1
    assert (second["x"].sum(), second["t"].sum().item()) == (0, 0)


@pytest.mark.parametrize("size", [10, 10 * BIG])
@pytest.mark.parametrize("packed", [lambda x: [x], lambda x: (x, x[1:])])
def test_a_read_only_array_arrives_read_only(bytes_trip, size, packed):
    array = np.arange(size)
    array.flags.writeable = False
    assert not bytes_trip(packed(array))[0].flags.writeable


def test_an_array_that_is_there_twice_arrives_as_one(bytes_trip):
    """As in any pickle; in a plain batch each name has an array of its own."""
    array = np.arange(10 * BIG)
    first, second = bytes_trip([array, array])
    assert first is second
    batch = bytes_trip({"a": array, "b": array})
    batch["a"] += 1
    assert (batch["b"] == array).all()


@pytest.mark.parametrize("size", [10, 10 * BIG])
def test_a_memmap_arrives_as_it_was(trip, tmp_path, size):
    array = np.memmap(tmp_path / "file", np.float32, "w+", shape=(size, 2))
    array[:] = np.arange(2 * size).reshape(size, 2)
    for sent in (array, array[1:, ::-1]):
        arrived = trip({"x": sent})["x"]
        assert (arrived.dtype, arrived.shape, arrived.tobytes()) == (sent.dtype, sent.shape, sent.tobytes())


def test_a_tensor_loses_its_graph(echo):
    echo.put({"leaf": torch.ones(3, requires_grad=True), "made": 2 * torch.ones(3, requires_grad=True)})
    value = echo.get(timeout=30).value
    assert [value["leaf"].requires_grad, value["made"].requires_grad] == [False, False]
    assert value["made"].tolist() == [2, 2, 2]


def test_a_slice_of_a_large_array_travels_alone():
    large = np.zeros((1000, 1000))
    assert sum(len(bytes(frame)) for frame in PickleCodec("item").encode(large[3])) < 2 * large[3].nbytes
    assert sum(len(bytes(frame)) for frame in PickleCodec("item").encode(torch.from_numpy(large)[3])) < 16_100


def test_large_buffers_are_frames_that_were_not_copied():
    array = np.zeros(10 * BIG)
    _, frame = PickleCodec("item").encode({"x": array})
    array[0] = 1
    assert np.frombuffer(frame)[0] == 1


@pytest.mark.parametrize(("size", "nb_frames"), [(BIG - 1, 1), (BIG, 2)])
def test_buffers_are_frames_of_their_own_from_the_border_on(size, nb_frames):
    assert len(PickleCodec("item").encode(np.zeros(size))) == nb_frames


def test_references_hand_over_the_object_itself():
    obj = object()
    assert by_reference(obj) is obj


def test_a_discarded_reference_is_let_go():
    codec = ReferenceCodec()
    frames = codec.encode([1])
    codec.discard(frames)
    with pytest.raises(KeyError):
        codec.decode(frames)


CODECS = [
    ReferenceCodec,
    lambda: PickleCodec("item"),
    lambda: ArenaCodec(PickleCodec("item"), Arena(1 << 20)),
    lambda: BloscCodec(PickleCodec("item"), Compression("zstd")),
]


@pytest.mark.parametrize("make", CODECS)
def test_close_is_idempotent(make):
    codec = make()
    frames = codec.encode([1])
    codec.close()
    codec.close()
    assert len(frames) == 1, "what was handed out is still there to be discarded"
    codec.discard(frames)
