"""Random transforms of MONAI, which draw from a generator of their own.

Every worker has a copy of it: left alone, workers would repeat each other's draws. So these transforms are found in
what a mapped function refers to, and are given a generator of each job.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import sys
from collections.abc import Iterator, Sequence
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, cast

import numpy as np

from trw_pipeline.seeding import JobSeed, job_seed

MOST_OBJECTS = 10_000
"""So many are looked at: whoever refers to more (a dict with an entry for each sample) has its transforms nearer."""


def random_transforms(functions: Sequence[Any]) -> list[Any]:
    """Returns the transforms that functions refer to, in an order that is the same in every process.

    They are looked for in the function itself, its arguments that are bound or by default, its closure, the globals
    that it names, the attributes of objects and the items of lists and dicts found there. A transform within another
    one belongs to that.
    """
    monai: Any = sys.modules.get("monai.transforms.transform")
    if monai is None:
        return []
    found: list[Any] = []
    todo, seen = list(functions), dict[int, Any]()
    for one in todo:  # which grows meanwhile
        if id(one) in seen or len(seen) >= MOST_OBJECTS:
            continue
        seen[id(one)] = one
        if isinstance(one, monai.Randomizable):
            found.append(one)
        else:
            todo += _parts(one)
    return found


def seed_transforms(transforms: Sequence[Any], seed: JobSeed) -> None:
    """Gives each of them a new generator, keyed by the seed of a job and its place among the transforms."""
    for number, transform in enumerate(transforms):
        words = np.frombuffer(job_seed("transform", number, seed), np.uint32)
        transform.set_random_state(state=np.random.RandomState(words))


def _parts(one: Any) -> list[Any]:
    """Returns what an object refers to, as far as a transform may be there."""
    if isinstance(one, functools.partial):
        return [one.func, *one.args, *one.keywords.values()]
    if isinstance(one, MethodType):
        return [one.__self__, one.__func__]
    if isinstance(one, FunctionType):
        return _parts_of_function(one)
    # A dataset may be a list or a dict that loads what it is asked for: they are looked at without their own methods.
    if isinstance(one, list):
        return list(itertools.islice(list.__iter__(cast("list[Any]", one)), MOST_OBJECTS))
    if isinstance(one, tuple):
        return list(itertools.islice(tuple.__iter__(cast("tuple[Any, ...]", one)), MOST_OBJECTS))
    if isinstance(one, dict):
        return list(itertools.islice(dict.values(cast("dict[Any, Any]", one)), MOST_OBJECTS))
    if isinstance(one, (type, ModuleType)):
        return []
    call = type(one).__dict__.get("__call__")
    return [*getattr(one, "__dict__", {}).values(), *([call] if isinstance(call, FunctionType) else [])]


def _parts_of_function(function: FunctionType) -> list[Any]:
    parts = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # nothing is in it yet
            parts.append(cell.cell_contents)
    for name in _names(function.__code__):
        value = function.__globals__.get(name)
        # Functions of other packages are not looked into: they would lead through the whole of them.
        if not isinstance(value, FunctionType) or _package(value) == _package(function):
            parts.append(value)
    return parts


def _names(code: CodeType) -> Iterator[str]:
    """Yields the names of globals (and attributes) in a function and in those that are defined within it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _package(function: FunctionType) -> str:
    return str(function.__module__).partition(".")[0]
