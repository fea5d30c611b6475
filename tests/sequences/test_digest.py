"""A digest changes with whatever a function does or is given, and with nothing else."""

from __future__ import annotations

import copy
import functools
import importlib
import math
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trw_pipeline.sequences.digest import digest_of

text = st.text(max_size=3)
data = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | text | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3) | st.tuples(inner, inner),
    max_leaves=8,
)


def as_seen(value):
    """A value with its types: 1, 1.0 and True are equal, and not the same."""
    if isinstance(value, dict):
        return ("dict", [(as_seen(key), as_seen(one)) for key, one in value.items()])
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, [as_seen(one) for one in value])
    return (type(value).__name__, repr(value))


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(data, data)
def test_two_values_have_one_digest_just_when_they_are_the_same(one, other):
    assert (digest_of(one) == digest_of(other)) == (as_seen(one) == as_seen(other))


ARRAYS = [
    np.zeros(3, np.float32),
    np.zeros(3, np.float64),
    np.zeros((3, 1), np.float32),
    np.array([0, 1, 0], np.float32),
    np.zeros(3, ">f4"),
    np.array(0, np.float32),
    np.float32(0),
    np.array(["a", "b"]),
    np.array(["2020-01-01"], "datetime64[D]"),
    np.array([(1, 2.0)], [("a", "i4"), ("b", "f4")]),
    np.array([(1, 2.0)], [("c", "i4"), ("b", "f4")]),
    np.zeros(0),
    np.array([None, "x"], object),
    torch.zeros(3),
    torch.zeros(3, dtype=torch.bfloat16),
    torch.zeros(3, dtype=torch.int16),
    torch.tensor(0.0),
    torch.eye(2).to_sparse(),
]


def test_arrays_and_tensors_count_by_value_dtype_and_shape():
    digests = [digest_of(array) for array in ARRAYS]
    assert len(set(digests)) == len(ARRAYS)
    assert digests == [digest_of(array.copy() if isinstance(array, np.ndarray) else array) for array in ARRAYS]
    strided = np.arange(12).reshape(3, 4)
    assert digest_of(strided.T) == digest_of(strided.T.copy())
    assert digest_of(torch.arange(4).reshape(2, 2).T) == digest_of(torch.tensor([[0, 2], [1, 3]]))
    assert digest_of(torch.tensor(7).expand(1)) == digest_of(torch.tensor([7]))  # its stride is 0


class InSpace(torch.Tensor):
    """A tensor with an attribute, as those of MONAI have."""

    def __new__(cls, values, spacing):
        tensor = values.as_subclass(cls)
        tensor.spacing = spacing
        return tensor


@pytest.mark.parametrize(
    "make", [lambda mask: np.ma.array([1, 2], mask=mask), lambda mask: InSpace(torch.zeros(2), spacing=mask)]
)
def test_what_a_subclass_adds_to_its_elements_counts(make):
    assert digest_of(make([0, 1])) == digest_of(make([0, 1])) != digest_of(make([1, 0]))


@pytest.mark.parametrize(("one", "other"), [(re.compile("a"), re.compile("b")), (np.add, np.subtract)])
def test_what_a_registered_reducer_pickles_counts_by_value(one, other):
    assert digest_of(one) == digest_of(copy.deepcopy(one)) != digest_of(other)
    assert digest_of(lambda x: one(x)) != digest_of(lambda x: other(x))


def test_a_dict_in_itself_has_a_digest():
    def registry(name):
        entries = {"name": name}
        entries["all"] = entries
        return entries

    assert digest_of(registry("a")) == digest_of(registry("a")) != digest_of(registry("b"))


def test_a_mapped_file_counts_by_when_it_was_written(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(10))
    mapped = np.load(tmp_path / "a.npy", mmap_mode="r")
    before = digest_of(mapped)
    assert before == digest_of(np.load(tmp_path / "a.npy", mmap_mode="r"))
    assert before != digest_of(mapped[1:]) != digest_of(mapped[2:])
    os.utime(tmp_path / "a.npy", ns=(1, 1))
    assert digest_of(mapped) != before


def adds(number):
    return lambda x, more=2: x + number + more


def test_a_closure_value_a_default_and_the_code_change_it():
    assert digest_of(adds(1)) == digest_of(adds(1))
    assert digest_of(adds(1)) != digest_of(adds(2))
    other_default, other_code = adds(1), adds(1)
    other_default.__defaults__ = (3,)
    other_code.__code__ = (lambda number: lambda x, more=2: x - number + more)(1).__code__
    assert len({digest_of(f) for f in (adds(1), other_default, other_code)}) == 3


SCALE = 2


def scaled(x):
    return SCALE * x


def calls_scaled(x):
    def inner():
        return [scaled(x) for _ in range(1)]

    return inner()


def test_a_global_value_counts_wherever_it_is_used(monkeypatch):
    before = [digest_of(scaled), digest_of(calls_scaled)]
    monkeypatch.setattr(sys.modules[__name__], "SCALE", 3)
    after = [digest_of(scaled), digest_of(calls_scaled)]
    assert all(one != other for one, other in zip(before, after, strict=True))
    monkeypatch.setattr(sys.modules[__name__], "SCALE", 2)
    assert [digest_of(scaled), digest_of(calls_scaled)] == before


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Writes a module of the user's and imports it, again and again."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(text, name="users_transforms"):
        (tmp_path / f"{name}.py").write_text(text)
        for known in ("users_transforms", "users_low_level"):
            sys.modules.pop(known, None)
        importlib.invalidate_caches()
        return importlib.import_module(name)

    yield write
    for known in ("users_transforms", "users_low_level"):
        sys.modules.pop(known, None)


def test_a_changed_module_changes_it_but_not_a_changed_comment(module):
    first = digest_of(module("def load(batch):\n    return batch['x'] + 1\n").load)
    moved = digest_of(module("# where\n\n\ndef load(batch):  # it loads\n    return batch['x'] + 1\n").load)
    changed = digest_of(module("def load(batch):\n    return batch['x'] + 2\n").load)
    assert first == moved
    assert first != changed


def test_what_a_function_uses_of_another_module_counts(module):
    uses = "import users_low_level as low\n\ndef load(batch):\n    return low.read(batch)\n"
    digests = []
    for number in (1, 2):
        module(f"def read(batch):\n    return {number}\n\ndef unused():\n    return 0\n", "users_low_level")
        (low := sys.modules["users_low_level"])
        loaded = module(uses)
        loaded.low = low
        digests.append(digest_of(loaded.load))
        low.unused = lambda: 5
        assert digest_of(loaded.load) == digests[-1]
    assert digests[0] != digests[1]


class Crop:
    def __init__(self, size):
        self.size = size
        self.lock = threading.Lock()  # can not be pickled: does not count
        self.friend = self  # circles end

    def __call__(self, batch):
        return self.cropped(batch)

    def cropped(self, batch):
        return batch["x"][: self.size]


class Pad(Crop):
    @staticmethod
    def value():
        return 0


def test_an_object_counts_by_its_state_and_its_class(monkeypatch):
    assert digest_of(Crop(3)) == digest_of(Crop(3))
    assert len({digest_of(f) for f in (Crop(3), Crop(4), Pad(3), Crop(3).cropped, Crop(4).cropped)}) == 5
    before = digest_of(Crop(3)), digest_of(Pad(3))
    monkeypatch.setattr(Crop, "cropped", lambda self, batch: batch)
    assert digest_of(Crop(3)) != before[0]
    assert digest_of(Pad(3)) != before[1]  # its base has changed
    before = digest_of(Pad(3))
    monkeypatch.setattr(Pad, "value", staticmethod(lambda: 1))
    assert digest_of(Pad(3)) != before


def decorated(function):
    @functools.wraps(function)
    def wrapper(*given):
        return function(*given)

    return wrapper


@pytest.mark.parametrize(
    "wrap",
    [lambda f: functools.partial(f, 1), decorated, functools.lru_cache, lambda f: [f], lambda f: {"f": (f,)}],
    ids=["partial", "decorated", "lru_cache", "list", "dict"],
)
def test_a_function_within_something_counts(wrap):
    assert digest_of(wrap(adds(1))) == digest_of(wrap(adds(1)))
    assert digest_of(wrap(adds(1))) != digest_of(wrap(adds(2)))


def test_functions_of_libraries_count_by_their_name():
    functions = [np.mean, np.median, np.add, math.sqrt, torch.relu, torch.nn.functional.relu, str.upper, len, Path]
    assert len({digest_of(f) for f in functions}) == len(functions)


def test_circles_and_empty_cells_end():
    circle = [1]
    circle.append(circle)

    def calls_itself(x):
        return later(x) or calls_itself(x)

    assert digest_of(circle) != digest_of([1])
    assert len(digest_of(calls_itself)) == 32
    later = None


SCALE_MODULE = """
import numpy as np

NAMES = {"b", "a", "c"}


class Scale:
    def __init__(self, by):
        self.by = by

    def __call__(self, batch):
        return np.mean(batch) * self.by if batch in {"x", "y"} else NAMES
"""


@pytest.mark.slow
def test_another_process_finds_the_same(module):
    here = digest_of(module(SCALE_MODULE).Scale(2.5))
    there = "import users_transforms as u, trw_pipeline.sequences.digest as d; print(d.digest_of(u.Scale(2.5)))"
    for seed in ("1", "2"):  # of the hashes of text, which order sets
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(map(str, sys.path))}
        found = subprocess.check_output([sys.executable, "-c", there], env=environment, text=True)
        assert found.strip() == here
