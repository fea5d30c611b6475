"""What the tests themselves stand on: programs are ended wholly, and nobody else is."""

from __future__ import annotations

import os

import psutil
import pytest

LEAVES_A_CHILD = """
    import subprocess, sys
    nothing = subprocess.DEVNULL
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], stdout=nothing, stderr=nothing)
    child.returncode = 0  # else it would be said that it still runs
    print(child.pid, flush=True)
"""


@pytest.fixture
def signalled(monkeypatch) -> list[int]:
    """The groups that a signal was sent to, from now on; none is sent."""
    groups: list[int] = []
    monkeypatch.setattr(os, "killpg", lambda group, number: groups.append(group))
    return groups


def test_the_group_of_a_program_that_was_waited_for_gets_no_signal(program, signalled):
    """Its number may be that of another program by then."""
    running = program("")
    running.finish()
    running.kill()
    assert signalled == []


def test_what_a_program_that_was_waited_for_has_left_is_ended(program):
    running = program(LEAVES_A_CHILD)
    child = psutil.Process(int(running.read_line()))
    running.process.wait()
    assert running.members() == [child]
    running.kill()
    assert psutil.wait_procs([child], timeout=5)[1] == []


def test_a_group_whose_number_is_somebody_elses_by_now_is_left_alone(program, signalled):
    """Staged with a program that was not waited for, only said to be: there is one of its number."""
    running = program(LEAVES_A_CHILD + "    import time\n    time.sleep(60)\n")
    child = psutil.Process(int(running.read_line()))
    assert running.members() == [child]
    running.process.returncode = 0
    assert running.members() == []
    running.kill()
    assert signalled == []
    running.process.returncode = None  # so that it is ended
