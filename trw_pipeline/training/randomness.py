"""The states of all global generators: kept, set, saved."""

from __future__ import annotations

import random
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from trw_pipeline.seeding import generator, job_seed


def random_states() -> dict[str, Any]:
    """Gives the states of the global generators of Python, NumPy and torch, with those of CUDA devices in use.

    They are plain data and tensors, so that `torch.load(weights_only=True)` reads them.
    """
    version, words, gauss = random.getstate()
    numpy_state: Any = np.random.get_state(legacy=False)
    states: dict[str, Any] = {
        "python": [version, list(words), gauss],
        "numpy": {
            "kind": numpy_state["bit_generator"],
            "key": torch.from_numpy(numpy_state["state"]["key"].astype(np.int64)),
            "pos": int(numpy_state["state"]["pos"]),
            "has_gauss": int(numpy_state["has_gauss"]),
            "gauss": float(numpy_state["gauss"]),
        },
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states["cuda"] = torch.cuda.get_rng_state_all()
    return states


def set_random_states(states: Mapping[str, Any]) -> None:
    """Puts the generators into states that `random_states` gave; those of other CUDA devices than ours are left out."""
    version, words, gauss = states["python"]
    random.setstate((version, tuple(words), gauss))
    of_numpy = states["numpy"]
    key = of_numpy["key"].numpy().astype(np.uint32)
    np.random.set_state((of_numpy["kind"], key, of_numpy["pos"], of_numpy["has_gauss"], of_numpy["gauss"]))
    torch.set_rng_state(states["torch"])
    if "cuda" in states and torch.cuda.device_count() == len(states["cuda"]):
        torch.cuda.set_rng_state_all(states["cuda"])


def split_seed(seed: int, dataset: str, split: str) -> int:
    """Gives the seed of a split, in [0, 2**63)."""
    return int.from_bytes(job_seed(seed, dataset, split)[:8], "little") >> 1


@contextmanager
def seeded(seed: int | None) -> Generator[None, None, None]:
    """Seeds the global generators for the block, and puts them back as they were; None leaves them alone."""
    if seed is None:
        yield
        return
    before = random_states()
    try:
        rng = generator(job_seed(seed, "training"))
        random.seed(int(rng.integers(2**63)))
        np.random.seed(rng.integers(2**32, size=4))
        torch.manual_seed(int(rng.integers(2**63)))
        yield
    finally:
        set_random_states(before)
