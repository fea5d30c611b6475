"""Hooks of modules that do not outlive their use."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, TypeAlias

from torch import nn

Hooks: TypeAlias = dict[nn.Module, set[int]]
"""Module -> the ids of its hooks; an id is unique in the program."""

_FORWARD = ("_forward_pre_hooks", "_forward_hooks")
_BACKWARD = ("_backward_pre_hooks", "_backward_hooks")
# Where torch notes more of a hook, by the same id.
_NOTES = ("_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_forward_pre_hooks_with_kwargs")


class CleanAddedHooks:
    """A context in which a model may get hooks: at its end those that were added are removed, also after an error.

    Hooks that the model had before stay, and so does what was raised. Hooks of modules that joined the model within the
    context are removed too. Hooks of tensors, and those for all modules of the program, are not tracked.

    Args:
        model: the model, with all of its parts.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._before: tuple[Hooks, Hooks] | None = None

    def __enter__(self) -> CleanAddedHooks:
        """Note the hooks that are there.

        Returns:
            Itself.
        """
        self._before = self.record_hooks(self.model)
        return self

    def __exit__(
        self, type: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Remove the hooks that were not there; an error passes through.

        Args:
            type: of the error, or None.
            value: the error, or None.
            traceback: of the error, or None.
        """
        assert self._before is not None  # `with` has entered
        for before, now in zip(self._before, self.record_hooks(self.model), strict=True):
            for module, ids in now.items():
                for added in ids - before.get(module, set()):
                    for name in (*_FORWARD, *_BACKWARD, *_NOTES):
                        _dict_of(module, name).pop(added, None)

    @staticmethod
    def record_hooks(module_source: nn.Module) -> tuple[Hooks, Hooks]:
        """Note which hooks a module and its parts have.

        Args:
            module_source: the module.

        Returns:
            `(forward, backward)`, each a dict module -> ids of its hooks, those that run before the pass included;
            modules without hooks are there, with an empty set.
        """
        modules = list(module_source.modules())
        return _hooks_of(modules, _FORWARD), _hooks_of(modules, _BACKWARD)


def _hooks_of(modules: list[nn.Module], names: tuple[str, ...]) -> Hooks:
    return {module: {id for name in names for id in _dict_of(module, name)} for module in modules}


def _dict_of(module: nn.Module, name: str) -> dict[int, Any]:
    found: Mapping[int, Any] = getattr(module, name, {})
    return found if isinstance(found, dict) else {}
