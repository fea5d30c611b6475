"""NumPy arrays as torch tensors: which dtypes have a twin, which dtype holds several, with or without a copy."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

# What both libraries have. Left out are torch's bfloat16 and float8 types, and NumPy's text, bytes, dates, objects,
# records and long doubles.
_NUMPY_OF: dict[torch.dtype, np.dtype[Any]] = {
    torch.bool: np.dtype("bool"),
    torch.uint8: np.dtype("uint8"),
    torch.uint16: np.dtype("uint16"),
    torch.uint32: np.dtype("uint32"),
    torch.uint64: np.dtype("uint64"),
    torch.int8: np.dtype("int8"),
    torch.int16: np.dtype("int16"),
    torch.int32: np.dtype("int32"),
    torch.int64: np.dtype("int64"),
    torch.float16: np.dtype("float16"),
    torch.float32: np.dtype("float32"),
    torch.float64: np.dtype("float64"),
    torch.complex64: np.dtype("complex64"),
    torch.complex128: np.dtype("complex128"),
}
_TORCH_OF = {theirs: ours for ours, theirs in _NUMPY_OF.items()}


def torch_dtype(dtype: np.dtype[Any]) -> torch.dtype | None:
    """Gives torch's twin of a NumPy dtype in whatever byte order, or None if torch has none."""
    return _TORCH_OF.get(dtype) or _TORCH_OF.get(dtype.newbyteorder("="))


def numpy_dtype(dtype: torch.dtype) -> np.dtype[Any] | None:
    """Gives NumPy's twin of a torch dtype, or None if NumPy has none (bfloat16)."""
    return _NUMPY_OF.get(dtype)


def promoted(dtypes: Iterable[torch.dtype | None]) -> torch.dtype:
    """Gives the dtype that values of several dtypes share; it does not depend on their order.

    Among bools and integers it is NumPy's rule (int8 and uint8 give int16; uint64 and int64 give float64), because
    torch has none for uint16, uint32 and uint64. Among floats and complex numbers it is torch's. Integers beside
    floats count as torch's default float, so that a half float never has to hold an integer it overflows on.
    """
    distinct = sorted({dtype for dtype in dtypes if dtype is not None}, key=str)  # pairs may depend on the order
    inexact = [dtype for dtype in distinct if dtype.is_floating_point or dtype.is_complex]
    exact = [dtype for dtype in distinct if dtype not in inexact]
    if not inexact:
        return _TORCH_OF[np.result_type(*(_NUMPY_OF[dtype] for dtype in exact))]
    if any(dtype is not torch.bool for dtype in exact):
        inexact.append(torch.get_default_dtype())
    return functools.reduce(torch.promote_types, inexact)


def tensor_of(array: npt.NDArray[Any]) -> torch.Tensor:
    """Gives an array as a writable tensor of the same shape, values and dtype.

    Args:
        array: any shape, strides and byte order; its dtype must have a twin in torch.

    Returns:
        A tensor on the CPU. It shares the array's memory where the array is writable, contiguous and in native byte
        order; otherwise it is a contiguous copy (torch warns about read-only memory and refuses negative strides).
    """
    native = torch_dtype(array.dtype)
    assert native is not None, "callers ask torch_dtype first"
    target = _NUMPY_OF[native]
    shareable = (
        array.flags.carray  # contiguous, writable and aligned
        and array.dtype.isnative
        and array.dtype.num == target.num  # torch refuses `unsigned long long`, equal as it is to uint64
        # NumPy calls an axis of length 1, or an array without values, contiguous whatever its strides, torch does not
        and (min(array.shape, default=0) > 1 or _has_torch_strides(array))
    )
    if shareable:
        return torch.from_numpy(array)
    copy = np.empty(array.shape, target)
    copy[...] = array
    return torch.from_numpy(copy)


def _has_torch_strides(array: npt.NDArray[Any]) -> bool:
    return all(stride >= 0 and stride % array.itemsize == 0 for stride in array.strides)
