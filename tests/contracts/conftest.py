"""Workers that send back what they get, for all tests of a module."""

from __future__ import annotations

import pytest

from trw_pipeline.executors.job_executor import JobExecutor


@pytest.fixture(scope="module")
def echo():
    """One worker for all tests of the module: it imports torch, which takes seconds. Ask for it with
    `usefixtures` of the whole module: then it is there before each test, and nobody takes it for what that left.
    """
    with JobExecutor(1, lambda x: x) as executor:
        yield executor


@pytest.fixture(scope="module")
def echo_without_arena():
    """The same without shared memory."""
    with JobExecutor(1, lambda x: x, max_arena_bytes=0) as executor:
        yield executor
