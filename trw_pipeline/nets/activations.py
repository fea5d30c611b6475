"""What the layers of a model give, in a few numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn

from trw_pipeline.nets.hooks import CleanAddedHooks
from trw_pipeline.nets.mode import looked_at


@dataclass(frozen=True)
class Activations:
    """The values that a layer gave.

    Attributes:
        name: dotted name of the layer.
        kind: its class.
        nb_values: how many, over all its calls.
        mean: of those that are finite; NaN if there are none.
        std: their standard deviation (of all values, so divided by their number).
        low: the least of them.
        high: the greatest.
        zeros: share of values, of all, that are exactly 0.
        not_finite: share of values that are NaN or infinite.
    """

    name: str
    kind: str
    nb_values: int
    mean: float
    std: float
    low: float
    high: float
    zeros: float
    not_finite: float


def activations_of(model: nn.Module, batch: Any) -> list[Activations]:
    """Run a model once, without gradients and in evaluation mode, and sum up what each layer gives.

    Modes and hooks are put back, whatever happens.

    Args:
        model: the model.
        batch: what it is called with, on its device.

    Returns:
        One record for each module without parts that gave tensors of floating point numbers, in the order of
        `named_modules`.
    """
    layers = {module: name for name, module in model.named_modules() if not any(True for _ in module.children())}
    seen: dict[nn.Module, list[torch.Tensor]] = {}

    def note(module: nn.Module, inputs: Any, outputs: Any) -> None:
        # Summed up at once: to keep the outputs would keep the memory of the whole pass.
        seen.setdefault(module, []).extend(_sums(tensor) for tensor in _tensors_in(outputs))

    with CleanAddedHooks(model), looked_at(model), torch.no_grad():
        for layer in layers:
            if not isinstance(layer, torch.jit.ScriptModule):  # takes no such hooks
                layer.register_forward_hook(note)
        model(batch)
    return [
        _summed_up(name, type(layer).__name__, torch.stack(seen[layer]).cpu())
        for layer, name in layers.items()
        if seen.get(layer)
    ]


def _sums(values: torch.Tensor) -> torch.Tensor:
    """Number, zeros, finite ones, their mean, sum of squared deviations, least and greatest, as float64 `(7,)`."""
    finite = values[torch.isfinite(values)].double()
    nothing = torch.tensor(math.nan, dtype=torch.float64, device=values.device)
    has_some = finite.numel() > 0
    mean = finite.mean() if has_some else nothing
    return torch.stack(
        [
            torch.as_tensor(values.numel(), dtype=torch.float64, device=values.device),
            (values == 0).sum().double(),
            torch.as_tensor(finite.numel(), dtype=torch.float64, device=values.device),
            mean,
            (finite - mean).square().sum(),
            finite.min() if has_some else nothing,
            finite.max() if has_some else nothing,
        ]
    )


def _summed_up(name: str, kind: str, calls: torch.Tensor) -> Activations:
    """Joins the calls of a layer; squared deviations of groups add up as Chan, Golub and LeVeque (1983) say."""
    nb_values, nb_zeros, nb_finite = (float(total) for total in calls[:, :3].sum(dim=0))
    some = calls[calls[:, 2] > 0]
    mean = float((some[:, 2] * some[:, 3]).sum() / nb_finite) if nb_finite else math.nan
    squares = float((some[:, 4] + some[:, 2] * (some[:, 3] - mean).square()).sum())
    return Activations(
        name=name,
        kind=kind,
        nb_values=int(nb_values),
        mean=mean,
        std=math.sqrt(squares / nb_finite) if nb_finite else math.nan,
        low=float(some[:, 5].min()) if len(some) else math.nan,
        high=float(some[:, 6].max()) if len(some) else math.nan,
        zeros=nb_zeros / nb_values,
        not_finite=1 - nb_finite / nb_values,
    )


def _tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors of floating point numbers, that are not empty, in what a module returns."""
    if isinstance(value, torch.Tensor):
        if value.is_floating_point() and value.numel():
            yield value.detach()
    elif isinstance(value, Mapping):
        for part in cast("Mapping[Any, Any]", value).values():
            yield from _tensors_in(part)
    elif isinstance(value, (list, tuple)):
        for part in cast("list[Any]", value):
            yield from _tensors_in(part)
