"""What a worker is at, as the pool reads it: from another process, while it changes, and after the worker's death."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time

import pytest
from toy_descriptors import nb_descriptors

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


def test_one_that_is_closed_lets_go_of_its_file_and_still_says_which_job_was_the_last(tmp_path):
    before = nb_descriptors()
    slate = Slate.in_file(str(tmp_path / "slate"))
    slate.begin(7)
    slate.close()
    slate.close()
    assert (slate.last, slate.read()) == (7, None)
    assert nb_descriptors() == before


def interrupted_at(moment: int, path: str) -> bool:
    """Makes a slate, with an interrupt before the bytecode of that number; whether there are so many."""
    nb_left = moment

    def count(frame, event, argument):
        nonlocal nb_left
        if frame.f_code is Slate.in_file.__func__.__code__:
            frame.f_trace_opcodes = True
            nb_left -= event == "opcode"
            if nb_left < 0:
                raise KeyboardInterrupt
            return count
        return None

    others = sys.gettrace()
    sys.settrace(count)
    try:
        Slate.in_file(path)
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(others)
    return False


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
def test_an_interrupt_at_any_moment_leaves_no_descriptor(tmp_path):
    before = nb_descriptors()
    moment = 0
    while interrupted_at(moment, str(tmp_path / str(moment))):
        moment += 1
    assert moment > 20
    assert nb_descriptors() == before


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
