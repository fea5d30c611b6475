"""Runs contenders in turn and says what came out: medians and spread, ratios, CPU seconds, the machine.

Two rules make the numbers worth reading. Contenders alternate within one run, and a ratio is taken between two
measurements of the same round before the median over rounds: what slows the whole machine for a while slows both sides
of a pair. And every value of every round is kept, so that a reader can see how much a median hides.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import psutil

T = TypeVar("T")

Figures: TypeAlias = Mapping[str, float]
"""What one measurement gives: name of the figure -> value."""

Rounds: TypeAlias = dict[str, list[Figures]]
"""Contender -> its figures, one for each round."""

MIN_ROUNDS = 5
"""With fewer a median says little; a quick run is for seeing that everything runs."""


# Rounds


def order_of_round(contenders: Sequence[T], number: int) -> list[T]:
    """Returns the order of the round `number`, counted from 0: forwards, then backwards, then forwards again.

    So no contender always has the same one before it, whose garbage or heat it would have to bear.

    >>> order_of_round("AB", 0), order_of_round("AB", 1)
    (['A', 'B'], ['B', 'A'])
    """
    return list(contenders) if number % 2 == 0 else list(reversed(contenders))


def alternate(contenders: Mapping[str, Callable[[], Figures]], nb_rounds: int) -> Rounds:
    """Measures every contender once in each round.

    Args:
        contenders: name -> measures once. One that raises ends the run: figures without it would mislead.
        nb_rounds: at least 1.

    Raises:
        ValueError: `nb_rounds` is less than 1.
    """
    if nb_rounds < 1:
        raise ValueError(f"nb_rounds must be at least 1, got {nb_rounds}")
    rounds: Rounds = {name: [] for name in contenders}
    for number in range(nb_rounds):
        for name in order_of_round(list(contenders), number):
            rounds[name].append(contenders[name]())
    return rounds


# Arithmetic


@dataclass(frozen=True)
class Spread:
    """The median of some values, and the least and the greatest of them."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Sums up at least one value.

        Raises:
            ValueError: there is none.
        """
        if not values:
            raise ValueError("a spread needs at least one value, got none")
        return cls(statistics.median(values), min(values), max(values))

    def __str__(self) -> str:
        return f"{shown(self.median)} ({shown(self.low)}-{shown(self.high)})"


def values_of(rounds: Sequence[Figures], figure: str) -> list[float]:
    """Returns one figure of every round."""
    return [figures[figure] for figures in rounds]


def ratios(rounds: Sequence[Figures], base: Sequence[Figures], figure: str) -> list[float]:
    """Divides one figure by the base's, round by round.

    Raises:
        ValueError: the two have not the same number of rounds.
    """
    if len(rounds) != len(base):
        raise ValueError(f"ratios need pairs of rounds, got {len(rounds)} and {len(base)}")
    return [value / of_base for value, of_base in zip(values_of(rounds, figure), values_of(base, figure), strict=True)]


def shown(value: float) -> str:
    """Writes a number with three digits that count: 0.00123, 12.3, 45,600."""
    if value == 0 or abs(value) >= 100:
        digits = max(0, len(str(int(abs(value)))) - 3)
        return f"{round(value, -digits):,.0f}"
    return f"{value:.3g}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Aligns cells: the first column to the left, the others to the right.

    Raises:
        ValueError: a row has not one cell for each column.
    """
    for row in rows:
        if len(row) != len(header):
            raise ValueError(f"a row must have {len(header)} cells, got {len(row)}: {list(row)}")
    widths = [max(len(line[column]) for line in [header, *rows]) for column in range(len(header))]
    lines = [header, ["-" * width for width in widths], *rows]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


# Cost


class CpuClock:
    """CPU seconds (user and system) that this process and all its descendants use from now on.

    Everything is read while the processes live: from the CPU clock of each, to the nanosecond, and including threads
    that have ended. What a process has used is lost with it when it ends (its parent learns of it only after waiting
    for it, and that parent may be a fork server), so a process that ends in between is an error, not a gift to
    whoever owned it. Measure a stretch in which pools stay open.

    Linux only: there a process's clock can be read by number.
    """

    def __init__(self) -> None:
        self._before = {pid: _cpu_s(pid) for pid in _family()}

    def elapsed_s(self) -> float:
        """Returns the CPU seconds since this clock was made; a process that started since counts whole.

        Raises:
            RuntimeError: a process ended since.
        """
        # Our own first: looking for new processes costs some milliseconds.
        now = {pid: _cpu_s(pid) for pid in self._before}
        now |= {pid: _cpu_s(pid) for pid in _family() if pid not in now}
        return sum(now.values()) - sum(self._before.values())


def _family() -> list[int]:
    # Our own last, so that it does not pay for the search.
    return [*(child.pid for child in psutil.Process().children(recursive=True)), os.getpid()]


def _cpu_s(pid: int) -> float:
    # How Linux numbers the clock of a process, as clock_getcpuclockid(3) would return it. /proc counts in steps of
    # 10 ms, which is as much as some contenders use in a whole epoch.
    try:
        return time.clock_gettime(~pid << 3 | 2)
    except OSError as error:
        raise RuntimeError(f"process {pid} ended while CPU time was measured; what it had used is lost") from error


def busy_s() -> float:
    """Returns the seconds that all cores of the machine were busy since it started, whoever with."""
    times = psutil.cpu_times()
    return times.user + times.nice + times.system + times.irq + times.softirq + times.steal


def machine() -> dict[str, str]:
    """Describes the machine and the versions that matter, without a name or a path in it."""
    return {
        "cpu": _cpu_model(),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
        # Where Python may not keep bytecode, every worker that starts compiles what it imports: cold starts are slower.
        "python": platform.python_version() + (" (bytecode not kept)" if sys.dont_write_bytecode else ""),
        **{package: version(package) for package in ("torch", "numpy", "pyzmq")},
        "load before": f"{os.getloadavg()[0]:.2f}",
    }


def _cpu_model() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.machine()


def machine_line(facts: Mapping[str, str]) -> str:
    """Writes it on one line."""
    return ", ".join(f"{name} {value}" for name, value in facts.items())


def write_json(path: Path, report: Mapping[str, Any]) -> None:
    """Writes a report, with the values of every round, as JSON."""
    path.write_text(json.dumps(report, indent=1) + "\n")
