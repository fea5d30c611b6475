"""How the values of the batches of a split become one value each."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch

from trw_pipeline.batches.device import to_value
from trw_pipeline.outputs.output import Rows, Summand, Totals, Update
from trw_pipeline.outputs.precision import precise_dtype


def number_on_host(value: torch.Tensor | float) -> torch.Tensor | float:
    """Read a tensor without dimensions that lies on the CPU, where no device waits for the reader.

    Args:
        value: such a tensor, or a number.

    Returns:
        The number; or the tensor itself, where it lies elsewhere.
    """
    if not isinstance(value, torch.Tensor):
        return float(value)
    if not value.is_cpu:
        return value
    if value.dtype not in (torch.float32, torch.float64):
        value = value.double()  # NumPy has no bfloat16
    return float(value.numpy(force=True))


class Gatherer(ABC):
    """What one value of a loss term becomes over a split."""

    @abstractmethod
    def add(self, value: Any, nb_samples: float | torch.Tensor) -> None:
        """Take in the value of one batch, which counts for so many samples."""

    def small(self) -> list[torch.Tensor]:
        """The few numbers that wait on the device, to be fetched together with those of all others."""
        return []

    @abstractmethod
    def read(self, small: list[np.ndarray]) -> Any:
        """Give the value of the split; `small` are the tensors of the same name, on the host."""

    @abstractmethod
    def state(self) -> Any:
        """Give what was gathered so far, for a checkpoint."""

    @abstractmethod
    def load(self, state: Any, like: Any) -> None:
        """Take it back, before the first `add`.

        Args:
            state: what `state` gave, on the CPU.
            like: the value that comes next, for its device.
        """


class _Mean(Gatherer):
    """A sample-weighted mean, summed in float64, so that a long split loses no digits; NaN if nothing has a weight.

    Tensors are summed where they are; those on the CPU as numbers, which takes a third of the time.
    """

    def __init__(self) -> None:
        self._weight = 0.0
        self._on_host = 0.0
        self._on_device: torch.Tensor | None = None
        self._weight_on_device: torch.Tensor | None = None

    def add(self, value: torch.Tensor | float, nb_samples: float | torch.Tensor) -> None:
        if isinstance(nb_samples, torch.Tensor):
            weight = nb_samples.to(precise_dtype(nb_samples))
            self._on_device = _added(self._on_device, torch.as_tensor(value, device=weight.device).detach() * weight)
            self._weight_on_device = _added(self._weight_on_device, weight)
            return
        self._weight += nb_samples
        value = value if isinstance(value, float) else number_on_host(value)
        if not isinstance(value, torch.Tensor):
            self._on_host += value * nb_samples
        else:
            if self._on_device is None:
                self._on_device = torch.zeros((), dtype=precise_dtype(value), device=value.device)
            self._on_device.add_(value.detach(), alpha=nb_samples)

    def small(self) -> list[torch.Tensor]:
        return [one for one in (self._on_device, self._weight_on_device) if one is not None]

    def read(self, small: list[np.ndarray]) -> float:
        numbers = [float(value) for value in small]
        weight = self._weight + (numbers.pop() if self._weight_on_device is not None else 0.0)
        return (self._on_host + sum(numbers)) / weight if weight else math.nan

    def state(self) -> Any:
        return self._weight, self._on_host, self._on_device, self._weight_on_device

    def load(self, state: Any, like: Any) -> None:
        self._weight, self._on_host, *sums = state
        if isinstance(like, torch.Tensor):
            sums = [one if one is None else one.to(like.device) for one in sums]
        self._on_device, self._weight_on_device = sums


class _Sum(Gatherer):
    """A sum: of numbers on the host, of tensors where they are."""

    def __init__(self) -> None:
        self._sum: torch.Tensor | int | float | None = None

    def add(self, value: torch.Tensor | int | float, nb_samples: float | torch.Tensor) -> None:
        if isinstance(value, torch.Tensor) and value.requires_grad:
            value = value.detach()
        if self._sum is None:
            self._sum = value.clone() if isinstance(value, torch.Tensor) else value
        elif isinstance(self._sum, torch.Tensor):
            self._sum.add_(value)
        else:
            self._sum = self._sum + value

    def small(self) -> list[torch.Tensor]:
        return [self._sum] if isinstance(self._sum, torch.Tensor) else []

    def read(self, small: list[np.ndarray]) -> Any:
        return small[0] if small else self._sum

    def state(self) -> Any:
        return self._sum

    def load(self, state: Any, like: Any) -> None:
        self._sum = state.to(like.device) if isinstance(state, torch.Tensor) else state


class _Totals(Gatherer):
    """`Totals`, key by key."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._totals: dict[Any, Gatherer] = {}
        self._pending: dict[Any, Any] = {}  # states of those that have not come yet

    def add(self, value: Totals, nb_samples: float | torch.Tensor) -> None:
        for name, summand in value.items():
            gatherer = self._totals.get(name)
            if gatherer is None:
                gatherer = self._totals[name] = _gatherer_for_summand(summand, f"{self._name}/{name!r}")
                if name in self._pending:
                    gatherer.load(self._pending.pop(name), _value_of(summand))
            gatherer.add(_value_of(summand), nb_samples)

    def small(self) -> list[torch.Tensor]:
        return [tensor for gatherer in self._totals.values() for tensor in gatherer.small()]

    def read(self, small: list[np.ndarray]) -> dict[Any, Any]:
        left = {name: _value_of_state(state) for name, state in self._pending.items()}
        return left | read_each(self._totals, iter(small))

    def state(self) -> Any:
        return [*self._pending.items(), *((name, gatherer.state()) for name, gatherer in self._totals.items())]

    def load(self, state: Any, like: Any) -> None:
        self._pending = dict(state)


class _Updates(Gatherer):
    """`Update`s, to one metric of this split alone."""

    def __init__(self, first: Update) -> None:
        self._metric = first.new_metric()

    def add(self, value: Update, nb_samples: float | torch.Tensor) -> None:
        with torch.no_grad():
            self._metric.update(*value.inputs)

    def read(self, small: list[np.ndarray]) -> Any:
        return to_value(self._metric.compute())

    def state(self) -> Any:
        """Of a metric of torchmetrics all its states; of any other what its `state_dict` gives; and what it computes.

        Raises:
            TypeError: it can not tell its state.
        """
        states = getattr(self._metric, "metric_state", None)
        if states is None and hasattr(self._metric, "state_dict"):
            states = self._metric.state_dict()  # pyright: ignore[reportAttributeAccessIssue]
        if states is None:
            raise TypeError(f"the metric {type(self._metric).__name__} has no state_dict: its state can not be saved")
        return {"states": states, "value": to_value(self._metric.compute())}

    def load(self, state: Any, like: Any) -> None:
        device = like.inputs[0].device
        if not hasattr(self._metric, "metric_state"):
            self._metric.load_state_dict(state["states"])  # pyright: ignore[reportAttributeAccessIssue]
            return
        for name, value in state["states"].items():
            of_device = [one.to(device) for one in value] if isinstance(value, list) else value.to(device)
            setattr(self._metric, name, of_device)
        self._metric._update_count = 1  # pyright: ignore[reportAttributeAccessIssue] (else `compute` warns)


class _Rows(Gatherer):
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

    def add(self, value: torch.Tensor, nb_samples: float | torch.Tensor) -> None:
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

    def state(self) -> Any:
        return self._rows[: self._nb_rows].clone()

    def load(self, state: Any, like: Any) -> None:
        self._nb_rows = len(state)
        self._capacity = max(self._capacity, 2 * len(state))
        self._rows = self._rows.new_empty((self._capacity, *self._row_shape))
        self._rows[: len(state)] = state.to(self._rows.device)


class _Parts(Gatherer):
    """Lists, chained, and `numpy` arrays, concatenated."""

    def __init__(self) -> None:
        self._parts: list[Any] = []

    def add(self, value: Any, nb_samples: float | torch.Tensor) -> None:
        self._parts.append(value)

    def read(self, small: list[np.ndarray]) -> Any:
        if isinstance(self._parts[0], np.ndarray):
            return np.concatenate(self._parts)
        return [element for part in self._parts for element in part]

    def state(self) -> Any:
        return self._parts

    def load(self, state: Any, like: Any) -> None:
        self._parts = list(state)


class _First(Gatherer):
    """Anything else: the value of the first batch."""

    def __init__(self, first: Any) -> None:
        self._first = first

    def add(self, value: Any, nb_samples: float | torch.Tensor) -> None:
        pass

    def read(self, small: list[np.ndarray]) -> Any:
        return self._first

    def state(self) -> Any:
        return None

    def load(self, state: Any, like: Any) -> None:
        pass


def _added(total: torch.Tensor | None, more: torch.Tensor) -> torch.Tensor:
    return more if total is None else total + more


def gatherer_for(value: Any, name: str) -> Gatherer:
    """Make what gathers values of this kind; `name` says of what, in errors."""
    if isinstance(value, torch.Tensor):
        return _Rows(value, name) if value.dim() else _Mean()
    if isinstance(value, Totals):
        return _Totals(name)
    if isinstance(value, np.ndarray):
        return _Parts() if value.ndim else _Mean()
    if isinstance(value, (int, float, np.number)):
        return _Mean()
    return _Parts() if isinstance(value, list) else _First(value)


def _gatherer_for_summand(summand: Summand, name: str) -> Gatherer:
    if isinstance(summand, Rows):
        return _Rows(summand.values, name)
    return _Updates(summand) if isinstance(summand, Update) else _Sum()


def _value_of_state(state: Any) -> Any:
    """The value of a summand of which no batch had more since its state was saved."""
    return state["value"] if isinstance(state, Mapping) else to_value(state)


def _value_of(summand: Summand) -> Any:
    return summand.values if isinstance(summand, Rows) else summand


def read_each(gatherers: Mapping[Any, Gatherer], small: Iterator[np.ndarray]) -> dict[Any, Any]:
    """Read gatherers, each of which takes as many of the fetched tensors as it had asked for."""
    return {name: gatherer.read(list(islice(small, len(gatherer.small())))) for name, gatherer in gatherers.items()}


def to_host(tensors: Sequence[torch.Tensor]) -> list[np.ndarray]:
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
