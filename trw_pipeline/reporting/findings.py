"""Whether a training went well, whether its device waited, and what is wrong: in sentences."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from typing import Literal, NamedTuple, TypeAlias

from trw_pipeline.reporting.metric_direction import best_index
from trw_pipeline.reporting.number_text import number_text, percent_text
from trw_pipeline.reporting.run_record import MetricPath, RunRecord
from trw_pipeline.training.history import INFO, OVERALL_LOSS

Level: TypeAlias = Literal["good", "fair", "bad"]

WAITED_FAIR, WAITED_BAD = 0.05, 0.25
"""Shares of its time that a training may wait before it is worth a look, and before it is a fault. From experience."""

RISEN = 0.1
"""A loss that has risen from its best by this share of what it had fallen before, and for `NB_RISEN` epochs, counts."""

NB_RISEN = 3


class Finding(NamedTuple):
    """One sentence, and how much it matters."""

    level: Level
    subject: str
    text: str


class Wait(NamedTuple):
    """How long a training waited for data.

    Attributes:
        share: of its time, in [0, 1].
        who: a device that is not the CPU works on while the loop waits, so the wait of one is not that of the other.
    """

    share: float
    who: Literal["device", "loop"]


def findings_of(record: RunRecord, wait: Wait | None) -> list[Finding]:
    """Find what somebody should look at, the worst first; empty where nothing is conspicuous.

    Args:
        record: of the training.
        wait: for data; None where that is not known.
    """
    found = [*_of_end(record), *_of_losses(record), *_of_wait(record, wait), *_of_stages(record)]
    return sorted(found, key=lambda finding: finding.level != "bad")


def main_metric(record: RunRecord) -> MetricPath | None:
    """Choose what says best how good the model is: a metric beside the loss, else the loss, of an evaluated split.

    Returns:
        Of the first dataset the first that there is in the last split that is not trained on, else of any split.
    """
    paths = record.metrics()
    evaluated = [path for path in paths if path[1] != record.train_split] or paths
    splits = [path[1] for path in evaluated if path[0] == evaluated[0][0]]
    of_split = [path for path in evaluated if path[0] == evaluated[0][0] and path[1] == splits[0]]
    beside_loss = [path for path in of_split if path[3] != "loss"]
    return next(iter([*beside_loss, *of_split]), None)


def best_of(record: RunRecord, path: MetricPath) -> tuple[int, float] | None:
    """Find the best epoch of a metric, and its value there; None if it never was a number."""
    curve = record.curve(path)
    best = best_index(path[3], [value for _, value in curve])
    return None if best is None else curve[best]


def loop_wait(record: RunRecord) -> Wait | None:
    """Tell how long the loop waited for data in splits that are trained on, over all epochs.

    Epoch 0, in which workers start, counts only where there is no other.
    """
    waits = [
        (info["wait_s"], info["time_s"])
        for epoch in record.epochs[1:] or record.epochs
        for splits in epoch.values()
        for split, figures in splits.items()
        for info in [figures.get(INFO, {})]
        if split == record.train_split and {"wait_s", "time_s"} <= info.keys()
    ]
    time_s = sum(time_s for _, time_s in waits)
    return Wait(min(sum(wait_s for wait_s, _ in waits) / time_s, 1.0), "loop") if time_s > 0 else None


def wait_level(share: float) -> Level:
    """Judge the share of the time that was spent waiting."""
    return "good" if share < WAITED_FAIR else "fair" if share < WAITED_BAD else "bad"


def mean_speed(record: RunRecord, split: str) -> float | None:
    """Give samples per second of a split over all epochs but the first, in which workers start, if there are more."""
    speeds = [
        info["samples_per_s"]
        for epoch in record.epochs[1:] or record.epochs
        for splits in epoch.values()
        for name, figures in splits.items()
        for info in [figures.get(INFO, {})]
        if name == split and "samples_per_s" in info
    ]
    return statistics.fmean(speeds) if speeds else None


def _of_end(record: RunRecord) -> Iterator[Finding]:
    if record.state == "interrupted":
        yield Finding("bad", "End", f"The training was interrupted after {_epochs(len(record.epochs))}: {record.error}")


def _of_losses(record: RunRecord) -> Iterator[Finding]:
    for path in record.metrics():
        dataset, split, output, metric = path
        curve = record.curve(path)
        bad = [epoch for epoch, value in curve if not math.isfinite(value)]
        if bad:
            what = f"{dataset}/{split}: {metric if output == OVERALL_LOSS else f'{output} {metric}'}"
            yield Finding("bad", "Numbers", f"{what} is no finite number in {_listed(bad)}.")
        if (output, metric) != (OVERALL_LOSS, "loss"):
            continue
        values = [value for _, value in curve if math.isfinite(value)]
        if split == record.train_split and len(values) > 1 and min(values[1:]) >= values[0]:
            text = f"The loss of {dataset}/{split} has not fallen: {number_text(values[0])} at first, "
            yield Finding("bad", "Learning", f"{text}{number_text(values[-1])} now.")
        elif split != record.train_split:
            yield from _of_rise(f"{dataset}/{split}", curve)


def _of_rise(name: str, curve: list[tuple[int, float]]) -> Iterator[Finding]:
    finite = [(epoch, value) for epoch, value in curve if math.isfinite(value)]
    best = best_index("loss", [value for _, value in finite])
    if best is None:
        return
    fallen, risen = finite[0][1] - finite[best][1], finite[-1][1] - finite[best][1]
    later = [value for _, value in finite[best + 1 :]]
    if len(later) >= NB_RISEN and risen > RISEN * max(fallen, abs(finite[best][1])):
        yield Finding(
            "fair",
            "Overfitting",
            f"The loss of {name} was best in epoch {finite[best][0]} ({number_text(finite[best][1])}) and has risen to "
            f"{number_text(finite[-1][1])} since.",
        )


def _of_wait(record: RunRecord, wait: Wait | None) -> Iterator[Finding]:
    if wait is None or wait_level(wait.share) == "good":
        return
    of_training = [stages for name, stages in record.stages.items() if name.endswith(f"/{record.train_split}")]
    limit = f" {of_training[0].limit}" if of_training else ""
    text = f"The {wait.who} waited for data {percent_text(wait.share)} of the time of training.{limit}"
    yield Finding(wait_level(wait.share), "Data", text)


def _of_stages(record: RunRecord) -> Iterator[Finding]:
    for split, stages in record.stages.items():
        for stage, figures in stages.figures.items():
            failed, lost = figures.get("jobs_failed", 0), figures.get("jobs_lost", 0)
            if failed:
                yield Finding("bad", "Samples", f"{split}: {failed:.0f} jobs of {stage!r} failed.")
            if lost:
                yield Finding("fair", "Workers", f"{split}: {lost:.0f} jobs of {stage!r} lost their worker.")


def _listed(epochs: list[int]) -> str:
    few = ", ".join(map(str, epochs[:5]))
    return f"epoch{'s' * (len(epochs) > 1)} {few}{', ...' * (len(epochs) > 5)}"


def _epochs(nb: int) -> str:
    return f"{nb} epoch{'s' * (nb != 1)}"
