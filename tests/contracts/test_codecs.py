"""What every codec promises: an object arrives as it was sent, whatever it is made of."""

from __future__ import annotations

import collections
import dataclasses
import io
import threading
import types

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from trw_pipeline.errors import CodecError
from trw_pipeline.executors.codec import ReferenceCodec
from trw_pipeline.executors.job_executor import JobExecutor
from trw_pipeline.executors.pickle_codec import OUT_OF_BAND_BYTES, PickleCodec
from trw_pipeline.executors.private_copy import private_copy

Point = collections.namedtuple("Point", ["x", "y"])


@dataclasses.dataclass
class Patient:
    name: str
    scan: np.ndarray


def by_reference(obj):
    codec = ReferenceCodec()
    return codec.decode(codec.encode(obj))


def by_pickle(obj):
    """Through frames that were copied, as a transport does."""
    codec = PickleCodec("item")
    return codec.decode([bytearray(frame) for frame in codec.encode(obj)])


@pytest.fixture(scope="module", autouse=True)
def echo():
    """One worker for all tests of the module: it imports torch, which takes seconds. It is there before each test."""
    with JobExecutor(1, lambda x: x) as executor:
        yield executor


@pytest.fixture(params=["reference", "pickle", "process"])
def trip(request):
    """Sends an object and returns what arrives. "process" is a real trip to a worker process and back."""

    def by_process(obj):
        echo = request.getfixturevalue("echo")
        echo.put(obj)
        return echo.get(timeout=30).value

    return {"reference": by_reference, "pickle": by_pickle, "process": by_process}[request.param]


def assert_same(a, b):
    """Equal in type, dtype, shape and value, all the way down."""
    assert type(a) is type(b)
    if isinstance(a, torch.Tensor):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert torch.equal(a.detach(), b.detach())
    elif isinstance(a, np.ndarray):
        native = a.dtype.newbyteorder("=")  # numpy itself may change the byte order, not the values, in a pickle
        assert (native, a.shape) == (b.dtype.newbyteorder("="), b.shape)
        if a.dtype.hasobject:
            assert_same(a.tolist(), b.tolist())
        else:
            assert a.astype(native).tobytes() == b.astype(native).tobytes()
    elif isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            assert_same(a[key], b[key])
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_same(x, y)
    elif isinstance(a, np.generic):
        assert_same(np.asarray(a), np.asarray(b))
    elif dataclasses.is_dataclass(a):
        assert_same(vars(a), vars(b))
    else:
        assert a == b


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
def test_arrays_arrive_writable_and_in_memory_of_their_own(size):
    array = np.zeros(size)
    arrived = by_pickle({"x": array})["x"]
    arrived += 1
    assert array.sum() == 0
    assert arrived.sum() == size


@pytest.mark.parametrize("size", [10, 10 * BIG])
def test_arrays_from_a_process_can_be_written_to_one_by_one(echo, size):
    for _ in range(2):
        echo.put({"x": np.zeros(size), "t": torch.zeros(size)})
    first, second = (echo.get(timeout=30).value for _ in range(2))
    first["x"] += 1
    first["t"] += 1
    assert (second["x"].sum(), second["t"].sum().item()) == (0, 0)


def test_a_read_only_array_arrives_read_only():
    array = np.arange(10 * BIG)
    array.flags.writeable = False
    assert not by_pickle(array).flags.writeable


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


@pytest.mark.parametrize("make", [ReferenceCodec, lambda: PickleCodec("item")])
def test_close_is_idempotent(make):
    codec = make()
    frames = codec.encode([1])
    codec.close()
    codec.close()
    assert len(frames) == 1, "what was handed out is still there to be discarded"
    codec.discard(frames)


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4) | st.tuples(inner, inner),
    max_leaves=20,
)
arrays = hnp.arrays(
    dtype=hnp.scalar_dtypes() | hnp.array_dtypes(max_size=3),
    shape=hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=12),
)


@pytest.mark.slow
@given(plain)
@settings(deadline=None, max_examples=100)
def test_any_plain_object_makes_the_round_trip(obj):
    assert_same(obj, by_pickle(obj))


@pytest.mark.slow
@given(arrays, st.data())
@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow])
def test_any_view_of_any_array_makes_the_round_trip(array, data):
    view = array[data.draw(hnp.basic_indices(array.shape, allow_newaxis=True))]
    assert_same(view, by_pickle(view))


# What can not travel


def open_file(tmp_path):
    (tmp_path / "text").write_text("x")
    return (tmp_path / "text").open()


@pytest.mark.parametrize(
    ("obj", "path"),
    [
        ({"a": [1, 2, threading.Lock()]}, r"item\['a'\]\[2\]"),
        ({"a": {"b": (i for i in [])}}, r"item\['a'\]\['b'\]"),
        ((1, [types.SimpleNamespace(lock=threading.Lock())]), r"item\[1\]\[0\]\.lock"),
        (threading.Lock(), "item"),
    ],
)
def test_what_can_not_be_pickled_is_named_by_its_path(obj, path):
    with pytest.raises(CodecError, match=rf"^{path} can not be pickled: TypeError"):
        PickleCodec("item").encode(obj)


def test_an_open_file_is_refused(tmp_path):
    with open_file(tmp_path) as file, pytest.raises(CodecError, match=r"item\['f'\] .* open file"):
        PickleCodec("item").encode({"f": file})


def test_an_open_binary_file_is_refused(tmp_path):
    open_file(tmp_path).close()
    with (tmp_path / "text").open("rb") as file, pytest.raises(CodecError, match=r"item\['f'\]"):
        PickleCodec("item").encode({"f": file})


def test_a_file_in_memory_travels():
    assert by_pickle(io.StringIO("abc")).read() == "abc"


def test_a_part_that_contains_itself_is_named_too():
    ring = [1]
    ring += [ring, threading.Lock()]
    with pytest.raises(CodecError, match=r"^item\[2\] "):
        PickleCodec("item").encode(ring)


def test_a_pickling_hook_that_raises_is_named():
    class Stubborn:
        def __reduce__(self):
            raise KeyError("not me")

    with pytest.raises(CodecError, match=r"^result\['s'\] can not be pickled: KeyError: 'not me'"):
        PickleCodec("result").encode({"s": Stubborn()})


def test_what_can_not_be_made_again_is_an_error_here():
    class Once:
        def __reduce__(self):
            return int, ("no number",)

    codec = PickleCodec("result")
    frames = codec.encode(Once())
    with pytest.raises(CodecError, match="result can not be unpickled: ValueError"):
        codec.decode(frames)


class Unshowable:
    def __repr__(self):
        raise LookupError("no text")


def test_the_part_that_can_not_be_pickled_is_named_beside_a_key_that_can_not_be_shown():
    with pytest.raises(CodecError, match=r"item\['a'\] can not be pickled"):
        PickleCodec("item").encode({Unshowable(): 1, "a": threading.Lock()})


def test_an_item_nested_too_deep_to_be_searched_is_one_error():
    item = threading.Lock()
    for _ in range(600):
        item = {"a": item}
    with pytest.raises(CodecError, match="can not be pickled"):
        PickleCodec("item").encode(item)


def test_an_object_that_wants_to_exit_is_one_error():
    class Exits:
        def __reduce__(self):
            raise SystemExit(3)

    with pytest.raises(CodecError, match=r"item\[0\] can not be pickled: SystemExit: 3"):
        PickleCodec("item").encode([Exits()])


def test_a_key_that_can_not_be_shown_does_not_keep_an_item_from_being_copied():
    key = Unshowable()
    assert private_copy({key: 1}) == {key: 1}
