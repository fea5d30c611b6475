"""How long a CUDA device works, and how much of its memory, asked without making anybody wait."""

from __future__ import annotations

import torch


class GpuTimer:
    """Marks moments in the work of one CUDA device, and reads the peaks of its memory.

    A mark is put at the end of the work that was asked for so far, on the stream that is current then. The device
    stamps it when it gets there, which may be long after the host has gone on. Peaks are bookkeeping of torch's
    allocator, which the host does when memory is asked for, so they need no waiting either.

    Args:
        device: the CUDA device.

    Attributes:
        name: of the device.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.name: str = torch.cuda.get_device_name(device)

    def mark(self) -> torch.cuda.Event:
        """Put a mark."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return event

    def wait(self) -> None:
        """Wait until the device has done all that it was asked for."""
        torch.cuda.synchronize(self.device)

    def take_peak_mb(self) -> float:
        """Read the most memory that tensors have taken since the last call, in MB of 1024 * 1024 bytes.

        Every reader of `torch.cuda.max_memory_allocated` shares one peak, which begins anew with this call.
        """
        peak_bytes = torch.cuda.max_memory_allocated(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        return peak_bytes / 2**20


def gpu_timer(device: torch.device) -> GpuTimer | None:
    """Make a timer for a device.

    Args:
        device: any device.

    Returns:
        The timer; None if it is no CUDA device.
    """
    return GpuTimer(device) if device.type == "cuda" else None


def gpu_seconds(start: torch.cuda.Event, end: torch.cuda.Event) -> float:
    """Compute the seconds between two marks that the device has passed; torch counts in milliseconds."""
    return start.elapsed_time(end) / 1000
