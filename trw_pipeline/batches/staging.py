"""Copies batches to a CUDA device while it computes: through page-locked memory, on a stream of their own.

    the thread that makes batches                        │ the loop
                                                         │
    batch ──CPU──▶ slab 0 ──side stream──▶ device ───────┼──hand over──▶ its stream waits for the event
    batch ──CPU──▶ slab 1 ──side stream──▶ device  event │                of that batch, and no other
    batch ──CPU──▶ slab 0, once its event has come       │

A slab is page-locked memory for all tensors of one batch. There are two: while one is copied from, the other is filled.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch

from trw_pipeline.batches.device import Device, tensors_in, transfer_batch_to_device, with_tensors
from trw_pipeline.batches.length import require_mapping
from trw_pipeline.typing import Item

ALIGN = 256
"""Bytes at whose multiples tensors begin within a slab, as they do in memory that CUDA hands out."""


class Event(Protocol):
    """A moment in the work of a stream."""

    def synchronize(self) -> None:
        """Waits for it."""
        ...


class SideStream:
    """What a stager asks of CUDA, and all that it does.

    Args:
        device: the device, with its number.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream = torch.cuda.Stream(device)

    def page_locked(self, nb_bytes: int) -> torch.Tensor:
        """Returns page-locked memory, (nb_bytes,) uint8."""
        return torch.empty(nb_bytes, dtype=torch.uint8, pin_memory=True)

    def current(self) -> AbstractContextManager[Any]:
        """Makes it, and its device, current for the block."""
        return torch.cuda.stream(self._stream)

    def wait_for_others(self) -> None:
        """Lets it wait for what the stream that is current here was given so far."""
        self._stream.wait_stream(torch.cuda.current_stream(self.device))

    def event(self) -> Event:
        """Returns the moment at which it has done what it was given so far."""
        # To wait for one that is not `blocking` keeps a core busy.
        event = torch.cuda.Event(blocking=True)
        event.record(self._stream)
        return event

    def hand_over(self, tensors: list[torch.Tensor], event: Any) -> None:
        """Lets the stream that is current here use tensors that were made on this one, from that moment on."""
        current = torch.cuda.current_stream(self.device)
        current.wait_event(event)
        for tensor in tensors:
            tensor.record_stream(current)  # else their memory might be used again here before that stream is done


class Slab:
    """Page-locked memory for the tensors of one batch, which grows to the largest one.

    Args:
        side: gives the memory.
    """

    def __init__(self, side: SideStream) -> None:
        self._side = side
        self._memory: torch.Tensor | None = None
        self._used = 0
        self._held: list[torch.Tensor] = []
        self._copied: Event | None = None

    def begin(self, nb_bytes: int) -> None:
        """Waits until the device has what was copied from here, and makes room for so many bytes."""
        if self._copied is not None:
            self._copied.synchronize()
        self._held.clear()
        self._used = 0
        if nb_bytes and (self._memory is None or self._memory.numel() < nb_bytes):
            self._memory = None  # before there is another
            self._memory = self._side.page_locked(1 << (nb_bytes - 1).bit_length())  # torch takes as much anyway

    def end(self) -> Event:
        """Returns the moment at which the device has all that is copied from here."""
        self._copied = self._side.event()
        return self._copied

    def hold(self, tensor: torch.Tensor) -> torch.Tensor:
        """Keeps a tensor that the device copies from until then, and returns it."""
        self._held.append(tensor)
        return tensor

    def copy(self, tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """Returns a page-locked copy of a tensor, with the strides of another that has no gaps."""
        assert self._memory is not None, "begin() has made room"
        room = self._memory[self._used : self._used + _nb_bytes(tensor)]
        self._used += _nb_aligned(tensor)
        return room.view(tensor.dtype).as_strided(like.shape, like.stride()).copy_(tensor)


class Staged(NamedTuple):
    """A batch that is on its way.

    Attributes:
        batch: its tensors are on the device; their values are from `arrived` on.
        arrived: a moment in the work of the side stream.
    """

    batch: dict[str, Any]
    arrived: Event


class Stager:
    """Copies batches to a device beside what it computes.

    One thread calls `stage`, and one, which may be another, `hand_over`.

    Args:
        side: the stream of the copies.
    """

    def __init__(self, side: SideStream) -> None:
        self._side = side
        self._slabs = deque([Slab(side), Slab(side)])

    def stage(self, batch: Item) -> Staged:
        """Begins to copy a batch, and returns before the device has it. The batch may be changed from then on.

        Raises:
            TypeError: it is not a mapping.
        """
        require_mapping(batch, "a batch for a device")
        batch = with_tensors(batch, lambda tensor: tensor)
        tensors = list(tensors_in(batch))
        slab = self._slabs[0]
        self._slabs.rotate()
        slab.begin(sum(map(_nb_aligned, filter(_goes_through_slab, tensors))))
        if any(tensor.device.type != "cpu" for tensor in tensors):
            self._side.wait_for_others()
        try:
            with self._side.current():
                placed = with_tensors(batch, partial(self._place, slab))
        finally:
            arrived = slab.end()  # of an error too: something may be copied from there
        return Staged(placed, arrived)

    def _place(self, slab: Slab, tensor: torch.Tensor) -> torch.Tensor:
        if _goes_through_slab(tensor):
            placed = torch.empty_like(tensor, device=self._side.device)  # with its strides, but for gaps
            return placed.copy_(slab.copy(tensor, placed), non_blocking=True)
        # Pinned already, or on a device: it is copied from there. Or empty, or of a kind that only torch knows to copy.
        is_kept = tensor.device.type != "cpu" or tensor.is_pinned()
        return slab.hold(tensor).to(self._side.device, non_blocking=is_kept)

    def hand_over(self, staged: Staged) -> dict[str, Any]:
        """Returns the batch for the stream that is current here, which waits for it; the caller does not."""
        on_device = [tensor for tensor in tensors_in(staged.batch) if tensor.device == self._side.device]
        self._side.hand_over(on_device, staged.arrived)
        return staged.batch


def _goes_through_slab(tensor: torch.Tensor) -> bool:
    return (
        type(tensor) is torch.Tensor
        and tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and not tensor.requires_grad
        and not tensor.is_quantized
        and not tensor.is_pinned()
        and tensor.numel() > 0
    )


def _nb_bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _nb_aligned(tensor: torch.Tensor) -> int:
    return math.ceil(_nb_bytes(tensor) / ALIGN) * ALIGN


def check_device(device: Device) -> torch.device:
    """Returns it as torch's.

    Raises:
        ValueError: torch knows no such device.
        TypeError: it is none.
    """
    try:
        return torch.device("cpu" if device is None else device)
    except RuntimeError as error:
        raise ValueError(f"device must be one that torch knows, got {device!r}") from error


def ways_to(device: Device) -> tuple[Callable[[Item], Item], Callable[[Item], Item] | None]:
    """Returns what is to be done with a batch in the thread that makes it, and what where it is taken, or None.

    Raises:
        ValueError: the device is a CUDA device, and there is none.
    """
    target = check_device(device)
    if target.type != "cuda":
        return partial(transfer_batch_to_device, device=target), None
    if not torch.cuda.is_available():
        raise ValueError(f"device must be there, got {device!r}, but CUDA is not available")
    if target.index is None:  # pyright: ignore[reportUnnecessaryComparison]
        target = torch.device("cuda", torch.cuda.current_device())  # of this thread: another has one of its own
    stager = Stager(SideStream(target))
    return stager.stage, stager.hand_over
