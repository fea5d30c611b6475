"""A model as a function of tensors, traced by `torch.export`: what other programs can read."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn
from torch.hub import tqdm  # pyright: ignore[reportPrivateImportUsage]

from trw_pipeline.batches.length import len_batch
from trw_pipeline.errors import MissingExtraError
from trw_pipeline.nets.mode import looked_at
from trw_pipeline.outputs.output import Output
from trw_pipeline.training.randomness import random_states, set_random_states
from trw_pipeline.typing import Batch

if TYPE_CHECKING:
    from torch.export import ExportedProgram


@dataclass(frozen=True)
class ExportedModel:
    """What `export_model` made.

    Attributes:
        program: the model in evaluation mode, from tensors to tensors.
        inputs: names of the features that are its arguments, in order.
        outputs: names of the heads whose outputs it returns, in order.
        has_any_batch_size: whether it takes other numbers of samples than that of the batch it was traced with.
    """

    program: ExportedProgram
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    has_any_batch_size: bool

    def as_onnx(self) -> bytes:
        """Translate the model to ONNX, with names of features and heads for its inputs and outputs.

        Returns:
            The file.

        Raises:
            MissingExtraError: onnx or onnxscript is not installed.
            Exception: an operation of the model has no translation, or the file would be larger than 2 GB.
        """
        try:
            import onnx  # noqa: F401, PLC0415  # pyright: ignore[reportMissingImports, reportUnusedImport]
            import onnxscript  # noqa: F401, PLC0415  # pyright: ignore[reportMissingImports, reportUnusedImport]
        except ImportError as error:
            raise MissingExtraError("a model in ONNX", "onnx") from error
        inputs, outputs = list(self.inputs), list(self.outputs)
        with _quiet():
            translated: Any = torch.onnx.export(
                self.program, dynamo=True, verbose=False, input_names=inputs, output_names=outputs
            )
        return translated.model_proto.SerializeToString()


def export_model(model: nn.Module, batch: Batch) -> ExportedModel:
    """Trace a model with one batch, in evaluation mode and without gradients; it stays as it is.

    The tensors that the model reads from the batch become arguments; everything else in the batch, and every decision
    that the model takes in Python, stays what it was for this batch.

    Args:
        model: batch -> dict output name -> `Output`.
        batch: on the device of the model.

    Raises:
        Exception: what the model raised, or `torch.export` where the model does what it can not trace, such as a
            decision that depends on the value of a tensor.
    """
    from torch.export import Dim, export  # noqa: PLC0415 (heavy)

    states = random_states()
    try:
        with looked_at(model), torch.no_grad(), _quiet():
            inputs, outputs = _names_of_ends(model, batch)
            function = _OfTensors(model, batch, tuple(inputs), outputs)
            function.training = False
            nb_samples = len_batch(batch)
            axes = [{0: Dim.AUTO} if value.dim() and len(value) == nb_samples else {} for value in inputs.values()]
            # A size of 1 counts as a constant.
            tensors = [
                torch.cat([value, value]) if axis and nb_samples == 1 else value
                for value, axis in zip(inputs.values(), axes, strict=True)
            ]
            program = export(function, tuple(tensors), dynamic_shapes=(tuple(axes),), strict=False)
    finally:
        set_random_states(states)
    traced = {node.name: node.meta["val"].shape for node in program.graph.nodes if node.op == "placeholder"}
    sizes = [traced[name][0] for name, axis in zip(program.graph_signature.user_inputs, axes, strict=True) if axis]
    # A size that turned out to be fixed is a symbol for a number.
    return ExportedModel(program, tuple(inputs), outputs, not any(str(size).isdecimal() for size in sizes))


class _OfTensors(nn.Module):
    """The model from tensors to tensors."""

    def __init__(self, model: nn.Module, batch: Batch, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        super().__init__()
        self.model = model
        self.batch = dict(batch)
        self.inputs = inputs
        self.outputs = outputs

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        heads = cast("Mapping[str, Output]", self.model(self.batch | dict(zip(self.inputs, tensors, strict=True))))
        return tuple(cast("torch.Tensor", heads[name].output) for name in self.outputs)


class _Noted(dict[str, Any]):
    """A batch that notes which features are read."""

    def __init__(self, batch: Batch) -> None:
        super().__init__(batch)
        self.read: dict[str, None] = {}

    def __getitem__(self, name: str) -> Any:
        self.read[name] = None
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.read[name] = None
        return super().get(name, default)


def _names_of_ends(model: nn.Module, batch: Batch) -> tuple[dict[str, torch.Tensor], tuple[str, ...]]:
    """The tensors that a model reads from a batch, and the heads that it gives.

    The tensors are all of the batch where the model reads it in a way that is not seen.
    """
    noted = _Noted(batch)
    heads = cast("Mapping[str, Output]", model(noted))
    tensors = {name: value for name, value in batch.items() if isinstance(value, torch.Tensor)}
    inputs = {name: tensors[name] for name in noted.read if name in tensors} or tensors
    return inputs, tuple(name for name, head in heads.items() if isinstance(head.output, torch.Tensor))


@contextmanager
def _quiet() -> Generator[None, None, None]:
    """What torch says of its own parts while it traces and translates is nothing that our user could change.

    Nor does it leave a thread behind: it makes progress bars that nobody sees, and tqdm starts one to watch them.
    """
    bars: Any = tqdm
    interval = getattr(bars, "monitor_interval", 0)
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")  # that torchvision is not there
    level = logger.level
    logger.setLevel(logging.ERROR)
    bars.monitor_interval = 0
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
        bars.monitor_interval = interval
