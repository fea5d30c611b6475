"""What does not change during a training: its device, its machine, its model."""

from __future__ import annotations

import csv
import os
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import nn

from trw_pipeline.files import write_text
from trw_pipeline.resources import GIB, driver_version


def check_gpu(device: torch.device) -> None:
    """Check that a device is there.

    Args:
        device: where a training is to run.

    Raises:
        ValueError: it is a CUDA device, and there are not so many, or none.
    """
    device = torch.device(device)
    nb_devices = torch.cuda.device_count() if device.type == "cuda" and torch.cuda.is_available() else 0
    if device.type == "cuda" and not 0 <= (device.index or 0) < nb_devices:
        raise ValueError(f"the device must be one of the {nb_devices} CUDA devices that are there, got {device}")


def save_model_summary(output_folder: str | os.PathLike[str], model: nn.Module) -> tuple[str, int]:
    """Write what a model is made of to `<output_folder>/model_summary.txt`.

    Args:
        output_folder: it must exist.
        model: the model.

    Returns:
        The text: a line for each module with the number of its parameters, those within it indented. And the number of
        all parameters, those that are shared counted once.
    """
    nb_parameters = _nb_parameters(model)
    summary = "\n".join([*_lines_of(model, "", 0), f"parameters: {nb_parameters}"])
    write_text(Path(output_folder) / "model_summary.txt", f"{summary}\n")
    return summary, nb_parameters


def static_information_to_csv(static_logfile_name: str | os.PathLike[str], device: torch.device, n: int) -> None:
    """Write what does not change during a training to a CSV file of one row; one that is there is renamed to `<name>~`.

    | column | meaning |
    |---|---|
    | `cpu_memory_total`, `cpu_count` | memory of the machine in GiB, and its logical cores |
    | `gpu_name`, `gpu_driver_version`, `gpu_memory_total` | on a CUDA device; the memory in GiB, the version empty |
    |  | where the extra `gpu` is not installed |
    | `model_size` | number of parameters |

    Args:
        static_logfile_name: the file; its folder must exist.
        device: where the training runs.
        n: number of parameters.
    """
    device = torch.device(device)
    constants: dict[str, Any] = {
        "cpu_memory_total": psutil.virtual_memory().total / GIB,
        "cpu_count": psutil.cpu_count(),
    }
    if device.type == "cuda":
        gpu = torch.cuda.get_device_properties(device)
        constants |= {"gpu_name": gpu.name, "gpu_driver_version": driver_version()}
        constants |= {"gpu_memory_total": gpu.total_memory / GIB}
    constants["model_size"] = n
    path = Path(static_logfile_name)
    if path.exists():
        path.replace(path.with_name(f"{path.name}~"))
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, constants, lineterminator="\n")
        writer.writeheader()
        writer.writerow(constants)


def _lines_of(module: nn.Module, name: str, depth: int) -> list[str]:
    children = list(module.named_children())
    # A module of modules would repeat those in its own text.
    what = type(module).__name__ if children else str(module)
    line = f"{'  ' * depth}{f'({name}): ' if name else ''}{what}: {_nb_parameters(module)} parameters"
    return [line, *(inner for child_name, child in children for inner in _lines_of(child, child_name, depth + 1))]


def _nb_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
