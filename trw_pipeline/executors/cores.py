"""How many workers this machine has room for: what `nb_workers="auto"` means."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from trw_pipeline.typing import NbWorkers

logger = logging.getLogger(__name__)


class Cores(NamedTuple):
    """What this process may use of the machine.

    Attributes:
        allowed: cores in its affinity mask.
        quota: cores' worth of time that its control group grants, such as 2.5; None without a limit.
    """

    allowed: int
    quota: float | None

    @property
    def usable(self) -> int:
        """Whole cores that it can keep busy, at least 1."""
        return max(1, min(self.allowed, math.floor(self.allowed if self.quota is None else self.quota)))

    def __str__(self) -> str:
        quota = "no limit of its control group" if self.quota is None else f"a control group that grants {self.quota:g}"
        return f"{self.allowed} in the affinity mask, {quota}"


def cores(root: Path = Path("/")) -> Cores:
    """Looks up what this process may use. What can not be read is no limit.

    Args:
        root: of the file system; another one only for tests.
    """
    return Cores(_allowed(), min(_quotas(root), default=None))


def with_auto(nb_workers: NbWorkers, who: str) -> int:
    """Returns a number as it is; for "auto" the usable cores less one for this process, but at least 1.

    What was chosen, and why, is told in a log record of level INFO.

    Args:
        nb_workers: the wish.
        who: has the workers.
    """
    if nb_workers != "auto":
        return nb_workers
    found = cores()
    chosen = max(1, found.usable - 1)
    logger.info("%r has %d workers: usable cores (%s), less one for the main process", who, chosen, found)
    return chosen


def _allowed() -> int:
    if hasattr(os, "process_cpu_count"):  # Python 3.13; knows -X cpu_count too
        return os.process_cpu_count() or 1  # pyright: ignore
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _quotas(root: Path) -> Iterator[float]:
    """Yields the limits of the control group of this process and of all above it, of version 2 or 1."""
    mounted = root / "sys" / "fs" / "cgroup"
    for line in _text(root / "proc" / "self" / "cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:  # version 2
            for group in _upwards(mounted, path):
                quota, _, period = _text(group / "cpu.max").partition(" ")
                yield from _quota(quota, period)
        elif "cpu" in controllers.split(","):
            for name in dict.fromkeys([controllers, "cpu"]):
                for group in _upwards(mounted / name, path):
                    yield from _quota(_text(group / "cpu.cfs_quota_us"), _text(group / "cpu.cfs_period_us"))


def _upwards(mounted: Path, path: str) -> Iterator[Path]:
    """Yields a group and those above it. In a container its path may be that of the host, which is not there."""
    group = mounted / path.strip("/")
    yield group
    while group != mounted:
        group = group.parent
        yield group


def _quota(quota: str, period: str) -> Iterator[float]:
    """Yields what two numbers of microseconds say; nothing for "max", -1, and what is no number."""
    if quota.strip().isdecimal() and period.strip().isdecimal() and int(period):
        yield int(quota) / int(period)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, ValueError):
        return ""
