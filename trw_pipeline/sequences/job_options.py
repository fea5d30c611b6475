"""What every stage with workers takes beyond the documented arguments, under the same words everywhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from trw_pipeline.executors.cores import with_auto
from trw_pipeline.executors.function import MappedFunction
from trw_pipeline.executors.job_executor import JobExecutor
from trw_pipeline.executors.pool import pool_size
from trw_pipeline.executors.worker_options import WorkerOptions
from trw_pipeline.sequences.lender import ExecutorLender
from trw_pipeline.typing import Backend, Function, NbWorkers, OnError, StartMethod


class JobOptions(WorkerOptions, total=False):
    """Keyword arguments of `map` and `async_reservoir`, together with those of `WorkerOptions`.

    Attributes:
        backend: "process" (default), "thread" for functions that release the interpreter lock, or "inline".
        in_order: results come in the order of the items (default; not for a reservoir); else as they finish.
        on_error: "raise" (default) or "skip", which records the sample in `failures` and names it when the epoch ends.
        max_failures: with "skip": a count, or a share of the jobs of an epoch; more is an error.
        max_retries: a job whose worker dies is tried this many times more (default 2).
        worker_init: runs once in each worker before its first job.
        start_method: "forkserver" (default on Linux), "spawn" or "fork".
        max_bytes_in_flight: with `max_jobs_at_once=None`, what may be under way at most (default None, a gigabyte).
        stall_s: when nothing comes for so long, a log record says what runs where (default 30).
        name: how errors and reports call the stage.
    """

    backend: Backend
    in_order: bool
    on_error: OnError
    max_failures: int | float | None
    max_retries: int
    worker_init: Callable[[], Any] | None
    start_method: StartMethod | None
    max_bytes_in_flight: int | None
    stall_s: float
    name: str | None


FIRST_ARGUMENTS = ("function_to_run", "nb_workers", "max_jobs_at_once")
"""What every stage with workers takes beside its options; who looks for a name may mean one of these."""


def check_known(options: JobOptions, kind: type[JobOptions]) -> None:
    """Raises TypeError if there are arguments among `options` that are none of that kind.

    And ValueError for an `on_error` that only an executor has: an item of a chain can not be a failure.
    """
    unknown = set(options) - set(kind.__annotations__)
    if unknown:
        known = [*FIRST_ARGUMENTS, *sorted(kind.__annotations__)]
        raise TypeError(f"unknown arguments {sorted(unknown)}; known are {known}")
    on_error = options.get("on_error", "raise")
    if on_error not in ("raise", "skip"):
        raise ValueError(f"on_error must be 'raise' or 'skip', got {on_error!r}")


def lender_of(
    nb_workers: NbWorkers,
    function: Function | Sequence[Function],
    max_jobs_at_once: int | None,
    post_process: Callable[..., Any] | None,
    options: JobOptions,
) -> ExecutorLender:
    """Returns what lends the executors of a stage; they start when an epoch opens.

    Each stage with "auto" workers has as many as the machine has room for, whatever the others have: those of a stage
    that does not limit wait most of the time, and who waits takes no core.

    Raises:
        ValueError: an argument out of range.
        TypeError: an argument of a wrong kind, or an unknown one.
    """

    check_known(options, JobOptions)
    mapped = MappedFunction(function, post_process, options.get("worker_init"))
    # An executor without workers takes the same arguments: it tells now what would else be wrong at the first epoch.
    here = options.copy()
    here["worker_init"] = None
    JobExecutor(0, function, max_jobs_at_once, **here).close()
    name, backend = options.get("name") or mapped.name, options.get("backend", "process")
    chosen = 0 if backend == "inline" else pool_size(with_auto(nb_workers, name))

    def make() -> JobExecutor:
        return JobExecutor(chosen, function, max_jobs_at_once, post_process, **options)

    return ExecutorLender(make, name, f"{chosen} {backend} workers" if chosen else "inline")
