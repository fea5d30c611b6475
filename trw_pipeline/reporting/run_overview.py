"""The head of a report: what a person sees in the first five seconds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trw_pipeline.reporting.findings import (
    Finding,
    Level,
    Wait,
    best_of,
    findings_of,
    main_metric,
    mean_speed,
    wait_level,
)
from trw_pipeline.reporting.markup import Child, Markup, element
from trw_pipeline.reporting.number_text import date_text, duration_text, number_text, percent_text
from trw_pipeline.reporting.run_record import MetricPath, RunRecord
from trw_pipeline.training.history import INFO, OVERALL_LOSS

_SILENT_S, _SILENT_EPOCHS = 600.0, 5
"""A training that goes on and is not heard of for so long, and for so many of its epochs, may have been killed."""

_VERDICTS: dict[Level, str] = {"good": "Nothing conspicuous", "fair": "Worth a look", "bad": "Needs attention"}


def overview(record: RunRecord, wait: Wait | None) -> Markup:
    """Show name and state of a training, its result, its speed, how long it waited for data, and what is wrong."""
    found = findings_of(record, wait)
    tiles = [
        *_result_tile(record, found),
        *_wait_tile(wait),
        *_speed_tile(record),
        *_findings_tile(record, found),
    ]
    items = [
        element("li", element("strong", f"{one.subject}: ", class_=one.level), one.text, class_=one.level)
        for one in found
    ]
    return element(
        "header",
        element("h1", record.name),
        element("div", _state(record), class_="line"),
        _silence(record),
        element("div", tiles, class_="tiles"),
        element("ul", items, class_="findings") if items else None,
    )


def metric_title(path: MetricPath) -> str:
    """Name a metric for people: `mnist · test · digit · classification error`."""
    return " · ".join(part for part in path if part != OVERALL_LOSS)


def state_text(record: RunRecord) -> str:
    """Tell in a word or two how far a training is."""
    done, wanted = len(record.epochs), record.nb_epochs
    if record.state == "completed":
        return "Completed" if done >= wanted else "Stopped early"
    return {"running": "Running", "interrupted": "Interrupted", "unknown": "Read from a log"}[record.state]


def _state(record: RunRecord) -> Iterator[Markup]:
    done, wanted = len(record.epochs), record.nb_epochs
    level = {"completed": "good", "interrupted": "bad"}.get(record.state, "quiet")
    yield element("span", state_text(record), class_=f"chip {level}")
    yield element("span", f"{done} epochs" if done == wanted else f"{done} of {wanted} epochs")
    if record.elapsed_s is not None:
        yield element("span", duration_text(record.elapsed_s))
        if record.state == "running" and done:
            yield element("span", f"about {duration_text(record.elapsed_s / done * (wanted - done))} to go")
    if record.started is not None:
        yield element("span", f"started {date_text(record.started)}", class_="quiet")


def _silence(record: RunRecord) -> Markup | None:
    """What the script of the page fills in when there has been no news for long."""
    if record.state != "running":
        return None
    limit_s = max(_SILENT_S, _SILENT_EPOCHS * (record.elapsed_s or 0.0) / max(len(record.epochs), 1))
    return element("p", class_="bad", hidden=True, data_updated=record.updated, data_limit=limit_s)


def _tile(title: str, value: str, text: Child, level: Level | None = None) -> Markup:
    shown = element("div", value, class_="value")
    return element("div", element("h2", title), shown, element("p", text), class_=f"tile {level or ''}".strip())


def _result_tile(record: RunRecord, found: Sequence[Finding]) -> Iterator[Markup]:
    path = main_metric(record)
    if path is None:
        return
    curve, value = record.curve(path), record.final_value(path)
    best = best_of(record, path)
    if value is None:
        value = curve[-1][1]
    text = "" if best is None else f"best in epoch {best[0]}: {number_text(best[1])}"
    levels: list[Level] = [one.level for one in found if one.subject in ("Learning", "Overfitting", "Numbers")]
    yield _tile(metric_title(path), number_text(value), text, levels[0] if levels else "good")


def _wait_tile(wait: Wait | None) -> Iterator[Markup]:
    if wait is not None:
        title, text = f"The {wait.who} waited for data", "of the time of training"
        yield _tile(title, percent_text(wait.share), text, wait_level(wait.share))


def _speed_tile(record: RunRecord) -> Iterator[Markup]:
    speed = mean_speed(record, record.train_split)
    if speed is not None:
        times = [time_s for split in record.splits() for _, time_s in record.curve((*split, INFO, "time_s"))]
        text = f"an epoch takes {duration_text(sum(times) / len(record.epochs))}"
        yield _tile("Training speed", f"{number_text(round(speed, 1))} samples/s", text)


def _findings_tile(record: RunRecord, found: Sequence[Finding]) -> Iterator[Markup]:
    if not record.epochs and not found:
        return
    worst: Level = found[0].level if found else "good"
    text = f"{len(found)} finding{'s' * (len(found) != 1)}, below" if found else _learned(record)
    yield _tile("Findings", _VERDICTS[worst], text, worst)


def _learned(record: RunRecord) -> str:
    for dataset, split in record.splits():
        curve = record.curve((dataset, split, OVERALL_LOSS, "loss"))
        if split == record.train_split and len(curve) > 1:
            return f"the training loss fell from {number_text(curve[0][1])} to {number_text(curve[-1][1])}"
    return "so far"
