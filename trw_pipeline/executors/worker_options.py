"""What may be wished of the workers of a pool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from trw_pipeline.executors.compression import CodecName, Compression, Trial
from trw_pipeline.executors.door import Transport
from trw_pipeline.executors.pool import bound, seconds


class WorkerOptions(TypedDict, total=False):
    """Keyword arguments of `JobExecutor`, `map` and `async_reservoir` that are about their workers.

    Attributes:
        job_timeout_s: a job that takes longer fails with JobTimeoutError, without another try, and its worker is ended
            and replaced; a thread can not be ended, it is left to itself. It is seen while somebody waits for results,
            and not enforced inline. Default None, no limit.
        preload: with the start method "forkserver": names of modules that are imported once for all workers with the
            same list, such as "torch" for a function that needs it. One that is not there is passed over. Default none.
        threads_per_worker: threads of BLAS, OpenMP and torch in a worker process. Default 1.
        niceness: added to that of the program in a worker process. Default 0.
        max_tasks_per_worker: a worker is replaced after so many jobs, against functions that leak. Default None, never.
        max_arena_bytes: shared memory that large arrays may take on their way and while they are used; what finds no
            place there travels in messages, more slowly. Default None, a quarter of the memory; 0 is none.
        compression: of large arrays on their way between processes: "zstd", "lz4", a `Compression`, or "auto". Between
            processes of one machine it never saves time, which "auto" knows. Default None.
    """

    job_timeout_s: float | None
    preload: Sequence[str]
    threads_per_worker: int
    niceness: int
    max_tasks_per_worker: int | None
    max_arena_bytes: int | None
    compression: CodecName | Literal["auto"] | Compression | Trial | None


@dataclass(frozen=True, slots=True)
class PoolOptions:
    """The same, checked, with what else a pool may be told.

    Attributes:
        name: shown by `ps` and in thread dumps.
        channels: the workers' ends of the two pipes for `worker_post_process_results_fun`.
        transport: how processes are reached; by default ipc where this build of ZeroMQ has it.
    """

    name: str = "map"
    channels: tuple[Any, Any] = (None, None)
    job_timeout_s: float | None = None
    preload: tuple[str, ...] = ()
    threads_per_worker: int = 1
    niceness: int = 0
    max_tasks_per_worker: int | None = None
    max_arena_bytes: int | None = None
    compression: Compression | Trial | None = None
    transport: Transport | None = None

    @classmethod
    def of(cls, options: WorkerOptions) -> PoolOptions:
        """Checks the wishes of a user.

        Raises:
            ValueError: a number is out of range, or there is no such codec.
            TypeError: an argument of a wrong kind, or an unknown one.
        """
        unknown = set(options) - set(WorkerOptions.__annotations__)
        if unknown:
            raise TypeError(f"unknown arguments {sorted(unknown)}; known are {sorted(WorkerOptions.__annotations__)}")
        bound("threads_per_worker", options.get("threads_per_worker"), 1, at_least=1)
        bound("niceness", options.get("niceness"), 0, at_least=-20)
        bound("max_tasks_per_worker", options.get("max_tasks_per_worker"), 1, at_least=1)
        bound("max_arena_bytes", options.get("max_arena_bytes"), 0)
        given: dict[str, Any] = dict(options)
        if given.get("job_timeout_s") is not None:
            seconds("job_timeout_s", given["job_timeout_s"])
        preload = given.get("preload", ())
        given["preload"] = (preload,) if isinstance(preload, str) else tuple(preload)
        if not all(isinstance(module, str) for module in given["preload"]):
            raise TypeError(f"preload must hold names of modules, got {preload!r}")
        given["compression"] = Compression.of(options.get("compression"))
        return cls(**given)
