"""Fresh programs that `pool_life.py` starts and watches: each opens a pool, and says what it has to say as JSON.

They run as `python -c "from benchmarks.programs import ...; ..."`, so no pool has a main script to import again.
Nothing here imports torch where it is not asked for.
"""

from __future__ import annotations

import concurrent.futures
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from benchmarks.jobs import same, who

NB_WORKERS = 4

Ask = Callable[[int], list[tuple[int, bool]]]
"""Runs some jobs; returns what `who` says of each."""


def _say(**facts: Any) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


# Start


@contextmanager
def _ours() -> Iterator[Ask]:
    from trw_pipeline import JobExecutor

    with JobExecutor(NB_WORKERS, who) as executor:

        def ask(nb_jobs: int) -> list[tuple[int, bool]]:
            for number in range(nb_jobs):
                executor.put(number)
            return [executor.get().value for _ in range(nb_jobs)]

        yield ask


@contextmanager
def _bare() -> Iterator[Ask]:
    import multiprocess

    with multiprocess.get_context("forkserver").Pool(NB_WORKERS) as pool:  # pyright: ignore[reportAttributeAccessIssue]
        yield lambda nb_jobs: pool.map(who, range(nb_jobs), chunksize=1)


def start_ours() -> None:
    """Opens two of our pools, one after the other."""
    import trw_pipeline

    _ = trw_pipeline.JobExecutor  # what the main process imports is not what is measured
    _start_twice(_ours)


def start_bare() -> None:
    """Opens two pools of `multiprocess`, from a fork server that imports what ours does."""
    import multiprocess

    from trw_pipeline.executors import start

    multiprocess.set_forkserver_preload(list(start.PRELOAD))  # pyright: ignore[reportAttributeAccessIssue]
    _start_twice(_bare)


def _start_twice(open_pool: Callable[[], AbstractContextManager[Ask]]) -> None:
    seconds: list[float] = []
    with_torch: set[int] = set()
    for _ in range(2):
        start = time.perf_counter()
        with open_pool() as ask:
            pids: set[int] = set()
            while len(pids) < NB_WORKERS:
                answers = ask(NB_WORKERS)
                pids |= {pid for pid, _ in answers}
                with_torch |= {pid for pid, has_torch in answers if has_torch}
            seconds.append(time.perf_counter() - start)
    _say(first_s=seconds[0], second_s=seconds[1], with_torch=len(with_torch))


# Idle


def _rest() -> None:
    """Waits until the watcher has seen enough, which it says by closing our input."""
    _say(ready=True)
    sys.stdin.read()


def idle_ours() -> None:
    """Has a pool that has run some jobs."""
    with _ours() as ask:
        ask(10 * NB_WORKERS)
        _rest()


def idle_executor_of_python() -> None:
    """Has one of `concurrent.futures`."""
    with concurrent.futures.ProcessPoolExecutor(NB_WORKERS) as executor:
        list(executor.map(who, range(10 * NB_WORKERS)))
        _rest()


def idle_loader() -> None:
    """Has the persistent workers of a `DataLoader`, between two epochs."""
    from torch.utils.data import DataLoader

    numbers: Any = list(range(10 * NB_WORKERS))
    loader = DataLoader(numbers, None, num_workers=NB_WORKERS, persistent_workers=True, collate_fn=same)
    list(loader)
    _rest()
