"""Where the time of a training goes: what `MonitorCallback` wrote, as a part of a page."""

from __future__ import annotations

import csv
import math
import statistics
from pathlib import Path

from trw_pipeline.reporting.computational_summary import TRAINED, WAIT_SHARE, time_column
from trw_pipeline.reporting.curve_chart import colour_class
from trw_pipeline.reporting.findings import Wait
from trw_pipeline.reporting.markup import Markup, element, table
from trw_pipeline.reporting.number_text import number_text, percent_text

_PHASES = {
    "data loading": time_column("Training data loading"),
    "host to device": time_column("Training host to device"),
    **{phase.lower(): time_column(phase) for phase in TRAINED},
    "other": time_column("Training other"),
}


def read_measurements(folder: Path) -> dict[str, list[float]]:
    """Read `logs/computational.tsv` of a run folder.

    Returns:
        Column -> its measurements, without empty cells; nothing where there is no such file, or another one.
    """
    path = folder / "logs" / "computational.tsv"
    columns: dict[str, list[float]] = {}
    if not path.is_file():
        return columns
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file, delimiter="\t"):
            for name, cell in row.items():
                try:
                    columns.setdefault(name, []).append(float(cell))
                except (TypeError, ValueError):  # an empty cell, or a table of somebody else
                    continue
    return columns


def device_wait(measured: dict[str, list[float]]) -> Wait | None:
    """Tell how long the device waited for data, in the mean of the epochs; without epoch 0 if there are more."""
    shares = [share for share in measured.get(WAIT_SHARE, []) if math.isfinite(share)]
    return Wait(statistics.fmean(shares[1:] or shares), "device") if shares else None


def phases_part(measured: dict[str, list[float]]) -> Markup | None:
    """Show the phases of an iteration as a bar and as a table; None if none was measured."""
    means = {phase: statistics.fmean(measured[column]) for phase, column in _PHASES.items() if measured.get(column)}
    total = sum(means.values())
    if not total > 0:
        return None
    colours = {phase: colour_class(number) for number, phase in enumerate(_PHASES)}
    pieces = [
        element(
            "span",
            class_=colours[phase],
            style=f"width:{100 * mean / total:.2f}%",
            title=f"{phase} {percent_text(mean / total)}",
        )
        for phase, mean in means.items()
    ]
    legend = [
        element("span", f"{phase} {percent_text(mean / total)}", class_=colours[phase]) for phase, mean in means.items()
    ]
    rows = [
        (phase, (number_text(1000 * mean), mean), (percent_text(mean / total), mean), len(measured[_PHASES[phase]]))
        for phase, mean in means.items()
    ]
    return element(
        "div",
        element("div", pieces, class_="bar", role="img", aria_label="phases of an iteration of the training"),
        element("p", legend, class_="legend"),
        table(("phase of an iteration", "mean (ms)", "share", "measured"), rows, "phases of an iteration"),
    )
