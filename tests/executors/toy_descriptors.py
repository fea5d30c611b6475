"""Counts what this program has open."""

from __future__ import annotations

import gc

import psutil


def nb_descriptors() -> int:
    """Returns how many descriptors are open, but for those that only garbage holds."""
    gc.collect()
    return psutil.Process().num_fds()
