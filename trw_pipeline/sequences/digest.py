"""A digest of functions and data: by it a cache knows whether a result is still what would be made.

Functions and classes count by what they do: their code, defaults, closures, and the global names that they use,
wherever that leads within code of the user's. What an installed library holds counts by its name and the library's
version, or every digest would walk half of numpy. Not seen: what a function imports within itself, files, and what else
it asks of the world.
"""

from __future__ import annotations

import contextlib
import copyreg
import functools
import hashlib
import os
import sys
import sysconfig
from collections.abc import Iterable
from importlib import metadata
from importlib.metadata import PackageNotFoundError
from types import BuiltinFunctionType, CodeType, FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any, cast

import numpy as np

_PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes, type(...), type(NotImplemented)})

_NOT_OF_THE_CLASS = frozenset(
    {"__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "__firstlineno__", "__static_attributes__"}
)

_OURS = "trw_pipeline"
_INSTALLED = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def digest_of(*parts: Any) -> str:
    """Returns 32 hexadecimal digits. Equal data may have two digests, if it was built otherwise; never the other way.

    What can not be pickled (a lock, say) counts by its class alone.
    """
    digest = Digest()
    digest.add(sys.version_info[:2])  # code differs
    for part in parts:
        digest.add(part)
    return digest.hexdigest()


class Digest:
    """Digests objects as they are added."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        self._seen: dict[Any, int] = {}  # id of an object, or that with the name of an attribute -> its number
        self._alive: list[Any] = []  # so that no other object gets the id of one that was seen

    def hexdigest(self) -> str:
        """Returns what was added so far, as 32 hexadecimal digits."""
        return self._hash.hexdigest()

    def add(self, obj: Any) -> None:
        """Adds an object, with all that it refers to."""
        kind: Any = type(obj)
        if kind in _PLAIN:
            self._write(kind.__name__, repr(obj).encode())
        elif kind in (list, tuple):
            self._add_values(kind, obj)
        elif kind in (dict, MappingProxyType):
            self._add_dict(obj)
        elif kind in (set, frozenset):
            self._write(kind.__name__, *sorted(digest_of(one).encode() for one in obj))
        elif isinstance(obj, np.memmap) and obj.mode == "r" and os.path.exists(str(obj.filename)):
            self._add_memmap(obj)
        elif _is_plain_array(obj):
            values = np.ascontiguousarray(obj).reshape(-1).view(np.uint8)
            self._write("array", repr((kind.__name__, obj.dtype, obj.shape)).encode(), values)
        elif _is_tensor(obj):
            self._add_tensor(obj)
        elif isinstance(obj, ModuleType):
            self._add_module(obj, ())
        elif self._is_new(id(obj), obj):
            self._add_object(obj)

    def _write(self, tag: str, *parts: Any) -> None:
        for part in (tag.encode(), *parts):
            view = memoryview(part).cast("B") if memoryview(part).nbytes else b""
            self._hash.update(len(view).to_bytes(8, "little"))
            self._hash.update(view)

    def _is_new(self, identity: Any, obj: Any) -> bool:
        """Notes that an object is added; one that was before is named by its number, so that circles end."""
        number = self._seen.setdefault(identity, len(self._seen))
        if number == len(self._alive):
            self._alive.append(obj)
            return True
        self._write("again", str(number).encode())
        return False

    # Data

    def _add_values(self, kind: Any, values: Any) -> None:
        if all(type(value) in _PLAIN for value in values):
            self._write(kind.__name__, repr(values).encode())
        elif kind is tuple or self._is_new(id(values), values):
            self._write(kind.__name__, str(len(values)).encode())
            for value in values:
                self.add(value)

    def _add_dict(self, values: dict[Any, Any]) -> None:
        if self._is_new(id(values), values):
            self._write("dict", str(len(values)).encode())
            for key, value in values.items():
                self.add(key)
                self.add(value)

    def _add_memmap(self, array: Any) -> None:
        """A part of a file counts by where it lies and when that was written: it may be larger than memory."""
        whole: Any = array
        while isinstance(whole.base, np.ndarray):
            whole = whole.base
        begin = array.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
        found = os.stat(array.filename)
        file = (os.path.abspath(array.filename), found.st_size, found.st_mtime_ns, whole.offset)
        self._write("memmap", repr((file, begin, array.dtype, array.shape, array.strides)).encode())

    def _add_tensor(self, tensor: Any) -> None:
        torch: Any = sys.modules["torch"]
        plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
        # `reshape` would leave the stride of a single value, which may be 0.
        values = plain.as_strided((plain.numel(),), (1,)).view(torch.uint8).numpy()
        self._write("tensor", repr((type(tensor).__name__, str(tensor.dtype), tuple(tensor.shape))).encode(), values)
        if vars(tensor):  # of a subclass: where an image lies in space, say
            self._write("attributes")
            self.add(vars(tensor))

    # Code

    def _add_object(self, obj: Any) -> None:
        if isinstance(obj, CodeType):
            self._add_code(obj)
        elif isinstance(obj, FunctionType):
            self._add_function(obj)
        elif isinstance(obj, type):
            self._add_class(obj)
        elif isinstance(obj, MethodType):
            self._write("method")
            self.add(obj.__func__)
            self.add(obj.__self__)
        elif isinstance(obj, BuiltinFunctionType) and (obj.__self__ is None or isinstance(obj.__self__, ModuleType)):
            self._write_name("builtin", obj)
        elif isinstance(obj, (staticmethod, classmethod)):
            self._write(type(obj).__name__)
            self.add(cast("Any", obj).__func__)
        elif isinstance(obj, property):
            self._write("property")
            self.add((obj.fget, obj.fset, obj.fdel))
        else:
            self._add_reduced(obj)

    def _add_function(self, function: FunctionType) -> None:
        if _is_installed(function.__module__) and not _is_local(function):
            self._write_name("function", function)
            return
        self._write("function", function.__name__.encode())
        self.add(function.__code__)
        self.add((function.__defaults__, function.__kwdefaults__, vars(function)))
        for cell in function.__closure__ or ():
            try:
                self.add(cell.cell_contents)
            except ValueError:  # nothing is in it yet
                self._write("empty cell")
        names = _names_in(function.__code__)
        for name in names:
            if name in function.__globals__:
                self._write("global", name.encode())
                self._add_global(function.__globals__[name], names)

    def _add_global(self, value: Any, names: Iterable[str]) -> None:
        if isinstance(value, ModuleType):
            self._add_module(value, names)
        else:
            self.add(value)

    def _add_code(self, code: CodeType) -> None:
        counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
        self._write("code", code.co_code, repr((counts, names)).encode(), getattr(code, "co_exceptiontable", b""))
        for constant in code.co_consts:
            self.add(constant)

    def _add_module(self, module: ModuleType, names: Iterable[str]) -> None:
        """A module counts by those of its attributes that code beside it names; code may name them later, too."""
        self._write_name("module", module)
        if not _is_installed(module.__name__):
            for name in names:
                if name in vars(module) and self._is_new((id(module), name), module):
                    self._write("attribute", name.encode())
                    self._add_global(vars(module)[name], names)

    def _add_class(self, kind: type) -> None:
        self._write_name("class", kind)
        if _is_installed(kind.__module__) and not _is_local(kind):
            return
        for base in kind.__bases__:
            self.add(base)
        for name, value in vars(kind).items():
            if name not in _NOT_OF_THE_CLASS:
                self._write("member", name.encode())
                self.add(value)

    def _add_reduced(self, obj: Any) -> None:
        """Any other object counts by what its pickle would hold."""
        reducer: Any = copyreg.dispatch_table.get(type(obj))  # of patterns of `re` and ufuncs, which have no other
        try:
            reduced: Any = obj.__reduce_ex__(4) if reducer is None else reducer(obj)
        except Exception:  # noqa: BLE001 (its own hooks may raise anything)
            reduced = None
        self._write("object")
        self.add(type(obj))
        if isinstance(reduced, tuple):
            for part in cast("tuple[Any, ...]", reduced):
                self.add(list(cast("Iterable[Any]", part)) if hasattr(part, "__next__") else part)
        elif isinstance(reduced, str):
            self._write("name", f"{getattr(obj, '__module__', '')}.{reduced}".encode())
            self.add(getattr(obj, "__wrapped__", None))  # of functools.lru_cache, say

    def _write_name(self, tag: str, obj: Any) -> None:
        module = obj.__name__ if isinstance(obj, ModuleType) else str(getattr(obj, "__module__", None))
        version = _version_of(module.partition(".")[0])
        self._write(tag, module.encode(), getattr(obj, "__qualname__", "").encode(), version.encode())


def _names_in(code: CodeType) -> dict[str, None]:
    """Returns all global names and attributes that code names, in their order, with that within it."""
    names = dict.fromkeys(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names.update(_names_in(constant))
    return names


def _is_local(obj: Any) -> bool:
    """Whether a name does not tell which it is: what was made by a function or lambda."""
    return "<" in obj.__qualname__


def _is_installed(name: str | None) -> bool:
    """Whether a module comes with Python or from a library, so that its version tells when it changes."""
    top = (name or "").partition(".")[0]
    if top in sys.builtin_module_names or top in sys.stdlib_module_names or top == _OURS:
        return True
    file = getattr(sys.modules.get(name or ""), "__file__", None)
    return file is not None and file.startswith(_INSTALLED)


@functools.cache
def _version_of(name: str) -> str:
    """Returns the version of a library, or nothing where it has none; loaded code has the same to the end."""
    version = getattr(sys.modules.get(name), "__version__", None)
    if version is None and name not in sys.stdlib_module_names:
        with contextlib.suppress(PackageNotFoundError, ValueError):
            version = metadata.version(name)
    return str(version or "")


def _is_plain_array(obj: Any) -> bool:
    """Whether its elements say all; a subclass may have more, such as a mask."""
    return (type(obj) in (np.ndarray, np.memmap) or isinstance(obj, np.generic)) and not obj.dtype.hasobject


def _is_tensor(obj: Any) -> bool:
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(obj, torch.Tensor) and obj.layout is torch.strided and not obj.is_quantized
