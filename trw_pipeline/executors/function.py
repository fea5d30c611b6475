"""The mapped function as a worker runs it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from trw_pipeline.executors.transforms import random_transforms, seed_transforms
from trw_pipeline.seeding import JobSeed, generator
from trw_pipeline.typing import Function


class MappedFunction:
    """One function, or several in a row, with what goes before and after.

    Args:
        functions: called one after the other, each with the result of the one before. A function with a parameter named
            `rng` receives a `numpy.random.Generator` keyed like the job's seed.
        post_process: called with the result and the two channels; what it returns is the result.
        worker_init: runs once in each worker, before its first job.

    Attributes:
        channels: the worker's ends of the pipes `(main_to_worker, worker_to_main)`, handed to `post_process`. They are
            the worker's own and do not travel with the function.

    Raises:
        TypeError: one of them can not be called.
        ValueError: `functions` is empty.
    """

    def __init__(
        self,
        functions: Function | Sequence[Function],
        post_process: Callable[..., Any] | None = None,
        worker_init: Callable[[], Any] | None = None,
    ) -> None:
        if not callable(functions) and not isinstance(functions, (list, tuple)):
            raise TypeError(f"function_to_run must be callable, or a list of functions, got {functions!r}")
        self.functions = [functions] if callable(functions) else list(functions)
        if not self.functions:
            raise ValueError("function_to_run must hold at least one function, got an empty list")
        for function in self.functions:
            if not callable(function):
                raise TypeError(f"function_to_run must be callable, got {function!r}")
        for name, function in (("worker_post_process_results_fun", post_process), ("worker_init", worker_init)):
            if function is not None and not callable(function):
                raise TypeError(f"{name} must be callable or None, got {function!r}")
        self.post_process = post_process
        self.worker_init = worker_init
        self.channels: tuple[Any, Any] = (None, None)
        self._takes_rng = [_takes_rng(function) for function in self.functions]
        self._transforms: list[Any] = []

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "channels": (None, None), "_transforms": []}

    def begin(self) -> None:
        """Is called where the jobs run, before the first of them and when the functions may have changed."""
        self._transforms = random_transforms(self.functions)

    def run_alone(self, item: Any, seed: JobSeed) -> Any:
        """Runs the job where no other runs at the same time: so random transforms that it uses can follow the seed."""
        seed_transforms(self._transforms, seed)
        return self(item, seed)

    def __call__(self, item: Any, seed: JobSeed) -> Any:
        """Runs the job.

        Raises:
            ValueError: the last function returned None. An empty list is the way to give nothing.
        """
        rng = generator(seed) if self.takes_rng else None
        result = item
        for function, takes_rng in zip(self.functions, self._takes_rng, strict=True):
            result = function(result, rng=rng) if takes_rng else function(result)
        if self.post_process is not None:
            main_to_worker, worker_to_main = self.channels
            result = self.post_process(
                result, channel_main_to_worker=main_to_worker, channel_worker_to_main=worker_to_main
            )
        if result is None:
            raise ValueError(f"{self.name} returned None; return an empty list to give nothing")
        return result

    @property
    def takes_rng(self) -> bool:
        """Whether one of the functions takes the job's own generator."""
        return any(self._takes_rng)

    @property
    def name(self) -> str:
        """Name of the function, or of the row of them, for errors and reports."""
        return " > ".join(getattr(f, "__name__", None) or type(f).__name__ for f in self.functions)


def _takes_rng(function: Function) -> bool:
    try:
        parameter = inspect.signature(function).parameters.get("rng")
    except (TypeError, ValueError):  # some builtins have no signature
        return False
    return parameter is not None and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
