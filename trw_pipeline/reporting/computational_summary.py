"""What a training cost, phase by phase: measurements in, a table and a page of text out."""

from __future__ import annotations

import csv
import io
import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

Measured: TypeAlias = Mapping[str, Sequence["float | None"]]
"""Column -> its measurements, oldest first; None where a row has no such value, so rows of one kind stay in line."""

_WIDTHS = (22, 25, 25, 25)
_WIDTH = sum(_WIDTHS) + 3 * (len(_WIDTHS) - 1)  # with " | " between


def time_column(phase: str) -> str:
    """Name the column of the wall time of a phase."""
    return f"{phase} (s)"


def gpu_column(phase: str) -> str:
    """Name the column of the time that the GPU took for a phase."""
    return f"{phase} GPU (s)"


def memory_column(phase: str) -> str:
    """Name the column of the most GPU memory that tensors took in a phase."""
    return f"{phase} GPU max memory (MB)"


def _all_of(phase: str) -> tuple[str, str, str]:
    return time_column(phase), gpu_column(phase), memory_column(phase)


TRAINED = ("Forward", "Backward", "Optimization")
EVALUATED = ("Evaluation", "Metrics computation")
WAIT_SHARE = "Epoch device wait share"

COLUMNS = (
    "Training (s)",
    "Epoch (s)",
    "Training loop (s)",
    "Training data loading (s)",
    *itertools.chain.from_iterable(map(_all_of, TRAINED)),
    "Validation (s)",
    "Validation loop (s)",
    "Validation data loading (s)",
    *itertools.chain.from_iterable(map(_all_of, EVALUATED)),
    # So far those of the reference, in its order; from here on ours.
    *(
        f"{kind} {what}"
        for kind in ("Training", "Validation")
        for what in ("host to device (s)", "host to device GPU (s)", "other (s)", "device wait (s)", "samples")
    ),
    WAIT_SHARE,
)
"""Columns of the table, in order."""

_TRAINING_ROWS = (
    ("Training", "Training"),
    (" Epoch", "Epoch"),
    ("  Iteration", "Training loop"),
    ("   Data loading", "Training data loading"),
    ("   Host to device", "Training host to device"),
    *((f"   {phase}", phase) for phase in TRAINED),
    ("   Other", "Training other"),
)
_VALIDATION_ROWS = (
    ("Validation", "Validation"),
    (" Iteration", "Validation loop"),
    ("  Data loading", "Validation data loading"),
    ("  Host to device", "Validation host to device"),
    *((f"  {phase}", phase) for phase in EVALUATED),
    ("  Other", "Validation other"),
)


def computational_table(measured: Measured) -> str:
    """Make the table of all measurements.

    Args:
        measured: column -> measurements; those that `COLUMNS` does not name are left out.

    Returns:
        Values separated by tabs: a header, and as many rows as the longest column has, the others empty from their
        ends on. A number is written so that reading it gives the same number.
    """
    text = io.StringIO()
    writer = csv.writer(text, delimiter="\t", lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(itertools.zip_longest(*(measured.get(column, ()) for column in COLUMNS)))
    return text.getvalue()


def computational_summary(measured: Measured, gpus: Sequence[str] = ()) -> str:
    """Make the page that sums the measurements up.

    Args:
        measured: column -> measurements.
        gpus: names of the GPUs the training ran on, one after the other; empty: on none.

    Returns:
        A table of phases; each cell is `mean ± sample standard deviation [number of measurements]`, of a single one
        `value [1]`, of none empty. Below the phases of the training and of the validation, the samples (images) per
        second: those of all measured iterations over their time, by the clock and, with a GPU, by its phases.
    """
    title = " Computational Summary (mean ± std [n measurements]) "
    lines = [title.center(_WIDTH, "*")]
    if gpus:
        lines.append("GPU: " + " then ".join(repr(gpu) for gpu in gpus))
    lines += [_row("Phase", "Time (s)", "GPU Time (s)", "GPU Max Memory (MB)"), "-" * _WIDTH]
    lines += [_phase(measured, *row) for row in _TRAINING_ROWS]
    lines += _throughput(measured, "Training", TRAINED, bool(gpus))
    shares = _known(measured, WAIT_SHARE)
    if shares:
        lines.append(f"Device waited for data: {100 * statistics.fmean(shares):.1f} % of the time [{len(shares)}]")
    lines.append("-" * _WIDTH)
    lines += [_phase(measured, *row) for row in _VALIDATION_ROWS]
    lines += _throughput(measured, "Validation", EVALUATED, bool(gpus))
    return "\n".join([*lines, "*" * _WIDTH, ""])


def _phase(measured: Measured, title: str, phase: str) -> str:
    return _row(title, *(_cell(_known(measured, column)) for column in _all_of(phase)))


def _row(*cells: str) -> str:
    return " | ".join(cell.ljust(width) for cell, width in zip(cells, _WIDTHS, strict=True))


def _cell(values: list[float]) -> str:
    if not values:
        return ""
    spread = f" ± {statistics.stdev(values):.2e}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.2e}{spread} [{len(values)}]"


def _throughput(measured: Measured, kind: str, phases: Iterable[str], with_gpu: bool) -> list[str]:
    nb_samples = sum(_known(measured, f"{kind} samples"))
    lines = [_speed("Throughput", nb_samples, sum(_known(measured, f"{kind} loop (s)")))]
    if with_gpu:
        gpu_s = sum(sum(_known(measured, gpu_column(phase))) for phase in phases)
        lines.append(_speed("GPU throughput", nb_samples, gpu_s))
    return lines


def _speed(title: str, nb_samples: float, seconds: float) -> str:
    return f"{title}: {nb_samples / seconds:.1f} images/s" if seconds > 0 else f"{title}: not measured"


def _known(measured: Measured, column: str) -> list[float]:
    return [value for value in measured.get(column, ()) if value is not None]
