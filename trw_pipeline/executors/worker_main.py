"""Entry point of a worker process, and what it sets up before the first order.

A process worker imports numpy, zmq and what unpickling the function imports; nothing else on our account.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zmq

from trw_pipeline.executors.blosc_codec import with_compression
from trw_pipeline.executors.compression import Compression, Trial, load_blosc2
from trw_pipeline.executors.door import Door
from trw_pipeline.executors.pickle_codec import PickleCodec
from trw_pipeline.executors.result_slot import ArenaFile
from trw_pipeline.executors.slate import Slate
from trw_pipeline.executors.worker import Worker

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
_SHOWN_CHARACTERS = 15  # of the name of a process

KEPT_BYTES = 256 << 20
"""So much freed memory a worker keeps at hand for its next job."""

LOOK_EVERY_S = 0.1
"""So often it looks whether it is more."""

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # of <malloc.h>


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """What a worker process is told when it starts.

    Attributes:
        door: where its pool is.
        name: shown by `ps -o comm` and `top`.
        threads: of BLAS, OpenMP and torch.
        niceness: added to that of the program.
        channels: its ends of the pipes for `worker_post_process_results_fun`.
        arena: shared memory, if there is any.
        compression: of large buffers, or None.
    """

    door: Door
    name: str
    threads: int = 1
    niceness: int = 0
    channels: tuple[Any, Any] = (None, None)
    arena: ArenaFile | None = None
    compression: Compression | Trial | None = None


def worker_main(setup: WorkerSetup, identity: bytes, block_until_parent_dies: Callable[[], object]) -> None:
    """Runs a worker until its pool, or the program, ends."""
    # Ctrl-C reaches the whole process group; only the main process decides what it means. A handler, not SIG_IGN:
    # a program that a job starts would inherit that.
    signal.signal(signal.SIGINT, lambda *_: None)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    door = setup.door

    def follow_parent() -> None:
        block_until_parent_dies()
        door.remove()
        os._exit(1)

    threading.Thread(target=follow_parent, name="parent-watch", daemon=True).start()
    with contextlib.suppress(OSError):  # not on this system
        Path("/proc/self/comm").write_text(setup.name[-_SHOWN_CHARACTERS:])
    if setup.niceness and hasattr(os, "nice"):
        os.nice(setup.niceness)
    for variable in _THREAD_VARIABLES:
        os.environ[variable] = str(setup.threads)
    tidy = _keep_freed_memory()
    if sys.__stderr__ is not None:
        faulthandler.enable(sys.__stderr__)  # a native crash shows where in Python it happened
    context: zmq.Context[Any] = zmq.Context()
    Worker(
        door.connect(context, identity),
        door.key,
        orders=with_compression(PickleCodec("item"), setup.compression),
        replies=with_compression(PickleCodec("result"), setup.compression),
        channels=setup.channels,
        own_process=True,
        slate=Slate.in_file(door.slate_path(identity)),
        log_name=setup.name,
        arena=setup.arena,
        prepare=lambda: _prepare(setup),
        tidy=tidy,
    ).serve()
    context.term()


class _Allocated(ctypes.Structure):
    """What glibc's mallinfo2 says."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in [
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        ]
    )


def _keep_freed_memory() -> Callable[[], None]:
    """Has the allocator use freed memory again; returns what gives back what is more than `KEPT_BYTES`.

    Left alone, glibc gives memory of 32 MiB or more back at once, and the system clears each page before it hands it
    out again: making a 32 MiB array took 8 ms of which 3 were of use. Told to keep it, it gives back only what lies
    above all that is in use, so that one small array that a function keeps may hold on to gigabytes: hence the look
    after jobs. Whoever has set the allocator up knows better.
    """
    if not any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        with contextlib.suppress(OSError, AttributeError, TypeError):  # another system, or another C library
            libc = ctypes.CDLL(None)
            mallinfo = libc.mallinfo2
            mallinfo.restype = _Allocated
            looked_at = -math.inf

            def give_back() -> None:
                nonlocal looked_at
                now = time.monotonic()
                if now - looked_at >= LOOK_EVERY_S:
                    looked_at = now
                    if mallinfo().fordblks > KEPT_BYTES:
                        libc.malloc_trim(ctypes.c_size_t(0))

            if libc.mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES):
                libc.mallopt(_M_MMAP_MAX, 0)
            return give_back
    return lambda: None


def _prepare(setup: WorkerSetup) -> None:
    if setup.compression is not None:
        load_blosc2()  # takes a second, with which no job shall be charged
    _limit_threads(setup.threads)


def _limit_threads(threads: int) -> None:
    """Limits the numerical libraries that are loaded by now; those to come read the environment."""
    from threadpoolctl import threadpool_limits  # noqa: PLC0415 (not needed in the main process)

    threadpool_limits(threads)
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(threads)
