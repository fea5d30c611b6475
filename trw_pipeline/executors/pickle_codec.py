"""Pickle protocol 5 with out-of-band buffers; tensors travel as their numpy view."""

from __future__ import annotations

import io
import mmap
import os
import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from types import CodeType
from typing import Any, cast

import cloudpickle
import numpy as np

from trw_pipeline.errors import CodecError
from trw_pipeline.executors.codec import OUT_OF_BAND_BYTES, Frame, buffer_of, in_words, part_at
from trw_pipeline.executors.layout import SCALARS, is_plain, plain_batch, plain_frames


class PickleCodec:
    """Sends objects between processes.

    Classes and functions of `__main__`, lambdas and closures travel by value and keep their identity on the way back
    (cloudpickle tracks the classes that it has sent). Tensors lose their graph and arrive on the CPU. Arrays and
    tensors arrive writable, but for those that were sent read-only within something else than a plain batch; numpy may
    give views the native byte order.

    Args:
        noun: what the objects are ("item", "result"), for error messages.
        by_file: an `np.memmap` travels as a reference to its file, which must be there and unchanged when it arrives.
            Not for results: a function may use the same file for the next one.
    """

    def __init__(self, noun: str, by_file: bool = False) -> None:
        self._noun = noun
        self._by_file = by_file

    def encode(self, obj: Any) -> Sequence[Frame]:
        """Returns the head, then one frame for each buffer of at least `OUT_OF_BAND_BYTES`, without copying those.

        Raises:
            CodecError: a part of `obj` can not be pickled.
        """
        if type(obj) in SCALARS:
            return [pickle.dumps(obj, protocol=5)]
        buffers: list[memoryview] = []

        def keep(buffer: pickle.PickleBuffer) -> bool:
            raw = buffer.raw()
            if raw.nbytes < OUT_OF_BAND_BYTES:
                return True
            code = _CODES.get(memoryview(buffer).itemsize)
            buffers.append(raw if code is None else raw.cast(code))  # whoever compresses wants to know the size
            return False

        try:
            return plain_frames(obj) or [_pickled(obj, keep, self._by_file), *buffers]
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # an object's own pickling hook may raise anything, SystemExit too
            path = _unpicklable_part(obj, self._noun)
            raise CodecError(f"{path} can not be pickled: {in_words(error)}") from error

    def decode(self, frames: Sequence[Frame]) -> Any:
        """Returns the object; its large arrays are views of the frames.

        Raises:
            CodecError: the object can not be rebuilt here, e.g. because its class raises when it is made again.
        """
        try:
            if is_plain(frames[0]):
                return plain_batch(frames)
            return pickle.loads(buffer_of(frames[0]), buffers=[buffer_of(frame) for frame in frames[1:]])
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # as above, when the object is made again
            raise CodecError(f"{self._noun} can not be unpickled: {in_words(error)}") from error

    def discard(self, frames: Sequence[Frame]) -> None:
        """Nothing to free: the frames own their memory."""

    def close(self) -> None:
        """Nothing to free."""


_CODES: dict[int, Any] = {2: "H", 4: "I", 8: "Q", 16: "Q"}
"""Formats of a memoryview, by the bytes of an element."""

_NO_FILE = "<dynamic-code>"
"""What cloudpickle writes for the file name of code that travels by value; a traceback from there could not be read."""


def _code_in_file(code: CodeType, filename: str) -> CodeType:
    return code.replace(co_filename=filename)


def _pickled(
    obj: Any, keep_in_band: Callable[[pickle.PickleBuffer], bool] | None = None, by_file: bool = False
) -> bytes:
    stream = io.BytesIO()
    pickler = _Pickler(stream, protocol=5, buffer_callback=keep_in_band)
    pickler.by_file = by_file
    pickler.dump(obj)
    return stream.getvalue()


class _Pickler(cloudpickle.Pickler):
    by_file = False

    def reducer_override(self, obj: Any) -> Any:
        torch: Any = sys.modules.get("torch")
        if torch is not None and isinstance(obj, torch.Tensor) and _is_dense(torch, obj):
            return _reduce_tensor(torch, obj)
        if type(obj) is np.memmap:
            return _reduce_memmap(obj, self.by_file)
        if isinstance(obj, CodeType) and obj.co_filename != _NO_FILE:
            return _code_in_file, (obj.replace(co_filename=_NO_FILE), obj.co_filename)
        if isinstance(obj, io.TextIOWrapper) and obj not in (sys.stdout, sys.stderr):
            # cloudpickle would send all that is in the file, as an io.StringIO.
            raise TypeError(f"cannot pickle an open file ({obj.name})")
        return super().reducer_override(obj)


def _is_dense(torch: Any, tensor: Any) -> bool:
    """Whether a tensor is one of elements in memory, of a class that does not pickle itself in a way of its own."""
    kind = type(tensor)
    return (
        tensor.layout is torch.strided
        and not tensor.is_quantized
        and (kind is torch.Tensor or kind.__reduce_ex__ is torch.Tensor.__reduce_ex__)
        and not isinstance(tensor, torch.nn.Parameter)
    )


def _reduce_tensor(torch: Any, tensor: Any) -> tuple[Any, ...]:
    # A tensor pickles itself in-band; its numpy view goes out of band (4 against 260 us for 3 MB).
    kind = type(tensor)
    plain = tensor.detach().as_subclass(torch.Tensor).cpu().resolve_conj().resolve_neg()
    if kind is not torch.Tensor:
        return _as_subclass, (plain, kind, dict(tensor.__dict__))
    try:
        return torch.from_numpy, (plain.numpy(),)
    except TypeError:  # bfloat16, the float8 family: numpy has no such type, so send the bits
        bits = torch.int8 if tensor.element_size() == 1 else torch.int16
        return torch.Tensor.view, (plain.contiguous().view(bits), tensor.dtype)


def _as_subclass(tensor: Any, kind: type, attributes: dict[str, Any]) -> Any:
    made = tensor.as_subclass(kind)
    made.__dict__.update(attributes)
    return made


def _reduce_memmap(array: Any, by_file: bool) -> Any:
    """Sends where a part of a file lies that is mapped, if that is known, and larger than the reference would be."""
    whole: Any = array
    while isinstance(whole.base, np.ndarray):
        whole = whole.base
    filename: Any = array.filename
    is_known = filename is not None and type(whole) is np.memmap and isinstance(cast("Any", whole.base), mmap.mmap)
    if (
        not by_file
        or not is_known
        or array.mode == "c"
        or array.nbytes < OUT_OF_BAND_BYTES
        or not os.path.exists(str(filename))
    ):
        return np.asarray(array).__reduce_ex__(5)
    begin = array.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
    place = (os.path.abspath(str(filename)), whole.offset, whole.nbytes, begin, not array.flags.writeable)
    return _mapped, (*place, array.dtype, array.shape, array.strides)


def _mapped(
    filename: str,
    offset: int,
    nb_bytes: int,
    begin: int,
    read_only: bool,
    dtype: Any,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
) -> Any:
    """Maps a part of a file again. What is written to it stays here: whoever sent it did not ask for a change."""
    whole: Any = np.memmap(filename, np.uint8, "r" if read_only else "c", offset, (nb_bytes,))
    part: Any = np.ndarray.__new__(np.memmap, shape, dtype, whole, begin, strides)
    part._mmap, part.filename, part.offset, part.mode = whole.base, whole.filename, whole.offset, whole.mode
    return part


def _unpicklable_part(obj: Any, noun: str) -> str:
    """Returns where the first part stands that can not be pickled, or `noun` where that can not be found out."""
    try:
        return next(_unpicklable_parts(obj, noun, set()), noun)
    except Exception:  # noqa: BLE001 (nested too deep to be searched, or its own hooks raise)
        return noun


def _unpicklable_parts(obj: Any, path: str, seen: set[int]) -> Iterator[str]:
    """Yields where the innermost parts stand that can not be pickled, such as `item['a'][2]`."""
    if id(obj) in seen:
        return
    seen.add(id(obj))
    try:
        _pickled(obj)
        return
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001, S110 (it is known to fail; where is what we want to know)
        pass
    parts: list[tuple[str, Any]] = []
    if isinstance(obj, dict):
        parts = [(part_at(path, key), value) for key, value in cast("dict[Any, Any]", obj).items()]
    elif isinstance(obj, (list, tuple)):
        parts = [(f"{path}[{i}]", value) for i, value in enumerate(cast("Sequence[Any]", obj))]
    elif hasattr(obj, "__dict__") and not isinstance(obj, type):
        parts = [(f"{path}.{name}", value) for name, value in vars(obj).items()]
    inner = [found for part, value in parts for found in _unpicklable_parts(value, part, seen)]
    yield from inner or [path]
