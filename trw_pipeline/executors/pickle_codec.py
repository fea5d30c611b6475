"""Pickle protocol 5 with out-of-band buffers; tensors travel as their numpy view."""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from types import CodeType
from typing import Any, cast

import cloudpickle

from trw_pipeline.errors import CodecError
from trw_pipeline.executors.codec import Frame, in_words, part_at

OUT_OF_BAND_BYTES = 16 * 1024
"""Smaller buffers stay in the pickle: below about this size a frame of its own costs more than the copy it saves."""


class PickleCodec:
    """Sends objects between processes.

    Classes and functions of `__main__`, lambdas and closures travel by value and keep their identity on the way back
    (cloudpickle tracks the classes that it has sent). Tensors lose their graph and arrive on the CPU. Arrays and
    tensors arrive writable unless they were sent read-only; numpy may give views the native byte order.

    Args:
        noun: what the objects are ("item", "result"), for error messages.
    """

    def __init__(self, noun: str) -> None:
        self._noun = noun

    def encode(self, obj: Any) -> Sequence[Frame]:
        """Returns the pickle, then one frame for each buffer of at least `OUT_OF_BAND_BYTES`, without copying those.

        Raises:
            CodecError: a part of `obj` can not be pickled.
        """
        buffers: list[memoryview] = []

        def keep(buffer: pickle.PickleBuffer) -> bool:
            raw = buffer.raw()
            if raw.nbytes < OUT_OF_BAND_BYTES:
                return True
            buffers.append(raw)
            return False

        try:
            return [_pickled(obj, keep), *buffers]
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
            return pickle.loads(_buffer(frames[0]), buffers=[_buffer(frame) for frame in frames[1:]])
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # as above, when the object is made again
            raise CodecError(f"{self._noun} can not be unpickled: {in_words(error)}") from error

    def discard(self, frames: Sequence[Frame]) -> None:
        """Nothing to free: the frames own their memory."""

    def close(self) -> None:
        """Nothing to free."""


def _buffer(frame: Frame) -> Any:
    return getattr(frame, "buffer", frame)  # zmq.Frame has one; bytes and memoryview are one


_NO_FILE = "<dynamic-code>"
"""What cloudpickle writes for the file name of code that travels by value; a traceback from there could not be read."""


def _code_in_file(code: CodeType, filename: str) -> CodeType:
    return code.replace(co_filename=filename)


def _pickled(obj: Any, keep_in_band: Callable[[pickle.PickleBuffer], bool] | None = None) -> bytes:
    stream = io.BytesIO()
    _Pickler(stream, protocol=5, buffer_callback=keep_in_band).dump(obj)
    return stream.getvalue()


class _Pickler(cloudpickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        torch: Any = sys.modules.get("torch")
        if torch is not None and type(obj) is torch.Tensor and obj.layout is torch.strided and not obj.is_quantized:
            return _reduce_tensor(torch, obj)
        if isinstance(obj, CodeType) and obj.co_filename != _NO_FILE:
            return _code_in_file, (obj.replace(co_filename=_NO_FILE), obj.co_filename)
        if isinstance(obj, io.TextIOWrapper) and obj not in (sys.stdout, sys.stderr):
            # cloudpickle would send all that is in the file, as an io.StringIO.
            raise TypeError(f"cannot pickle an open file ({obj.name})")
        return super().reducer_override(obj)


def _reduce_tensor(torch: Any, tensor: Any) -> tuple[Any, ...]:
    # A tensor pickles itself in-band; its numpy view goes out of band (4 against 260 us for 3 MB).
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
    try:
        return torch.from_numpy, (tensor.numpy(),)
    except TypeError:  # bfloat16, the float8 family: numpy has no such type, so send the bits
        bits = torch.int8 if tensor.element_size() == 1 else torch.int16
        return torch.Tensor.view, (tensor.contiguous().view(bits), tensor.dtype)


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
