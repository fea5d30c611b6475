"""Random numbers that belong to jobs, not to workers.

A job's seed is a digest of (seed of the chain, epoch, number of the stage, key of the item): whoever runs the job, and
in whatever order, draws the same numbers. From the one digest come the seeds of `random`, of numpy's global generator
and of torch's CPU generator, and the generator that a mapped function may take as its keyword `rng`.
"""

from __future__ import annotations

import hashlib
import random
import secrets
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

JobSeed = bytes
"""32 bytes, the digest that all generators of one job are seeded from."""


def fresh_seed() -> int:
    """Returns a seed in [0, 2**63) that no other run will have."""
    return secrets.randbits(63)


def job_seed(*entropy: object) -> JobSeed:
    """Digests ints, strings, None and tuples of them to the seed of one job.

    BLAKE2b takes 1 us where numpy's `SeedSequence` takes 10, and this is paid for every job.
    """
    return hashlib.blake2b(repr(entropy).encode(), digest_size=32).digest()


def generator(seed: JobSeed) -> np.random.Generator:
    """Returns the generator that a function receives as `rng`: independent of what `seed_globals` gives."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(struct.unpack("<8I", seed))))


def seed_globals(seed: JobSeed) -> None:
    """Seeds `random`, `numpy.random` and, if it was imported already, torch's CPU generator.

    128 bits go to numpy and 64 each to the others, so that two jobs do not meet by chance (32 bits would make it likely
    from about 65,000 jobs on).
    """
    for_random, n0, n1, n2, n3, for_torch = struct.unpack("<Q4IQ", seed)
    random.seed(for_random)
    np.random.seed((n0, n1, n2, n3))
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        # Not torch.manual_seed: it walks all accelerators, which takes 80 times longer than the CPU generator alone.
        torch.default_generator.manual_seed(for_torch)


@contextmanager
def seeded_globals(seed: JobSeed) -> Iterator[None]:
    """Seeds the global generators for the block, then puts the caller's state back as it was."""
    python_state = random.getstate()
    # Exchanging the bit generator costs 1 us; reading and writing numpy's 624 words of state would cost 70.
    legacy: Any = np.random  # its stubs lack the two functions
    callers_generator = legacy.get_bit_generator()
    legacy.set_bit_generator(np.random.MT19937(0))
    torch: Any = sys.modules.get("torch")
    torch_state = None if torch is None else torch.default_generator.get_state()
    try:
        seed_globals(seed)
        yield
    finally:
        random.setstate(python_state)
        legacy.set_bit_generator(callers_generator)
        if torch is not None:
            torch.default_generator.set_state(torch_state)
