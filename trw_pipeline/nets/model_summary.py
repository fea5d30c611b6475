"""What a model is made of: its layers, the shapes between them, parameters and operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from trw_pipeline.batches.length import len_batch
from trw_pipeline.nets.hooks import CleanAddedHooks
from trw_pipeline.nets.mode import looked_at
from trw_pipeline.text_table import text_table

_COLUMNS = ("layer", "type", "output", "parameters", "trainable", "FLOPs")


@dataclass
class LayerSummary:
    """One module of a model.

    Attributes:
        name: dotted, as in `named_modules`; "" is the model itself.
        kind: its class.
        nb_parameters: of the module and its parts; those that are shared are counted once.
        nb_trainable: those of them that have gradients.
        outputs: shape of what it returned at its last call, as text; None: nobody saw it being called.
        nb_flops: operations of all its calls, with those of its parts: two for a multiplication with its addition.
    """

    name: str
    kind: str
    nb_parameters: int
    nb_trainable: int
    outputs: str | None = None
    nb_flops: int = 0


@dataclass
class _Watch:
    """Notes what goes on in the modules while the model runs once."""

    counter: FlopCounterMode
    layers: dict[nn.Module, LayerSummary]
    started: dict[nn.Module, list[int]] = field(default_factory=dict[nn.Module, list[int]])

    def begin(self, module: nn.Module, inputs: Any) -> None:
        self.started.setdefault(module, []).append(self.counter.get_total_flops())

    def end(self, module: nn.Module, inputs: Any, outputs: Any) -> None:
        layer = self.layers[module]
        layer.outputs = shape_text(outputs)
        layer.nb_flops += self.counter.get_total_flops() - self.started[module].pop()


def summarise_layers(model: nn.Module, batch: Any) -> list[LayerSummary]:
    """Run a model once, without gradients, in evaluation mode, and note what each module did.

    Modes and hooks are put back, whatever happens. Scripted modules can not be watched. Random generators are not.

    Args:
        model: the model.
        batch: what it is called with, on its device.

    Returns:
        A summary of each module, in the order of `named_modules`, the model first. Operations are those that
        `torch.utils.flop_counter` knows, the products of matrices and convolutions above all; sums, norms and
        activations are not among them.
    """
    layers = {
        module: LayerSummary(name, type(module).__name__, *_nb_parameters(module))
        for name, module in model.named_modules()
    }
    watch = _Watch(FlopCounterMode(display=False), layers)
    with CleanAddedHooks(model), looked_at(model), torch.no_grad(), watch.counter:
        for module in layers:
            if isinstance(module, torch.jit.ScriptModule):  # takes no such hooks
                continue
            module.register_forward_pre_hook(watch.begin)
            module.register_forward_hook(watch.end)
        model(batch)
    return list(layers.values())


def model_summary(model: nn.Module, batch: Any, logger: Callable[[str], Any]) -> str:
    """Tell what a model is made of, as a table: layers, shapes of their outputs, parameters, operations.

    Args:
        model: the model; it runs once, see `summarise_layers`.
        batch: what it is called with, on its device; a batch of `(N, ...)` features.
        logger: takes the text, one str of several lines.

    Returns:
        The text.
    """
    layers = summarise_layers(model, batch)
    whole, nb_samples = layers[0], len_batch(batch) if isinstance(batch, Mapping) else 0
    buffers = {buffer.data_ptr() or id(buffer): buffer for buffer in model.buffers()}
    size = sum(tensor.numel() * tensor.element_size() for tensor in [*model.parameters(), *buffers.values()])
    of_sample = f" ({whole.nb_flops / nb_samples:,.0f} a sample)" if nb_samples else ""
    text = "\n".join(
        [
            text_table(f"model {whole.kind}", _COLUMNS, [_row(layer) for layer in layers], nb_names=3),
            f"parameters: {whole.nb_parameters:,}, trainable: {whole.nb_trainable:,}; "
            f"with buffers {size / 2**20:,.2f} MiB",
            f"FLOPs of this batch{f' of {nb_samples}' if nb_samples else ''}: {whole.nb_flops:,}{of_sample}",
        ]
    )
    logger(text)
    return text


def shape_text(value: Any) -> str:
    """Write the shapes of the tensors in what a module returns, in its own nesting.

    Args:
        value: a tensor, a head with one, or lists, tuples and mappings of such.

    Returns:
        Such as `(16, 10)` or `digit: (16, 10), box: (16, 4)`; the type of what has no shape.
    """
    value = getattr(value, "output", value) if not isinstance(value, torch.Tensor) else value
    if isinstance(value, torch.Tensor):
        return f"({', '.join(str(size) for size in value.shape)})"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {shape_text(part)}" for name, part in cast("Mapping[Any, Any]", value).items())
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(shape_text(part) for part in cast('list[Any]', value))}]"
    return type(value).__name__


def _nb_parameters(module: nn.Module) -> tuple[int, int]:
    parameters = [parameter for parameter in module.parameters() if not nn.parameter.is_lazy(parameter)]
    return sum(one.numel() for one in parameters), sum(one.numel() for one in parameters if one.requires_grad)


def _row(layer: LayerSummary) -> tuple[str, ...]:
    depth = layer.name.count(".") + 1 if layer.name else 0
    return (
        f"{'  ' * depth}{layer.name.rpartition('.')[2] or '(model)'}",
        layer.kind,
        "not seen" if layer.outputs is None else layer.outputs,
        f"{layer.nb_parameters:,}",
        f"{layer.nb_trainable:,}",
        f"{layer.nb_flops:,}",
    )
