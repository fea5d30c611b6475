"""What limits a chain, and what to change: one sentence made of its figures.

The time of an epoch has three parts: the consumer does something else, the main process makes items, or it waits for
workers. The greatest part says where to look. Where it is the wait, the stage whose workers were busy most limits; and
if none was busy, something keeps jobs from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from trw_pipeline.executors.cores import cores

CONSUMER = "consumer"
"""Who reads the chain, among its stages."""

BUSY = 0.75
"""Workers that are in jobs for this share of the time are what is waited for."""

FROZEN_S, FROZEN_TIMES = 1.0, 10.0
"""A job that has run for so long, and so many times as long as half of the others took, is not like them."""

UNEVEN = 5.0
"""Jobs of which one in twenty takes so many times as long as half of them hold up those behind."""

READY = 0.05
"""A consumer that waits for less than this share of the time has its items ready when it asks."""

SERVED_AGAIN = 1.5
"""A reservoir of which each result is served so often replaces fresh ones."""

Figures: TypeAlias = Mapping[str, Any]
Stages: TypeAlias = Mapping[str, Figures]


def limit_of(statistics: Stages) -> str:
    """Returns the sentence.

    Args:
        statistics: of a chain; see `Sequence.statistics`.
    """
    consumer = statistics[CONSUMER]
    stages = {name: figures for name, figures in statistics.items() if name != CONSUMER}
    slowest = max(stages, key=lambda name: stages[name]["oldest_job_s"])
    if _is_frozen(stages[slowest]):
        return (
            f"A job of {slowest!r} limits: it has run for {stages[slowest]['oldest_job_s']:.0f} s, half of the others "
            "took less than a tenth of that. Look at its sample, which stands below, or set job_timeout_s."
        )
    if not consumer["items"]:
        age_s = stages[slowest]["oldest_job_s"]
        return "No item has come yet" + (f"; {slowest!r} has been at a job for {age_s:.1f} s." if age_s else ".")
    main = max(stages, key=lambda name: stages[name]["main_s"])
    away_s, blocked_s, main_s = consumer["busy_s"], consumer["blocked_s"], stages[main]["main_s"]
    if blocked_s >= max(away_s, consumer["wait_s"] - blocked_s):
        return _of_workers(stages)
    if away_s >= consumer["wait_s"] - blocked_s:
        return _of_reservoir(stages) or _of_consumer(consumer, main)
    return _of_main(main, stages[main]) if main_s else "Nothing limits that could be named."


def _is_frozen(figures: Figures) -> bool:
    oldest_s = figures["oldest_job_s"]
    return oldest_s >= FROZEN_S and oldest_s >= FROZEN_TIMES * figures["job_s_p50"] > 0


def _of_workers(stages: Stages) -> str:
    name = max(stages, key=lambda name: stages[name]["load"])
    figures = stages[name]
    if figures["load"] >= BUSY:
        return _of_busy_workers(name, figures)
    of_all = [name for name, figures in stages.items() if figures["workers"]]
    scarce = next((name for name in of_all if 0 < stages[name]["capacity"] < stages[name]["workers"]), None)
    if scarce is not None:
        few, nb = stages[scarce]["capacity"], stages[scarce]["workers"]
        return (
            f"{scarce!r} limits: max_jobs_at_once={few} lets {few} of its {nb} workers work. Make it {2 * nb} or more, "
            "or leave it to be found out."
        )
    if figures["job_s_p95"] >= UNEVEN * figures["job_s_p50"] > 0:
        return (
            f"{name!r} limits, though its workers are often idle: a few of its jobs take much longer than the others, "
            "which wait for them. Allow more at once (max_jobs_at_once), or take them as they finish (in_order=False)."
        )
    return (
        f"{name!r} limits, though its workers are often idle: jobs come to them too slowly, or they have just started. "
        "Allow more at once (max_jobs_at_once), or let one job make more (a sampler with a larger batch_size)."
    )


def _of_busy_workers(name: str, figures: Figures) -> str:
    nb, most = figures["workers"], cores().usable
    start = f"{name!r} limits: its workers are busy nearly all the time, and the consumer waits for them."
    if nb < most:
        return f"{start} Give it more (nb_workers), up to the number of cores, or make the function cheaper."
    return (
        f"{start} There are as many as cores: make the function cheaper, or serve its results again "
        "(async_reservoir). If it waits for files or a network, more workers help all the same."
    )


def _of_consumer(consumer: Figures, main: str) -> str:
    wait_s, blocked_s = consumer["wait_s"], consumer["blocked_s"]
    share = wait_s / (consumer["busy_s"] + wait_s)
    if share < READY:
        return "The consumer limits: items are ready when it asks for one. A faster chain would change nothing."
    what = "workers" if blocked_s > wait_s - blocked_s else f"the main process, in which {main!r} works most"
    return (
        f"The consumer limits, but {100 * share:.0f} % of the time it waits, mostly for {what}. Items that are made "
        "ahead (prefetch, or map with nb_workers) would be ready when it asks."
    )


def _of_main(name: str, figures: Figures) -> str:
    if figures["workers"]:
        return (
            f"{name!r} limits by what it does in the main process. If it has a preprocess_fn or a collate_fn, let the "
            "workers do that; else let one job make more (a sampler with a larger batch_size)."
        )
    return (
        f"{name!r} limits: it works in the main process, one item at a time, while the consumer waits. Move its work "
        "into workers (map with nb_workers), or into threads where it releases the interpreter lock "
        '(backend="thread").'
    )


def _of_reservoir(stages: Stages) -> str | None:
    """Returns the sentence where a reservoir hides that fresh results come too slowly."""
    for name, figures in stages.items():
        served, fresh = figures["epoch_items"], figures["epoch_jobs"]
        times = figures.get("echo_factor") or (served / max(1, fresh) if "size" in figures else 0.0)
        if times >= SERVED_AGAIN:
            return (
                f"The consumer never waits, because {name!r} serves its results again, each about {times:.1f} times: "
                "fresh ones come slower than it asks for them. More workers (nb_workers) renew it faster."
            )
    return None
