"""Compresses the large buffers that another codec made of an object."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from trw_pipeline.executors.codec import OUT_OF_BAND_BYTES, Codec, Frame, buffer_of
from trw_pipeline.executors.compression import Compression, Trial, decompress, is_frame, store


class BloscCodec:
    """Sends the head of `inner` as it is, and each large buffer compressed where that makes it smaller.

    Arrays that were compressed arrive in new memory, writable unless they were sent read-only. A buffer that was not
    compressed is the very frame of `inner`, not a copy. What is damaged on the way is an error, or, in a buffer that
    was not compressed, goes unnoticed as it does without this codec.

    Args:
        inner: makes the frames; what it has to free it must find by the head alone, since buffers are replaced.
        compression: how, or a trial of whether.
        at_least_bytes: smaller buffers are left alone.
        nthreads: most threads a buffer is compressed and decompressed with. One by default, since workers, and what
            else the program does, share the cores.

    Attributes:
        bytes_compressed: of the compressed frames that were decoded here.

    Raises:
        ValueError: `nthreads` is below 1.
    """

    def __init__(
        self,
        inner: Codec,
        compression: Compression | Trial,
        *,
        at_least_bytes: int = OUT_OF_BAND_BYTES,
        nthreads: int = 1,
    ) -> None:
        if nthreads < 1:
            raise ValueError(f"nthreads must be at least 1, got {nthreads}")
        self._inner = inner
        self._compression = compression
        self._at_least_bytes = at_least_bytes
        self._nthreads = nthreads
        self.bytes_compressed = 0

    def encode(self, obj: Any) -> Sequence[Frame]:
        """Returns the head and the buffers of `inner`, each of which may have become a compressed frame.

        Raises:
            CodecError: `obj` can not travel; see `inner`.
        """
        return self._with_buffers(self._inner.encode(obj), self._compressed)

    def decode(self, frames: Sequence[Frame]) -> Any:
        """Returns the object.

        Raises:
            CodecError: a compressed frame is damaged, or `inner` can not make the object again.
        """
        return self._inner.decode(self._with_buffers(frames, self._decompressed))

    def discard(self, frames: Sequence[Frame]) -> None:
        """Discards them in `inner`; compressed frames own their memory."""
        self._inner.discard(frames)

    def close(self) -> None:
        """Closes `inner`."""
        self._inner.close()

    def _with_buffers(self, frames: Sequence[Frame], change: Callable[[Frame], Frame]) -> Sequence[Frame]:
        try:
            return [frames[0], *map(change, frames[1:])]
        except BaseException:
            self._inner.discard(frames)
            raise

    def _compressed(self, frame: Frame) -> Frame:
        if memoryview(frame).nbytes >= self._at_least_bytes:
            smaller = self._compression.try_compress(frame, nthreads=self._nthreads)
            if smaller is not None:
                return smaller
        return store(frame) if is_frame(frame) else frame  # or it would be decompressed at the other end

    def _decompressed(self, frame: Frame) -> Frame:
        if not is_frame(frame):
            return frame
        self.bytes_compressed += memoryview(buffer_of(frame)).nbytes
        return decompress(frame, nthreads=self._nthreads)


def with_compression(codec: Codec, compression: Compression | Trial | None) -> Codec:
    """Returns a codec that compresses the large buffers of `codec`, or that one itself."""
    return codec if compression is None else BloscCodec(codec, compression)
