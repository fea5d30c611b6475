"""What a forward pass does: which modules run, what goes in and comes out, and on which leaves a tensor depends."""

from __future__ import annotations

from collections import deque
from typing import Any, TypeAlias

import torch
from torch import nn

from trw_pipeline.nets.hooks import CleanAddedHooks
from trw_pipeline.nets.mode import looked_at

Types: TypeAlias = type[nn.Module] | tuple[type[nn.Module], ...]

_CONVOLUTIONS: Types = (nn.Conv2d, nn.Conv3d, nn.Conv1d)


def find_tensor_leaves_with_grad(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Find the leaves on which a tensor depends: inputs, parameters.

    Args:
        tensor: any tensor.

    Returns:
        The leaves that require gradients, each once, in the order in which they are met from the tensor backwards; the
        tensor itself if it is such a leaf. Those that do not require gradients can not be found.
    """
    if tensor.grad_fn is None:
        return [tensor] if tensor.requires_grad else []
    leaves: list[torch.Tensor] = []
    met: set[Any] = {tensor.grad_fn}
    waiting: deque[Any] = deque(met)  # not by recursion: a graph may be deeper than Python's stack
    while waiting:
        node = waiting.popleft()
        if hasattr(node, "variable"):  # what adds up the gradient of a leaf
            leaves.append(node.variable)
        for following, _ in node.next_functions:
            if following is not None and following not in met:
                met.add(following)
                waiting.append(following)
    return leaves


def find_last_forward_convolution(
    model: nn.Module, inputs: Any, types: Types = _CONVOLUTIONS, relative_index: int = 0
) -> dict[str, Any] | None:
    """Run a model, and find its last convolution: `find_last_forward_types` with `types` of convolutions.

    Args:
        model: the model.
        inputs: what the model takes.
        types: the type of what is looked for, or several.
        relative_index: 0: the last call of such a module; 1: the one before it, and so on.

    Returns:
        See `find_last_forward_types`.

    Raises:
        ValueError: `relative_index` is negative.
    """
    return find_last_forward_types(model, inputs, types, relative_index)


def find_last_forward_types(
    model: nn.Module, inputs: Any, types: Types, relative_index: int = 0
) -> dict[str, Any] | None:
    """Run a model, and find the module of some type that is called last.

    The order is that of the calls, not that of the definition; a module that is called twice counts twice. The model is
    in evaluation mode meanwhile, and has no hooks of ours afterwards, whatever it raises. Gradients are recorded if
    they are where this is called.

    Args:
        model: the model.
        inputs: what the model takes: `model(inputs)`.
        types: the type of what is looked for, or several; types derived from them count too.
        relative_index: 0: the last call of such a module; 1: the one before it, and so on.

    Returns:
        `outputs`, what the model gave; `matched_module`; `matched_module_input` and, under the name that the reference
        really uses, `matched_module_inputs`: the tuple of its positional arguments; `matched_module_output`, as it was
        when the module gave it, whatever is done to it in place afterwards. None if there are not so many calls.

    Raises:
        ValueError: `relative_index` is negative.
    """
    _check_index(relative_index)
    outputs, calls = _run(model, inputs, types, deque(maxlen=relative_index + 1))
    return _found(outputs, calls[0]) if len(calls) == relative_index + 1 else None


def find_first_forward_convolution(
    model: nn.Module, inputs: Any = None, types: Types = _CONVOLUTIONS, relative_index: int = 0
) -> dict[str, Any] | None:
    """Find the first convolution of a model.

    Args:
        model: the model.
        inputs: what the model takes: it is run, and the first call is found. None: the model is not run, and the first
            module in the order of definition is found. (The reference never runs it, whatever it is given.)
        types: the type of what is looked for, or several; types derived from them count too.
        relative_index: 0: the first; 1: the one behind it, and so on.

    Returns:
        As `find_last_forward_types`; if the model was not run, all but `matched_module` are None.

    Raises:
        ValueError: `relative_index` is negative.
    """
    _check_index(relative_index)
    if inputs is None:
        modules = [module for module in model.modules() if isinstance(module, types)]
        return _found(None, (modules[relative_index], None, None)) if relative_index < len(modules) else None
    outputs, calls = _run(model, inputs, types, _First(relative_index + 1))
    return _found(outputs, calls[-1]) if len(calls) == relative_index + 1 else None


class _First(list[Any]):
    """Keeps the first things it is given; a `deque` with a `maxlen` keeps the last."""

    def __init__(self, maxlen: int) -> None:
        super().__init__()
        self._maxlen = maxlen

    def append(self, thing: Any) -> None:
        if len(self) < self._maxlen:
            super().append(thing)


def _run(model: nn.Module, inputs: Any, types: Types, calls: Any) -> tuple[Any, Any]:
    """What the model gave, and the calls of modules of these types as `calls` keeps them."""

    def note(module: nn.Module, arguments: Any, output: Any) -> Any:
        calls.append((module, arguments, output))
        # The model goes on with a copy: an activation in place would change what is kept here, and its gradient.
        return output.clone() if isinstance(output, torch.Tensor) else output

    with CleanAddedHooks(model), looked_at(model):
        for module in model.modules():
            if isinstance(module, types):
                module.register_forward_hook(note)
        return model(inputs), calls


def _found(outputs: Any, call: tuple[nn.Module, Any, Any]) -> dict[str, Any]:
    module, arguments, output = call
    return {
        "outputs": outputs,
        "matched_module": module,
        "matched_module_input": arguments,
        "matched_module_inputs": arguments,
        "matched_module_output": output,
    }


def _check_index(relative_index: int) -> None:
    if relative_index < 0:
        raise ValueError(f"relative_index must be at least 0, got {relative_index}")
