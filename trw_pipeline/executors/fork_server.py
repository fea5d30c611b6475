"""What the fork server does when the program has been killed: see that no worker outlives it, whatever it does.

A worker watches for the end of the program itself, but a job that holds the interpreter lock, or a stopped process,
does not get to look. So the system kills the workers when the fork server ends, and the fork server, which ends with
the program, leaves them a moment to go by themselves and remove their folder.

    program killed ──▶ workers: remove the folder, exit ──▶ fork server: waits, exits ──▶ system: kills the rest

A worker that `spawn` or `fork` started is the program's own child. The system would kill it at once, before it can
remove the folder, and also when no more than the thread that started it ends; so those end after their job.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import signal
import sys
import time
from typing import Any

from multiprocess import forkserver

LEAVE_S = 1.0
"""Workers that are free go within milliseconds; on a loaded machine they may take longer."""

_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of <sys/prctl.h>


def end_with_fork_server() -> None:
    """Lets the system kill this worker when its fork server ends. Does nothing off Linux, or without that server."""
    server: Any = forkserver._forkserver  # pyright: ignore[reportPrivateUsage]
    if sys.platform != "linux" or server._forkserver_alive_fd is None or server._forkserver_pid is not None:
        return
    # The server lives while somebody has this pipe open, and each worker was given a copy. Whoever starts processes
    # from here needs a server of its own then.
    os.close(server._forkserver_alive_fd)
    server._forkserver_alive_fd = server._forkserver_address = None
    with contextlib.suppress(OSError, AttributeError):  # a libc without it: then a busy worker ends after its job
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)


@atexit.register
def _let_workers_leave() -> None:
    server: Any = forkserver._forkserver  # pyright: ignore[reportPrivateUsage]
    if server._forkserver_address is None or server._forkserver_pid is not None:
        return  # this is not the server: that one knows its address, and has not started any
    deadline = time.monotonic() + LEAVE_S
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})  # from now on it waits to be asked for
    with contextlib.suppress(ChildProcessError):  # none is left
        while (left_s := deadline - time.monotonic()) > 0:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                signal.sigtimedwait({signal.SIGCHLD}, left_s)
