"""One question, its contenders, and the goals that ours should reach: measured in turn, laid out as a table.

`bench_transport.py` and `bench_pool.py` are lists of such comparisons. A goal is about the median over rounds of one
figure, or of its ratio to that of another contender in the same round. A run reports what was missed as plainly as what
was reached, and nothing fails.
"""

from __future__ import annotations

import argparse
import gc
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.harness import (
    MIN_ROUNDS,
    Figures,
    Rounds,
    Spread,
    alternate,
    machine,
    machine_line,
    ratios,
    shown,
    table,
    values_of,
    write_json,
)


@dataclass(frozen=True)
class Column:
    """A figure of the table.

    Attributes:
        title: with its unit.
        figure: its name in the `Figures`. A contender that does not have it leaves its cell empty.
        base: the contender that it is divided by, round by round; None shows it as it is.
        inverse: the base divided by it instead.
        median_only: without the least and the greatest, where they stand in another column already.
    """

    title: str
    figure: str
    base: str | None = None
    inverse: bool = False
    median_only: bool = False

    def cell(self, rounds: Rounds, contender: str) -> str:
        """Writes `median (least-greatest)` of one contender."""
        measured, base = rounds[contender], rounds.get(self.base or contender, [{}])
        if self.figure not in measured[0] or self.figure not in base[0]:
            return ""
        if self.base is None:
            spread = Spread.of(values_of(measured, self.figure))
        else:
            spread = Spread.of(ratios(*((base, measured) if self.inverse else (measured, base)), self.figure))
        return shown(spread.median) if self.median_only else str(spread)


@dataclass(frozen=True)
class Goal:
    """What the median of a contender's figure, or of its ratio to that of `base`, should be.

    Attributes:
        contender: whose figure.
        figure: its name in the `Figures`.
        at_least: the least value that reaches it, or None.
        at_most: the greatest one, or None.
        base: the contender that it is divided by, round by round; None takes the figure as it is.
    """

    contender: str
    figure: str
    at_least: float | None = None
    at_most: float | None = None
    base: str | None = None

    def __post_init__(self) -> None:
        if (self.at_least is None) == (self.at_most is None):
            raise ValueError(f"a goal is at_least or at_most a value, got {self.at_least} and {self.at_most}")

    def is_reached_by(self, value: float) -> bool:
        """Whether such a median would do."""
        return value >= self.at_least if self.at_least is not None else value <= (self.at_most or 0.0)

    def line(self, rounds: Rounds) -> str:
        """Says in one line what was asked for, what came out, and whether that will do."""
        if missing := [name for name in (self.contender, self.base) if name is not None and name not in rounds]:
            return f"goal: {self._what()}: not measured, without {' and '.join(missing)}"
        measured = rounds[self.contender]
        values = (
            values_of(measured, self.figure) if self.base is None else ratios(measured, rounds[self.base], self.figure)
        )
        spread = Spread.of(values)
        return f"goal: {self._what()}: {spread}, {'reached' if self.is_reached_by(spread.median) else 'MISSED'}"

    def _what(self) -> str:
        base = "" if self.base is None else f" / {self.base}"
        limit = (
            f"at least {shown(self.at_least)}" if self.at_least is not None else f"at most {shown(self.at_most or 0)}"
        )
        return f"{self.contender}{base}, {self.figure}, {limit}"


@dataclass(frozen=True)
class Comparison:
    """Contenders for one question.

    Attributes:
        title: what is measured, in one line.
        contenders: name -> measures once.
        columns: of the table.
        goals: what ours should reach.
        left_out: name of a contender -> why it is not there.
    """

    title: str
    contenders: Mapping[str, Callable[[], Figures]]
    columns: Sequence[Column]
    goals: Sequence[Goal] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)

    def report(self, rounds: Rounds) -> str:
        """Lays out the figures of all contenders, then the goals."""
        rows = [[name, *(column.cell(rounds, name) for column in self.columns)] for name in rounds]
        return "\n".join(
            [
                table(["", *(column.title for column in self.columns)], rows),
                *(f"left out: {name} ({why})" for name, why in self.left_out.items()),
                *(goal.line(rounds) for goal in self.goals),
            ]
        )


def measured(comparison: Comparison, nb_rounds: int) -> Rounds:
    """Measures the contenders in turn; what one leaves behind is collected before the next begins."""

    def after_collecting(measure: Callable[[], Figures]) -> Callable[[], Figures]:
        def collect_and_measure() -> Figures:
            gc.collect()
            return measure()

        return collect_and_measure

    return alternate({name: after_collecting(one) for name, one in comparison.contenders.items()}, nb_rounds)


def run(
    program: str, makers: Mapping[str, Callable[[bool], Comparison]], arguments: Sequence[str] | None = None
) -> None:
    """Measures what the command line asks for, and prints tables.

    Args:
        program: name of the module, for `--help`.
        makers: name of a comparison -> makes it, when its turn comes; receives whether it should be quick.
        arguments: of the command line; None takes those of this process.
    """
    given = _parsed(program, list(makers), arguments)
    facts = machine()
    print(machine_line(facts))
    results: dict[str, Rounds] = {}
    for name in [name for name in makers if name in given.only]:
        comparison = makers[name](given.quick)
        print(f"\n{name}: {comparison.title}; {given.rounds} rounds, load {os.getloadavg()[0]:.2f} before")
        results[name] = measured(comparison, given.rounds)
        print(comparison.report(results[name]), flush=True)
    if given.quick:
        print("\nquick run: short and with few rounds, not to be quoted")
    if given.json is not None:
        write_json(given.json, {"machine": facts, "quick": given.quick, "comparisons": results})


def _parsed(program: str, names: Sequence[str], arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m {program}")
    parser.add_argument("--quick", action="store_true", help="short measurements, one round: to see that it runs")
    parser.add_argument("--rounds", type=int, help=f"rounds for each comparison, at least {MIN_ROUNDS} (default)")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the figures of every round there")
    parser.add_argument("--only", default=",".join(names), metavar="NAMES", help=f"some of {','.join(names)}")
    given = parser.parse_args(arguments)
    given.only = given.only.split(",")
    if given.rounds is None:
        given.rounds = 1 if given.quick else MIN_ROUNDS
    if unknown := [name for name in given.only if name not in names]:
        parser.error(f"--only must name some of {list(names)}, got {unknown}")
    if given.rounds < (1 if given.quick else MIN_ROUNDS):
        parser.error(f"--rounds must be at least {MIN_ROUNDS}, got {given.rounds}")
    return given
