"""What every stage with workers takes beyond the documented arguments, under the same words everywhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypedDict

from trw_pipeline.executors.function import MappedFunction
from trw_pipeline.executors.job_executor import JobExecutor
from trw_pipeline.executors.pool import pool_size
from trw_pipeline.sequences.lender import ExecutorLender
from trw_pipeline.typing import Backend, Function, OnError, StartMethod


class JobOptions(TypedDict, total=False):
    """Keyword arguments of `map` and `async_reservoir`.

    Attributes:
        backend: "process" (default), "thread" for functions that release the interpreter lock, or "inline".
        in_order: results come in the order of the items (default; not for a reservoir); else as they finish.
        on_error: "raise" (default) or "skip", which records the sample in `failures` and names it when the epoch ends.
        max_failures: with "skip": a count, or a share of the jobs of an epoch; more is an error.
        max_retries: a job whose worker dies is tried this many times more (default 2).
        worker_init: runs once in each worker before its first job.
        start_method: "forkserver" (default on Linux), "spawn" or "fork".
        threads_per_worker: threads of BLAS, OpenMP and torch in a worker process (default 1).
        name: how errors and reports call the stage.
    """

    backend: Backend
    in_order: bool
    on_error: OnError
    max_failures: int | float | None
    max_retries: int
    worker_init: Callable[[], Any] | None
    start_method: StartMethod | None
    threads_per_worker: int
    name: str | None


def lender_of(
    nb_workers: int,
    function: Function | Sequence[Function],
    max_jobs_at_once: int | None,
    post_process: Callable[..., Any] | None,
    options: JobOptions,
) -> ExecutorLender:
    """Returns what lends the executors of a stage; they start when an epoch opens.

    Raises:
        ValueError: an argument out of range.
        TypeError: an argument of a wrong kind, or an unknown one.
    """

    def make() -> JobExecutor:
        return JobExecutor(nb_workers, function, max_jobs_at_once, post_process, **options)

    unknown = set(options) - set(JobOptions.__annotations__)
    if unknown:
        raise TypeError(f"unknown arguments {sorted(unknown)}; known are {sorted(JobOptions.__annotations__)}")
    mapped = MappedFunction(function, post_process, options.get("worker_init"))
    # An executor without workers takes the same arguments: it tells now what would else be wrong at the first epoch.
    here = options.copy()
    here["worker_init"] = None
    JobExecutor(0, function, max_jobs_at_once, **here).close()
    backend = options.get("backend", "process") if pool_size(nb_workers) else "inline"
    workers = "inline" if backend == "inline" else f"{nb_workers} {backend} workers"
    return ExecutorLender(make, options.get("name") or mapped.name, workers)
