"""Where a cache keeps results: in memory, or in files.

    file:  magic │ crc32 of the rest │ blob          blob:  nb_frames │ size of each │ frames, each at a multiple of 64

A blob is copied when it is read, so that whoever gets the result may write to it.
"""

from __future__ import annotations

import logging
import os
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from trw_pipeline.executors.codec import ALIGNMENT, Frame
from trw_pipeline.files import write_bytes

logger = logging.getLogger(__name__)

FORMAT = 1
"""Of blobs and files. Another one makes other names, so that no version reads what it does not know."""

_HEADER = struct.Struct("<8sII")  # magic, crc32, and zeros, so that a blob begins at a multiple of 16
_MAGIC = b"\x93trwca\r\n"
_SUFFIX = ".sample"


class Store(Protocol):
    """Keeps blobs by name, for one version of the function at a time."""

    @property
    def nb_kept(self) -> int:
        """The number of blobs."""
        ...

    @property
    def kept_bytes(self) -> int:
        """What they take."""
        ...

    def begin(self, version: str) -> None:
        """Turns to the blobs of a version of the function."""
        ...

    def read(self, name: str) -> bytearray | None:
        """Returns a copy of a blob, or None."""
        ...

    def write(self, name: str, blob: bytes) -> None:
        """Keeps a blob; raises OSError where that is not possible."""
        ...

    def close(self) -> None:
        """Frees memory. Idempotent."""
        ...


class MemoryStore:
    """Keeps blobs in memory, of the newest version alone."""

    def __init__(self) -> None:
        self._version = ""
        self._blobs: dict[str, bytes] = {}
        self.kept_bytes = 0

    @property
    def nb_kept(self) -> int:
        """The number of blobs."""
        return len(self._blobs)

    def begin(self, version: str) -> None:
        """Drops all that is of another version."""
        if version != self._version:
            self._version = version
            self._blobs, self.kept_bytes = {}, 0

    def read(self, name: str) -> bytearray | None:
        """Returns a copy of a blob, or None."""
        blob = self._blobs.get(name)
        return None if blob is None else bytearray(blob)

    def write(self, name: str, blob: bytes) -> None:
        """Keeps a blob."""
        self.kept_bytes += len(blob) - len(self._blobs.get(name, b""))
        self._blobs[name] = blob

    def close(self) -> None:
        """Drops all."""
        self.begin("")


class FolderStore:
    """Keeps blobs in files, `<folder>/<version>/<name>.sample`; other files are never touched.

    Several processes may use a folder: a file is there wholly or not at all, and equal names hold equal results.

    Args:
        folder: created if absent.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._root = Path(folder)
        self._folder = self._root
        self.nb_kept = self.kept_bytes = 0

    def begin(self, version: str) -> None:
        """Looks at what is there of a version."""
        self._folder = self._root / version
        self._folder.mkdir(parents=True, exist_ok=True)
        with os.scandir(self._folder) as found:
            sizes = [entry.stat().st_size for entry in found if entry.name.endswith(_SUFFIX)]
        self.nb_kept, self.kept_bytes = len(sizes), sum(sizes)

    def read(self, name: str) -> bytearray | None:
        """Returns a blob, or None if there is no file, or it is damaged, which a warning tells."""
        path = self._path(name)
        try:
            content = bytearray(path.read_bytes())
        except FileNotFoundError:
            return None
        except OSError as error:
            logger.warning("the cached result %s can not be read (%s); it is made again", path, error)
            return None
        header = bytes(content[: _HEADER.size])
        del content[: _HEADER.size]
        if header != _header(content):
            logger.warning("the cached result %s is damaged; it is made again", path)
            return None
        return content

    def write(self, name: str, blob: bytes) -> None:
        """Writes a file, atomically."""
        write_bytes(self._path(name), _header(blob) + blob)
        self.nb_kept += 1
        self.kept_bytes += _HEADER.size + len(blob)

    def close(self) -> None:
        """Nothing to free: the files stay."""

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}{_SUFFIX}"


def packed(frames: Sequence[Frame]) -> bytes:
    """Returns frames as one blob."""
    views = [memoryview(frame).cast("B") if memoryview(frame).nbytes else memoryview(b"") for frame in frames]
    parts: list[Any] = [struct.pack(f"<{len(views) + 1}Q", len(views), *(view.nbytes for view in views))]
    end = len(parts[0])
    for view in views:
        parts += [bytes(-end % ALIGNMENT), view]
        end += -end % ALIGNMENT + view.nbytes
    return b"".join(parts)


def unpacked(blob: bytearray) -> list[memoryview]:
    """Returns the frames in a blob of ours, as views of it."""
    (nb_frames,) = struct.unpack_from("<Q", blob)
    sizes = struct.unpack_from(f"<{nb_frames}Q", blob, 8)
    frames: list[memoryview] = []
    end = 8 + 8 * nb_frames
    for size in sizes:
        begin = end + -end % ALIGNMENT
        end = begin + size
        frames.append(memoryview(blob)[begin:end])
    return frames


def _header(blob: Frame) -> bytes:
    return _HEADER.pack(_MAGIC, zlib.crc32(blob), 0)
