"""The ways that an object can travel, what travels in the tests of codecs, and whether it arrived as it was."""

from __future__ import annotations

import collections
import dataclasses

import numpy as np
import torch

from trw_pipeline.executors.arena import Arena, ArenaCodec, slot_of
from trw_pipeline.executors.blosc_codec import BloscCodec
from trw_pipeline.executors.codec import ReferenceCodec
from trw_pipeline.executors.compression import Compression
from trw_pipeline.executors.pickle_codec import PickleCodec

Point = collections.namedtuple("Point", ["x", "y"])


@dataclasses.dataclass
class Patient:
    name: str
    scan: np.ndarray


class Marked(torch.Tensor):
    """A subclass without anything of its own."""


class Meta(torch.Tensor):
    """As `MetaTensor` of MONAI is: made by `as_subclass`, with attributes, and it stays itself in operations."""

    @staticmethod
    def __new__(cls, data, affine=None):
        return torch.as_tensor(data).as_subclass(cls)

    def __init__(self, data, affine=None):
        super().__init__()
        self.affine = torch.eye(4) if affine is None else affine
        self.meta = {"filename": "scan.nii", "spacing": (1.0, 2.0)}


class MetaArray(np.ndarray):
    """A subclass of an array with an attribute."""

    def __array_finalize__(self, obj):
        self.unit = getattr(obj, "unit", "mm")


def by_reference(obj):
    codec = ReferenceCodec()
    return codec.decode(codec.encode(obj))


def by_pickle(obj):
    """Through frames that were copied, as a transport does."""
    codec = PickleCodec("item")
    return codec.decode([bytearray(frame) for frame in codec.encode(obj)])


def by_arena(obj):
    """Through shared memory: what is large lies there when it is decoded."""
    arena = Arena(1 << 24)
    codec = ArenaCodec(PickleCodec("item"), arena)
    try:
        return codec.decode([frame if slot_of(frame) else bytearray(frame) for frame in codec.encode(obj)])
    finally:
        arena.close()  # what arrived stays


def by_blosc(obj):
    """Compressed where that makes it smaller, and through frames that were copied."""
    codec = BloscCodec(PickleCodec("item"), Compression("zstd"))
    return codec.decode([bytearray(frame) for frame in codec.encode(obj)])


BYTES_TRIPS = {"pickle": by_pickle, "arena": by_arena, "blosc": by_blosc}


def assert_same(a, b):
    """Equal in type, dtype, shape and value, all the way down."""
    assert type(a) is type(b)
    if isinstance(a, torch.Tensor):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        x, y = (one.detach().as_subclass(torch.Tensor) for one in (a, b))
        is_float8 = "float8" in str(a.dtype)  # which knows no comparison
        assert torch.equal(*(one.view(torch.uint8) for one in (x, y)) if is_float8 else (x, y))
        assert_same(getattr(a, "__dict__", {}), getattr(b, "__dict__", {}))
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
