"""What all tests share: a proof after each one that the house is clean, and a way to run whole programs."""

from __future__ import annotations

import contextlib
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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from trw_pipeline.executors.job_executor import JobExecutor

ROOT = Path(__file__).resolve().parents[1]
SERVANTS = re.compile(r"from multiprocess(ing)?\.(forkserver|resource_tracker) import main")
"""Processes that live as long as the program: one fork server and one resource tracker of each library."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A whole program, and workers that start in each of the ways there are, take more than a quarter of a second."""
    for item in items:
        if {"program", "start_method"} & set(getattr(item, "fixturenames", ())):
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
    yield
    # What was killed needs a moment to be gone from the tables of the system; what runs on is still there then.
    _, left = psutil.wait_procs([child for child in our_children() if child not in children], timeout=2)
    left_threads = [name for name in our_threads() if name not in threads]
    left_files = our_files() - files
    for process in left:
        process.kill()
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
class Program:
    """A Python program in a process group of its own."""

    process: subprocess.Popen[str]
    started: float

    def send(self, number: int, to_group: bool = False) -> None:
        """Sends a signal to the main process, or to all processes of the group as a terminal does."""
        (os.killpg if to_group else os.kill)(self.process.pid, number)

    def read_line(self) -> str:
        """Returns the next line of its output."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def finish(self, timeout_s: float = 30.0) -> subprocess.CompletedProcess[str]:
        """Waits for its end, and fails the test if that, or a child, takes longer than it should."""
        try:
            out, err = self.process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            out, err = self.process.communicate()
            pytest.fail(f"the program still ran after {timeout_s} s\n{out}\n{err}")
        result = subprocess.CompletedProcess(self.process.args, self.process.returncode, out, err)
        deadline = time.monotonic() + 5
        while self.members() and time.monotonic() < deadline:
            psutil.wait_procs(self.members(), timeout=0.2)
        left = self.members()
        self.kill()
        assert not left, f"the program left {left}\n{out}\n{err}"
        return result

    def members(self) -> list[psutil.Process]:
        """Returns all processes of the group but the main one."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.pid != self.process.pid and os.getpgid(process.pid) == self.process.pid:
                    found.append(process)
            except (ProcessLookupError, psutil.NoSuchProcess):
                continue
        return [process for process in found if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]

    def kill(self) -> None:
        """Ends the whole group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


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
