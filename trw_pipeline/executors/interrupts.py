"""Puts off a Ctrl-C, or any signal, while something is made or freed that would be lost half-way."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Puts off a Ctrl-C that comes within the block until its end.

    Here a handler remembers it, since blocking it is not enough: the system may hand it to another thread, such as one
    of BLAS. A child that starts within the block has it blocked; until that child has its handler it would end with a
    traceback of its own. Outside of the main thread, which alone is interrupted, there is nothing to hold.
    """
    came: list[int] = []
    handler = signal.getsignal(signal.SIGINT) if threading.current_thread() is threading.main_thread() else None
    if handler is not None:
        signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if hasattr(signal, "pthread_sigmask") else None
    try:
        yield
    finally:
        if mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if handler is not None:
            signal.signal(signal.SIGINT, handler)
        if came:
            signal.raise_signal(signal.SIGINT)


@contextmanager
def signals_held() -> Iterator[None]:
    """Puts off every signal to this thread that can be, where a call would be given up when one comes.

    Not for long: a program that can not be ended by a signal is in nobody's interest.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
