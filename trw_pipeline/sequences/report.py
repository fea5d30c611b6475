"""The figures of a chain: as a dict for programs, as a report for people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trw_pipeline.executors.figures import as_dict
from trw_pipeline.sequences.limits import CONSUMER, limit_of
from trw_pipeline.sequences.watch import EpochTimes

HEADER = ("stage", "items", "items/s", "main process", "workers", "busy", "in flight", "bytes moved")


def named_stages(recipe: Any) -> Iterator[tuple[str, Any]]:
    """Yields the stages of a chain by name, from its sources on.

    A name is `"<number>:<name>"`; where chains meet, `"<number of the chain>/"` is before those of each.
    """
    for i, source in enumerate(recipe.sources):
        prefix = f"{i}/" if len(recipe.sources) > 1 else ""
        yield from ((f"{prefix}{name}", stage) for name, stage in named_stages(source))
    yield f"{recipe.number}:{recipe.stage_name}", recipe


def statistics_of(recipe: Any, times: EpochTimes) -> dict[str, dict[str, Any]]:
    """Returns the figures of each stage by its name, and those of the consumer; see `Sequence.statistics`."""
    elapsed_s = times.elapsed_s
    found: dict[str, dict[str, Any]] = {}
    for name, stage in named_stages(recipe):
        figures, spent = stage.own_statistics(), times.of(stage)
        worker_s = figures["workers"] * elapsed_s
        if stage.own_lender() is None:
            figures.update(items=spent.items, busy_s=spent.main_s)
        found[name] = {
            **figures,
            "epoch_items": spent.items,
            "epoch_jobs": spent.jobs,
            "items_per_s": spent.per_s,
            "main_s": spent.main_s,
            "load": min(1.0, spent.jobs_s / worker_s) if worker_s else 0.0,
        }
    inside_s = times.waited_s + times.main_s
    found[CONSUMER] = {
        **as_dict([]),
        "items": times.items,
        "epoch_items": times.items,
        "epoch_jobs": 0,
        "items_per_s": times.per_s,
        "main_s": times.away_s,
        "load": 0.0,
        "busy_s": times.away_s,
        "wait_s": inside_s,
        "blocked_s": times.waited_s,
        "first_item_s": times.first_s,
        "wait_share": min(1.0, inside_s / elapsed_s) if elapsed_s else 0.0,
    }
    return found


def report_of(recipe: Any, times: EpochTimes) -> str:
    """Returns what limits in one sentence, a table of the stages, and what runs where."""
    statistics = statistics_of(recipe, times)
    elapsed_s = times.elapsed_s or 1.0
    rows = [HEADER, *(_row(name, figures, elapsed_s) for name, figures in statistics.items())]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADER))]
    lines = [
        "  ".join(cell.ljust(width) if i == 0 else cell.rjust(width) for i, (cell, width) in enumerate(cells)).rstrip()
        for cells in (zip(row, widths, strict=True) for row in rows)
    ]
    share = statistics[CONSUMER]["wait_share"]
    waited = f"The first item took {times.first_s:.3g} s; of {times.elapsed_s:.3g} s the consumer waited {share:.0%}."
    running = [lender.report() for lender in recipe.lenders()] or ["no stage has workers"]
    return "\n".join([limit_of(statistics), *([waited] if times.items else []), *lines, *running])


def _row(name: str, figures: dict[str, Any], elapsed_s: float) -> tuple[str, ...]:
    first = (name, f"{figures['epoch_items']}", f"{figures['items_per_s']:.1f}", f"{figures['main_s'] / elapsed_s:.0%}")
    if not figures["workers"]:
        return (*first, "", "", "", "")
    alive = f"{figures['workers_alive']} of {figures['workers']}"
    full = f"{figures['jobs_in_flight']} of {figures['capacity'] or 'any'}"
    return (*first, alive, f"{figures['load']:.0%}", full, _bytes(figures["bytes_arena"] + figures["bytes_frames"]))


def _bytes(nb: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if nb < 1000:
            return f"{nb:.3g} {unit}"
        nb /= 1000
    return f"{nb:.3g} TB"
