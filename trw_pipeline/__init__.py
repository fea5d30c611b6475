"""An asynchronous data pipeline for training on slow samples.

This is the door: every public name has the one path `trw_pipeline.X`. A name is imported when it is first asked for, so
that a worker process does not import torch because of us.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# A new public name is one line in each of the two tables; tests/test_door.py keeps them equal.
if TYPE_CHECKING:
    from trw_pipeline.batches.collate import collate_dicts as collate_dicts
    from trw_pipeline.batches.collate import collate_list_of_dicts as collate_list_of_dicts
    from trw_pipeline.batches.collate import default_collate_fn as default_collate_fn
    from trw_pipeline.batches.device import get_device as get_device
    from trw_pipeline.batches.device import to_value as to_value
    from trw_pipeline.batches.device import transfer_batch_to_device as transfer_batch_to_device
    from trw_pipeline.batches.length import len_batch as len_batch
    from trw_pipeline.errors import CheckpointError as CheckpointError
    from trw_pipeline.errors import ClosedError as ClosedError
    from trw_pipeline.errors import CodecError as CodecError
    from trw_pipeline.errors import ExecutorError as ExecutorError
    from trw_pipeline.errors import FailedJobError as FailedJobError
    from trw_pipeline.errors import JobError as JobError
    from trw_pipeline.errors import MissingExtraError as MissingExtraError
    from trw_pipeline.errors import TrwError as TrwError
    from trw_pipeline.errors import WorkerLostError as WorkerLostError
    from trw_pipeline.errors import WouldBlock as WouldBlock
    from trw_pipeline.files import safe_filename as safe_filename
    from trw_pipeline.outputs.classification import OutputClassification as OutputClassification
    from trw_pipeline.outputs.metrics import Metric as Metric
    from trw_pipeline.outputs.metrics import default_classification_metrics as default_classification_metrics
    from trw_pipeline.outputs.output import Output as Output
    from trw_pipeline.sequences.samplers import Sampler as Sampler
    from trw_pipeline.sequences.samplers import SamplerClassResampling as SamplerClassResampling
    from trw_pipeline.sequences.samplers import SamplerRandom as SamplerRandom
    from trw_pipeline.sequences.samplers import SamplerSequential as SamplerSequential
    from trw_pipeline.sequences.samplers import SamplerSubsetRandom as SamplerSubsetRandom
        create_adam_optimizers_scheduler_step_lr_fn as create_adam_optimizers_scheduler_step_lr_fn,
    )
        create_sgd_optimizers_scheduler_step_lr_fn as create_sgd_optimizers_scheduler_step_lr_fn,
    )
    from trw_pipeline.typing import default_sample_uid_name as default_sample_uid_name

_FILE_OF = {
    "CheckpointError": "errors",
    "ClosedError": "errors",
    "CodecError": "errors",
    "ExecutorError": "errors",
    "FailedJobError": "errors",
    "JobError": "errors",
    "Metric": "outputs.metrics",
    "MissingExtraError": "errors",
    "Output": "outputs.output",
    "OutputClassification": "outputs.classification",
    "Sampler": "sequences.samplers",
    "SamplerClassResampling": "sequences.samplers",
    "SamplerRandom": "sequences.samplers",
    "SamplerSequential": "sequences.samplers",
    "SamplerSubsetRandom": "sequences.samplers",
    "TrwError": "errors",
    "WorkerLostError": "errors",
    "WouldBlock": "errors",
    "collate_dicts": "batches.collate",
    "collate_list_of_dicts": "batches.collate",
    "default_classification_metrics": "outputs.metrics",
    "default_collate_fn": "batches.collate",
    "default_sample_uid_name": "typing",
    "get_device": "batches.device",
    "len_batch": "batches.length",
    "safe_filename": "files",
    "to_value": "batches.device",
    "transfer_batch_to_device": "batches.device",
}

__version__ = "0.1.0"
__all__ = sorted(_FILE_OF)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    file = _FILE_OF.get(name)
    if file is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{file}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
