"""Training mode and evaluation mode of a module, for a while."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

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
