"""Tensors of another size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F

_LINEAR = {1: "linear", 2: "bilinear", 3: "trilinear"}


def upsample(
    tensor: torch.Tensor, size: int | Sequence[int], mode: Literal["linear", "nearest"] = "linear"
) -> torch.Tensor:
    """Resample a 1D, 2D or 3D tensor to another size, which may also be smaller.

    Values are those of `torch.nn.functional.interpolate` with `align_corners=False`.

    Args:
        tensor: `(N, C, x)`, `(N, C, y, x)` or `(N, C, z, y, x)`, of any real dtype, bool too.
        size: the new `x`, `(y, x)` or `(z, y, x)`; each at least 1.
        mode: between the points: "linear", or the "nearest" one, for classes and masks.

    Returns:
        `(N, C, *size)` of the dtype of `tensor`. Integers are computed in float64, so that "nearest" is exact up to
        2**53, and "linear" rounded.

    Raises:
        ValueError: the tensor has not 3 to 5 axes, the size has not one number for each of its last axes, or the mode
            is another.
    """
    nb_dims = tensor.dim() - 2
    wanted = [size] if isinstance(size, int) else [int(length) for length in size]
    if nb_dims not in _LINEAR:
        raise ValueError(f"tensor must be (N, C, ...) with 1 to 3 axes behind, got shape {tuple(tensor.shape)}")
    if len(wanted) != nb_dims or min(wanted) < 1:
        raise ValueError(f"size must be {nb_dims} numbers of at least 1 for shape {tuple(tensor.shape)}, got {size}")
    if mode not in ("linear", "nearest"):
        raise ValueError(f"mode must be 'linear' or 'nearest', got {mode!r}")
    values = tensor if tensor.is_floating_point() else tensor.double()
    if mode == "nearest":
        return F.interpolate(values, wanted, mode="nearest").to(tensor.dtype)
    resampled = F.interpolate(values, wanted, mode=_LINEAR[nb_dims], align_corners=False)
    return resampled if tensor.is_floating_point() else resampled.round().to(tensor.dtype)
