"""What wakes whoever waits for workers when something has happened that no worker tells of."""

from __future__ import annotations

import contextlib
import socket


class Bell:
    """Ends a `wait_for_any`; may be rung by any thread, at any time.

    That it was rung says: look again. So whoever rings does so after the change, and whoever hushes it looks
    afterwards. It has no `close`, since somebody may be waiting for it: its descriptors are freed when nobody refers to
    it any more.
    """

    def __init__(self) -> None:
        self._hears, self._rope = socket.socketpair()
        self._hears.setblocking(False)
        self._rope.setblocking(False)

    def __del__(self) -> None:
        for end in (getattr(self, "_hears", None), getattr(self, "_rope", None)):
            if end is not None:
                end.close()

    def fileno(self) -> int:
        """Returns the descriptor that is readable while it is rung."""
        return self._hears.fileno()

    def ring(self) -> None:
        """Makes it readable, if it is not."""
        with contextlib.suppress(BlockingIOError):  # there is no room for more: it is rung
            self._rope.send(b"\0")

    def hush(self) -> bool:
        """Makes it silent; whether it was rung."""
        try:
            return bool(self._hears.recv(4096))
        except BlockingIOError:
            return False
