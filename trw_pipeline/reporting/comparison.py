"""One page about several trainings: their curves over one another, and which was the best at what."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from trw_pipeline.reporting.curve_chart import colour_class, curve_chart
from trw_pipeline.reporting.findings import best_of, loop_wait, main_metric, mean_speed
from trw_pipeline.reporting.markup import Child, Markup, element, page, table
from trw_pipeline.reporting.metric_direction import best_index, metric_direction
from trw_pipeline.reporting.number_text import duration_text, number_text, percent_text
from trw_pipeline.reporting.run_overview import metric_title, state_text
from trw_pipeline.reporting.run_record import MetricPath, RunRecord

_OF_PLACE = ("logging_directory", "current_logging_directory", "trainer_run")
"""Options that differ between all trainings."""


def comparison_page(runs: Mapping[Path, RunRecord]) -> str:
    """Make the page.

    Args:
        runs: run folder -> what its training told, two or more, in the order of the page.

    Returns:
        A page of HTML that loads nothing.
    """
    named = dict(zip(_names(list(runs)), runs.values(), strict=True))
    colours = {name: number for number, name in enumerate(named)}
    paths = list(dict.fromkeys(path for record in named.values() for path in record.metrics()))
    sections: list[tuple[str, Child]] = [("Runs", _run_table(named))]
    if paths:
        sections.append(("Best values", _best_table(named, paths)))
    charts = list(_charts(named, paths, colours))
    if charts:
        sections.append(("Curves", element("div", charts, class_="charts")))
    differing = _differing_options(named)
    if differing is not None:
        sections.append(("Options that differ", differing))
    legend = element(
        "p", [element("span", name, class_=colour_class(colours[name])) for name in named], class_="legend"
    )
    body = [
        element("header", element("h1", f"{len(named)} runs"), legend, _verdict(named)),
        element("main", [element("section", element("h2", title), content) for title, content in sections]),
    ]
    return page(f"Comparison of {', '.join(named)}", body)


def _names(folders: list[Path]) -> list[str]:
    """The shortest ends of the paths that tell them apart."""
    parts = [folder.resolve().parts for folder in folders]
    for nb in range(1, max(map(len, parts)) + 1):
        names = [os.sep.join(part[-nb:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    return [f"{name} ({number})" for number, name in enumerate(map(str, folders))]


def _verdict(named: Mapping[str, RunRecord]) -> Markup | None:
    """Which run, or runs, is the best by what says most, in a sentence."""
    path = next((path for path in map(main_metric, named.values()) if path is not None), None)
    if path is None:
        return None
    bests = [best_of(record, path) for record in named.values()]
    values = [None if found is None else found[1] for found in bests]
    best = best_index(path[3], values)
    if best is None:
        return None
    names = [name for name, value in zip(named, values, strict=True) if value == values[best]]
    verb = "has" if len(names) == 1 else "have"
    told = f" {verb} the best {metric_title(path)}: {number_text(values[best] or 0.0)}."
    return element("p", element("strong", ", ".join(names), class_="good"), told)


def _run_table(named: Mapping[str, RunRecord]) -> Markup:
    rows: list[list[Child | tuple[Child, float | None]]] = []
    for name, record in named.items():
        speed, waited = mean_speed(record, record.train_split), loop_wait(record)
        rows.append(
            [
                name,
                state_text(record),
                len(record.epochs),
                "" if record.elapsed_s is None else (duration_text(record.elapsed_s), record.elapsed_s),
                "" if speed is None else (number_text(round(speed, 1)), speed),
                "" if waited is None else (percent_text(waited.share), waited.share),
            ]
        )
    return table(("run", "state", "epochs", "time", "samples/s", "waited for data"), rows, "runs", nb_names=2)


def _best_table(named: Mapping[str, RunRecord], paths: list[MetricPath]) -> list[Markup]:
    rows: list[list[Child | tuple[Child, float | None]]] = []
    for path in paths:
        found = [best_of(record, path) for record in named.values()]
        best = best_index(path[3], [None if one is None else one[1] for one in found])
        cells = [
            "" if one is None else (_best_cell(one, best is not None and one[1] == (found[best] or one)[1]), one[1])
            for one in found
        ]
        rows.append([metric_title(path), metric_direction(path[3]), *cells])
    note = "The best value of each run, and its epoch; ★ marks the best of all."
    columns = ("metric", "better", *named)
    return [table(columns, rows, "best values", nb_names=2), element("p", note, class_="quiet small")]


def _best_cell(found: tuple[int, float], is_best: bool) -> Markup:
    epoch, value = found
    text = element("span", number_text(value), class_="best-value" if is_best else None)
    return element("span", "★ " if is_best else None, text, element("span", f" ({epoch})", class_="quiet"))


def _charts(named: Mapping[str, RunRecord], paths: list[MetricPath], colours: Mapping[str, int]) -> Iterator[Markup]:
    for path in paths:
        curves = {name: record.curve(path) for name, record in named.items() if record.curve(path)}
        if curves:
            best = {name: found[0] for name, record in named.items() if (found := best_of(record, path)) is not None}
            yield curve_chart(metric_title(path), curves, colours, best)


def _differing_options(named: Mapping[str, RunRecord]) -> Markup | None:
    names = dict.fromkeys(name for record in named.values() for name in record.options)
    rows = [
        [name, *(record.options.get(name, "") for record in named.values())]
        for name in names
        if name.rpartition(".")[2] not in _OF_PLACE and len({record.options.get(name) for record in named.values()}) > 1
    ]
    if not rows:
        return None
    return table(("option", *named), rows, "options that differ", nb_names=1 + len(named))
