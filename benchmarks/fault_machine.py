"""What the fault storm does to the machine around an executor, and how it sees what is left of one."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import re
import resource
import signal
import tempfile
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil

SHARED_BYTES = 300_000_000
"""So much shared memory is filled at most."""

LEFT_BYTES = 1_000_000

NB_FREE_DESCRIPTORS = 24
"""So many are left while descriptors are exhausted: a worker may have to be replaced, and ZeroMQ ends a program that
it can not give one."""

_SERVANTS = re.compile(r"from multiprocess(ing)?\.(forkserver|resource_tracker) import main")


def workers() -> list[psutil.Process]:
    """Returns the workers, alive or not yet buried."""
    found: list[psutil.Process] = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):
            found += child.children() if is_servant(child) else [child]
    return found


def is_servant(process: psutil.Process) -> bool:
    """Whether it lives as long as the program."""
    return _SERVANTS.search(" ".join(process.cmdline())) is not None


class Inventory(NamedTuple):
    """What the program has open.

    Attributes:
        nb_descriptors: with those of its servants.
        threads: names of those of the package.
        files: of the package.
    """

    nb_descriptors: int
    threads: frozenset[str]
    files: frozenset[str]


def inventory() -> Inventory:
    """Returns what there is now."""
    me = psutil.Process()
    servants = [child for child in me.children() if is_servant(child)]
    folders = {tempfile.gettempdir(), "/dev/shm"}
    return Inventory(
        sum(process.num_fds() for process in (me, *servants)),
        frozenset(thread.name for thread in threading.enumerate() if thread.name.startswith("trw")),
        frozenset(str(path) for folder in folders for path in Path(folder).glob("trw*")),
    )


def descriptors() -> dict[str, str]:
    """Returns the descriptors of the program, and what they are of."""
    found: dict[str, str] = {}
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found[path.name] = os.readlink(path)
    return found


def holders(kind: type, depth: int = 8) -> list[str]:
    """Returns, for each object of a type that lives, what holds it, and what holds that: types, and names in dicts.

    Of something that nobody closed, no object may be left: then the list is empty.
    """
    chains: list[str] = []
    everything = gc.get_objects()
    things = [thing for thing in everything if type(thing) is kind]
    ours = {id(everything), id(things), id(chains)}
    for thing in things:
        one: Any = thing
        chain = [kind.__name__]
        for _ in range(depth):
            ours.add(id(one))
            found = [by for by in gc.get_referrers(one) if id(by) not in ours and not _is_of_this_look(by)]
            ours.add(id(found))
            if not found:
                break
            held, one = one, found[0]
            names = [str(name) for name, value in one.items() if value is held] if isinstance(one, dict) else []
            where = one.f_code.co_qualname if isinstance(one, types.FrameType) else ", ".join(names)
            chain.append(f"{type(one).__name__} {where}".rstrip())
        chains.append(" < ".join(chain))
    return chains


def _is_of_this_look(by: Any) -> bool:
    return isinstance(by, types.FrameType) and by.f_code.co_filename == __file__


class _Mallinfo(ctypes.Structure):
    """`struct mallinfo2` of <malloc.h>."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in (*"abcdefgh", "fordblks", "keepcost"))


def used_bytes() -> int:
    """Returns the resident memory of this program, in bytes, without what malloc keeps for later.

    That is hundreds of megabytes, since each thread has its own store.
    """
    nb_free = 0
    with contextlib.suppress(AttributeError):  # glibc only, from 2.33 on
        mallinfo = ctypes.CDLL(None).mallinfo2
        mallinfo.restype = _Mallinfo
        nb_free = mallinfo().fordblks
    return psutil.Process().memory_info().rss - nb_free


@contextlib.contextmanager
def filled_shared_memory() -> Iterator[None]:
    """Leaves the shared memory file system about 1 MB, or takes `SHARED_BYTES` of it; no file may grow beyond 1 MB.

    Anonymous shared files have no file system that could be filled; for them the second is as good.
    """
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with tempfile.TemporaryFile(dir="/dev/shm") as file:  # has no name: it is gone with us, however we end
        system = os.statvfs("/dev/shm")
        size = min(SHARED_BYTES, system.f_bavail * system.f_bsize - LEFT_BYTES)
        if size > 0:
            os.posix_fallocate(file.fileno(), 0, size)
        resource.setrlimit(resource.RLIMIT_FSIZE, (LEFT_BYTES, limits[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@contextlib.contextmanager
def few_descriptors() -> Iterator[None]:
    """Leaves the program `NB_FREE_DESCRIPTORS`."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    try:
        highest = max(int(name) for name in os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1 + NB_FREE_DESCRIPTORS, limits[1]))
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        for _ in range(min(NB_FREE_DESCRIPTORS, len(taken))):
            os.close(taken.pop())
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def interrupted(delay_s: float, act: Callable[[], None]) -> bool:
    """Calls `act`, and presses Ctrl-C after a while; whether that was seen.

    A thread sends the signal, since the alarm of the system sends another one, which nobody puts off.
    """
    send = threading.Timer(delay_s, signal.pthread_kill, (threading.get_ident(), signal.SIGINT))
    try:
        try:
            send.start()
            act()
        finally:
            send.cancel()
            send.join()
    except KeyboardInterrupt:
        send.join()
        return True
    return False
