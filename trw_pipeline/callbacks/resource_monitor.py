"""What each split used of the machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from trw_pipeline.resources import Figures, ResourceMonitor, checked_interval
from trw_pipeline.training.callback import Callback
from trw_pipeline.training.history import RESOURCES

if TYPE_CHECKING:
    from trw_pipeline.training.run import Run


class CallbackResourceMonitor(Callback):
    """Measures memory, CPU and GPU while a split runs, and adds them to its history as the output `resources`.

    So they are in every log of the history too: in `trainlog.csv` as `<dataset>/<split>/resources/<metric>`.

    | metric, its mean over the split | meaning |
    |---|---|
    | `cpu_memory_used` | memory in use on the machine, in GiB |
    | `cpu_rss`, `cpu_vms` | resident and virtual memory of this process and its workers, in GiB |
    | `cpu_percent` | CPU time of these, 100 for each core that was busy |
    | `cpu_processes`, `cpu_open_files` | how many they are, and how many descriptors they have open |
    | `gpu_memory_used`, `gpu_memory_free` | memory of the GPU, in GiB, whoever uses it |
    | `gpu_memory_percent` | used, in % of all |
    | `gpu_percent` | share of the time, in %, in which a kernel ran |

    Each has its `<metric>_min` and `<metric>_max`; `n` is the number of samples, at least 2. The last four are there
    where the training runs on a CUDA device and the extra `gpu` is installed. What can not be read is absent.

    One thread takes the samples, without a process of its own; a split waits for its first and its last one,
    some milliseconds.

    Args:
        interval_s: seconds between two samples; each split has one at its beginning and one at its end, too.

    Raises:
        TypeError: `interval_s` is not a number.
        ValueError: it is not positive and finite.
    """

    def __init__(self, interval_s: float = 5.0) -> None:
        self.interval_s = checked_interval("interval_s", interval_s)
        self._monitor: ResourceMonitor | None = None

    def on_fit_start(self, run: Run) -> None:
        """Make the monitor."""
        self._close()
        self._monitor = ResourceMonitor(self.interval_s, gpu_names(run.device))

    def on_split_start(self, run: Run) -> None:
        """Begin to sample."""
        if self._monitor is not None:
            self._monitor.begin()

    def on_split_end(self, run: Run) -> None:
        """Add what was measured to the history."""
        figures = {} if self._monitor is None else self._monitor.end()
        if figures and run.history:
            run.history[-1][run.dataset][run.split][RESOURCES] = _metrics(figures)

    def on_fit_end(self, run: Run) -> None:
        """End the thread."""
        self._close()

    def on_exception(self, run: Run) -> None:
        """End the thread."""
        self._close()

    def _close(self) -> None:
        if self._monitor is not None:
            self._monitor.close()
        self._monitor = None


def gpu_names(device: torch.device) -> list[str]:
    """List the names by which NVML may know a device of torch; none for one that is not CUDA's."""
    if device.type != "cuda":
        return []
    # The number of a device is not that of NVML where CUDA_VISIBLE_DEVICES chooses; its uuid is the same everywhere.
    uuid = torch.cuda.get_device_properties(device).uuid
    return [f"GPU-{uuid}", f"MIG-{uuid}"]


def _metrics(figures: dict[str, Figures]) -> dict[str, float]:
    metrics: dict[str, float] = {}
    for name, figure in figures.items():
        metrics |= {name: figure.mean, f"{name}_min": figure.min, f"{name}_max": figure.max}
    return {**metrics, "n": float(max(figure.n for figure in figures.values()))}
