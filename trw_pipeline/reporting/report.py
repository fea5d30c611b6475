"""One page about one training: how it went, in a file that a person opens in a browser.

run folder ─┬─ report.json, or trainlog.csv ─────── run_record ──┐
            ├─ logs/computational.tsv ───────────── run_phases ──┼── report.html
            └─ pictures and texts of other callbacks ────────────┘
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from trw_pipeline.files import write_text
from trw_pipeline.reporting.curve_chart import curve_chart
from trw_pipeline.reporting.findings import best_of, loop_wait
from trw_pipeline.reporting.markup import Child, Markup, element, page, plain_table, table
from trw_pipeline.reporting.metric_direction import metric_direction
from trw_pipeline.reporting.number_text import date_text, number_text, percent_text
from trw_pipeline.reporting.run_overview import overview
from trw_pipeline.reporting.run_phases import device_wait, phases_part, read_measurements
from trw_pipeline.reporting.run_pictures import OF_CLASSES, Gallery, galleries, is_small
from trw_pipeline.reporting.run_record import RunRecord, read_run
from trw_pipeline.training.history import INFO, OVERALL_LOSS, RESOURCES

REPORT_FILE = "report.html"

SUMMARY_FILE = "model_summary.txt"
"""Of `CallbackModelSummary`."""

REFRESH_S = 10.0
"""Seconds after which a browser looks again at the page of a training that goes on."""

NB_EPOCHS_LISTED = 200
"""Of the newest epochs there is a row a split in the table of speeds."""

TEXT_CHARACTERS = 20_000
"""Most of a text file."""

_STAGE_COLUMNS = {
    "items": "epoch_items",
    "items/s": "items_per_s",
    "workers": "workers",
    "busy": "load",
    "job (ms)": "job_s_p50",
    "failed": "jobs_failed",
    "in reservoir": "size",
    "times served": "echo_factor",
}

_RESOURCES = {
    "cpu_percent": "CPU, 100 % a core",
    "cpu_rss": "Memory of the training, GiB",
    "cpu_memory_used": "Memory used on the machine, GiB",
    "gpu_percent": "GPU, %",
    "gpu_memory_used": "GPU memory, GiB",
    "cpu_processes": "Processes",
    "cpu_open_files": "Open files",
}


def write_report(folder: Path, record: RunRecord | None = None) -> Path:
    """Make `report.html` of what a run folder has, atomically; an older one is replaced.

    Args:
        folder: of the run.
        record: what the training told; None: it is read from the folder.

    Returns:
        Path of the page.

    Raises:
        ValueError: the folder has neither `report.json` nor `trainlog.csv`, or what it has can not be read.
        OSError: a file can not be read or written.
    """
    path = folder / REPORT_FILE
    write_text(path, report_page(read_run(folder) if record is None else record, folder))
    return path


def report_page(record: RunRecord, folder: Path) -> str:
    """Make the page.

    Args:
        record: what the training told.
        folder: where the pictures and the measurements of other callbacks are.

    Returns:
        A page of HTML that loads nothing; while the training goes on, a browser reads it again every `REFRESH_S`.
    """
    measured = read_measurements(folder)
    sections = list(_sections(record, folder, measured))
    links = [element("li", element("a", title, href=f"#{_anchor(title)}")) for title, _ in sections]
    parts = [
        element("section", element("h2", title), content, id=_anchor(title), aria_label=title)
        for title, content in sections
    ]
    body = [
        overview(record, device_wait(measured) or loop_wait(record)),
        element("nav", element("ul", links), aria_label="parts of this page"),
        element("main", parts),
        element("footer", f"{folder.resolve()}, as of {date_text(record.updated)}"),
    ]
    return page(record.name, body, REFRESH_S if record.state == "running" else None)


def _anchor(title: str) -> str:
    return "".join(character if character.isalnum() else "-" for character in title.lower())


def _sections(record: RunRecord, folder: Path, measured: dict[str, list[float]]) -> Iterator[tuple[str, Child]]:
    """The parts of the page that have something to show."""
    charts = list(_metric_charts(record))
    if charts:
        yield "Curves", element("div", charts, class_="charts")
    if record.metrics():
        yield "Metrics", _metric_table(record)
    found = galleries(folder)
    yield from ((gallery.title, list(_gallery(gallery))) for gallery in found if gallery.name in OF_CLASSES)
    texts = list(_texts(folder))
    if texts:
        yield "Classification", texts
    yield from ((gallery.title, list(_gallery(gallery))) for gallery in found if gallery.name not in OF_CLASSES)
    speeds = list(_speeds(record, measured))
    if speeds:
        yield "Speed", speeds
    if record.stages:
        yield "Stages", list(_stages(record))
    resources = list(_resource_charts(record))
    if resources:
        yield "Resources", element("div", resources, class_="charts")
    if record.model:
        yield "Model", list(_model(record, folder))
    if record.options:
        yield "Configuration", plain_table(record.options.items(), "configuration")
    if record.versions:
        yield "Versions", plain_table(record.versions.items(), "versions")


def _colours(record: RunRecord) -> dict[str, int]:
    """Each split has its colour, the same in all charts."""
    return {split: number for number, split in enumerate(dict.fromkeys(split for _, split in record.splits()))}


def _metric_charts(record: RunRecord) -> Iterator[Markup]:
    has_one = len({dataset for dataset, _ in record.splits()}) == 1
    charts: dict[tuple[str, str, str], list[str]] = {}
    for dataset, split, output, metric in record.metrics():
        charts.setdefault((dataset, output, metric), []).append(split)
    for (dataset, output, metric), splits in charts.items():
        paths = {split: (dataset, split, output, metric) for split in splits}
        curves = {split: record.curve(path) for split, path in paths.items() if record.curve(path)}
        best = {split: found[0] for split, path in paths.items() if (found := best_of(record, path)) is not None}
        best.pop(record.train_split, None)
        names = [*([] if has_one else [dataset]), *([] if output == OVERALL_LOSS else [output]), metric]
        if curves:
            yield curve_chart(" · ".join(names), curves, _colours(record), best)


def _metric_table(record: RunRecord) -> Markup:
    columns = ["metric", "split", "better", "first", "last", "best", "in epoch"]
    has_final = record.final is not None
    rows: list[list[Child | tuple[Child, float | None]]] = []
    for path in record.metrics():
        dataset, split, output, metric = path
        curve, best, final = record.curve(path), best_of(record, path), record.final_value(path)
        name = metric if output == OVERALL_LOSS else f"{output} · {metric}"
        row = [
            name,
            f"{dataset} · {split}",
            metric_direction(metric),
            _value(curve[0][1] if curve else None),
            _value(curve[-1][1] if curve else None),
            (element("span", number_text(best[1]), class_="best-value"), best[1]) if best else "",
            best[0] if best else "",
            *([_value(final)] if has_final else []),
        ]
        rows.append(row)
    note = "The final evaluation is that of the model as it was left. " if has_final else ""
    return element(
        "div",
        table([*columns, *(["final"] if has_final else [])], rows, "metrics", nb_names=3),
        element("p", f"{note}A ring in a curve marks the best epoch.", class_="quiet small"),
    )


def _value(value: float | None) -> Child | tuple[Child, float | None]:
    return "" if value is None else (number_text(value), value)


def _texts(folder: Path) -> Iterator[Markup]:
    for path in sorted(folder.glob("*-report.txt")):
        yield _text(path.name.removesuffix("-report.txt"), path)


def _text(title: str, path: Path) -> Markup:
    with path.open(encoding="utf-8", errors="replace") as file:
        text = file.read(TEXT_CHARACTERS)
    return element("details", element("summary", title), element("pre", text, tabindex=0))


def _gallery(gallery: Gallery) -> Iterator[Markup]:
    small = [picture for picture in gallery.pictures if is_small(picture)]
    large = [picture for picture in gallery.pictures if not is_small(picture)]
    for pictures, kind in ((large, "pictures"), (small, "pictures small-ones")):
        if pictures:
            yield element("div", pictures, class_=kind)
    if gallery.nb_left_out:
        nb = len(gallery.pictures)
        yield element("p", f"{nb} of {nb + gallery.nb_left_out} pictures, of the newest epoch.", class_="quiet small")


def _speeds(record: RunRecord, measured: dict[str, list[float]]) -> Iterator[Markup]:
    phases = phases_part(measured)
    if phases is not None:
        yield phases
    splits = record.splits()
    names = {split: " · ".join(split) if len({dataset for dataset, _ in splits}) > 1 else split[1] for split in splits}
    charts: list[Markup] = []
    for title, metric, as_percent in (
        ("Samples a second", "samples_per_s", False),
        ("Waited for data, share of the time", "wait_share", True),
    ):
        curves = {name: record.curve((*split, INFO, metric)) for split, name in names.items()}
        curves = {name: curve for name, curve in curves.items() if curve}
        if curves:
            charts.append(curve_chart(title, curves, as_percent=as_percent))
    rates = {name: None for epoch in record.learning_rates for name in epoch}
    if rates:
        curves = {
            name: [(epoch, of[name]) for epoch, of in enumerate(record.learning_rates) if name in of] for name in rates
        }
        charts.append(curve_chart("Learning rate", curves))
    if charts:
        yield element("div", charts, class_="charts")
    rows = [
        (epoch, name, *_speed_cells(info))
        for epoch, entry in list(enumerate(record.epochs))[-NB_EPOCHS_LISTED:]
        for split, name in names.items()
        for info in [entry.get(split[0], {}).get(split[1], {}).get(INFO)]
        if info is not None
    ]
    if rows:
        columns = ("epoch", "split", "samples", "time (s)", "samples/s", "waited (s)", "waited")
        listed = table(columns, rows, "speed of each epoch", nb_names=2)
        title = "Epoch by epoch"
        if len(record.epochs) > NB_EPOCHS_LISTED:
            title += f": the last {NB_EPOCHS_LISTED}"
        yield element("details", element("summary", title), listed)


def _speed_cells(info: dict[str, float]) -> list[Child | tuple[Child, float | None]]:
    numbers = [_value(info.get(name)) for name in ("nb_samples", "time_s", "samples_per_s", "wait_s")]
    share = info.get("wait_share")
    return [*numbers, "" if share is None else (percent_text(share), share)]


def _stages(record: RunRecord) -> Iterator[Markup]:
    for split, stages in record.stages.items():
        used = [
            title
            for title, name in _STAGE_COLUMNS.items()
            if any(figures.get(name) for figures in stages.figures.values())
        ]
        rows = [
            (stage, *(_stage_cell(title, figures.get(_STAGE_COLUMNS[title])) for title in used))
            for stage, figures in stages.figures.items()
        ]
        yield element("h3", split)
        yield element("p", stages.limit)
        yield table(("stage", *used), rows, f"stages of {split}")
        yield element(
            "details", element("summary", "What each stage gives"), element("pre", stages.description, tabindex=0)
        )


def _stage_cell(title: str, value: float | None) -> Child | tuple[Child, float | None]:
    if not value:
        return ""
    if title == "busy":
        return percent_text(value), value
    return number_text(1000 * value if "(ms)" in title else value), value


def _resource_charts(record: RunRecord) -> Iterator[Markup]:
    splits = record.splits()
    has_one = len({dataset for dataset, _ in splits}) == 1
    for metric, title in _RESOURCES.items():
        curves = {
            split if has_one else f"{dataset} · {split}": record.curve((dataset, split, RESOURCES, metric))
            for dataset, split in splits
        }
        curves = {name: curve for name, curve in curves.items() if curve}
        if curves:
            yield curve_chart(title, curves)


def _model(record: RunRecord, folder: Path) -> Iterator[Markup]:
    name, layer, nb, nb_trained = record.model[0]
    frozen = "" if nb_trained == nb else f", {nb_trained:,} of them trained"
    yield element("p", f"{name or layer}: {nb:,} parameters{frozen}.")
    rows = [(name, layer, (f"{nb:,}", nb), (f"{trained:,}", trained)) for name, layer, nb, trained in record.model[1:]]
    if rows:
        yield table(("module", "layer", "parameters", "trained"), rows, "modules of the model", nb_names=2)
    summary = folder / SUMMARY_FILE
    if summary.is_file():
        yield _text("Shapes and operations", summary)
