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
    from trw_pipeline.callbacks.epoch_summary import CallbackEpochSummary as CallbackEpochSummary
    from trw_pipeline.callbacks.export_history import CallbackExportHistory as CallbackExportHistory
    from trw_pipeline.callbacks.progress_bar import CallbackProgressBar as CallbackProgressBar
    from trw_pipeline.callbacks.save_last_model import CallbackSaveLastModel as CallbackSaveLastModel
    from trw_pipeline.callbacks.train_log import CallbackTrainLog as CallbackTrainLog
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
    from trw_pipeline.executors.failures import Failure as Failure
    from trw_pipeline.executors.job import Result as Result
    from trw_pipeline.executors.job_executor import JobExecutor as JobExecutor
    from trw_pipeline.files import safe_filename as safe_filename
    from trw_pipeline.outputs.classification import OutputClassification as OutputClassification
    from trw_pipeline.outputs.metrics import Metric as Metric
    from trw_pipeline.outputs.metrics import default_classification_metrics as default_classification_metrics
    from trw_pipeline.outputs.output import Output as Output
    from trw_pipeline.sequences.adaptor_torch import SequenceAdaptorTorch as SequenceAdaptorTorch
    from trw_pipeline.sequences.iterator import SequenceIterator as SequenceIterator
    from trw_pipeline.sequences.job_options import JobOptions as JobOptions
    from trw_pipeline.sequences.samplers import Sampler as Sampler
    from trw_pipeline.sequences.samplers import SamplerClassResampling as SamplerClassResampling
    from trw_pipeline.sequences.samplers import SamplerRandom as SamplerRandom
    from trw_pipeline.sequences.samplers import SamplerSequential as SamplerSequential
    from trw_pipeline.sequences.samplers import SamplerSubsetRandom as SamplerSubsetRandom
    from trw_pipeline.sequences.sequence import Sequence as Sequence
    from trw_pipeline.sequences.sequence import SequenceArray as SequenceArray
    from trw_pipeline.sequences.sequence import SequenceAsyncReservoir as SequenceAsyncReservoir
    from trw_pipeline.sequences.sequence import SequenceBatch as SequenceBatch
    from trw_pipeline.sequences.sequence import SequenceCollate as SequenceCollate
    from trw_pipeline.sequences.sequence import SequenceMap as SequenceMap
    from trw_pipeline.sequences.sequence import SequenceMaxSamples as SequenceMaxSamples
    from trw_pipeline.sequences.sequence import SequenceReBatch as SequenceReBatch
    from trw_pipeline.sequences.sequence import SequenceSubBatch as SequenceSubBatch
    from trw_pipeline.trainer import Trainer as Trainer
    from trw_pipeline.trainer import default_per_epoch_callbacks as default_per_epoch_callbacks
    from trw_pipeline.trainer import default_post_training_callbacks as default_post_training_callbacks
    from trw_pipeline.trainer import default_pre_training_callbacks as default_pre_training_callbacks
    from trw_pipeline.training.callback import Callback as Callback
    from trw_pipeline.training.loop import create_losses_fn as create_losses_fn
    from trw_pipeline.training.loop import default_sum_all_losses as default_sum_all_losses
    from trw_pipeline.training.loop import epoch_train_eval as epoch_train_eval
    from trw_pipeline.training.loop import eval_loop as eval_loop
    from trw_pipeline.training.loop import train_loop as train_loop
    from trw_pipeline.training.loop import trainer_callbacks_per_batch as trainer_callbacks_per_batch
    from trw_pipeline.training.optimizers import create_adam_optimizers_fn as create_adam_optimizers_fn
    from trw_pipeline.training.optimizers import (
        create_adam_optimizers_scheduler_step_lr_fn as create_adam_optimizers_scheduler_step_lr_fn,
    )
    from trw_pipeline.training.optimizers import create_optimizers_fn as create_optimizers_fn
    from trw_pipeline.training.optimizers import create_scheduler_step_lr as create_scheduler_step_lr
    from trw_pipeline.training.optimizers import create_sgd_optimizers_fn as create_sgd_optimizers_fn
    from trw_pipeline.training.optimizers import (
        create_sgd_optimizers_scheduler_step_lr_fn as create_sgd_optimizers_scheduler_step_lr_fn,
    )
    from trw_pipeline.training.optimizers import set_optimizer_learning_rate as set_optimizer_learning_rate
    from trw_pipeline.training.options import create_default_options as create_default_options
    from trw_pipeline.training.run import Run as Run
    from trw_pipeline.typing import default_sample_uid_name as default_sample_uid_name

_FILE_OF = {
    "Callback": "training.callback",
    "CallbackEpochSummary": "callbacks.epoch_summary",
    "CallbackExportHistory": "callbacks.export_history",
    "CallbackProgressBar": "callbacks.progress_bar",
    "CallbackSaveLastModel": "callbacks.save_last_model",
    "CallbackTrainLog": "callbacks.train_log",
    "CheckpointError": "errors",
    "ClosedError": "errors",
    "CodecError": "errors",
    "ExecutorError": "errors",
    "FailedJobError": "errors",
    "Failure": "executors.failures",
    "JobError": "errors",
    "JobExecutor": "executors.job_executor",
    "JobOptions": "sequences.job_options",
    "Metric": "outputs.metrics",
    "MissingExtraError": "errors",
    "Output": "outputs.output",
    "OutputClassification": "outputs.classification",
    "Result": "executors.job",
    "Run": "training.run",
    "Sampler": "sequences.samplers",
    "SamplerClassResampling": "sequences.samplers",
    "SamplerRandom": "sequences.samplers",
    "SamplerSequential": "sequences.samplers",
    "SamplerSubsetRandom": "sequences.samplers",
    "Sequence": "sequences.sequence",
    "SequenceAdaptorTorch": "sequences.adaptor_torch",
    "SequenceArray": "sequences.sequence",
    "SequenceAsyncReservoir": "sequences.sequence",
    "SequenceBatch": "sequences.sequence",
    "SequenceCollate": "sequences.sequence",
    "SequenceIterator": "sequences.iterator",
    "SequenceMap": "sequences.sequence",
    "SequenceMaxSamples": "sequences.sequence",
    "SequenceReBatch": "sequences.sequence",
    "SequenceSubBatch": "sequences.sequence",
    "Trainer": "trainer",
    "TrwError": "errors",
    "WorkerLostError": "errors",
    "WouldBlock": "errors",
    "collate_dicts": "batches.collate",
    "collate_list_of_dicts": "batches.collate",
    "create_adam_optimizers_fn": "training.optimizers",
    "create_adam_optimizers_scheduler_step_lr_fn": "training.optimizers",
    "create_default_options": "training.options",
    "create_losses_fn": "training.loop",
    "create_optimizers_fn": "training.optimizers",
    "create_scheduler_step_lr": "training.optimizers",
    "create_sgd_optimizers_fn": "training.optimizers",
    "create_sgd_optimizers_scheduler_step_lr_fn": "training.optimizers",
    "default_classification_metrics": "outputs.metrics",
    "default_collate_fn": "batches.collate",
    "default_per_epoch_callbacks": "trainer",
    "default_post_training_callbacks": "trainer",
    "default_pre_training_callbacks": "trainer",
    "default_sample_uid_name": "typing",
    "default_sum_all_losses": "training.loop",
    "epoch_train_eval": "training.loop",
    "eval_loop": "training.loop",
    "get_device": "batches.device",
    "len_batch": "batches.length",
    "safe_filename": "files",
    "set_optimizer_learning_rate": "training.optimizers",
    "to_value": "batches.device",
    "train_loop": "training.loop",
    "trainer_callbacks_per_batch": "training.loop",
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
    return [*__all__, "__version__"]
