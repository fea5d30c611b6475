"""What tests of sequences share."""

from __future__ import annotations

import pytest

from trw_pipeline.executors.job_executor import JobExecutor
from trw_pipeline.sequences import map_iterator

SIZE = 5


@pytest.fixture
def bundles(monkeypatch):
    """Bundles of five from the first item on; counts them."""
    counted = []
    put = JobExecutor.put_bundle
    size = property(lambda executor: SIZE if executor._may_bundle else 1)
    monkeypatch.setattr(JobExecutor, "items_in_bundle", size)
    monkeypatch.setattr(map_iterator, "LOOK_EVERY_S", 1000.0)  # however slow this machine is
    monkeypatch.setattr(JobExecutor, "put_bundle", lambda *given: counted.append(len(given[1])) or put(*given))
    return counted
