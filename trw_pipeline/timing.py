"""How long something took."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable
from typing import Any, TypeVar

_logger = logging.getLogger(__name__)

R = TypeVar("R")


class time_it:
    """Decorates a function: each call tells how long it took, also one that raises.

    Args:
        time_name: what the time is called; None: `str(function)`.
        log: takes the text, `<name> took <seconds> s`. None: it is logged as information.

    Example:
        >>> @time_it("half", log=lambda text: None)
        ... def half(number):
        ...     return number / 2
        >>> half(3)
        1.5
    """

    def __init__(self, time_name: str | None = None, log: Callable[[str], Any] | None = None) -> None:
        self.time_name = time_name
        self.log = log

    def __call__(self, fn: Callable[..., R], *args: Any, **kwargs: Any) -> Callable[..., R]:
        """Wrap a function.

        Args:
            fn: the function.
            *args: put before the arguments of each call.
            **kwargs: keyword arguments of each call that does not give them itself.

        Returns:
            A function that does what `fn` does, with its name and signature.
        """
        name = str(fn) if self.time_name is None else self.time_name
        log = _logger.info if self.log is None else self.log

        @functools.wraps(fn)
        def timed(*more: Any, **others: Any) -> R:
            started = time.perf_counter()
            try:
                return fn(*args, *more, **{**kwargs, **others})
            finally:
                log(f"{name} took {time.perf_counter() - started:.6g} s")

        return timed


class Stopwatch:
    """Adds up the time between its starts and stops.

    Args:
        elapsed_s: seconds that it shows at first; it stands still.
    """

    def __init__(self, elapsed_s: float = 0.0) -> None:
        self._before_s = elapsed_s
        self._clock: Callable[[], float] | None = None
        self._started = 0.0

    @property
    def elapsed_s(self) -> float:
        """Seconds so far."""
        return self._before_s + (0.0 if self._clock is None else self._clock() - self._started)

    def start(self, clock: Callable[[], float]) -> None:
        """Let it run, by a clock whose seconds never run backwards; one that runs goes on."""
        self._before_s = self.elapsed_s
        self._clock = clock
        self._started = clock()

    def stop(self) -> None:
        """Let it stand still. Idempotent."""
        self._before_s = self.elapsed_s
        self._clock = None
