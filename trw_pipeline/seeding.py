"""Random numbers that belong to jobs, not to workers.

A job's seed is a digest of (seed of the chain, epoch, number of the stage, key of the item): whoever runs the job, and
in whatever order, draws the same numbers. From the one digest come the seeds of `random`, of numpy's global generator
and of torch's CPU generator, and the generator that a mapped function may take as its keyword `rng`.
"""

from __future__ import annotations

import hashlib
import importlib.util
import operator
import random
import secrets
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from typing import Any, cast

import numpy as np

JobSeed = bytes
"""32 bytes, the digest that all generators of one job are seeded from."""


def fresh_seed() -> int:
    """Returns a seed in [0, 2**63) that no other run will have."""
    return secrets.randbits(63)


def job_seed(*entropy: object) -> JobSeed:
    """Digests ints, strings, None and tuples of them to the seed of one job.

    Integers of any kind count by their value. BLAKE2b takes 1 us where numpy's `SeedSequence` takes 10, and this is
    paid for every job.
    """
    return hashlib.blake2b(repr(_plain(entropy)).encode(), digest_size=32).digest()


def _plain(entropy: Any) -> Any:
    if isinstance(entropy, tuple):
        return tuple(map(_plain, cast("tuple[Any, ...]", entropy)))
    return operator.index(entropy) if hasattr(entropy, "__index__") else entropy


def generator(seed: JobSeed) -> np.random.Generator:
    """Returns the generator that a function receives as `rng`: independent of what `seed_globals` gives."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(struct.unpack("<8I", seed))))


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


def seed_globals(seed: JobSeed) -> None:
    """Seeds `random`, `numpy.random` and torch's CPU generator, without importing torch.

    128 bits go to numpy and 64 each to the others, so that two jobs do not meet by chance (32 bits would make it likely
    from about 65,000 jobs on).
    """
    for_random, n0, n1, n2, n3, for_torch = struct.unpack("<Q4IQ", seed)
    random.seed(for_random)
    np.random.seed((n0, n1, n2, n3))
    torch: Any = sys.modules.get("torch")
    if torch is None:
        _torch_on_import.watch(for_torch)
    else:
        # Not torch.manual_seed: it walks all accelerators, which takes 80 times longer than the CPU generator alone.
        torch.default_generator.manual_seed(for_torch)


@contextmanager
def seeded_globals(seed: JobSeed) -> Iterator[None]:
    """Seeds the global generators for the block, then puts the caller's state back as it was."""
    python_state = random.getstate()
    # Not by exchanging the bit generator: that forgets the normal number which the state may hold in reserve.
    numpy_state = np.random.get_state(legacy=False)
    torch: Any = sys.modules.get("torch")
    torch_state = None if torch is None else torch.default_generator.get_state()
    try:
        seed_globals(seed)
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        if torch is None:
            _torch_on_import.put_back()
        else:
            torch.default_generator.set_state(torch_state)
