"""Finds a loss that is no number before it reaches the weights, without making the device wait; and such weights."""

from __future__ import annotations

import math
import reprlib
from collections import deque
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import torch
from torch import nn

from trw_pipeline.outputs.output import LossTerm
from trw_pipeline.training.gathering import to_host

NanPolicy: TypeAlias = Literal["raise", "skip", "stop", "revert"]


_brief = reprlib.Repr()
_brief.maxlist = 20
_brief.maxstring = 200


def check_nan_policy(policy: str) -> None:
    """Raises ValueError unless it is one of the three."""
    if policy not in get_args(NanPolicy):
        raise ValueError(f"nan_policy must be one of {get_args(NanPolicy)}, got {policy!r}")


class Place(NamedTuple):
    """A batch: where it stood in the training, and what its heads said.

    Attributes:
        losses: output -> its loss.
        uids: identifiers of its samples, or None.
    """

    epoch: int
    split: str
    batch_index: int
    nb_steps: int
    losses: Mapping[str, Any]
    uids: Any

    def __str__(self) -> str:
        values = {name: _value(loss) for name, loss in self.losses.items()}
        guilty = [f"{name}={value}" for name, value in values.items() if not math.isfinite(value)] or ["none of them"]
        return (
            f"epoch {self.epoch}, {self.split}, batch {self.batch_index}, after {self.nb_steps} steps; heads whose "
            f"loss is not finite: {', '.join(guilty)}; sample_uid of the batch: {told_uids(self.uids)}"
        )


class LossWatch:
    """Looks at every loss that is trained on.

    On the CPU it is looked at where it lies. From an accelerator the answer travels while the work goes on, and is
    heard some batches later, at the end of the split at the latest, because to wait for it would stop the device at
    every batch.
    """

    def __init__(self) -> None:
        self._pending: deque[tuple[torch.Tensor, torch.cuda.Event, Place]] = deque()

    def send(self, loss: torch.Tensor, place: Place) -> None:
        """Asks an accelerator whether the loss is a number."""
        flag = torch.empty((), dtype=torch.bool, pin_memory=True)
        flag.copy_(loss.detach().isfinite(), non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        self._pending.append((flag, event, place))

    def heard(self, wait: bool = False) -> Place | None:
        """Returns the first batch whose loss turned out to be none, as far as answers are there, or waits for all."""
        while self._pending and (wait or self._pending[0][1].query()):
            flag, event, place = self._pending.popleft()
            event.synchronize()
            if not flag.item():
                self._pending.clear()
                return place
        return None


def weights_are_finite(model: nn.Module) -> bool:
    """Whether all weights that are trained are numbers. Makes the device wait once."""
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    return all(bool(flag) for flag in to_host([weight.detach().isfinite().all() for weight in weights]))


def told_uids(uids: Any) -> str:
    """Writes out the first identifiers of the samples of a batch, for an error."""
    try:
        values = uids.tolist() if hasattr(uids, "tolist") else uids
    except RuntimeError:  # of a device that has failed, which the error on its way tells
        return "not readable"
    return _brief.repr(values)


def losses_of(terms: Mapping[str, LossTerm]) -> dict[str, Any]:
    """Returns the losses of heads, without their graphs."""
    return {
        name: term["loss"].detach() if isinstance(term["loss"], torch.Tensor) else term["loss"]
        for name, term in terms.items()
        if "loss" in term
    }


def _value(loss: Any) -> float:
    return float(loss.float()) if isinstance(loss, torch.Tensor) else float(loss)
