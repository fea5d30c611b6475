"""Short items, and what shows that each was treated for itself."""

from __future__ import annotations

import random

import numpy as np
import torch

from trw_pipeline.sequences.samplers import SamplerSequential
from trw_pipeline.sequences.sequence import SequenceArray


def array(nb=23, sampler=None, **features):
    sampler = SamplerSequential() if sampler is None else sampler
    return SequenceArray({"x": np.arange(nb), **features}, sampler).with_seed(3)


def numbers(items):
    return [int(x) for item in items for x in item["x"]]


def drawn(batch, rng):
    """What a job draws from each generator that belongs to it."""
    draws = [random.random(), np.random.random(), np.random.standard_normal(), float(torch.rand(())), rng.random()]
    return {"x": batch["x"], "draws": np.array([draws])}


def raises_at(number, error):
    def function(batch):
        if int(batch["x"][0]) == number:
            raise error
        return batch

    return function
