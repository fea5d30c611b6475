"""Results that are kept compressed in memory: made small in the worker, made again for each use.

    worker: result ──▶ Compressor ──▶ Compressed ── a message ──▶ Compressed (its own bytes) ──▶ open ──▶ result, ...

What is kept owns its memory, so that it holds no slot of shared memory. Each `open` makes a result of its own, whose
large arrays lie in memory that earlier ones have left: fresh memory from the system costs as much as to decompress.
"""

from __future__ import annotations

import ctypes
import functools
from collections import deque
from pickle import PickleBuffer
from typing import Any

from trw_pipeline.executors.codec import OUT_OF_BAND_BYTES, Frame, nb_bytes_of
from trw_pipeline.executors.compression import Compression, Trial, check, decompress, store
from trw_pipeline.executors.pickle_codec import PickleCodec

FREE_BYTES = 256 * 1024**2
"""So much memory is kept for the next results; as much as a worker keeps of what its jobs have freed."""

MOST_WASTE = 1.25
"""Memory is used again for a buffer that is at most so many times smaller."""

_codec = PickleCodec("result")
_ctypes: Any = ctypes  # its stubs know no subclasses of arrays


class Compressor:
    """Compresses the result of a function: the last one of those that a worker runs.

    Args:
        compression: how, or a trial of whether.
    """

    def __init__(self, compression: Compression | Trial) -> None:
        self._compression = compression

    def __call__(self, result: Any) -> Any:
        """Returns the result compressed; None and an empty list, which say that there is none, as they are.

        Raises:
            CodecError: the result can not be pickled; the message names the part.
        """
        if result is None or (isinstance(result, list) and not result):
            return result
        return Compressed([self._compression.try_compress(frame) or store(frame) for frame in _codec.encode(result)])


class Compressed:
    """A result as compressed frames: the head of its pickle, and its large buffers.

    Args:
        frames: of `Compression.compress` or `store`, never changed from now on.

    Attributes:
        nb_bytes: that it takes.

    Raises:
        CodecError: a frame is damaged.
    """

    def __init__(self, frames: list[bytes]) -> None:
        self._frames = frames
        self._sizes = [check(frame) for frame in frames]  # looked at once, here, they need not be at each use
        self.nb_bytes = nb_bytes_of(frames)

    def open(self, buffers: ReusedBuffers) -> Any:
        """Returns the result, one of its own with each call: writable, with dtypes and byte orders as they travelled.

        Those of contiguous arrays stay as they are; see `PickleCodec`.
        """
        head, *large = self._frames
        sizes = self._sizes[1:]
        opened = [decompress(f, buffers.take(nb), is_checked=True) for f, nb in zip(large, sizes, strict=True)]
        return _codec.decode([decompress(head, is_checked=True), *opened])

    def __deepcopy__(self, memo: Any) -> Compressed:
        return self  # nobody changes it

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        # Small frames stay in the pickle; the others would be copied into it, and out again.
        return _received, ([f if len(f) < OUT_OF_BAND_BYTES else PickleBuffer(f) for f in self._frames],)


def _received(frames: list[Frame]) -> Compressed:
    """Takes it out of the memory that it came in."""
    return Compressed([bytes(frame) for frame in frames])


class _Lease(_ctypes.Array):
    """Memory under all views of a buffer, which comes back when the last view is gone. See `arena.Lease`."""

    _type_ = ctypes.c_ubyte
    _length_ = 0
    home: deque[bytearray] | None = None
    memory: bytearray

    def __del__(self) -> None:
        if self.home is not None:
            self.home.append(self.memory)


@functools.lru_cache(maxsize=256)
def _lease_type(nb_bytes: int) -> Any:
    return type("_Lease", (_Lease,), {"_length_": nb_bytes, "_type_": ctypes.c_ubyte})


class ReusedBuffers:
    """Memory that is used again once nobody sees it any more, in whatever thread the last view of it died.

    Args:
        free_bytes: no more than this is kept unused.
    """

    def __init__(self, free_bytes: int = FREE_BYTES) -> None:
        self._free_bytes = free_bytes
        self._home: deque[bytearray] = deque()  # what came back; an append can not be divided

    def take(self, nb_bytes: int) -> Frame:
        """Returns a buffer of that many bytes, with anything in it."""
        memory = self._found(nb_bytes) or bytearray(nb_bytes)
        lease: _Lease = _lease_type(nb_bytes).from_buffer(memory)
        lease.memory, lease.home = memory, self._home
        return lease

    def _found(self, nb_bytes: int) -> bytearray | None:
        """Returns memory of about that size, and forgets what is too much of the rest."""
        found: bytearray | None = None
        kept_bytes = 0
        for _ in range(len(self._home)):
            memory = self._home.popleft()
            if found is None and nb_bytes <= len(memory) <= MOST_WASTE * nb_bytes:
                found = memory
            elif kept_bytes + len(memory) <= self._free_bytes:
                kept_bytes += len(memory)
                self._home.append(memory)
        return found
