"""Filters that are not learned, for images of one, two and three dimensions."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import nn

Padding: TypeAlias = str | int | tuple[int, ...]
"""As convolutions of torch take it: "same", "valid", or numbers of zeros at both ends of the axes."""

_CONVOLUTION = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


class FilterFixed(nn.Module):
    """Applies a fixed kernel to images (as convolutional layers do: the kernel is not mirrored).

    Args:
        kernel: `(C_out, C_in / groups, x)`, `(..., y, x)` or `(..., z, y, x)`. It moves with the module, is part of its
            state, and is not learned.
        groups: see `torch.nn.Conv2d`.
        padding: "same", "valid", or a number of zeros for all axes or for each.

    Raises:
        ValueError: the kernel has not 1 to 3 axes behind the channels.
    """

    kernel: torch.Tensor

    def __init__(self, kernel: torch.Tensor, groups: int = 1, padding: Padding = 0) -> None:
        super().__init__()
        if kernel.dim() - 2 not in _CONVOLUTION:
            raise ValueError(
                f"kernel must be (C_out, C_in / groups, ...) with 1 to 3 axes behind, got shape {tuple(kernel.shape)}"
            )
        self.register_buffer("kernel", kernel.detach())
        self.groups = groups
        self.padding = padding

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Filter images.

        Args:
            value: `(N, C_in, ...)` of the dtype of the kernel.

        Returns:
            `(N, C_out, ...)`.
        """
        convolution = _CONVOLUTION[self.kernel.dim() - 2]
        return convolution(value, self.kernel, padding=self.padding, groups=self.groups)


class FilterGaussian(FilterFixed):
    """Blurs each channel of images with a Gaussian, whose weights sum to 1.

    Args:
        input_channels: channels of the images.
        nb_dims: 1, 2 or 3: axes of the images.
        sigma: standard deviation in points, of all axes or of each; above 0.
        kernel_sizes: points of the kernel, of all axes or of each. None: all points within 4 standard deviations, as
            `scipy.ndimage.gaussian_filter` has it.
        padding: "same": outside the image there is 0, and the size stays; or see `FilterFixed`.
        device: where the kernel is; None: the CPU.

    Raises:
        ValueError: an argument is out of range.
    """

    def __init__(
        self,
        input_channels: int,
        nb_dims: int,
        sigma: float | Sequence[float],
        kernel_sizes: int | Sequence[int] | None = None,
        padding: Padding = "same",
        device: torch.device | str | None = None,
    ) -> None:
        if nb_dims not in _CONVOLUTION:
            raise ValueError(f"nb_dims must be 1, 2 or 3, got {nb_dims}")
        sigmas = _of_each_axis("sigma", sigma, nb_dims)
        if kernel_sizes is None:
            kernel_sizes = [2 * int(4 * deviation + 0.5) + 1 for deviation in sigmas]
        sizes = _of_each_axis("kernel_sizes", kernel_sizes, nb_dims)
        lines = [_gaussian(deviation, int(size)) for deviation, size in zip(sigmas, sizes, strict=True)]
        axes = [_along(line, axis, nb_dims, input_channels) for axis, line in enumerate(lines)]
        super().__init__(functools.reduce(torch.mul, axes), input_channels, padding)
        # One axis after the other: 3 n points a voxel, not n ** 3.
        self.axes = nn.ModuleList(
            FilterFixed(kernel, input_channels, _padding_along(padding, axis, nb_dims))
            for axis, kernel in enumerate(axes)
        )
        self.to(device)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Blur images.

        Args:
            value: `(N, input_channels, ...)` float32, or of the dtype that the module was given.

        Returns:
            The same shape, if the padding is "same".
        """
        for axis in self.axes:
            value = axis(value)
        return value


def _of_each_axis(name: str, value: float | Sequence[float], nb_dims: int) -> Sequence[float]:
    values = list(value) if isinstance(value, Sequence) else [value] * nb_dims
    if len(values) != nb_dims or min(values) <= 0:
        raise ValueError(f"{name} must be above 0, one number or one for each of {nb_dims} axes, got {value}")
    return values


def _gaussian(sigma: float, size: int) -> torch.Tensor:
    if size % 2 == 0:
        raise ValueError(f"kernel_sizes must be odd, or the image would be shifted, got {size}")
    positions = torch.arange(size, dtype=torch.float64) - size // 2
    weights = torch.exp(-0.5 * (positions / sigma) ** 2)
    return (weights / weights.sum()).float()


def _along(line: torch.Tensor, axis: int, nb_dims: int, nb_channels: int) -> torch.Tensor:
    """The kernel `(C, 1, ...)` that has these weights along one axis, and one point along the others."""
    shape = [1] * nb_dims
    shape[axis] = len(line)
    return line.reshape(1, 1, *shape).expand(nb_channels, 1, *shape).contiguous()


def _padding_along(padding: Padding, axis: int, nb_dims: int) -> Padding:
    if isinstance(padding, str):
        return padding
    widths = (padding,) * nb_dims if isinstance(padding, int) else padding
    return tuple(width if index == axis else 0 for index, width in enumerate(widths))
