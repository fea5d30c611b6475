"""One page about a training, while it goes on and afterwards."""

from __future__ import annotations

import importlib.metadata
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from trw_pipeline.reporting.report import write_report
from trw_pipeline.reporting.run_record import RunRecord, Stages, State
from trw_pipeline.sequences.limits import limit_of
from trw_pipeline.sequences.watched import Watched
from trw_pipeline.timing import Stopwatch
from trw_pipeline.training.callback import Callback
from trw_pipeline.training.optimizers import by_name, learning_rates

if TYPE_CHECKING:
    from trw_pipeline.training.run import Run

_PACKAGES = ("trw_pipeline", "torch", "numpy", "multiprocess", "pyzmq", "blosc2")
_NB_MODULES = 300
_NB_CHARACTERS = 300
"""Most modules of the model, and characters of an option, that are shown."""


class CallbackReport(Callback):
    """Writes `<run folder>/report.html`: one page that a person opens in a browser, without a server or a network.

    At its top stand the state of the training, its result, the share of the time that the device waited for data, and
    what is wrong, if anything is: a loss that is no number or has not fallen, overfitting, failed samples. Below are
    the curves of all metrics with their best epochs, speed, the stages of the chains and what limits them, resources
    (of `CallbackResourceMonitor`), the phases of an iteration (of `MonitorCallback`), model, options and versions; and
    the pictures that other callbacks left in the run folder, 12 of each kind, of the newest epoch.

    The page is written at the start, at the end of each epoch, and when the training ends, however it ends; while it
    goes on, a browser reads it again every 10 seconds. All that is measured is also in `<run folder>/report.json`, of
    which `python -m trw_pipeline report RUN` makes the page anew, and `report RUN RUN` one that compares trainings.

    The options are shown as they are: what nobody should read does not belong there. A chain is described by the first
    features of its newest epoch; nothing is read for the report. A resumed training goes on in its report.

    Args:
        max_share: of the time of the training that may be spent on this. After a writing that took long, such as that
            of a history of thousands of epochs, ends of epochs are passed over until its time is this share.

    Raises:
        ValueError: `max_share` is not above 0.
    """

    outer = True

    def __init__(self, max_share: float = 0.05) -> None:
        if not max_share > 0:
            raise ValueError(f"max_share must be above 0, got {max_share}")
        self.max_share = max_share
        self._begin()

    def _begin(self) -> None:
        self._started: float | None = None
        self._time = Stopwatch()
        self._next_s = 0.0  # of the training, before which no page is due
        self._learning_rates: list[dict[str, float]] = []
        self._stages: dict[str, Stages] = {}
        self._is_shown = False  # by a page of this process
        self._clock: Callable[[], float] | None = None  # of the training that runs

    def on_fit_start(self, run: Run) -> None:
        """Write the first page, unless there is one with more in it."""
        if not run.resumed:
            self._begin()
            self._started = time.time()
        self._clock = run.clock
        self._time.start(run.clock)
        if not run.resumed:
            self._write(run, "running")

    def on_epoch_start(self, run: Run) -> None:
        """Note the learning rates before a scheduler changes them."""
        if run.resume_point is None:  # else the epoch has begun before
            before = self._learning_rates[: run.epoch]
            unknown: list[dict[str, float]] = [{} for _ in range(run.epoch - len(before))]
            self._learning_rates = [*before, *unknown, learning_rates(run.optimizers)]
        if not self._is_shown:
            self._write(run, "running")

    def on_split_end(self, run: Run) -> None:
        """Note how its chain did."""
        split = run.datasets.get(run.dataset, {}).get(run.split)
        if not run.is_final and isinstance(split, Watched):
            self._stages[f"{run.dataset}/{run.split}"] = _stages_of(split)

    def on_epoch_end(self, run: Run) -> None:
        """Write the page, if it is due."""
        if self._time.elapsed_s >= self._next_s:
            self._write(run, "running")

    def on_fit_end(self, run: Run) -> None:
        """Write the page of the whole training."""
        self._write(run, "completed")
        self._end()

    def on_exception(self, run: Run) -> None:
        """Write the page of what there is."""
        self._write(run, "interrupted")
        self._end()

    def state_dict(self) -> dict[str, Any]:
        """Give what the history does not tell."""
        return {
            "started": self._started,
            "elapsed_s": self._time.elapsed_s,
            "learning_rates": [dict(rates) for rates in self._learning_rates],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take it back. The time until now is not counted."""
        clock = self._clock
        self._begin()
        self._started = state["started"]
        self._time = Stopwatch(state["elapsed_s"])
        self._learning_rates = [dict(rates) for rates in state["learning_rates"]]
        self._clock = clock
        if clock is not None:
            self._time.start(clock)

    def _end(self) -> None:
        self._time.stop()
        self._clock = None

    def _write(self, run: Run, state: State) -> None:
        assert run.log_dir is not None, "a training in a folder"
        before_s = run.clock()
        record = self._record(run, state)
        record.write(run.log_dir)
        write_report(run.log_dir, record)
        self._is_shown = True
        self._next_s = self._time.elapsed_s + (run.clock() - before_s) / self.max_share

    def _record(self, run: Run, state: State) -> RunRecord:
        assert run.log_dir is not None, "a training in a folder"
        nb_done = run.nb_epochs_done
        is_timed = self._started is not None  # not if it runs after the training alone
        return RunRecord(
            name=run.log_dir.name,
            state=state,
            error=_error_text(run.error),
            started=self._started,
            updated=time.time(),
            elapsed_s=self._time.elapsed_s if is_timed else None,
            nb_epochs=run.epochs,
            train_split=run.options["workflow_options"]["train_split"],
            epochs=run.history[:nb_done],
            final=run.history[-1] if run.is_final and len(run.history) > nb_done else None,
            learning_rates=self._learning_rates[:nb_done],
            stages=self._stages,
            model=_modules(run.model),
            options=dict(_options(run.options)) | _optimizers(run),
            versions=_versions(run.device),
        )


def _error_text(error: BaseException | None) -> str:
    if error is None:
        return ""
    text = str(error)
    return f"{type(error).__name__}{': ' if text else ''}{text}"[:_NB_CHARACTERS]


def _stages_of(split: Watched) -> Stages:
    statistics = split.statistics()
    return Stages(
        limit=limit_of(statistics),
        description=split.describe(),
        figures={
            stage: {name: float(value) for name, value in figures.items() if isinstance(value, (int, float))}
            for stage, figures in statistics.items()
        },
    )


def _modules(model: nn.Module) -> list[tuple[str, str, int, int]]:
    """The model, and its modules without parts: those that do the work."""
    rows: list[tuple[str, str, int, int]] = []
    for name, module in model.named_modules():
        if name and next(module.children(), None) is not None:
            continue
        parameters = list(module.parameters())
        nb_trained = sum(parameter.numel() for parameter in parameters if parameter.requires_grad)
        layer = type(module).__name__ if not name else repr(module)[:_NB_CHARACTERS]
        rows.append((name, layer, sum(parameter.numel() for parameter in parameters), nb_trained))
    return rows[:_NB_MODULES]


def _options(options: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    for name, value in options.items():
        if isinstance(value, Mapping):
            yield from _options(cast("Mapping[str, Any]", value), f"{before}{name}.")
        else:
            yield f"{before}{name}", str(value)[:_NB_CHARACTERS]


def _optimizers(run: Run) -> dict[str, str]:
    """Kind and settings of each optimizer; the settings are those of its first group."""
    described: dict[str, str] = {}
    for dataset, of_dataset in (run.optimizers or {}).items():
        for name, optimizer in by_name(of_dataset).items():
            settings = [f"{key}={value}" for key, value in optimizer.defaults.items()]
            text = f"{type(optimizer).__name__}({', '.join(settings)})"
            described[".".join(filter(None, ["optimizers", dataset, name]))] = text[:_NB_CHARACTERS]
    described["fit.accumulate"] = str(run.optimization.accumulate)
    described["fit.clip_norm"] = str(run.optimization.clip_norm)
    return described


def _versions(device: torch.device) -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:  # it runs from a checkout
            continue
    versions["system"] = platform.platform()
    if device.type == "cuda":
        versions["GPU"] = torch.cuda.get_device_name(device)
        versions["CUDA"] = str(torch.version.cuda)
    return versions
