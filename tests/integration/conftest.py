"""Tests with the libraries that a sequence is used together with.

They mirror no room of the package: what they hold is that loops, transforms and models of others get on with it. Each
library is imported by the files that test it alone.
"""

from __future__ import annotations

import contextlib

import pytest
from toy_loop import THREADS, train_chain, valid_chain


@pytest.fixture
def opened():
    """Closes the chains that are handed to it when the test ends."""
    with contextlib.ExitStack() as stack:
        yield stack.enter_context


@pytest.fixture
def chains(opened):
    """The chains of training and validation, with workers."""
    return opened(train_chain(**THREADS)), opened(valid_chain(**THREADS))
