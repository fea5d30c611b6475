"""How the gradients of batches become steps of the optimizers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

Amp: TypeAlias = Literal["bf16", "fp16"]

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Optimization:
    """Turns losses into gradients and gradients into steps, for any number of optimizers.

    A step is made of the gradients of a group of `accumulate` batches; at the end of a split it is made of those that
    are left. Whatever the sizes of its batches, the gradient of a group is that of one batch with all its samples: each
    loss, a mean over the samples of its batch, counts by their number. (Statistics of batch normalisation remain those
    of each batch.)

    Args:
        accumulate: so many batches make a step.
        clip_norm: the 2-norm of all gradients of a step is scaled down to this, after they were unscaled; or None.
        amp: the model, its heads and the loss run in mixed precision: "bf16", or "fp16" with a gradient scaler.
        ema: decay of an exponential moving average of the weights, in [0, 1); it is updated after every step. None: no
            average.

    Attributes:
        scaler: gradient scaler of "fp16", else None.
        average: the averaged model, or None.
        precision: the context in which a batch is judged, to be entered again and again.
        nb_waiting: batches whose gradients wait for the next step.

    Raises:
        ValueError: an argument is out of range.
        TypeError: `accumulate` is not an int.
    """

    def __init__(
        self, accumulate: int = 1, clip_norm: float | None = None, amp: Amp | None = None, ema: float | None = None
    ) -> None:
        if not isinstance(accumulate, int) or isinstance(accumulate, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"accumulate must be an int, got {accumulate!r}")
        if accumulate < 1:
            raise ValueError(f"accumulate must be at least 1, got {accumulate}")
        if clip_norm is not None and not (clip_norm > 0 and math.isfinite(clip_norm)):
            raise ValueError(f"clip_norm must be positive and finite, or None, got {clip_norm}")
        if amp is not None and amp not in get_args(Amp):
            raise ValueError(f"amp must be None or one of {get_args(Amp)}, got {amp!r}")
        if ema is not None and not 0 <= ema < 1:
            raise ValueError(f"ema must be a decay in [0, 1), or None, got {ema}")
        self.accumulate = accumulate
        self.clip_norm = clip_norm
        self.scaler: Any = None
        self.average: AveragedModel | None = None
        self.precision: AbstractContextManager[Any] = nullcontext()
        self.nb_waiting = 0
        self._dtype = None if amp is None else _DTYPES[amp]
        self._ema = ema
        self._model: nn.Module = nn.Module()
        self._parameters: list[nn.Parameter] = []
        self._nominal = 0.0  # samples of a group, if all its batches were as large as the first
        self._nb_samples: float | torch.Tensor = 0.0  # of the group so far
        self._weight: float | torch.Tensor = 1.0

    def prepare(self, model: nn.Module, device: torch.device) -> None:
        """Makes the precision, the gradient scaler and the average of the weights, where they are asked for."""
        if self._dtype is not None:
            self.precision = torch.autocast(device.type, self._dtype)
        if self._dtype == torch.float16:
            self.scaler = torch.amp.GradScaler(device.type)
        if self._ema is not None:
            self.average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(self._ema))

    def begin_split(self, model: nn.Module) -> None:
        """Begins the training of a model with a split; what waits from another is forgotten.

        To find the parameters of a model takes longer than a small step, so it is done here.
        """
        self._model = model
        self._parameters = list(model.parameters())
        self.begin_group()

    def take(self, nb_samples: float | torch.Tensor, nb_nominal: float) -> None:
        """Takes a batch into the group: the losses that follow are of so many samples.

        A loss with a denominator of its own (the pixels of a mask, a sum of weights) takes that instead; if it is 0,
        the batch has no weight. As a tensor it is not read. `nb_nominal` is the number of the like that keeps gradients
        in their range until the step.
        """
        self.nb_waiting += 1
        self._nb_samples = self._nb_samples + nb_samples
        self._nominal = self._nominal or nb_nominal * self.accumulate
        self._weight = nb_samples / self._nominal if self._nominal else 0.0

    def backward(self, loss: torch.Tensor) -> None:
        """Adds the gradients of a loss of the batch taken last."""
        if isinstance(self._weight, torch.Tensor) or self._weight != 1.0:
            loss = loss * self._weight
        if self.scaler is not None:
            loss = self.scaler.scale(loss)
        loss.backward()

    def step(self, optimizers: Mapping[str, Optimizer]) -> list[Optimizer]:
        """Steps with the gradients of the group, and clears all of them; returns the optimizers that stepped."""
        if self.scaler is not None:
            for optimizer in optimizers.values():
                self.scaler.unscale_(optimizer)
        factor = self._nominal_share()
        if isinstance(factor, torch.Tensor) or factor != 1.0:
            for gradient in _gradients(optimizers.values()):
                gradient.mul_(factor)
        if self.clip_norm is not None:
            nn.utils.clip_grad_norm_(_parameters(optimizers.values()), self.clip_norm)
        stepped = self._step_each(optimizers.values())
        self.forget_group(optimizers.values())
        if self.average is not None and stepped:
            self.average.update_parameters(self._model)
        return stepped

    def _nominal_share(self) -> float | torch.Tensor:
        """By which gradients of a nominal group become those of this one; of a group of no samples they are 0."""
        nb_samples = self._nb_samples
        if isinstance(nb_samples, torch.Tensor):
            return torch.where(nb_samples > 0, self._nominal / nb_samples, 1.0)
        return self._nominal / nb_samples if nb_samples else 1.0

    def _step_each(self, optimizers: Iterable[Optimizer]) -> list[Optimizer]:
        """With a scaler none steps whose gradients overflowed; to ask the scale instead would stop the device."""
        if self.scaler is None:
            for optimizer in optimizers:
                optimizer.step()
            return list(optimizers)
        stepped: list[Optimizer] = []
        for optimizer in optimizers:
            handle = optimizer.register_step_post_hook(lambda stepping, arguments, keywords: stepped.append(stepping))
            try:
                self.scaler.step(optimizer)
            finally:
                handle.remove()
        self.scaler.update()
        return stepped

    def group_state(self) -> dict[str, Any] | None:
        """Returns what waits for the next step, or None if nothing does."""
        if not self.nb_waiting:
            return None
        named = self._model.named_parameters()
        gradients = {name: parameter.grad for name, parameter in named if parameter.grad is not None}
        return {"nb": self.nb_waiting, "nominal": self._nominal, "nb_samples": self._nb_samples, "gradients": gradients}

    def load_group_state(self, state: Mapping[str, Any]) -> None:
        """Puts it back."""
        self.nb_waiting, self._nominal, self._nb_samples = state["nb"], state["nominal"], state["nb_samples"]
        for name, parameter in self._model.named_parameters():
            if name in state["gradients"]:
                parameter.grad = state["gradients"][name].to(parameter.device)

    def forget_group(self, optimizers: Iterable[Optimizer]) -> None:
        """Clears all gradients, of the model too: a loss of one part may have left some in another."""
        for parameter in self._parameters:
            parameter.grad = None
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad = None
        self.begin_group()

    def begin_group(self) -> None:
        """Begins a new group of batches."""
        self.nb_waiting = 0
        self._nominal = self._nb_samples = 0.0


def _parameters(optimizers: Iterable[Optimizer]) -> list[torch.Tensor]:
    unique = {
        id(parameter): parameter
        for optimizer in optimizers
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    return list(unique.values())


def _gradients(optimizers: Iterable[Optimizer]) -> list[torch.Tensor]:
    return [parameter.grad for parameter in _parameters(optimizers) if parameter.grad is not None]
