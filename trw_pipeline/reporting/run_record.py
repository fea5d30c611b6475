"""What a training told of itself: plain data, in `report.json` of its run folder, from which pages are made."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

from trw_pipeline.files import write_text
from trw_pipeline.training.history import INFO, OVERALL_LOSS, RESOURCES, EpochHistory

RECORD_FILE = "report.json"
LOG_FILE = "trainlog.csv"

State: TypeAlias = Literal["running", "completed", "interrupted", "unknown"]

MetricPath: TypeAlias = tuple[str, str, str, str]
"""(dataset, split, output, metric)"""


@dataclass(frozen=True, kw_only=True)
class Stages:
    """The chain that made the batches of a split, in its newest epoch.

    Attributes:
        limit: what limits it, in a sentence.
        description: its stages and what each gives, as text.
        figures: stage -> name -> figure, as `Sequence.statistics` tells them; the last is the consumer.
    """

    limit: str
    description: str
    figures: dict[str, dict[str, float]]


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """A training, as far as it has come.

    Attributes:
        name: of its run folder.
        state: "unknown" where only a log tells of it.
        error: what ended it, or "".
        started: date of its start, as seconds since 1970, or None.
        updated: date of this record, the same.
        elapsed_s: seconds of training, without the time between an interruption and its resumption; or None.
        nb_epochs: asked for.
        train_split: name of the splits that are trained on.
        epochs: what was measured, an entry an epoch, as in the history.
        final: what the final evaluation measured, or None.
        learning_rates: name -> rate, an entry an epoch that knows them.
        stages: "<dataset>/<split>" -> its chain.
        model: (name, layer, number of parameters, of them trained), a row a module.
        options: name -> value, as text.
        versions: name -> version, as text.
    """

    name: str
    state: State
    error: str = ""
    started: float | None = None
    updated: float
    elapsed_s: float | None = None
    nb_epochs: int
    train_split: str = "train"
    epochs: list[EpochHistory]
    final: EpochHistory | None = None
    learning_rates: list[dict[str, float]] = field(default_factory=list[dict[str, float]])
    stages: dict[str, Stages] = field(default_factory=dict[str, Stages])
    model: list[tuple[str, str, int, int]] = field(default_factory=list[tuple[str, str, int, int]])
    options: dict[str, str] = field(default_factory=dict[str, str])
    versions: dict[str, str] = field(default_factory=dict[str, str])

    def curve(self, path: MetricPath) -> list[tuple[int, float]]:
        """Give the points (epoch, value) of a metric; epochs that have it not are left out."""
        dataset, split, output, metric = path
        values = [epoch.get(dataset, {}).get(split, {}).get(output, {}).get(metric) for epoch in self.epochs]
        return [(epoch, value) for epoch, value in enumerate(values) if value is not None]

    def final_value(self, path: MetricPath) -> float | None:
        """Give what the final evaluation found of a metric, or None."""
        dataset, split, output, metric = path
        return (self.final or {}).get(dataset, {}).get(split, {}).get(output, {}).get(metric)

    def splits(self) -> list[tuple[str, str]]:
        """List (dataset, split) of all that ran, in the order of the history."""
        entries = [*self.epochs, self.final or {}]
        return list(
            dict.fromkeys((dataset, split) for entry in entries for dataset in entry for split in entry[dataset])
        )

    def metrics(self) -> list[MetricPath]:
        """List what is known of the model, in the order of the history: not what was measured of machine and loop.

        An output whose loss is in every split the overall loss says nothing new by it, and is not listed with it.
        """
        found: dict[MetricPath, None] = {}
        for epoch in [*self.epochs, *([] if self.final is None else [self.final])]:
            for dataset, splits in epoch.items():
                for split, outputs in splits.items():
                    for output, metrics in outputs.items():
                        if output not in (INFO, RESOURCES):
                            found |= {(dataset, split, output, metric): None for metric in metrics}
        return [path for path in sorted(found, key=lambda path: path[2] != OVERALL_LOSS) if not self._is_repeated(path)]

    def _is_repeated(self, path: MetricPath) -> bool:
        dataset, _, output, metric = path
        if metric != "loss" or output == OVERALL_LOSS:
            return False
        entries = [*self.epochs, self.final or {}]
        splits = [outputs for entry in entries for outputs in entry.get(dataset, {}).values() if output in outputs]
        losses = [
            (outputs[output].get("loss", math.nan), outputs.get(OVERALL_LOSS, {}).get("loss", math.nan))
            for outputs in splits
        ]
        return all(math.isclose(loss, overall) or (loss != loss and overall != overall) for loss, overall in losses)

    def write(self, folder: Path) -> None:
        """Write `report.json`, atomically."""
        write_text(folder / RECORD_FILE, json.dumps({"format": 1, **_plain(vars(self))}, allow_nan=False))


def read_run(folder: Path) -> RunRecord:
    """Read what a run folder tells: `report.json`, or else `trainlog.csv`.

    Raises:
        ValueError: it has neither, or what it has can not be read.
    """
    record, log = folder / RECORD_FILE, folder / LOG_FILE
    if record.is_file():
        return _read_record(record)
    if log.is_file():
        return _read_log(log)
    raise ValueError(
        f"a run folder must have {RECORD_FILE} (of CallbackReport) or {LOG_FILE} (of CallbackTrainLog), got {folder}"
    )


def _read_record(path: Path) -> RunRecord:
    try:
        saved = cast("dict[str, Any]", json.loads(path.read_text(encoding="utf-8")))
        if saved.pop("format") != 1:
            raise ValueError("it has another format than 1")
        names = {one.name for one in fields(RunRecord)}
        saved = {name: value for name, value in saved.items() if name in names}
        saved["epochs"] = [_numbers(epoch) for epoch in saved["epochs"]]
        saved["final"] = None if saved["final"] is None else _numbers(saved["final"])
        saved["learning_rates"] = [_numbers(rates) for rates in saved["learning_rates"]]
        saved["stages"] = {
            name: Stages(**{**stages, "figures": _numbers(stages["figures"])})
            for name, stages in saved["stages"].items()
        }
        saved["model"] = [tuple(row) for row in saved["model"]]
        return RunRecord(**saved)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not as CallbackReport writes it: {error!r}") from error


def _read_log(path: Path) -> RunRecord:
    """Reads a log of which each column `<dataset>/<split>/<output>/<metric>` is a metric."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = [{name: float(value) for name, value in row.items() if value} for row in csv.DictReader(file)]
    except (ValueError, TypeError, csv.Error) as error:
        raise ValueError(f"{path} is not as CallbackTrainLog writes it: {error}") from error
    epochs: list[EpochHistory] = []
    for row in rows:
        epochs.append({})
        for name, value in row.items():
            if name.count("/") >= 3 and not name.startswith("learning_rate["):
                dataset, split, output, metric = name.split("/", 3)
                epochs[-1].setdefault(dataset, {}).setdefault(split, {}).setdefault(output, {})[metric] = value
    return RunRecord(
        name=path.resolve().parent.name,
        state="unknown",
        updated=path.stat().st_mtime,
        elapsed_s=sum(row.get("time_s", 0.0) for row in rows),
        nb_epochs=len(rows),
        epochs=epochs,
        learning_rates=[
            {
                name[len("learning_rate[") : -1]: value
                for name, value in row.items()
                if name.startswith("learning_rate[")
            }
            for row in rows
        ],
    )


def _plain(value: Any) -> Any:
    """JSON has no numbers that are not finite: they become text that `float` reads."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Stages):
        return _plain(vars(value))
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(each) for each in cast("Sequence[Any]", value)]
    return value


def _numbers(value: Any) -> Any:
    """The same back, where all that is not a dict is a number."""
    if isinstance(value, dict):
        return {name: _numbers(each) for name, each in cast("dict[str, Any]", value).items()}
    return float(value)
