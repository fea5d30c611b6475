"""What all tests share: a proof after each one that the house is clean, and a way to run whole programs."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import multiprocess
import psutil
import pytest
from hypothesis import HealthCheck, settings

from trw_pipeline.executors import start
from trw_pipeline.executors.job_executor import JobExecutor

ROOT = Path(__file__).resolve().parents[1]
SERVANTS = re.compile(r"from multiprocess(ing)?\.(forkserver|resource_tracker) import main")
"""Processes that live as long as the program: one fork server and one resource tracker of each library."""

PROGRAMS_AT_ONCE = 4
"""Of those that are to be ended at some moment; most of the time they wait for it."""

# On a loaded machine an example that takes a millisecond may take half a second; each test has its limit already.
settings.register_profile("search", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# The same examples each time: a change is judged by what it changes. `--hypothesis-profile search` looks for new ones.
settings.register_profile("same", settings.get_profile("search"), derandomize=True)
settings.load_profile("same")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Lets the whole suite run with another start method than the platform's, and trainings be killed more often."""
    methods = multiprocess.get_all_start_methods()
    parser.addoption("--start-method", choices=methods, help="of workers, where a test asks for none")
    parser.addoption("--kill-rounds", type=int, default=1, help="of seven kills each, in test_resume_programs.py")


@pytest.fixture(scope="session", autouse=True)
def _start_method_of_all(request: pytest.FixtureRequest) -> Iterator[None]:
    method = request.config.getoption("--start-method")
    with pytest.MonkeyPatch.context() as patch:
        if method is not None:
            patch.setattr(start, "default_start_method", lambda: method)
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A whole program, and workers that start in each of the ways there are, take more than a quarter of a second."""
    for item in items:
        if {"program", "programs_ended_by", "start_method"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session", autouse=True)
def _own_temp_dir() -> Iterator[None]:
    """A folder for temporary files of our own, so that what other programs leave behind is not taken for ours."""
    folder = tempfile.mkdtemp(prefix="t-", dir="/tmp")  # short: sockets are made in it
    before = os.environ.get("TMPDIR"), tempfile.tempdir
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    yield
    tempfile.tempdir = before[1]
    os.environ.pop("TMPDIR")
    if before[0] is not None:
        os.environ["TMPDIR"] = before[0]
    shutil.rmtree(folder, ignore_errors=True)


def our_children() -> list[psutil.Process]:
    """Returns the child processes, with their own, that a pool or a job may have started."""
    found: list[psutil.Process] = []
    for child in psutil.Process().children():
        try:
            is_servant = SERVANTS.search(" ".join(child.cmdline())) is not None
            found += [*([] if is_servant else [child]), *child.children(recursive=True)]
        except psutil.NoSuchProcess:
            continue
    return found


def our_files() -> set[str]:
    """Returns socket folders and shared memory files of ours."""
    return {str(path) for folder in (tempfile.gettempdir(), "/dev/shm") for path in Path(folder).glob("trw*")}


def our_threads() -> list[str]:
    """Returns the names of the threads beside the main one. That of pyzmq lives as long as the program."""
    names = (thread.name for thread in threading.enumerate() if thread is not threading.main_thread())
    return [name for name in names if name != "GarbageCollectorThread" and not name.startswith("pydevd")]


@pytest.fixture(autouse=True)
def _nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Proves after each test that no process, no thread, no socket file and no shared memory is left of it.

    What a fixture of a whole module made before the test is not of it.
    """
    files, threads, children = our_files(), our_threads(), our_children()
    logger = logging.getLogger("trw_pipeline")
    level = logger.level
    yield
    # What was killed needs a moment to be gone from the tables of the system; what runs on is still there then.
    _, left = psutil.wait_procs([child for child in our_children() if child not in children], timeout=2)
    # A thread that nobody waits for needs a moment too, where it was told to end; one that was not stays. In /dev/shm
    # another run of the tests may have a folder for a moment; what is ours does not go by itself.
    deadline = time.monotonic() + 5
    while (left_threads := [name for name in our_threads() if name not in threads]) and time.monotonic() < deadline:
        time.sleep(0.02)
    while (left_files := our_files() - files) and time.monotonic() < deadline:
        time.sleep(0.02)
    for process in left:
        process.kill()
    left_level = logger.level
    logger.setLevel(level)
    assert left_level == level, "a test that leaves another level hides from all others what is logged"
    assert not left, f"processes left by {request.node.name}"
    assert not left_threads
    assert not left_files


@pytest.fixture(params=["inline", "thread", "process"])
def pool_kind(request: pytest.FixtureRequest) -> str:
    """Each backend; processes come from the default start method."""
    return request.param


@pytest.fixture(params=["forkserver", "spawn", "fork"])
def start_method(request: pytest.FixtureRequest) -> str:
    """Each way to start a process."""
    return request.param


@pytest.fixture
def executor_of() -> Iterator[Callable[..., JobExecutor]]:
    """Makes executors that are closed when the test ends, however it ends."""
    made: list[JobExecutor] = []

    def make(*arguments: object, **keywords: object) -> JobExecutor:
        made.append(JobExecutor(*arguments, **keywords))
        return made[-1]

    yield make
    for executor in made:
        executor.close(timeout=0.2)


@pytest.fixture
def nb_workers(pool_kind: str) -> int:
    """How many workers an executor of that backend gets in the contracts."""
    return 0 if pool_kind == "inline" else 2


@pytest.fixture
def pool_of(pool_kind: str, nb_workers: int, executor_of: Callable[..., JobExecutor]) -> Callable[..., JobExecutor]:
    """Makes executors over this kind of pool; the function comes first."""

    def make(function: object, **keywords: object) -> JobExecutor:
        return executor_of(nb_workers, function, backend=pool_kind, **keywords)

    return make


@dataclass
class Ended:
    """How a program ended that was sent a signal.

    Attributes:
        said: all that it wrote to its output.
        took_s: seconds from the signal until nothing was left of it.
    """

    code: int
    said: str
    errors: str
    took_s: float


@dataclass
class Program:
    """A Python program in a process group of its own."""

    process: subprocess.Popen[str]
    started: float
    read_ahead: bytes = b""

    def send(self, number: int, to_group: bool = False) -> None:
        """Sends a signal to the main process, or to all processes of the group as a terminal does."""
        (os.killpg if to_group else os.kill)(self.process.pid, number)

    def read_line(self) -> str:
        """Returns the next line of its output; an empty one at its end."""
        assert self.process.stdout is not None
        # Not by `readline`: what that has read ahead, `communicate` does not give.
        while b"\n" not in self.read_ahead and (more := os.read(self.process.stdout.fileno(), 4096)):
            self.read_ahead += more
        line, _, self.read_ahead = self.read_ahead.partition(b"\n")
        return line.decode().strip()

    def finish(self, timeout_s: float = 30.0) -> subprocess.CompletedProcess[str]:
        """Waits for its end, and fails the test if that, or a child, takes longer than it should."""
        try:
            out, err = self.process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            out, err = self.process.communicate()
            pytest.fail(f"the program still ran after {timeout_s} s\n{out}\n{err}")
        out = self.read_ahead.decode() + out
        result = subprocess.CompletedProcess(self.process.args, self.process.returncode, out, err)
        deadline = time.monotonic() + 5
        while self.members() and time.monotonic() < deadline:
            psutil.wait_procs(self.members(), timeout=0.2)
        left = self.members()
        self.kill()
        assert not left, f"the program left {left}\n{out}\n{err}"
        return result

    def end_by(self, number: int, to_group: bool, word: str, after_s: float) -> Ended:
        """Sends it a signal so long after it wrote a line that begins with the word."""
        lines = []
        while not lines or lines[-1].split()[0] != word:
            lines.append(self.read_line())
            assert lines[-1], f"the program ended before it said {word!r}"
        time.sleep(after_s)
        start = time.monotonic()
        self.send(number, to_group)
        result = self.finish()
        took_s = time.monotonic() - start
        return Ended(result.returncode, "\n".join([*lines, result.stdout]), result.stderr, took_s)

    def members(self) -> list[psutil.Process]:
        """Returns all processes of the group but the main one.

        A number that is that of a group is given to no new process. So where the main one was waited for, and there is
        one of its number, the group was empty before, and who is in it now is of somebody else's.
        """
        if self.process.returncode is not None and psutil.pid_exists(self.process.pid):
            return []
        found = []
        for process in psutil.process_iter():
            try:
                if process.pid != self.process.pid and os.getpgid(process.pid) == self.process.pid:
                    found.append(process)
            except (ProcessLookupError, psutil.NoSuchProcess):
                continue
        return [process for process in found if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]

    def kill(self) -> None:
        """Ends the whole group; once the main process was waited for, those that are left, one by one.

        The number of the group is its own only until then. `returncode` tells; `poll` would wait for it here.
        """
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            return
        for process in self.members():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


@pytest.fixture
def programs_ended_by(program: Callable[..., Program]) -> Callable[..., list[Ended]]:
    """Runs a program again and again, and sends it a signal `(word, seconds)` after it said that; a few run at once."""

    def end(source: str, number: int, moments: Iterable[tuple[str, float]], to_group: bool = False) -> list[Ended]:
        waiting, ended = list(moments), []
        with ThreadPoolExecutor(PROGRAMS_AT_ONCE) as threads:
            while waiting:
                now, waiting = waiting[:PROGRAMS_AT_ONCE], waiting[PROGRAMS_AT_ONCE:]
                running = [(program(source), moment) for moment in now]
                ended += threads.map(lambda one: one[0].end_by(number, to_group, *one[1]), running)
        return ended

    return end


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Callable[..., Program]]:
    """Starts `source` as a script, with unclosed resources as errors; extra `environment` on top of ours."""
    started: list[Program] = []

    def start(source: str, *options: str, environment: dict[str, str] | None = None) -> Program:
        script = tmp_path / f"program_{len(started)}.py"
        script.write_text(textwrap.dedent(source))
        process = subprocess.Popen(
            [sys.executable, "-W", "error::ResourceWarning", "-X", "faulthandler", *options, str(script)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})},
        )
        started.append(Program(process, time.monotonic()))
        return started[-1]

    yield start
    for one in started:
        one.kill()
        if one.process.poll() is None:
            one.process.wait()
        for stream in (one.process.stdout, one.process.stderr):
            assert stream is not None
            stream.close()
