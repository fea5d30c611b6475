"""What a worker is at, as the pool reads it: from another process, while it changes, and after the worker's death."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time

import pytest

from trw_pipeline.executors.slate import SLATE_BYTES, Slate


@pytest.fixture(params=["file", "memory"])
def slate(request, tmp_path) -> Slate:
    return Slate.in_file(str(tmp_path / "slate")) if request.param == "file" else Slate.in_memory()


def test_a_new_one_says_nothing(slate):
    assert slate.read() is None


@pytest.mark.parametrize("ticket", [0, 1, 255, 256, 1 << 40, (1 << 64) - 2])
def test_it_says_the_job_and_since_when(slate, ticket):
    before = time.monotonic()
    slate.begin(ticket)
    at = slate.read()
    assert at is not None
    assert at.ticket == ticket
    assert before <= at.since <= time.monotonic()


def test_it_says_nothing_between_two_jobs(slate):
    slate.begin(3)
    slate.end()
    assert slate.read() is None


def test_each_job_has_its_own_time(slate):
    slate.begin(3)
    first = slate.read()
    slate.begin(4)
    second = slate.read()
    assert (first.ticket, second.ticket) == (3, 4)
    assert first.since < second.since


def test_recalls_are_counted_beside_it(slate):
    slate.begin(7)
    for _ in range(300):
        slate.note_recall()
    assert (slate.nb_recalls, slate.read().ticket) == (300, 7)


def test_both_sides_see_the_same_file(tmp_path):
    path = str(tmp_path / "slate")
    pool, worker = Slate.in_file(path), Slate.in_file(path)
    worker.begin(5)
    pool.note_recall()
    assert (pool.read().ticket, worker.nb_recalls) == (5, 1)
    assert os.stat(path).st_size == SLATE_BYTES
    assert os.stat(path).st_mode & 0o077 == 0


def test_a_folder_that_is_gone_is_an_os_error(tmp_path):
    with pytest.raises(OSError, match="nowhere"):
        Slate.in_file(str(tmp_path / "nowhere" / "slate"))


@pytest.mark.slow
def test_it_is_read_while_another_process_writes_and_after_that_was_killed(tmp_path):
    """Each job is written with the time just before it, so its time never goes back when its number goes up."""
    path = str(tmp_path / "slate")
    slate = Slate.in_file(path)
    source = (
        "import sys\nfrom trw_pipeline.executors.slate import Slate\nslate, n = Slate.in_file(sys.argv[1]), 0\n"
        "while True:\n    slate.begin(n)\n    slate.end()\n    n += 1\n"
    )
    with subprocess.Popen([sys.executable, "-c", source, path], cwd="/") as writer:
        seen = []
        deadline = time.monotonic() + 30
        while len(seen) < 20_000 and time.monotonic() < deadline:
            at = slate.read()
            if at is not None:
                seen.append(at)
        writer.send_signal(signal.SIGKILL)
    assert len(seen) == 20_000
    assert all(a.ticket <= b.ticket and a.since <= b.since for a, b in itertools.pairwise(seen))
    last = slate.read()
    assert last is None or last.ticket >= seen[-1].ticket
