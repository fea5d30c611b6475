"""What a training uses of its machine, sampled beside it by one thread.

    caller   begin                                     end
               │ waits for it: milliseconds             │
    thread   sample ··· interval_s ··· sample ···     sample

Only the thread reads figures, so that a driver that hangs holds nobody up: once, a sample is given up after a second,
and from then on none is waited for. The thread waits for events alone. No sample is kept, but of each figure the mean,
the least, the greatest and their number.

| figure | unit | of |
|---|---|---|
| `cpu_memory_used` | GiB | the machine |
| `cpu_rss`, `cpu_vms` | GiB, resident and virtual | this process and those under it; shared pages count in each |
| `cpu_percent` | 100 for each core that is busy | the same; between two samples, from the second on |
| `cpu_processes`, `cpu_open_files` | processes; open descriptors | the same |
| `gpu_memory_used`, `gpu_memory_free`, `gpu_memory_percent` | GiB, GiB, used in % of all | the GPU, by all processes |
| `gpu_percent` | % of the time in which a kernel ran | the same |

What can not be read is absent: of a process that ends while it is read, nothing counts.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import math
import threading
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import psutil

_logger = logging.getLogger(__name__)

GIB = 2**30
CPU_FIGURES = ("cpu_memory_used", "cpu_rss", "cpu_vms", "cpu_percent", "cpu_processes", "cpu_open_files")
GPU_FIGURES = ("gpu_memory_used", "gpu_memory_free", "gpu_memory_percent", "gpu_percent")

_SAMPLE_S = 1.0  # for which a sample is waited for; on a machine that is not stuck it takes milliseconds
_CLOSE_S = 0.5
_SHORTEST_S = 0.1  # The system counts CPU time in steps of 10 ms: over less than ten of them it tells nothing.


class Figures(NamedTuple):
    """One figure over a window."""

    mean: float
    min: float
    max: float
    n: int


class ResourceMonitor:
    """Samples the figures above over windows of time, such as epochs: `begin`, `end`, `begin`, ..., `close`.

    Args:
        interval_s: seconds between two samples. There is one at the beginning and one at the end of a window, too.
        gpus: names by which NVML may know the GPU (`"GPU-<uuid>"`), the first that fits counts; without any, none is
            read. Where NVML or the extra `gpu` is missing, a warning says so, and there are no figures of it.

    Raises:
        TypeError: `interval_s` is not a number.
        ValueError: it is not positive and finite.
    """

    def __init__(self, interval_s: float = 5.0, gpus: Sequence[str] = ()) -> None:
        self.interval_s = checked_interval("interval_s", interval_s)
        self._gpus = gpus
        self._changed = threading.Condition()  # of all below
        self._window: _Window | None = None
        self._is_closed = False
        self._is_slow = False
        self._thread = threading.Thread(target=self._serve, name="trw-resources", daemon=True)

    def begin(self) -> None:
        """Begins a window with a first sample.

        Raises:
            RuntimeError: the monitor is closed.
        """
        with self._changed:
            if self._is_closed:
                raise RuntimeError("a resource monitor that is closed can not begin a window")
            self._window = _Window()
            if self._thread.ident is None:
                self._thread.start()
            self._sample(self._window)

    def end(self) -> dict[str, Figures]:
        """Ends the window with a last sample.

        Returns:
            Name -> figures of the window; those that could be read. Empty if no window was begun.
        """
        with self._changed:
            window = self._window
            if window is None:
                return {}
            self._sample(window)
            self._window = None
            return window.figures()

    def _sample(self, window: _Window) -> None:
        """Asks for a sample, and waits for it."""
        window.nb_wanted += 1
        self._changed.notify_all()
        limit_s = 0.0 if self._is_slow else _SAMPLE_S
        if not self._changed.wait_for(lambda: not window.nb_wanted, limit_s) and not self._is_slow:
            self._is_slow = True
            _logger.warning("a sample of the figures of the machine takes longer than %g s: they may be few", limit_s)

    def close(self) -> None:
        """Ends the thread; one that is stuck in a driver is left behind. Idempotent."""
        with self._changed:
            self._is_closed = True
            self._window = None
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(_CLOSE_S)

    def _serve(self) -> None:
        with contextlib.ExitStack() as ours:
            machine = _Machine(self._gpus, ours)
            while (window := self._next_window()) is not None:
                sample = machine.read()
                with self._changed:
                    window.add(sample)
                    self._changed.notify_all()

    def _next_window(self) -> _Window | None:
        """Waits until a sample is due, and returns its window; None: the monitor is closed."""
        with self._changed:
            while not self._is_closed:
                window = self._window
                if window is None:
                    self._changed.wait()
                elif window.nb_wanted or not self._changed.wait(self.interval_s):
                    return window
        return None


def checked_interval(name: str, value: Any) -> float:
    """Gives a number of seconds back.

    Raises:
        TypeError: it is not a number.
        ValueError: it is not positive and finite.
    """
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise TypeError(f"{name} must be a number of seconds, got {value!r}")
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be positive and finite, got {value}")
    return value


class _Sample(NamedTuple):
    at: float
    figures: dict[str, float]
    cpu_s: dict[psutil.Process, float]  # that each process has used since it was born


class _Window:
    """What the samples of a window add up to.

    Attributes:
        nb_wanted: samples that somebody asked for and that are not taken yet.
    """

    def __init__(self) -> None:
        self.nb_wanted = 0
        self._figures: dict[str, Figures] = {}
        self._before: _Sample | None = None  # from which CPU time is counted

    def add(self, sample: _Sample | None) -> None:
        """Takes in a sample; None: it could not be taken."""
        self.nb_wanted = max(self.nb_wanted - 1, 0)
        if sample is None:
            return
        for name, value in sample.figures.items():
            self._add_figure(name, value)
        if self._before is None:
            self._before = sample
            return
        elapsed_s = sample.at - self._before.at
        if elapsed_s >= _SHORTEST_S or (elapsed_s > 0 and "cpu_percent" not in self._figures):
            # By process: one that has ended since then takes nothing away, one that was born counts from its birth.
            used_s = sum(seconds - self._before.cpu_s.get(process, 0.0) for process, seconds in sample.cpu_s.items())
            self._add_figure("cpu_percent", 100 * used_s / elapsed_s)
            self._before = sample

    def _add_figure(self, name: str, value: float) -> None:
        mean, least, greatest, n = self._figures.get(name, Figures(0.0, value, value, 0))
        self._figures[name] = Figures(mean + (value - mean) / (n + 1), min(least, value), max(greatest, value), n + 1)

    def figures(self) -> dict[str, Figures]:
        """Returns the figures so far, in the order of their table."""
        return {name: self._figures[name] for name in (*CPU_FIGURES, *GPU_FIGURES) if name in self._figures}


class _Machine:
    """Reads the figures; lives in one thread."""

    def __init__(self, gpus: Sequence[str], ours: contextlib.ExitStack) -> None:
        self._warned: set[str] = set()
        self._process = psutil.Process()
        self._nvml: Any = None
        self._gpu: Any = None
        if gpus:
            self._open_gpu(gpus, ours)

    def read(self) -> _Sample | None:
        """Takes a sample, or None."""
        try:
            figures = {"cpu_memory_used": psutil.virtual_memory().used / GIB}
            processes = [self._process, *self._process.children(recursive=True)]
        except (psutil.Error, OSError) as error:
            self._warn("the figures of the machine can not be read", error)
            return None
        cpu_s: dict[psutil.Process, float] = {}
        rss = vms = nb_files = 0
        at = time.monotonic()
        for process in processes:
            try:
                with process.oneshot():
                    memory, times, nb = process.memory_info(), process.cpu_times(), process.num_fds()
            except (psutil.Error, OSError):  # it has ended since it was listed
                continue
            rss, vms, nb_files = rss + memory.rss, vms + memory.vms, nb_files + nb
            cpu_s[process] = times.user + times.system
        figures |= {"cpu_rss": rss / GIB, "cpu_vms": vms / GIB}
        figures |= {"cpu_processes": float(len(cpu_s)), "cpu_open_files": float(nb_files)}
        return _Sample(at, figures | self._read_gpu(), cpu_s)

    def _open_gpu(self, gpus: Sequence[str], ours: contextlib.ExitStack) -> None:
        try:
            pynvml = importlib.import_module("pynvml")
        except ImportError as error:
            self._warn("no figures of the GPU: pip install 'trw_pipeline[gpu]'", error)
            return
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            self._warn("no figures of the GPU: NVML does not start", error)
            return
        ours.callback(_shut, pynvml)
        self._nvml = pynvml
        refusals: list[Exception] = []
        for name in gpus:
            try:
                self._gpu = pynvml.nvmlDeviceGetHandleByUUID(name)
            except pynvml.NVMLError as error:
                refusals.append(error)
            else:
                return
        self._warn(f"no figures of the GPU: NVML knows none of {list(gpus)}", refusals[-1])

    def _read_gpu(self) -> dict[str, float]:
        figures: dict[str, float] = {}
        if self._gpu is None:
            return figures
        try:
            memory = self._nvml.nvmlDeviceGetMemoryInfo(self._gpu)
            percent = 100 * memory.used / memory.total
            used, free = memory.used / GIB, memory.free / GIB
            figures |= {"gpu_memory_used": used, "gpu_memory_free": free, "gpu_memory_percent": percent}
        except (self._nvml.NVMLError, TypeError, ZeroDivisionError) as error:  # or an answer without numbers
            self._warn("the memory of the GPU can not be read", error)
        try:
            figures["gpu_percent"] = float(self._nvml.nvmlDeviceGetUtilizationRates(self._gpu).gpu)
        except (self._nvml.NVMLError, TypeError, ValueError) as error:  # a part of a GPU (MIG) has no such figure
            self._warn("the load of the GPU can not be read", error)
        return figures

    def _warn(self, what: str, error: Exception) -> None:
        if what not in self._warned:
            _logger.warning("%s: %s", what, error)
        self._warned.add(what)


def driver_version() -> str:
    """Gives the version of the NVIDIA driver; "" where there is none, or the extra `gpu` is not installed."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return ""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return ""
    try:
        return str(nvml.nvmlSystemGetDriverVersion())
    finally:
        _shut(nvml)


def _shut(nvml: Any) -> None:
    with contextlib.suppress(nvml.NVMLError):
        nvml.nvmlShutdown()
