"""How long a test waits on a machine that others use, too."""

from __future__ import annotations

import os


def patience() -> float:
    """Returns how many times longer things may take than on an idle machine: the processes for each core, at least 1.

    Limits that are promised for an idle machine are multiplied by it. It is the system's mean over the last minute.
    """
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
