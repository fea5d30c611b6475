"""Buffers that compress as a scan does, and one that does not."""

from __future__ import annotations

import numpy as np


def ct_like_volume():
    """Shape (16, 128, 128) int16, 0.5 MB: a smooth body with noise, in air."""
    z, y, x = np.meshgrid(*(np.linspace(-1, 1, n) for n in (16, 128, 128)), indexing="ij")
    body = 40 + 200 * np.sin(3 * x) * np.cos(4 * y) * np.cos(2 * z) + np.random.default_rng(0).normal(0, 8, x.shape)
    return np.where(x**2 + y**2 < 0.8, body, -1000).astype(np.int16)


def noise(nb_bytes):
    return np.random.default_rng(0).integers(0, 256, nb_bytes, dtype=np.uint8)
