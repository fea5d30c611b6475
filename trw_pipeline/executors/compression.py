"""Lossless compression of one buffer of any size, and a trial that finds out whether it pays.

    ┌───────┬──────────┬─────────────┬───────────┬───────┬─────────────────────┬────────┬────────┬┄
    │ magic │ nb_bytes │ chunk_bytes │ nb_chunks │ crc32 │ size of each chunk  │ chunk  │ chunk  │
    └───────┴──────────┴─────────────┴───────────┴───────┴─────────────────────┴────────┴────────┴┄

A compressed frame says how large it is and was, and its checksum covers all of it, so that a frame which is damaged or
somebody else's is refused before blosc2 sees it: of frames with a few bytes changed, blosc2 itself decompresses nearly
half, to other data. A frame of no chunks holds the bytes as they are.

What it gives, on one core of a cloud machine, with shuffle and checksum, for an int16 volume like a CT of 4 MB:

| codec, level 1 | ratio | compress | decompress |
|----------------|-------|----------|------------|
| lz4            | 3.7   | 1.6 GB/s | 2.7 GB/s   |
| zstd           | 4.4   | 0.6 GB/s | 1.3 GB/s   |

A copy in memory moves more than 10 GB/s. So between processes of one machine compression costs time; it pays where
memory is short, and on a slow link.

blosc2 is imported when something is first compressed, since that takes a second, 55 MB and 300 modules.
"""

from __future__ import annotations

import functools
import importlib
import os
import statistics
import struct
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pickle import PickleBuffer
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from trw_pipeline.errors import CodecError
from trw_pipeline.executors.codec import Frame

CodecName: TypeAlias = Literal["lz4", "lz4hc", "zstd", "zlib", "blosclz"]
Shuffle: TypeAlias = Literal["shuffle", "bitshuffle"]

CHUNK_BYTES = 4 * 1024**2
"""blosc2 takes 2 GB at once. Already 16 MB are slower than 4, whose memory the allocator keeps; the ratio is the same
from 1 MB on."""

BLOCK_BYTES = 256 * 1024
"""Of a chunk, blosc2 compresses so much by itself. Its own choice, 64 KB, takes a fifth longer to decompress by zstd,
for a frame that is no smaller; larger ones leave the cache."""

LARGEST_CHUNK_BYTES = 1024**3
"""A chunk and blosc2's own bytes in it stay clear of 2**31."""

MEMORY_BYTES_PER_S = 10e9
"""Over a link this fast, such as shared memory, no trial is made: to compress and to decompress each touch all bytes
once, as a copy does."""

_MAGIC = b"\x93trwb2\r\1"
_HEADER = struct.Struct("<8sQQII")  # magic, nb_bytes, chunk_bytes, nb_chunks, crc32 of all the rest
_LARGEST_TYPESIZE = 255  # of blosc2

_forked = False


@dataclass(frozen=True, slots=True)
class Compression:
    """How to compress. Always lossless.

    Args:
        codec: "zstd" makes the smaller frames, "lz4" is two to three times faster; "lz4hc", "zlib" and "blosclz" are
            there too, and gave less for more time.
        level: 1 to 9. Above 1 the time grows several times and the frame shrinks by a few percent.
        shuffle: how the bytes of the items of a buffer are put side by side first: by "shuffle" (whole bytes),
            "bitshuffle", or not at all (None). Without, the frame of an int16 volume is 1.3 to 1.7 times as
            large.

    Raises:
        ValueError: there is no such codec, level or shuffle.
    """

    codec: CodecName = "zstd"
    level: int = 1
    shuffle: Shuffle | None = "shuffle"

    def __post_init__(self) -> None:
        if self.codec not in get_args(CodecName):
            raise ValueError(f"codec must be one of {get_args(CodecName)}, got {self.codec!r}")
        if type(self.level) is not int or not 1 <= self.level <= 9:
            raise ValueError(f"level must be a whole number from 1 to 9, got {self.level!r}")
        if self.shuffle is not None and self.shuffle not in get_args(Shuffle):
            raise ValueError(f"shuffle must be one of {get_args(Shuffle)} or None, got {self.shuffle!r}")

    @staticmethod
    def of(
        value: CodecName | Literal["auto"] | Compression | Trial | None,
        *,
        link_bytes_per_s: float = MEMORY_BYTES_PER_S,
        min_ratio: float | None = None,
    ) -> Compression | Trial | None:
        """Returns what a user means by `compression=`.

        Args:
            value: None, the name of a codec, "auto" (a new `Trial`), or a ready `Compression` or `Trial`.
            link_bytes_per_s: what "auto" shall save time on; by default the memory of this machine, where there is
                nothing to save. In bytes a second.
            min_ratio: what "auto" shall save memory by, instead.

        Raises:
            ValueError: it is none of these.
        """
        if value is None or isinstance(value, (Compression, Trial)):
            return value
        if value == "auto":
            return Trial(min_ratio=min_ratio) if min_ratio is not None else Trial(link_bytes_per_s=link_bytes_per_s)
        if value not in get_args(CodecName):
            names = (*get_args(CodecName), "auto")
            raise ValueError(f"compression must be None, one of {names}, or a Compression, got {value!r}")
        return Compression(value)

    def compress(self, buffer: Frame, *, nthreads: int = 1, chunk_bytes: int = CHUNK_BYTES) -> bytes:
        """Returns a frame for `decompress`: compressed, or stored where that would not make it smaller.

        Args:
            buffer: bytes, an array, a memoryview: anything contiguous. The size of its items is what is shuffled.
            nthreads: most threads to use, at most one a core. A forked process uses one: more would hang if its parent
                has used blosc2's own pool of threads.
            chunk_bytes: how much is compressed at a time.

        Raises:
            ValueError: `buffer` is not contiguous, or `nthreads` or `chunk_bytes` is out of range.
        """
        return self.try_compress(buffer, nthreads=nthreads, chunk_bytes=chunk_bytes) or store(buffer)

    def try_compress(
        self, buffer: Frame, *, nthreads: int = 1, chunk_bytes: int = CHUNK_BYTES, at_most_bytes: int | None = None
    ) -> bytes | None:
        """As `compress`, but returns None if the frame would be larger than `at_most_bytes`.

        By default it has to be smaller than the buffer. It stops as soon as that can not be any more.
        """
        if not 1 <= chunk_bytes <= LARGEST_CHUNK_BYTES:
            raise ValueError(f"chunk_bytes must be from 1 to {LARGEST_CHUNK_BYTES}, got {chunk_bytes}")
        nthreads = _bounded(nthreads)
        raw, typesize = _bytes_of(buffer), memoryview(buffer).itemsize
        if not 1 <= typesize <= _LARGEST_TYPESIZE:
            typesize = 1
        step = max(1, chunk_bytes // typesize) * typesize
        starts = range(0, len(raw), step)
        room = (len(raw) - 1 if at_most_bytes is None else at_most_bytes) - _HEADER.size - 4 * len(starts)
        chunks: list[bytes] = []
        for start in starts:
            if room < 0:
                break
            chunks.append(self._chunk(raw[start : start + step], typesize, nthreads))
            room -= len(chunks[-1])
        return None if room < 0 else _frame(len(raw), step, chunks)

    def _chunk(self, part: memoryview, typesize: int, nthreads: int) -> bytes:
        blosc2 = load_blosc2()
        # Single bytes lie side by side already; to shuffle them gains nothing and takes as long as to decompress.
        shuffle = None if typesize == 1 and self.shuffle == "shuffle" else self.shuffle
        try:
            return blosc2.compress2(
                part,
                codec=blosc2.Codec[self.codec.upper()],
                clevel=self.level,
                filters=[] if shuffle is None else [blosc2.Filter[shuffle.upper()]],
                blocksize=BLOCK_BYTES,
                typesize=typesize,
                nthreads=nthreads,
            )
        except RuntimeError as error:
            raise CodecError(f"a buffer can not be compressed: {error}") from error


@dataclass(slots=True)
class _Class:
    """What is known of the buffers of one class; `nb_left` of them come before the next measurement."""

    gains: list[float] = field(default_factory=list[float])
    pays: bool = False
    nb_left: int = 0


class Trial:
    """Compresses what it pays to compress, found out by trying.

    Buffers of one item size and about one size (within a factor of four) form a class. Of each class the first
    `NB_MEASURED` buffers are compressed and, where time is the goal, decompressed again; the median decides about the
    next `NB_BETWEEN` of them, then it is measured again. A buffer that is measured is sent as it came out best itself.

    On one machine the answer is nearly always no: see the table above, and what `link_bytes_per_s` a transport reaches.
    What is not known here: whether the other side is as fast as this one, and whether cores are idle, so that time
    spent on them is free. Not promised either: the same decision in the next run, where time is the goal.

    Args:
        link_bytes_per_s: goal "time": compressing, sending what is left over a link of that speed, and decompressing
            must be faster than sending all, by `TIME_MARGIN`.
        min_ratio: goal "memory": the frame must be that many times smaller than the buffer.
        compression: what to try; by default lz4 for time, zstd for memory.
        clock: returns seconds.

    Raises:
        ValueError: not exactly one of the goals is given, or it is out of range.
    """

    NB_MEASURED = 3
    NB_BETWEEN = 1000
    TIME_MARGIN = 1.1
    """Times faster; timings are not exact, and where nothing is won the simpler way is better."""

    def __init__(
        self,
        *,
        link_bytes_per_s: float | None = None,
        min_ratio: float | None = None,
        compression: Compression | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if (link_bytes_per_s is None) == (min_ratio is None):
            raise ValueError(f"give one of link_bytes_per_s and min_ratio, got {link_bytes_per_s} and {min_ratio}")
        if link_bytes_per_s is not None and not link_bytes_per_s > 0:
            raise ValueError(f"link_bytes_per_s must be above 0, got {link_bytes_per_s}")
        if min_ratio is not None and not min_ratio > 1:
            raise ValueError(f"min_ratio must be above 1, got {min_ratio}")
        self.link_bytes_per_s = link_bytes_per_s
        self.min_ratio = min_ratio
        self.compression = compression or Compression("lz4" if min_ratio is None else "zstd")
        self._clock = clock
        self._classes: dict[tuple[int, int], _Class] = {}

    def decisions(self) -> dict[tuple[int, int], bool]:
        """Returns for each class, (item size, least size of a buffer) in bytes, whether it is compressed at present."""
        return {(typesize, 4**size // 2): known.pays for (typesize, size), known in self._classes.items()}

    def try_compress(self, buffer: Frame, *, nthreads: int = 1) -> bytes | None:
        """Returns the compressed frame, or None where it does not pay; see `Compression.try_compress`."""
        if self.link_bytes_per_s is not None and self.link_bytes_per_s >= MEMORY_BYTES_PER_S:
            return None
        view = memoryview(buffer)
        known = self._classes.setdefault((view.itemsize, view.nbytes.bit_length() // 2), _Class())
        if known.nb_left > 0:
            known.nb_left -= 1
            return self._frame(view, nthreads) if known.pays else None
        frame, gain = self._measure(view, nthreads)
        gains = known.gains
        gains.append(gain)
        if len(gains) >= self.NB_MEASURED:
            known.pays = statistics.median(gains) >= 1
            known.nb_left = self.NB_BETWEEN
            known.gains = []  # not cleared: another thread may be here, too
        return frame if gain >= 1 else None

    def _frame(self, view: memoryview, nthreads: int) -> bytes | None:
        at_most_bytes = None if self.min_ratio is None else int(view.nbytes / self.min_ratio)
        return self.compression.try_compress(view, nthreads=nthreads, at_most_bytes=at_most_bytes)

    def _measure(self, view: memoryview, nthreads: int) -> tuple[bytes | None, float]:
        """Returns the frame and the gain: how many times it does better than the goal asks for, 0 without a frame."""
        load_blosc2()  # a second that is not the codec's
        start_s = self._clock()
        frame = self._frame(view, nthreads)
        if frame is None or self.link_bytes_per_s is None:
            return frame, 0.0 if frame is None else 1.0
        decompress(frame, nthreads=nthreads)
        spent_s = self._clock() - start_s
        faster = view.nbytes / (len(frame) + spent_s * self.link_bytes_per_s)
        return frame, faster / self.TIME_MARGIN


def decompress(frame: Frame, out: Frame | None = None, *, nthreads: int = 1, is_checked: bool = False) -> memoryview:
    """Returns the bytes that were compressed or stored, as a writable view of one dimension.

    Args:
        frame: from `Compression.compress` or `store`.
        out: where to put them, contiguous and of at least their size; by default new memory. Must not share memory
            with `frame`. After an error it may be partly written.
        nthreads: as for `Compression.compress`.
        is_checked: `check` has seen this frame, and nobody can have changed it since: the checksum, which takes a
            quarter of the time, is passed over.

    Raises:
        CodecError: `frame` is damaged, or none of ours.
        ValueError: `out` is too small, read-only, or not contiguous; `nthreads` is below 1.
    """
    nthreads = _bounded(nthreads)
    source = _bytes_of(frame)
    nb_bytes, chunk_bytes, offsets = _layout(source, is_checked)
    target = _room(out, nb_bytes)
    if len(offsets) == 1:
        target[:] = source[offsets[0] :]
    for i, (start, end) in enumerate(pairwise(offsets)):
        _decompress_chunk(source[start:end], target[i * chunk_bytes : (i + 1) * chunk_bytes], nthreads)
    return target


def check(frame: Frame) -> int:
    """Returns the number of bytes that `decompress` makes of a frame.

    Raises:
        CodecError: it is damaged, or none of ours.
    """
    return _layout(_bytes_of(frame))[0]


def store(buffer: Frame) -> bytes:
    """Returns a frame for `decompress` that holds a copy of the bytes of `buffer` as they are."""
    raw = _bytes_of(buffer)
    return _frame(len(raw), 0, [], raw)


def is_frame(buffer: Frame) -> bool:
    """Returns whether `buffer` begins like a frame of ours. Other data may, too: send those with `store`."""
    return bytes(_bytes_of(buffer)[: len(_MAGIC)]) == _MAGIC


@functools.cache
def load_blosc2() -> Any:
    """Imports blosc2, so that the first compression does not wait for it, and returns it.

    Lets all of the program's calls of blosc2 release the interpreter lock, so that threads compress side by side.
    """
    blosc2 = importlib.import_module("blosc2")
    blosc2.set_releasegil(True)
    return blosc2


def _frame(nb_bytes: int, chunk_bytes: int, chunks: list[bytes], stored: Frame = b"") -> bytes:
    sizes = struct.pack(f"<{len(chunks)}I", *map(len, chunks))
    header = _HEADER.pack(_MAGIC, nb_bytes, chunk_bytes, len(chunks), 0)[:-4]
    crc = functools.reduce(lambda crc, part: zlib.crc32(part, crc), [sizes, *chunks, stored], zlib.crc32(header))
    return b"".join([header, crc.to_bytes(4, "little"), sizes, *chunks, stored])


def _layout(source: memoryview, is_checked: bool = False) -> tuple[int, int, list[int]]:
    """Returns `nb_bytes`, `chunk_bytes`, and where in `source` each chunk starts and the last one ends.

    Raises:
        CodecError: the frame is damaged, or none of ours.
    """
    if len(source) < _HEADER.size or not is_frame(source):
        raise CodecError("a buffer can not be decompressed: it is not a compressed frame")
    _, nb_bytes, chunk_bytes, nb_chunks, crc = _HEADER.unpack_from(source)
    first = _HEADER.size + 4 * nb_chunks
    is_whole = is_checked or zlib.crc32(source[_HEADER.size :], zlib.crc32(source[: _HEADER.size - 4])) == crc
    if not is_whole or len(source) < first:
        raise CodecError("a buffer can not be decompressed: its frame is damaged")
    offsets = list(accumulate(struct.unpack_from(f"<{nb_chunks}I", source, _HEADER.size), initial=first))
    if nb_chunks == 0:
        fits = first + nb_bytes == len(source)
    else:
        fits = 0 < chunk_bytes <= LARGEST_CHUNK_BYTES and -(-nb_bytes // chunk_bytes) == nb_chunks
        fits = fits and offsets[-1] == len(source)
    if not fits:
        raise CodecError("a buffer can not be decompressed: the sizes in its frame do not fit together")
    return nb_bytes, chunk_bytes, offsets


def _decompress_chunk(chunk: memoryview, part: memoryview, nthreads: int) -> None:
    blosc2 = load_blosc2()
    try:
        # It writes as much as the chunk says, whatever the size of `part`.
        if blosc2.get_cbuffer_sizes(chunk)[:2] != (len(part), len(chunk)):
            raise ValueError("it has another size")
        blosc2.decompress2(chunk, part, nthreads=nthreads)
    except (ValueError, RuntimeError) as error:
        raise CodecError(f"a buffer can not be decompressed: {error}") from error


def _room(out: Frame | None, nb_bytes: int) -> memoryview:
    if out is None:
        return _bytes_of(np.empty(nb_bytes, np.uint8))  # a bytearray would be filled with zeros first
    room = _bytes_of(out)
    if room.readonly:
        raise ValueError("out must be writable, got a read-only buffer")
    if len(room) < nb_bytes:
        raise ValueError(f"out must hold at least {nb_bytes} bytes, got {len(room)}")
    return room[:nb_bytes]


def _bytes_of(buffer: Frame) -> memoryview:
    try:
        return PickleBuffer(buffer).raw()  # a cast of a memoryview would refuse most formats
    except BufferError as error:
        raise ValueError(f"a buffer must be contiguous, got one with strides {memoryview(buffer).strides}") from error


def _bounded(nthreads: int) -> int:
    if nthreads < 1:
        raise ValueError(f"nthreads must be at least 1, got {nthreads}")
    return 1 if _forked else min(nthreads, os.cpu_count() or 1)


def _after_fork() -> None:
    global _forked
    _forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
