"""What a training measured, and how the batches of a split become one set of figures.

    history[epoch][dataset][split][output][metric] -> float

Every split with samples has the output `overall_loss` with the metric `loss`, and every split that ran has `info`:

| metric | meaning |
|---|---|
| `nb_samples` | samples of the split |
| `time_s` | wall time of the split in seconds, its evaluation included |
| `samples_per_s` | `nb_samples / time_s` |
| `wait_s` | seconds of it that the loop waited for data: inside `iter(split)` and `next` |
| `wait_share` | `wait_s / time_s`, in [0, 1] |
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, TypeAlias

import numpy as np
import torch

from trw_pipeline.batches.device import to_value
from trw_pipeline.outputs.output import LossTerm, Output, Summand, Totals

SplitHistory: TypeAlias = dict[str, dict[str, float]]
"""Output -> metric -> value."""

EpochHistory: TypeAlias = dict[str, dict[str, SplitHistory]]
"""Dataset -> split -> output -> metric -> value."""

History: TypeAlias = list[EpochHistory]
"""One entry for each epoch, from 0; after a training, one more for the final evaluation."""

SplitOutputs: TypeAlias = dict[str, LossTerm]
"""Output -> the loss terms of a split as one, on the host: see `Output`."""

EpochOutputs: TypeAlias = dict[str, dict[str, SplitOutputs]]
"""Dataset -> split -> output -> the loss terms of the split as one."""

OVERALL_LOSS = "overall_loss"
INFO = "info"


class SplitMeter:
    """Gathers the loss terms of one split on their device, and reads them once, at the end.

    Whatever the number of batches, numbers and counts take the same memory; tensors of samples take theirs, in one
    growing tensor for each value. No tensor in here has a graph.
    """

    def __init__(self) -> None:
        self.nb_samples = 0
        self._loss = _Mean()
        self._terms: dict[str, dict[str, _Gatherer]] = {}

    def add(self, terms: Mapping[str, LossTerm], loss: torch.Tensor | float, nb_samples: int) -> None:
        """Take in one batch, without reading a value from the device.

        Args:
            terms: output -> its loss term of this batch.
            loss: what was optimised, a tensor without dimensions or a number.
            nb_samples: samples in the batch, at least 1.

        Raises:
            ValueError: an output has a reserved name, or its rows do not fit those of the batches before.
        """
        self.nb_samples += nb_samples
        self._loss.add(loss, nb_samples)
        for output, term in terms.items():
            gatherers = self._terms.get(output)
            if gatherers is None:
                if output in (OVERALL_LOSS, INFO):
                    raise ValueError(f"an output must not be called {output!r}: the history uses the name itself")
                gatherers = self._terms[output] = {}
            for name, value in term.items():
                gatherer = gatherers.get(name)
                if gatherer is None:
                    gatherer = gatherers[name] = _gatherer_for(value, f"{output!r}/{name!r}")
                gatherer.add(value, nb_samples)

    def read(self) -> tuple[SplitOutputs, SplitHistory]:
        """Read the split.

        Returns:
            The loss terms as one (with `overall_loss`, whose value is `loss`), and what the heads make of them. Both
            are empty if there was no batch.

        Raises:
            TypeError: a head gave a metric that is not a number.
        """
        if not self.nb_samples:
            return {}, {}
        outputs = self._read_terms()
        history: SplitHistory = {}
        for output, term in outputs.items():
            head: Output | None = term.get(Output.output_ref_tag)
            figures = {} if head is None else head.extract_history(term)
            if figures:
                history[output] = {metric: _number(output, metric, value) for metric, value in figures.items()}
        return outputs, history | {OVERALL_LOSS: dict(outputs[OVERALL_LOSS])}

    def _read_terms(self) -> SplitOutputs:
        terms = self._terms | {OVERALL_LOSS: {"loss": self._loss}}
        gatherers = [gatherer for term in terms.values() for gatherer in term.values()]
        arrays = iter(_to_host([tensor for gatherer in gatherers for tensor in gatherer.small()]))
        values = iter([gatherer.read(list(islice(arrays, len(gatherer.small())))) for gatherer in gatherers])
        return {output: {name: next(values) for name in term} for output, term in terms.items()}


def split_info(nb_samples: int, time_s: float, wait_s: float) -> dict[str, float]:
    """Make the output `info` of a split.

    Args:
        nb_samples: samples of the split.
        time_s: wall time of the split in seconds.
        wait_s: seconds of it spent waiting for batches.

    Returns:
        The five metrics of the table above; the two ratios are 0 when no time passed.
    """
    return {
        "nb_samples": float(nb_samples),
        "time_s": time_s,
        "samples_per_s": nb_samples / time_s if time_s > 0 else 0.0,
        "wait_s": wait_s,
        "wait_share": min(wait_s / time_s, 1.0) if time_s > 0 else 0.0,
    }


class _Gatherer(ABC):
    """What one value of a loss term becomes over a split."""

    @abstractmethod
    def add(self, value: Any, nb_samples: int) -> None:
        """Take in the value of one batch."""

    def small(self) -> list[torch.Tensor]:
        """The few numbers that wait on the device, to be fetched together with those of all others."""
        return []

    @abstractmethod
    def read(self, small: list[np.ndarray]) -> Any:
        """Give the value of the split; `small` are the tensors of the same name, on the host."""


class _Mean(_Gatherer):
    """A sample-weighted mean. Tensors are summed where they are, in float64, so that a long split loses no digits."""

    def __init__(self) -> None:
        self._weight = 0
        self._on_host = 0.0
        self._on_device: torch.Tensor | None = None

    def add(self, value: torch.Tensor | float, nb_samples: int) -> None:
        self._weight += nb_samples
        if not isinstance(value, torch.Tensor):
            self._on_host += float(value) * nb_samples
            return
        if self._on_device is None:
            dtype = torch.float32 if value.device.type == "mps" else torch.float64  # MPS has no float64
            self._on_device = torch.zeros((), dtype=dtype, device=value.device)
        self._on_device.add_(value.detach(), alpha=nb_samples)

    def small(self) -> list[torch.Tensor]:
        return [] if self._on_device is None else [self._on_device]

    def read(self, small: list[np.ndarray]) -> float:
        return (self._on_host + sum(float(value) for value in small)) / self._weight


class _Sums(_Gatherer):
    """`Totals`, added."""

    def __init__(self) -> None:
        self._sums = Totals()

    def add(self, value: Totals, nb_samples: int) -> None:
        for name, summand in value.items():
            mine = self._sums.get(name)
            if mine is None:
                self._sums[name] = summand.detach().clone() if isinstance(summand, torch.Tensor) else summand
            else:
                self._sums[name] = _added(mine, summand)

    def small(self) -> list[torch.Tensor]:
        return [value for value in self._sums.values() if isinstance(value, torch.Tensor)]

    def read(self, small: list[np.ndarray]) -> dict[Any, Any]:
        arrays = iter(small)
        return {n: next(arrays) if isinstance(value, torch.Tensor) else value for n, value in self._sums.items()}


class _Rows(_Gatherer):
    """The rows of all batches, in one tensor that doubles when it is full.

    A list of tensors would be simpler, but its number of live tensors grows with the batches, and joining it takes all
    of its memory a second time.
    """

    def __init__(self, first: torch.Tensor, name: str) -> None:
        self._name = name
        self._row_shape = first.shape[1:]
        self._dtype = first.dtype
        self._nb_rows = 0
        self._capacity = 4 * max(1, len(first))
        self._rows = first.detach().new_empty((self._capacity, *self._row_shape))

    def add(self, value: torch.Tensor, nb_samples: int) -> None:
        if value.shape[1:] != self._row_shape or value.dtype != self._dtype:
            raise ValueError(
                f"the rows of {self._name} must fit those of the batches before, {tuple(self._row_shape)} "
                f"{self._dtype}, got {tuple(value.shape[1:])} {value.dtype}; outputs that differ need "
                f"collect_output=False"
            )
        start = self._nb_rows
        end = self._nb_rows = start + value.shape[0]
        if end > self._capacity:
            self._capacity = max(end, 2 * self._capacity)
            full = self._rows
            self._rows = full.new_empty((self._capacity, *self._row_shape))
            self._rows[:start] = full[:start]
        self._rows[start:end] = value.detach() if value.requires_grad else value

    def read(self, small: list[np.ndarray]) -> Any:
        # The copy lets go of what the tensor has grown beyond its rows.
        return to_value(self._rows[: self._nb_rows].clone())


class _Parts(_Gatherer):
    """Lists, chained, and `numpy` arrays, concatenated."""

    def __init__(self) -> None:
        self._parts: list[Any] = []

    def add(self, value: Any, nb_samples: int) -> None:
        self._parts.append(value)

    def read(self, small: list[np.ndarray]) -> Any:
        if isinstance(self._parts[0], np.ndarray):
            return np.concatenate(self._parts)
        return [element for part in self._parts for element in part]


class _First(_Gatherer):
    """Anything else: the value of the first batch."""

    def __init__(self, first: Any) -> None:
        self._first = first

    def add(self, value: Any, nb_samples: int) -> None:
        pass

    def read(self, small: list[np.ndarray]) -> Any:
        return self._first


def _gatherer_for(value: Any, name: str) -> _Gatherer:
    if isinstance(value, torch.Tensor):
        return _Rows(value, name) if value.dim() else _Mean()
    if isinstance(value, Totals):
        return _Sums()
    if isinstance(value, np.ndarray):
        return _Parts() if value.ndim else _Mean()
    if isinstance(value, (int, float, np.number)):
        return _Mean()
    return _Parts() if isinstance(value, list) else _First(value)


def _added(mine: Summand, summand: Summand) -> Summand:
    if isinstance(mine, torch.Tensor):
        return mine.add_(summand.detach() if isinstance(summand, torch.Tensor) else summand)
    return mine + summand


def _to_host(tensors: Sequence[torch.Tensor]) -> list[np.ndarray]:
    """Fetch many small tensors, with one read for each device and dtype instead of one for each tensor."""
    groups: dict[tuple[torch.device, torch.dtype], list[int]] = defaultdict(list)
    for index, tensor in enumerate(tensors):
        groups[tensor.device, tensor.dtype].append(index)
    arrays: dict[int, np.ndarray] = {}
    for indices in groups.values():
        flat = torch.cat([tensors[index].reshape(-1) for index in indices]).cpu().numpy()
        start = 0
        for index in indices:
            shape = tensors[index].shape
            arrays[index] = flat[start : start + shape.numel()].reshape(shape)
            start += shape.numel()
    return [arrays[index] for index in range(len(tensors))]


def _number(output: str, metric: str, value: Any) -> float:
    is_scalar = isinstance(value, (torch.Tensor, np.ndarray)) and value.ndim == 0
    if not is_scalar and not isinstance(value, (int, float, np.number)):
        raise TypeError(f"the metric {metric!r} of {output!r} must be a number, got {type(value).__name__}")
    return float(value)
