"""A batch of plain arrays as frames, without a pickle: the same batch arrives, and nothing else is taken for one."""

from __future__ import annotations

import importlib
import pickle
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from trw_pipeline.errors import CodecError
from trw_pipeline.executors import layout
from trw_pipeline.executors.codec import OUT_OF_BAND_BYTES
from trw_pipeline.executors.layout import is_plain, plain_batch, plain_frames
from trw_pipeline.executors.pickle_codec import PickleCodec


def trip(batch):
    """Through frames that were copied, as a transport does."""
    return plain_batch([bytearray(frame) for frame in plain_frames(batch)])


def assert_same(a: dict, b: dict) -> None:
    """Equal in names, types, dtypes, shapes and values, and in their order."""
    assert list(a) == list(b)
    assert [type(name) for name in a] == [type(name) for name in b]
    for name in a:
        x, y = a[name], b[name]
        assert type(x) is type(y)
        if isinstance(x, torch.Tensor):
            assert x.dtype == y.dtype
            x, y = x.detach().numpy(), y.numpy()
        if isinstance(x, (np.ndarray, np.generic)):
            assert (x.dtype, x.shape) == (y.dtype, y.shape)
            assert x.tobytes() == y.tobytes()
        else:
            assert repr(x) == repr(y)


LARGE = OUT_OF_BAND_BYTES // 8

BATCHES = {
    "nothing": {},
    "small array": {"x": np.arange(5)},
    "large array": {"x": np.arange(LARGE)},
    "small before large": {"a": np.arange(3, dtype=np.uint8), "b": np.arange(LARGE), "c": np.ones(7, np.float16)},
    "scalars between arrays": {"n": 3, "x": np.arange(4), "s": "text", "y": np.arange(LARGE), "none": None},
    "only scalars": {"i": 1, "f": 2.5, "b": True, "c": 1j, "t": "é\ud800", "bytes": b"\0", "none": None},
    "numpy scalars": {"a": np.float32(2.5), "b": np.bool_(True), "c": np.int64(-1), "d": np.float16(1)},
    "large int": {"i": 1 << 200, "x": np.arange(3)},
    "tensors": {"small": torch.arange(5), "large": torch.ones(100, 300), "array": np.arange(3)},
    "tensor with a graph": {"x": 2 * torch.ones(3, requires_grad=True)},
    "bool tensor": {"x": torch.tensor([True, False])},
    "0-dim": {"a": np.array(3.0), "t": torch.tensor(2)},
    "no elements": {"a": np.zeros((0, 4), np.int16), "b": np.zeros((3, 0)), "t": torch.zeros(0, 3)},
    "big-endian": {"a": np.arange(5, dtype=">i4"), "b": np.arange(LARGE, dtype=">f8")},
    "longdouble": {"a": np.array([1, 2], np.longdouble), "b": np.zeros(LARGE, np.clongdouble)},
    "complex": {"a": np.array([1j]), "b": np.full(LARGE, 2j, np.complex64), "t": torch.tensor([1j])},
    "names of any letters": {
        '"': np.arange(2),
        "é\n\\": np.arange(3),
        "": np.arange(4),
        "\U0001f600": np.arange(LARGE),
    },
}


@pytest.mark.parametrize("name", BATCHES)
def test_a_plain_batch_arrives_as_it_was(name):
    for _ in range(2):  # the second time its layout is known
        assert_same(BATCHES[name], trip(BATCHES[name]))


def test_a_layout_is_read_by_a_program_that_has_not_seen_it(monkeypatch):
    batch = BATCHES["scalars between arrays"]
    frames = plain_frames(batch)
    monkeypatch.setattr(layout, "_known", {})
    assert_same(batch, plain_batch(frames))


scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), st.binary(), st.complex_numbers()
)
plain_arrays = hnp.arrays(
    dtype=st.one_of(
        hnp.boolean_dtypes(),
        hnp.integer_dtypes(endianness="?"),
        hnp.unsigned_integer_dtypes(endianness="?"),
        hnp.floating_dtypes(endianness="?"),
        hnp.complex_number_dtypes(endianness="?"),
    ),
    shape=hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=9),
)
tensors = hnp.arrays(
    dtype=st.sampled_from([np.bool_, np.uint8, np.int16, np.int64, np.float16, np.float32, np.float64, np.complex64]),
    shape=hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=40),
    fill=st.just(0),
).map(torch.from_numpy)


@pytest.mark.slow
@given(st.dictionaries(st.text(), scalars | plain_arrays | tensors, max_size=6))
@settings(deadline=None, max_examples=150)
def test_any_plain_batch_arrives_as_it_was(batch):
    assert_same(batch, trip(batch))


@pytest.mark.parametrize("size", [5, LARGE])
def test_what_arrives_can_be_written_to_and_shares_nothing(size):
    batch = {"x": np.zeros(size), "y": np.zeros(size), "t": torch.zeros(size)}
    arrived = trip(batch)
    arrived["x"] += 1
    arrived["t"] += 2
    assert (batch["x"].sum(), batch["t"].sum()) == (0, 0)
    assert (arrived["x"].sum(), arrived["y"].sum(), arrived["t"].sum()) == (size, 0, 2 * size)


def test_small_arrays_are_aligned():
    arrived = trip({str(i): np.arange(i, dtype=np.longdouble if i % 2 else np.uint8) for i in range(20)})
    assert all(array.flags.aligned for array in arrived.values())


def test_large_arrays_are_frames_that_were_not_copied():
    array = np.zeros(LARGE)
    _, frame = plain_frames({"x": array})
    array[0] = 1
    assert np.frombuffer(frame)[0] == 1


# What is left to pickle


class Name(str):
    __slots__ = ()


class Subclass(np.ndarray):
    pass


class SubTensor(torch.Tensor):
    pass


@pytest.mark.parametrize("size", [3, 30_000])
def test_a_read_only_array_arrives_writable(size):
    """Such as `np.asarray` of an image, which is what a function often returns."""
    array = np.frombuffer(bytes(size), np.uint8)
    frames = plain_frames({"x": array})
    arrived = plain_batch([bytearray(frame) for frame in frames])["x"]
    arrived[:] = 1
    assert arrived.sum() == size
    assert not array.flags.writeable
    assert not array.any()


NOT_PLAIN = {
    "a list": [np.zeros(3)],
    "a subclass of dict": importlib.import_module("collections").OrderedDict(x=np.zeros(3)),
    "a name that is no text": {1: np.zeros(3)},
    "a name of a subclass": {Name("x"): np.zeros(3)},
    "a scalar under a name of a subclass": {Name("x"): 3},
    "nested": {"x": {"y": np.zeros(3)}},
    "list inside": {"x": [1]},
    "text array": {"x": np.array(["a"])},
    "dates": {"x": np.array(["2020-01-01"], "datetime64[D]")},
    "structured": {"x": np.zeros(3, [("a", "i4")])},
    "objects": {"x": np.array([None])},
    "strided": {"x": np.zeros((4, 4))[:, ::2]},
    "column-major": {"x": np.asfortranarray(np.zeros((4, 4)))},
    "subclass of an array": {"x": np.zeros(3).view(Subclass)},
    "masked array": {"x": np.ma.zeros(3)},
    "bfloat16": {"x": torch.zeros(3, dtype=torch.bfloat16)},
    "subclass of a tensor": {"x": torch.zeros(3).as_subclass(SubTensor)},
    "parameter": {"x": torch.nn.Parameter(torch.zeros(3))},
    "conjugate": {"x": torch.tensor([1j]).conj()},
    "sparse": {"x": torch.eye(3).to_sparse()},
    "not contiguous": {"x": torch.zeros(3, 4).t()},
    "longdouble scalar": {"x": np.longdouble(1)},
}


@pytest.mark.parametrize("name", NOT_PLAIN)
def test_anything_else_is_left_to_pickle(name):
    obj = NOT_PLAIN[name]
    if isinstance(obj, dict):
        twins = {str(key): np.zeros(3) for key in obj}
        plain_frames(twins)  # a known layout of the same names is no reason either
    assert plain_frames(obj) is None
    assert not is_plain(PickleCodec("item").encode(obj)[0])


def test_a_batch_that_is_not_plain_does_not_spoil_one_of_the_same_names():
    assert plain_frames({np.str_("spoilt"): np.zeros(3)}) is None
    assert plain_frames({"spoilt": np.zeros(3)}) is not None


def test_a_pickle_is_not_taken_for_a_batch():
    assert not is_plain(pickle.dumps({"x": 1}, protocol=5))
    assert is_plain(plain_frames({"x": 1})[0])


def test_frames_of_something_else_are_an_error():
    head = bytearray(plain_frames({"x": np.zeros(3, np.uint8)})[0])
    with pytest.raises(CodecError, match="item can not be unpickled"):
        PickleCodec("item").decode([bytes(head).replace(b"|u1", b"|O8")])


# What is remembered


def test_layouts_of_ever_new_shapes_are_not_all_kept(monkeypatch):
    monkeypatch.setattr(layout, "_known", {})
    for i in range(3000):
        trip({"x": np.empty((1, i), np.uint8)})
    assert len(layout._known) <= 1024


def test_batches_may_be_encoded_in_several_threads_at_once(monkeypatch):
    """What is known is forgotten by another thread between two looks at it."""

    class Forgetful(dict):
        def __contains__(self, key):
            known = super().__contains__(key)
            self.clear()
            return known

    monkeypatch.setattr(layout, "_known", Forgetful())
    for _ in range(3):
        assert_same({"x": np.arange(3)}, trip({"x": np.arange(3)}))


@pytest.mark.slow
def test_batches_of_many_shapes_from_several_threads_arrive_as_they_were():
    wrong: list[object] = []

    def send(seed):
        rng = np.random.default_rng(seed)
        for _ in range(1500):
            batch = {"x": rng.integers(0, 9, (int(rng.integers(50)), int(rng.integers(50)))), "n": seed}
            try:
                assert_same(batch, trip(batch))
            except BaseException as error:
                wrong.append(error)

    threads = [threading.Thread(target=send, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
