"""How the samples of the benchmarks are made, and how samples become a batch of arrays.

Workers import this file, so it imports no torch: a worker that is charged for it would start ten times later.
"""

from __future__ import annotations

import functools
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

Sample: TypeAlias = dict[str, Any]
"""Feature name -> array (...), or a number."""

MakeSample: TypeAlias = Callable[[int], Sample]
"""Makes the sample of an index, the same one whichever process it is in."""

NB_CLASSES = 10
PAGE_FLOATS = 1024  # float32 values in a memory page of 4 KiB


def stacked(samples: Sequence[Sample]) -> dict[str, np.ndarray]:
    """Makes one batch of samples: feature name -> array (N, ...).

    One sample alone is not copied, which is what somebody who tunes a loader by hand would do.
    """
    return {name: _stacked([sample[name] for sample in samples]) for name in samples[0]}


def _stacked(values: list[Any]) -> np.ndarray:
    return np.asarray(values[0])[None] if len(values) == 1 else np.stack(values)


@dataclass(frozen=True)
class BatchOf:
    """The mapped function: batch with the feature "index" (N,) -> batch of those samples.

    Attributes:
        make: makes each sample.
    """

    make: MakeSample

    def __call__(self, batch: dict[str, Any]) -> dict[str, np.ndarray]:
        """Makes the samples and stacks them."""
        return stacked([self.make(index) for index in batch["index"].tolist()])


@dataclass(frozen=True)
class SmallImage:
    """A row of a table in memory: there is nothing to do but Python.

    Attributes:
        images: (M, 28, 28) float32; an index beyond M starts again at the first.
        latency_s: seconds that each sample sleeps, as if it came from afar.
    """

    images: np.ndarray
    latency_s: float = 0.0

    @classmethod
    def drawn(cls, latency_s: float = 0.0) -> SmallImage:
        """Draws 64 images."""
        return cls(np.random.default_rng(0).random((64, 28, 28), dtype=np.float32), latency_s)

    def __call__(self, index: int) -> Sample:
        """Gives x (28, 28) float32 and the target."""
        if self.latency_s:
            time.sleep(self.latency_s)
        return {"x": self.images[index % len(self.images)], "target": index % NB_CLASSES}


@dataclass(frozen=True)
class InflatedVolume:
    """A volume that is decompressed and normalised: work that releases the interpreter lock.

    Attributes:
        deflated: zlib streams, each of 64^3 int16; an index beyond their number starts again at the first.
    """

    deflated: tuple[bytes, ...]

    @classmethod
    def drawn(cls) -> InflatedVolume:
        """Draws four smooth volumes with noise on top, of which zlib takes off a third."""
        rng = np.random.default_rng(0)
        ramp = np.linspace(-1000, 1000, 64)
        smooth = ramp[:, None, None] + ramp[None, :, None] / 2 + ramp[None, None, :] / 4
        volumes = [(smooth + rng.normal(0, 8, smooth.shape)).astype(np.int16) for _ in range(4)]
        return cls(tuple(zlib.compress(volume.tobytes()) for volume in volumes))

    def __call__(self, index: int) -> Sample:
        """Gives x (64, 64, 64) float32 of mean 0 and standard deviation 1, and the target."""
        stored = zlib.decompress(self.deflated[index % len(self.deflated)])
        volume = np.frombuffer(stored, np.int16).reshape(64, 64, 64).astype(np.float32)
        volume -= volume.mean()
        volume /= volume.std()
        return {"x": volume, "target": index % NB_CLASSES}


@dataclass(frozen=True)
class CopiedArray:
    """A large array, as fast as memory gives it: what is left is the way to the main process.

    The array it is copied from is made once in each process, so that it does not travel with the function. Forked
    workers inherit it.

    Attributes:
        shape: of x.
    """

    shape: tuple[int, ...]

    def __call__(self, index: int) -> Sample:
        """Gives x, float32 in memory of its own, and the target."""
        x = _original(self.shape).copy()
        x.flat[0] = index
        return {"x": x, "target": index % NB_CLASSES}


@functools.cache
def _original(shape: tuple[int, ...]) -> np.ndarray:
    return np.linspace(0, 1, int(np.prod(shape)), dtype=np.float32).reshape(shape)
