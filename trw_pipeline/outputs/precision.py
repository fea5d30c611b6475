"""How many digits sums and losses are computed with."""

from __future__ import annotations

import torch


def precise_dtype(tensor: torch.Tensor) -> torch.dtype:
    """Give the type to add up a split in: float64, so that a long one loses no digits; on MPS, without it, float32."""
    return torch.float32 if tensor.device.type == "mps" else torch.float64


def at_least_float32(tensor: torch.Tensor) -> torch.Tensor:
    """Widen half precision, in which a sum over a mask overflows and a loss has three digits; else the same tensor."""
    return tensor.float() if tensor.is_floating_point() and tensor.dtype.itemsize < 4 else tensor
