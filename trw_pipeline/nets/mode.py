"""Training mode and evaluation mode of a module, for a while."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def in_mode(model: nn.Module, training: bool) -> Generator[None, None, None]:
    """Put a model into training or evaluation mode, and every part of it back into the mode it was in.

    Args:
        model: the model, with all of its parts.
        training: the mode.
    """
    modes = [(module, module.training) for module in model.modules()]
    model.train(training)
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextmanager
def looked_at(model: nn.Module) -> Generator[None, None, None]:
    """Put a model into evaluation mode, and leave it as it was: its mode, and its buffers too.

    Some models count their passes, or keep what they saw, in evaluation mode as well.

    Args:
        model: the model, with all of its parts.
    """
    owned = [
        (module, name, buffer) for module in model.modules() for name, buffer in module.named_buffers(recurse=False)
    ]
    before = [(buffer._version, buffer.detach().clone()) for _, _, buffer in owned]
    try:
        with in_mode(model, training=False):
            yield
    finally:
        for (module, name, buffer), (version, value) in zip(owned, before, strict=True):
            if getattr(module, name, None) is not buffer:
                setattr(module, name, buffer)
            if buffer._version != version:  # else a graph that was made meanwhile may need it as it is
                with torch.no_grad():
                    buffer.copy_(value)
