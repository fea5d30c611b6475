"""Starts worker processes: without running the user's main script again, or touching the program's start method."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast, get_args

import multiprocess
import multiprocess.connection
import multiprocess.context
import multiprocess.process
from multiprocess import forkserver, resource_tracker, spawn

from trw_pipeline.errors import ExecutorError
from trw_pipeline.executors.door import short_temp_dir
from trw_pipeline.executors.fork_server import end_with_fork_server
from trw_pipeline.executors.interrupts import interrupts_held
from trw_pipeline.executors.worker_main import WorkerSetup, worker_main
from trw_pipeline.typing import StartMethod

PRELOAD = (
    "numpy",
    "numpy.random",
    "zmq",
    "threadpoolctl",
    "tblib.pickling_support",
    "trw_pipeline.executors.worker_main",
    "trw_pipeline.executors.start",
)
"""What the fork server imports once for all workers: all that a worker needs before its function comes. torch is not
among them: a worker without it is ready ten times sooner and takes a seventh of the memory."""

_multiprocess: Any = multiprocess  # its stubs lack what the default context provides
_usual: tuple[Any, Any] = (spawn.get_preparation_data, forkserver.connect_to_new_process)
_lock = threading.Lock()
_fork_servers: dict[tuple[str, ...], Any] = {}  # by what they import for their workers beyond PRELOAD


def default_start_method() -> StartMethod:
    """Returns forkserver where there is one and the platform is Linux, else spawn."""
    available = _multiprocess.get_all_start_methods()
    return "forkserver" if sys.platform == "linux" and "forkserver" in available else "spawn"


def check_start_method(start_method: str | None) -> StartMethod:
    """Returns the start method to use.

    Raises:
        ValueError: there is no such start method, or this platform has not got it.
    """
    if start_method is None:
        return default_start_method()
    available = _multiprocess.get_all_start_methods()
    if start_method not in get_args(StartMethod) or start_method not in available:
        raise ValueError(f"start_method must be one of {available} on this platform, got {start_method!r}")
    return cast("StartMethod", start_method)


class WorkerProcess:
    """Runs `worker_main(*arguments)` in a process.

    Args:
        start_method: how it starts.
        name: of the process.
        arguments: the setup and the identity of the worker.
        preload: modules that the fork server imports once for all workers with the same list.

    Attributes:
        pid: of the process.
        sentinel: a descriptor that becomes readable when the process dies.

    Raises:
        ExecutorError: the system can not start it.
    """

    def __init__(
        self,
        start_method: StartMethod,
        name: str,
        arguments: tuple[WorkerSetup, bytes],
        preload: tuple[str, ...] = (),
    ) -> None:
        process: Any = _multiprocess.get_context(start_method).Process(
            target=_worker, args=(start_method, *arguments), name=name
        )
        self._process = process
        self._pidfd: int | None = None
        try:
            with _lock, _our_way_of_starting(preload):
                if start_method != "fork":
                    resource_tracker.ensure_running()  # would start with the worker, and then let interrupts through
                with interrupts_held():
                    process.start()
                # Kept off this list because at exit it is waited for without limit, and because a forked copy of this
                # program would end our workers when it exits.
                cast("set[Any]", cast("Any", multiprocess.process)._children).discard(process)
            # A program that the worker started may inherit the pipe that serves as its sentinel, and outlive it. The
            # fork server holds that pipe itself, so there it is safe (and a pid may be of somebody else by now).
            if start_method != "forkserver" and hasattr(os, "pidfd_open"):
                self._pidfd = os.pidfd_open(process.pid)
        except OSError as error:
            self.end()
            raise ExecutorError(f"a worker process can not be started ({start_method}): {error}") from error
        except BaseException:
            self.end()
            raise
        self.pid: int = process.pid
        self.sentinel: int = process.sentinel if self._pidfd is None else self._pidfd

    @property
    def exitcode(self) -> int | None:
        """How it ended; None if it has not, or if that is not known."""
        return self._process.exitcode

    def wait(self, timeout_s: float) -> None:
        """Waits for its end."""
        multiprocess.connection.wait([self.sentinel], timeout_s)

    def kill(self) -> None:
        """Ends it by force, if it has not ended."""
        if self._process.pid is not None and self._process.exitcode is None:
            self._process.kill()

    def end(self) -> int | None:
        """Ends it by force if it has not ended, frees its descriptors, and returns its exit code, if that is known."""
        exitcode = None
        if self._process.pid is not None:
            self.kill()
            self._process.join()
            exitcode = self._process.exitcode
            with contextlib.suppress(ValueError):  # its exit code went elsewhere, e.g. to an os.wait() of the program
                self._process.close()
        if self._pidfd is not None:
            os.close(self._pidfd)
        return exitcode


def one_way_pipe() -> tuple[Any, Any]:
    """Returns the receiving and the sending end of a pipe that workers can inherit."""
    return _multiprocess.Pipe(duplex=False)


def _worker(start_method: StartMethod, *arguments: Any) -> None:
    if start_method == "forkserver":
        end_with_fork_server()
    worker_main(*arguments, block_until_parent_dies=_wait_for_parents_end)


def _wait_for_parents_end() -> None:
    parent: Any = multiprocess.process.parent_process()
    signs = [parent.sentinel]
    # The sentinel is a pipe. A process that the parent forked later has a copy of its end, and may outlive the parent.
    with contextlib.suppress(OSError, AttributeError):  # dead already: the sentinel tells; no such call here: as well
        signs.append(os.pidfd_open(parent.pid))
    multiprocess.connection.wait(signs)


@contextmanager
def _our_way_of_starting(preload: tuple[str, ...]) -> Iterator[None]:
    """Lets a process start without the user's main script, and from a fork server of ours, at a short address.

    `multiprocess` has no argument for any of this, but looks the functions up in their modules at each start. A fork
    server of our own, because the preload list of the shared one may be somebody else's.
    """
    prepare, _ = _usual

    def without_main(name: str) -> dict[str, Any]:
        data: dict[str, Any] = prepare(name)
        return {key: value for key, value in data.items() if not key.startswith("init_main")}

    if preload not in _fork_servers:
        _fork_servers[preload] = forkserver.ForkServer()
        _fork_servers[preload].set_forkserver_preload([*PRELOAD, *preload])
    context: Any = multiprocess.context
    usual_context = context._default_context  # preparing the data of a child settles the program's start method
    temp_dir, start_method = tempfile.tempdir, usual_context._actual_context
    tempfile.tempdir = short_temp_dir()
    spawn.get_preparation_data = without_main
    forkserver.connect_to_new_process = _fork_servers[preload].connect_to_new_process
    try:
        yield
    finally:
        tempfile.tempdir, usual_context._actual_context = temp_dir, start_method
        spawn.get_preparation_data, forkserver.connect_to_new_process = _usual


def _after_fork() -> None:
    """Makes a forked copy start workers of its own: a copy of a held lock is never freed, and the fork server, if it is
    not the copy's child, can not be asked whether it still runs."""
    global _lock
    _lock = threading.Lock()
    _fork_servers.clear()
    spawn.get_preparation_data, forkserver.connect_to_new_process = _usual


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
