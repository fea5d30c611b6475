"""What the data are, before a model sees them."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from trw_pipeline.batches.device import to_value
from trw_pipeline.batches.length import holds_samples, len_batch
from trw_pipeline.callbacks.second_look import SecondLook, every_split, shown
from trw_pipeline.sequences.stage import check_count
from trw_pipeline.training.callback import Callback
from trw_pipeline.training.history import History
from trw_pipeline.training.options import Options
from trw_pipeline.typing import Split

if TYPE_CHECKING:
    from trw_pipeline.training.run import Run

_logger = logging.getLogger(__name__)

_MOST_SHAPES = 3


class CallbackDataSummary(Callback):
    """Tells what each split of each dataset holds, in one message.

    Of a split: its number of batches where that is known, and how many samples were read. Of each feature: dtype and
    shape of a sample; of numbers also least, greatest, mean and (population) standard deviation over all values of the
    samples read, those that are not finite left out and counted.

    Not all data are read. Of a chain of ours `max_samples` are drawn at random and made in this process, of any other
    split the first ones are read. A generator, or whatever else can be read only once, is left out with a warning.

    Args:
        logger: takes the message, a str of several lines. None: it is logged at level INFO.
        collect_stats: False: one sample is read, for dtypes and shapes alone.
        max_samples: so many of each split are read. None: all of an epoch; a chain makes them with its workers.
        max_time_s: reading a split ends after so many seconds, with the batch that is read then: samples may take long
            to make, and the training waits. None: it does not.

    Raises:
        ValueError: `max_samples` is less than 1, or the time negative.
        TypeError: `max_samples` is no int.
    """

    def __init__(
        self,
        logger: Callable[[str], Any] | None = None,
        collect_stats: bool = True,
        *,
        max_samples: int | None = 200,
        max_time_s: float | None = 30.0,
    ) -> None:
        self.logger = _logger.info if logger is None else logger
        self.collect_stats = collect_stats
        self.max_samples = None if max_samples is None else check_count("max_samples", max_samples)
        if max_time_s is not None and not max_time_s >= 0:
            raise ValueError(f"max_time_s must not be negative, got {max_time_s}")
        self.max_time_s = math.inf if max_time_s is None else max_time_s

    def __call__(
        self,
        options: Options,
        history: History,
        model: nn.Module,
        losses: Any,
        outputs: Any,
        datasets: Any,
        datasets_infos: Any,
        callbacks_per_batch: Any,
        **kwargs: Any,
    ) -> None:
        """Send the message.

        Args:
            options: has the device.
            history: not used.
            model: not used.
            losses: not used.
            outputs: not used.
            datasets: what to tell of.
            datasets_infos: not used.
            callbacks_per_batch: see each batch.
            **kwargs: not used.
        """
        again = SecondLook(options, model, losses, callbacks_per_batch)
        lines = ["data summary"]
        for dataset_name, split_name, split in every_split(datasets):
            max_samples = self.max_samples if self.collect_stats else 1
            summary = _SplitSummary(max_samples, self.max_time_s, self.collect_stats)
            with shown(
                split, None if max_samples is None else lambda chain, few=max_samples: chain.subsample(few)
            ) as few:
                again.read(few, dataset_name, split_name, summary)
            lines += [f"{dataset_name}/{split_name}: {_nb_batches(split)}, {summary.nb_read} samples read"]
            lines += [f"  {line}" for line in summary.lines()]
        self.logger("\n".join(lines))


class _SplitSummary:
    """What is known of the features of a split.

    Args:
        max_samples: reading ends after so many; None: with the split.
        max_time_s: reading ends after so many seconds.
        with_numbers: whether to look at the values.
    """

    def __init__(self, max_samples: int | None, max_time_s: float, with_numbers: bool) -> None:
        self._end = time.monotonic() + max_time_s
        self._max_samples = math.inf if max_samples is None else max_samples
        self._with_numbers = with_numbers
        self._features: dict[str, _FeatureSummary] = {}
        self.nb_read = 0

    def __call__(self, run: Run) -> None:
        """Look at one batch."""
        nb_samples = len_batch(run.batch)
        nb_wanted = int(min(nb_samples, self._max_samples - self.nb_read))
        for name, value in run.batch.items():
            if name not in self._features:
                self._features[name] = _FeatureSummary(self._with_numbers)
            if isinstance(value, torch.Tensor) and value.layout != torch.strided:
                self._features[name].add_sparse(value)  # of which torch gives no part
            elif holds_samples(value) and len(value) == nb_samples:
                self._features[name].add(to_value(value[:nb_wanted]))
            else:
                self._features[name].add_batch_wide(to_value(value))
        self.nb_read += nb_wanted
        if self.nb_read >= self._max_samples or time.monotonic() >= self._end:
            run.split_stopped = True

    def lines(self) -> list[str]:
        """Give a line for each feature."""
        return [f"{name}: {feature}" for name, feature in self._features.items()]


class _FeatureSummary:
    """What is known of one feature.

    Mean and deviation come from those of the parts, by the formula of Chan, Golub and LeVeque (1979), which loses no
    digits where the mean is large.
    """

    def __init__(self, with_numbers: bool) -> None:
        self._with_numbers = with_numbers
        self._kinds: dict[str, None] = {}
        self._nb_kinds_left_out = 0
        self._nb = 0
        self._nb_not_finite = 0
        self._mean = 0.0
        self._squares = 0.0
        self._least: Any = math.inf
        self._greatest: Any = -math.inf

    def add(self, values: Any) -> None:
        """Take in the values of some samples: an array or a list."""
        if isinstance(values, np.ndarray):
            self._note_kind(f"{values.dtype} {values.shape[1:]}" if len(values) else "")
            self._add_numbers(values)
            return
        for value in values:
            array = value if isinstance(value, np.ndarray) else np.asarray(value) if _is_number(value) else None
            self._note_kind(type(value).__name__ if array is None else f"{array.dtype} {array.shape}")
            if array is not None:
                self._add_numbers(array)

    def add_sparse(self, value: torch.Tensor) -> None:
        """Note what is stored sparsely."""
        self._note_kind(f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)} of the whole batch, sparse")

    def add_batch_wide(self, value: Any) -> None:
        """Note what belongs to a whole batch."""
        text = f"{value!r}"
        self._note_kind(f"{type(value).__name__} of the whole batch, {text if len(text) <= 40 else text[:40] + '...'}")

    def _note_kind(self, kind: str) -> None:
        if kind and kind not in self._kinds:
            if len(self._kinds) < _MOST_SHAPES:
                self._kinds[kind] = None
            else:
                self._nb_kinds_left_out += 1

    def _add_numbers(self, values: np.ndarray) -> None:
        if not self._with_numbers or values.dtype.kind not in "buif":
            return
        finite = values[np.isfinite(values)]
        self._nb_not_finite += values.size - finite.size
        if not finite.size:
            return
        self._least, self._greatest = min(self._least, finite.min()), max(self._greatest, finite.max())
        mean = finite.mean(dtype=np.float64)
        squares = np.square(finite - mean, dtype=np.float64).sum()
        both = self._nb + finite.size
        gap = mean - self._mean
        self._squares += squares + gap * gap * self._nb * finite.size / both
        self._mean += gap * finite.size / both
        self._nb = both

    def __str__(self) -> str:
        """One line."""
        more = f" and others ({self._nb_kinds_left_out} times)" if self._nb_kinds_left_out else ""
        text = " or ".join(self._kinds) + more
        if self._nb:
            deviation = math.sqrt(self._squares / self._nb)
            text += (
                f", {float(self._least):.9g} to {float(self._greatest):.9g}, mean {self._mean:.6g}, std {deviation:.6g}"
            )
        return text + (f", {self._nb_not_finite} not finite" if self._nb_not_finite else "")


def _is_number(value: Any) -> bool:
    return isinstance(value, (bool, int, float, np.number))


def _nb_batches(split: Split) -> str:
    try:
        nb_batches = len(split)  # pyright: ignore[reportArgumentType]
    except TypeError:
        return "number of batches unknown"
    return f"{nb_batches} batches"
