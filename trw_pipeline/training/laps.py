"""Where the time of one batch goes, on the host and on the device.

    previous batch is done ── other ──┬── waiting for data ──┬── phase ──┬── phase ──┬ ...
    host, by the clock                                arrive()       lap()       lap()
    device, by marks      └───────────── idle or busy ───────┴───────────┴───────────┴ ...

Every moment between the first and the last call belongs to one phase, so the phases add up to the whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trw_pipeline.nets.gpu_timer import GpuTimer, gpu_seconds

DATA = "data loading"
OTHER = "other"


class Laps:
    """Deals the time from now on out to the phases of one batch.

    On a CUDA device each phase is also put between two marks, which are read when the device has passed them; nothing
    here waits for it, unless that is asked for.

    Args:
        clock: seconds that never run backwards.
        gpu: times the device; None if it is none of CUDA.
        sync: at the end of each phase, but for the wait for data, wait until the device has done it. The times of the
            host are then those of the work, and the work is slower, since host and device take turns.

    Attributes:
        seconds: phase -> seconds by the clock.
        peaks_mb: phase -> most memory of the device that tensors took during it, in MB; empty without CUDA.
    """

    def __init__(self, clock: Callable[[], float], gpu: GpuTimer | None, sync: bool = False) -> None:
        self.seconds: dict[str, float] = {}
        self.peaks_mb: dict[str, float] = {}
        self._clock = clock
        self._gpu = gpu
        self._sync = sync
        self._spans: list[tuple[str, Any, Any]] = []  # phase, and the marks at its start and its end
        self._mark: Any = None if gpu is None else gpu.mark()
        self._since = clock()

    def arrive(self, wait_s: float) -> None:
        """The batch is there, after so many seconds of waiting for it; before those, time went to other things."""
        now = self._end(DATA)
        # Rounding may leave a little less than nothing for the rest.
        self._add(OTHER, max(now - self._since - wait_s, 0.0))
        self._add(DATA, wait_s)
        self._since = now

    def lap(self, phase: str) -> None:
        """A phase ends here; it began where the last one ended, and may come several times."""
        now = self._end(phase, self._sync)
        self._add(phase, now - self._since)
        self._since = now
        if self._gpu is not None:
            self.peaks_mb[phase] = max(self._gpu.take_peak_mb(), self.peaks_mb.get(phase, 0.0))

    @property
    def total_s(self) -> float:
        """Seconds of all phases."""
        return sum(self.seconds.values())

    @property
    def is_passed(self) -> bool:
        """Whether the device has come to the end of the last phase."""
        return not self._spans or self._spans[-1][2].query()

    def wait(self) -> None:
        """Wait until it has."""
        if self._spans:
            self._spans[-1][2].synchronize()

    def gpu_seconds(self) -> dict[str, float]:
        """Give phase -> seconds between its marks, which the device must have passed; empty without CUDA.

        Within them the device may also have been idle, where the host was too slow to keep it busy.
        """
        seconds: dict[str, float] = {}
        for phase, start, end in self._spans:
            seconds[phase] = seconds.get(phase, 0.0) + gpu_seconds(start, end)
        return seconds

    def device_wait_s(self) -> float:
        """Give the seconds that the device was without work because the data was not there.

        That is when both wait, the host for the data and the device for the host. Both waits end when the batch
        arrives, so it is the shorter one. Where host and device are one, it is the wait of the host.
        """
        wait_s = self.seconds.get(DATA, 0.0)
        return wait_s if self._gpu is None else min(wait_s, self.gpu_seconds().get(DATA, 0.0))

    def _add(self, phase: str, seconds: float) -> None:
        self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds

    def _end(self, phase: str, sync: bool = False) -> float:
        """Puts the phase between marks; returns the time at which the next begins.

        Its mark comes after that, and not before a wait: the device never shows more seconds than the host.
        """
        if self._gpu is None:
            return self._clock()
        self._spans.append((phase, self._mark, self._gpu.mark()))
        if sync:
            self._gpu.wait()
        now = self._clock()
        self._mark = self._gpu.mark()
        return now
