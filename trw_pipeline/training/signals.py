"""Puts Ctrl-C and SIGTERM off to the next moment at which a training can be left whole."""

from __future__ import annotations

import logging
import signal
import threading
from types import FrameType
from typing import Any

from trw_pipeline.training.run import Run

_logger = logging.getLogger(__name__)


class SignalWatch:
    """Ends a training between two batches when SIGINT or SIGTERM comes: by KeyboardInterrupt, or by SystemExit(143).

    While the next batch is waited for that is at once. A second signal ends it wherever it is. Handlers that the
    program has set for itself are left alone, and outside of the main thread there is nothing to do.

    Args:
        run: the training.

    Attributes:
        was_in_time: it was between two batches, or two epochs, that the training was ended.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._came: int | None = None
        self._before: dict[int, Any] = {}
        self.was_in_time = False

    def start(self) -> None:
        """Sets the handlers."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number, default in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
            if signal.getsignal(number) is default:
                self._before[number] = signal.signal(number, self._handle)

    def stop(self) -> None:
        """Puts them back. Idempotent."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def check(self, run: Run) -> None:
        """Raises if a signal has come: the training is between two batches, or two epochs."""
        if self._came is not None:
            self.was_in_time = True
            raise self._error(self._came)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._came is not None or self._run.is_between_batches:
            self.was_in_time = self._run.is_between_batches
            self._came = number
            raise self._error(number)
        self._came = number
        name = signal.Signals(number).name
        _logger.warning("%s: the training ends after this batch, with a checkpoint; once more ends it now", name)

    def _error(self, number: int) -> BaseException:
        return KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)
