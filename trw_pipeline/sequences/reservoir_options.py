"""What a reservoir takes beyond the documented arguments, and the rules that it lives by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from trw_pipeline.executors.compression import Compression, Trial
from trw_pipeline.sequences.job_options import JobOptions
from trw_pipeline.sequences.stage import check_count

Replacement: TypeAlias = Literal["epoch", "continuous"]
ReplacePolicy: TypeAlias = Literal["oldest", "most_served"]

MIN_RATIO = 1.1
"""With "auto" a buffer is compressed if it then takes so many times less memory."""


class ReservoirOptions(JobOptions, total=False):
    """Keyword arguments of `async_reservoir` beside those of `JobOptions`.

    Attributes:
        replacement: "epoch" (default): results enter when an epoch begins. "continuous": they enter as they arrive.
        replace_policy: who leaves for a fresh result: "oldest" (default), or "most_served", of those the oldest.
        max_reservoir_replacement_size: at most so many results enter when an epoch begins, once `min_reservoir_samples`
            are in. Default None, all that have finished. With `deterministic`, exactly so many.
        max_reservoir_bytes: what is kept takes no more memory than this. Default None, no bound.
        compression: of what is kept, not of what travels: None (default), "zstd", "lz4", a `Compression`, or "auto".
        deterministic: what an epoch holds does not depend on how fast results are made. Default False.
    """

    replacement: Replacement
    replace_policy: ReplacePolicy
    max_reservoir_replacement_size: int | None
    max_reservoir_bytes: int | None
    deterministic: bool


@dataclass(frozen=True, slots=True)
class ReservoirRules:
    """What a reservoir lives by, checked.

    Attributes:
        max_samples: number of results kept.
        min_samples: number of results without which the first epoch does not start.
        is_continuous: results enter as they arrive.
        policy: who leaves for a fresh result.
        max_entering: so many results enter when an epoch begins, or None.
        max_bytes: what is kept takes no more than this, or None.
        compression: of what is kept.
        is_deterministic: exactly `max_entering` results enter, in order.
        comes_in_arena: whether results arrive as views of shared memory, out of which they have to be taken.
    """

    max_samples: int
    min_samples: int
    is_continuous: bool = False
    policy: ReplacePolicy = "oldest"
    max_entering: int | None = None
    max_bytes: int | None = None
    compression: Compression | Trial | None = None
    is_deterministic: bool = False
    comes_in_arena: bool = False

    @classmethod
    def of(cls, max_samples: int, min_samples: int, options: ReservoirOptions) -> ReservoirRules:
        """Checks the wishes of a user.

        Raises:
            ValueError: an argument out of range, or two that contradict one another.
            TypeError: an argument of a wrong kind.
        """
        if min_samples > max_samples:
            raise ValueError(
                f"min_reservoir_samples must be at most max_reservoir_samples={max_samples}, got {min_samples}"
            )
        replacement = _one_of("replacement", options.get("replacement", "epoch"), Replacement)
        max_entering = options.get("max_reservoir_replacement_size")
        max_bytes = options.get("max_reservoir_bytes")
        if max_entering is not None and check_count("max_reservoir_replacement_size", max_entering) > max_samples:
            raise ValueError(
                f"max_reservoir_replacement_size must be at most max_reservoir_samples={max_samples}, got "
                f"{max_entering}"
            )
        if max_bytes is not None:
            check_count("max_reservoir_bytes", max_bytes)
        is_deterministic = bool(options.get("deterministic", False))
        if replacement == "continuous":
            _check_continuous(options, max_entering, is_deterministic)
        if is_deterministic:
            _check_deterministic(options, max_entering)
        backend = options.get("backend", "process")
        return cls(
            max_samples,
            min_samples,
            replacement == "continuous",
            _one_of("replace_policy", options.get("replace_policy", "oldest"), ReplacePolicy),
            max_entering,
            max_bytes,
            Compression.of(options.get("compression"), min_ratio=MIN_RATIO),
            is_deterministic,
            backend == "process",
        )


def _one_of(name: str, value: Any, kind: Any) -> Any:
    if value not in get_args(kind):
        raise ValueError(f"{name} must be one of {get_args(kind)}, got {value!r}")
    return value


def _check_continuous(options: ReservoirOptions, max_entering: int | None, is_deterministic: bool) -> None:
    if is_deterministic:
        raise ValueError(
            "deterministic=True needs replacement='epoch', got 'continuous': what a draw finds would depend on when "
            "results arrive"
        )
    if max_entering is not None:
        raise ValueError(
            "max_reservoir_replacement_size needs replacement='epoch', got 'continuous', where results enter all the "
            "time"
        )
    if options.get("backend") == "inline":
        raise ValueError("replacement='continuous' needs workers, got backend='inline'")


def _check_deterministic(options: ReservoirOptions, max_entering: int | None) -> None:
    if max_entering is None:
        raise ValueError(
            "deterministic=True needs max_reservoir_replacement_size, the number of results that enter at each epoch, "
            "got None"
        )
    if options.get("in_order") is False:
        raise ValueError("deterministic=True needs results in order, got in_order=False")
