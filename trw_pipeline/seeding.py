"""Random numbers that belong to jobs, not to workers.

A job's seed is a digest of (seed of the chain, epoch, number of the stage, key of the item): whoever runs the job, and
in whatever order, draws the same numbers. From the one digest come the seeds of `random`, of numpy's global generator
and of torch's CPU generator, and the generator that a mapped function may take as its keyword `rng`.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import operator
import os
import random
import secrets
import struct
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from typing import Any, cast

import numpy as np
import numpy.typing as npt

JobSeed = bytes
"""32 bytes, the digest that all generators of one job are seeded from."""


def fresh_seed() -> int:
    """Returns a seed in [0, 2**63) that no other run will have."""
    return secrets.randbits(63)


def job_seed(*entropy: object) -> JobSeed:
    """Digests ints, strings, None and tuples of them to the seed of one job.

    Integers of any kind count by their value. BLAKE2b takes 0.5 us where numpy's `SeedSequence` takes 10, and this is
    paid for every job.
    """
    return hashlib.blake2b(repr(_plain(entropy)).encode(), digest_size=32).digest()


def _plain(entropy: Any) -> Any:
    if isinstance(entropy, tuple):
        return tuple(map(_plain, cast("tuple[Any, ...]", entropy)))
    return operator.index(entropy) if hasattr(entropy, "__index__") else entropy


class JobSeeds:
    """The seeds of jobs whose entropy differs in its last part alone, the key: what they share is digested once.

    >>> JobSeeds(7, 0, 1)((5, 2)) == job_seed(7, 0, 1, (5, 2))
    True

    Args:
        first: the entropy that comes before the key.
        more: as in `job_seed`.

    Attributes:
        entropy: all of it, as plain data.
    """

    def __init__(self, first: object, *more: object) -> None:
        self.entropy: tuple[Any, ...] = _plain((first, *more))
        shared = "".join(f"{one!r}, " for one in self.entropy)
        self._start = hashlib.blake2b(f"({shared}".encode(), digest_size=32)

    def __call__(self, key: tuple[int, ...]) -> JobSeed:
        """Returns `job_seed(first, *more, key)`."""
        digest = self._start.copy()
        number = key[0] if len(key) == 1 else None  # most keys are one int, whose digits are soon written
        text = f"({number},))" if type(number) is int else f"{tuple(map(operator.index, key))})"
        digest.update(text.encode())
        return digest.digest()


def generator(seed: JobSeed) -> np.random.Generator:
    """Returns the generator that a function receives as `rng`: independent of what `seed_globals` gives."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(struct.unpack("<8I", seed))))


_NB_WORDS = 624
"""Words of 32 bits in the state of a Mersenne Twister; behind them lies how many of them were used."""

_PCG_INCREMENT = 0x5851F42D4C957F2D14057B7EF767814F
"""PCG64's own."""


_numpy_random: Any = np.random  # two functions that it has since NumPy 1.24 are unknown to type checkers


class _Words:
    """Draws the states of both Mersenne Twisters, that of `random` and that of numpy, with one PCG64.

    That takes 3 us, and to write them where they belong 2 more; `random.seed` takes 6 and `np.random.seed` 13 to make
    them of a few words.
    """

    def __init__(self) -> None:
        self._generator: Any = np.random.PCG64(0)

    def __call__(self, number: int) -> npt.NDArray[np.uint32]:
        """Returns 2 * 624 words that follow from 128 bits."""
        start = {"state": number, "inc": _PCG_INCREMENT}
        self._generator.state = {"bit_generator": "PCG64", "state": start, "has_uint32": 0, "uinteger": 0}
        return self._generator.random_raw(_NB_WORDS).astype("<u8", copy=False).view("<u4")


class _PythonGlobal:
    """The generator behind the functions of `random`, whose state is written where it lies.

    CPython keeps it right behind the head of the object: how many words were used, and the words. So each generator is
    compared with what `getstate` says of it first, and one that lies otherwise gets the same numbers more slowly.
    """

    def __init__(self) -> None:
        self._generator: Any = None  # the one that `_memory` was found for
        self._memory: npt.NDArray[np.uint32] | None = None

    def _find(self, generator: Any) -> None:
        self._generator, self._memory = generator, None
        begin, nb_bytes = object.__basicsize__, 4 * (_NB_WORDS + 1)
        if type(generator) is random.Random and random.Random.__basicsize__ >= begin + nb_bytes:
            lying: Any = (ctypes.c_uint32 * (_NB_WORDS + 1)).from_address(id(generator) + begin)
            memory = np.frombuffer(lying, np.uint32)
            *words, nb_used = random.getstate()[1]
            if np.array_equal(memory, [nb_used, *words]):
                self._memory = memory

    def _found(self) -> tuple[Any, npt.NDArray[np.uint32] | None]:
        """Returns the generator in use, and its state in memory, or None."""
        generator: Any = getattr(random.random, "__self__", None)
        if generator is not self._generator:
            self._find(generator)
        return generator, self._memory

    def seed(self, words: npt.NDArray[np.uint32]) -> None:
        """Seeds it with 624 words."""
        generator, memory = self._found()
        if memory is None:
            random.setstate((3, (*words.tolist(), _NB_WORDS), None))
            return
        memory[0] = _NB_WORDS
        memory[1:] = words
        generator.gauss_next = None

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Puts it back as it was after the block: by way of `getstate` that takes twenty times longer."""
        generator, memory = self._found()
        if memory is None:
            state = random.getstate()
            try:
                yield
            finally:
                random.setstate(state)
            return
        before, reserve = memory.copy(), generator.gauss_next
        try:
            yield
        finally:
            memory[:] = before
            generator.gauss_next = reserve


_words = _Words()
_python_global = _PythonGlobal()


class _NumpyGlobal:
    """NumPy's global generator, a Mersenne Twister, whose state is read and written where it lies.

    `get_state` takes 50 us and `set_state` 60, word by word. NumPy tells where the state lies, and not how: so each
    generator is compared with what `get_state` says of it first, and one that lies otherwise gets the same numbers more
    slowly.
    """

    def __init__(self) -> None:
        self._generator: Any = None  # the one that `_memory` was found for
        self._memory: np.ndarray | None = None

    def _found(self) -> tuple[Any, np.ndarray | None]:
        """Returns the generator in use, which a program may exchange, and its state in memory, or None."""
        generator: Any = _numpy_random.get_bit_generator()
        if generator is not self._generator:
            self._generator, self._memory = generator, None
            if type(generator) is np.random.MT19937:
                state: Any = generator.state["state"]
                lying: Any = (ctypes.c_uint32 * (_NB_WORDS + 1)).from_address(generator.ctypes.state_address)
                memory = np.frombuffer(lying, np.uint32)
                if np.array_equal(memory, [*state["key"], state["pos"]]):
                    self._memory = memory
        return generator, self._memory

    def seed(self, words: npt.NDArray[np.uint32]) -> None:
        """Seeds it with 624 words."""
        generator, memory = self._found()
        if memory is None:
            _numpy_random.set_state(("MT19937", words, _NB_WORDS))
            return
        with generator.lock:
            memory[:_NB_WORDS] = words
            memory[_NB_WORDS] = _NB_WORDS
        _numpy_random.set_bit_generator(generator)  # forgets the normal number that may lie in reserve

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Puts it back as it was after the block, the normal number in reserve too."""
        generator, memory = self._found()
        if memory is None:
            state = np.random.get_state(legacy=False)
            try:
                yield
            finally:
                np.random.set_state(state)
            return
        before, reserve = memory.copy(), None
        try:
            number = np.random.standard_normal()
            if memory[_NB_WORDS] == before[_NB_WORDS]:  # it was not drawn: it lay in reserve
                reserve = number
            yield
        finally:
            _numpy_random.set_bit_generator(generator)
            memory[:] = before
            if reserve is not None:
                _numpy_random.set_state(("MT19937", before[:_NB_WORDS], int(before[_NB_WORDS]), 1, reserve))


_numpy_global = _NumpyGlobal()


class _TorchOnImport:
    """A finder of modules that finds none: it seeds torch in the middle of the job that is the first to import it."""

    def __init__(self) -> None:
        self.seed = 0
        self.state_at_import: Any = None

    def watch(self, seed: int) -> None:
        self.seed = seed
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        loader: Any = None if spec is None else spec.loader
        if loader is not None:
            load = loader.exec_module

            def load_and_seed(module: Any) -> None:
                load(module)
                self.state_at_import = module.default_generator.get_state()
                module.default_generator.manual_seed(self.seed)

            loader.exec_module = load_and_seed
        return spec

    def put_back(self) -> None:
        """Leaves torch as an import outside of a job would have."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        if self.state_at_import is not None:
            sys.modules["torch"].default_generator.set_state(self.state_at_import)


_torch_on_import = _TorchOnImport()

_PARTS = struct.Struct("<16sQ8x")  # of the seed of a job: for `random` and numpy, and for torch


def seed_globals(seed: JobSeed) -> None:
    """Seeds `random`, `numpy.random` and torch's CPU generator, without importing torch.

    128 bits go to the first two and 64 to torch, so that two jobs do not meet by chance (32 bits would make it likely
    from about 65,000 jobs on).
    """
    for_words, for_torch = _PARTS.unpack(seed)
    words = _words(int.from_bytes(for_words, "little"))
    _numpy_global.seed(words[:_NB_WORDS])
    _python_global.seed(words[_NB_WORDS:])
    torch: Any = sys.modules.get("torch")
    if torch is None:
        _torch_on_import.watch(for_torch)
    else:
        # Not torch.manual_seed: it walks all accelerators, which takes 80 times longer than the CPU generator alone.
        torch.default_generator.manual_seed(for_torch)


class _Turns(threading.local):
    """Lets one thread at a time exchange the global generators; it may do so again within.

    Two that did so at once would disturb each other, and each would put back what the other had seeded.
    """

    lock = threading.RLock()  # of all threads
    depth = 0  # of this one: the blocks that it is in


_turns = _Turns()


def _forget_other_threads() -> None:
    """In a forked copy of the program, whoever had the turn is not there."""
    _Turns.lock, _turns.depth = threading.RLock(), 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_other_threads)


@contextmanager
def seeded_globals(seed: JobSeed) -> Iterator[None]:
    """Seeds the global generators for the block, then puts the caller's state back as it was.

    Blocks of several threads take turns. What another thread draws meanwhile outside of such a block disturbs this one,
    and is forgotten when the state is put back.
    """
    with _turns.lock, _python_global.kept():
        torch: Any = sys.modules.get("torch")
        torch_state = None if torch is None else torch.default_generator.get_state()
        _turns.depth += 1
        try:
            with _numpy_global.kept():
                seed_globals(seed)
                yield
        finally:
            _turns.depth -= 1
            if torch is None:
                _torch_on_import.put_back()
            else:
                torch.default_generator.set_state(torch_state)


@contextmanager
def globals_lent() -> Iterator[None]:
    """Lets other threads have their turn while this one, which may be within a `seeded_globals`, waits for them."""
    depth = _turns.depth
    for _ in range(depth):
        _turns.lock.release()
    try:
        yield
    finally:
        for _ in range(depth):
            _turns.lock.acquire()
