"""A traced model as the graph that TensorBoard draws."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trw_pipeline.files import write_bytes
from trw_pipeline.reporting.row_files import event_protocol, event_records

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node


def write_model_graph(path: Path, program: ExportedProgram, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """Write a file of events with the graph of a model, atomically.

    Operations are grouped by the modules that they are part of. Each has the shape of what it gives, -1 where that
    depends on the batch.

    Args:
        path: the file; "tfevents" must be part of its name, and its folder must exist.
        program: the model.
        inputs: names of its arguments, which are not parameters, in order.
        outputs: names of what it returns, in order.

    Raises:
        MissingExtraError: tensorboard is not installed.
    """
    protocol = event_protocol()
    from tensorboard.compat.proto import graph_pb2  # noqa: PLC0415 (optional, and there: see above)

    names = _names(program, inputs)
    messages: Any = graph_pb2
    graph = messages.GraphDef()
    for node in program.graph.nodes:
        if node.op == "output":
            for name, given in zip(outputs, node.args[0], strict=True):
                graph.node.add(name=f"output/{name}", op="output", input=[names[given]])
        else:
            sources = [names[source] for source in node.all_input_nodes]
            op = {"placeholder": "input"}.get(node.op, str(node.target))
            made = graph.node.add(name=names[node], op=op, input=sources)
            _tell_shapes(made, node.meta.get("val"))
    graph.versions.producer = 22  # of TensorFlow 1: the format without functions
    event = protocol.Event(wall_time=time.time(), graph_def=graph.SerializeToString())
    write_bytes(path, event_records([event], is_first=True))


def _names(program: ExportedProgram, inputs: Sequence[str]) -> dict[Node, str]:
    """Node -> its name: the modules it is part of and its own, with slashes between them."""
    signature = program.graph_signature
    of_model = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    of_user = dict(zip(signature.user_inputs, inputs, strict=True))
    names: dict[Node, str] = {}
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name in of_user:
            names[node] = f"input/{of_user[node.name]}"
        elif node.op == "placeholder":
            names[node] = of_model.get(node.name, f"constant.{node.name}").replace(".", "/")
        elif node.op != "output":
            modules = [path for path, _ in node.meta.get("nn_module_stack", {}).values()]
            names[node] = "/".join([*(modules[-1].split(".") if modules and modules[-1] else []), node.name])
    return names


def _tell_shapes(made: Any, value: Any) -> None:
    values: Iterable[Any] = value if isinstance(value, (tuple, list)) else [value]
    for shape in (value.shape for value in values if hasattr(value, "shape")):
        dims = made.attr["_output_shapes"].list.shape.add().dim
        for size in shape:
            dims.add(size=size if isinstance(size, int) else -1)
