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
    from trw_pipeline.callbacks.activation_statistics import (
        CallbackActivationStatistics as CallbackActivationStatistics,
    )
    from trw_pipeline.callbacks.adaptor_clinicadl import CallbackAdaptorClinicadl as CallbackAdaptorClinicadl
    from trw_pipeline.callbacks.checkpoint import CallbackCheckpoint as CallbackCheckpoint
    from trw_pipeline.callbacks.data_summary import CallbackDataSummary as CallbackDataSummary
    from trw_pipeline.callbacks.defaults import default_per_epoch_callbacks as default_per_epoch_callbacks
    from trw_pipeline.callbacks.defaults import default_post_training_callbacks as default_post_training_callbacks
    from trw_pipeline.callbacks.defaults import default_pre_training_callbacks as default_pre_training_callbacks
    from trw_pipeline.callbacks.early_stopping import CallbackEarlyStopping as CallbackEarlyStopping
    from trw_pipeline.callbacks.epoch_summary import CallbackEpochSummary as CallbackEpochSummary
    from trw_pipeline.callbacks.explain_decision import CallbackExplainDecision as CallbackExplainDecision
    from trw_pipeline.callbacks.export_augmentations import CallbackExportAugmentations as CallbackExportAugmentations
    from trw_pipeline.callbacks.export_best_history import CallbackExportBestHistory as CallbackExportBestHistory
    from trw_pipeline.callbacks.export_classification_errors import (
        CallbackExportClassificationErrors as CallbackExportClassificationErrors,
    )
    from trw_pipeline.callbacks.export_classification_report import (
        CallbackExportClassificationReport as CallbackExportClassificationReport,
    )
    from trw_pipeline.callbacks.export_convolution_kernel import (
        CallbackExportConvolutionKernel as CallbackExportConvolutionKernel,
    )
    from trw_pipeline.callbacks.export_convolution_kernel import default_export_filter as default_export_filter
    from trw_pipeline.callbacks.export_history import CallbackExportHistory as CallbackExportHistory
    from trw_pipeline.callbacks.export_samples import CallbackExportSamples as CallbackExportSamples
    from trw_pipeline.callbacks.learning_rate_finder import CallbackLearningRateFinder as CallbackLearningRateFinder
    from trw_pipeline.callbacks.learning_rate_finder import (
        default_identify_learning_rate_section as default_identify_learning_rate_section,
    )
    from trw_pipeline.callbacks.learning_rate_recorder import (
        CallbackLearningRateRecorder as CallbackLearningRateRecorder,
    )
    from trw_pipeline.callbacks.model_summary import CallbackModelSummary as CallbackModelSummary
    from trw_pipeline.callbacks.monitor import MonitorCallback as MonitorCallback
    from trw_pipeline.callbacks.progress_bar import CallbackProgressBar as CallbackProgressBar
    from trw_pipeline.callbacks.report import CallbackReport as CallbackReport
    from trw_pipeline.callbacks.resource_monitor import CallbackResourceMonitor as CallbackResourceMonitor
    from trw_pipeline.callbacks.save_last_model import CallbackSaveLastModel as CallbackSaveLastModel
    from trw_pipeline.callbacks.skip_epoch import CallbackSkipEpoch as CallbackSkipEpoch
    from trw_pipeline.callbacks.tensorboard import CallbackClearTensorboardLog as CallbackClearTensorboardLog
    from trw_pipeline.callbacks.tensorboard import CallbackTensorboardEmbedding as CallbackTensorboardEmbedding
    from trw_pipeline.callbacks.tensorboard import (
        CallbackTensorboardRecordHistory as CallbackTensorboardRecordHistory,
    )
    from trw_pipeline.callbacks.tensorboard import CallbackTensorboardRecordModel as CallbackTensorboardRecordModel
    from trw_pipeline.callbacks.train_log import CallbackTrainLog as CallbackTrainLog
    from trw_pipeline.callbacks.worst_samples_by_epoch import CallbackWorstSamplesByEpoch as CallbackWorstSamplesByEpoch
    from trw_pipeline.callbacks.zip_sources import CallbackZipSources as CallbackZipSources
    from trw_pipeline.errors import CheckpointError as CheckpointError
    from trw_pipeline.errors import ClosedError as ClosedError
    from trw_pipeline.errors import CodecError as CodecError
    from trw_pipeline.errors import ExecutorError as ExecutorError
    from trw_pipeline.errors import ExplanationError as ExplanationError
    from trw_pipeline.errors import FailedJobError as FailedJobError
    from trw_pipeline.errors import JobError as JobError
    from trw_pipeline.errors import JobTimeoutError as JobTimeoutError
    from trw_pipeline.errors import MissingExtraError as MissingExtraError
    from trw_pipeline.errors import NonFiniteLossError as NonFiniteLossError
    from trw_pipeline.errors import TrwError as TrwError
    from trw_pipeline.errors import WorkerLostError as WorkerLostError
    from trw_pipeline.errors import WouldBlock as WouldBlock
    from trw_pipeline.executors.compression import Compression as Compression
    from trw_pipeline.executors.failures import Failure as Failure
    from trw_pipeline.executors.job import Result as Result
    from trw_pipeline.executors.job_executor import JobExecutor as JobExecutor
    from trw_pipeline.executors.result_slot import empty_result as empty_result
    from trw_pipeline.executors.worker_options import WorkerOptions as WorkerOptions
    from trw_pipeline.explain.algorithms import ExplainableAlgorithm as ExplainableAlgorithm
    from trw_pipeline.explain.algorithms import default_algorithm_args as default_algorithm_args
    from trw_pipeline.explain.grad_cam import GradCam as GradCam
    from trw_pipeline.explain.guided_backprop import GuidedBackprop as GuidedBackprop
    from trw_pipeline.explain.integrated_gradients import IntegratedGradients as IntegratedGradients
    from trw_pipeline.explain.meaningful_perturbation import MeaningfulPerturbation as MeaningfulPerturbation
    from trw_pipeline.explain.meaningful_perturbation import (
        default_information_removal_smoothing as default_information_removal_smoothing,
    )
    from trw_pipeline.explain.score import (
        post_process_output_for_gradient_attribution as post_process_output_for_gradient_attribution,
    )
    from trw_pipeline.files import create_or_recreate_folder as create_or_recreate_folder
    from trw_pipeline.files import safe_filename as safe_filename
    from trw_pipeline.nets.filters import FilterFixed as FilterFixed
    from trw_pipeline.nets.filters import FilterGaussian as FilterGaussian
    from trw_pipeline.nets.hooks import CleanAddedHooks as CleanAddedHooks
    from trw_pipeline.nets.model_summary import model_summary as model_summary
    from trw_pipeline.nets.reflection import find_first_forward_convolution as find_first_forward_convolution
    from trw_pipeline.nets.reflection import find_last_forward_convolution as find_last_forward_convolution
    from trw_pipeline.nets.reflection import find_last_forward_types as find_last_forward_types
    from trw_pipeline.nets.reflection import find_tensor_leaves_with_grad as find_tensor_leaves_with_grad
    from trw_pipeline.nets.upsample import upsample as upsample
    from trw_pipeline.outputs.auroc import auroc as auroc
    from trw_pipeline.outputs.classification import OutputClassification as OutputClassification
    from trw_pipeline.outputs.classification_metrics import MetricAUROC as MetricAUROC
    from trw_pipeline.outputs.classification_metrics import MetricClassificationError as MetricClassificationError
    from trw_pipeline.outputs.classification_metrics import MetricF1 as MetricF1
    from trw_pipeline.outputs.classification_metrics import MetricSensitivitySpecificity as MetricSensitivitySpecificity
    from trw_pipeline.outputs.classification_metrics import (
        default_classification_metrics as default_classification_metrics,
    )
    from trw_pipeline.outputs.embedding import OutputEmbedding as OutputEmbedding
    from trw_pipeline.outputs.losses import LossDiceMulticlass as LossDiceMulticlass
    from trw_pipeline.outputs.metrics import Metric as Metric
    from trw_pipeline.outputs.metrics import MetricStateful as MetricStateful
    from trw_pipeline.outputs.output import Output as Output
    from trw_pipeline.outputs.record import OutputRecord as OutputRecord
    from trw_pipeline.outputs.regression import OutputRegression as OutputRegression
    from trw_pipeline.outputs.regression_metrics import MetricMeanAbsoluteError as MetricMeanAbsoluteError
    from trw_pipeline.outputs.regression_metrics import MetricR2 as MetricR2
    from trw_pipeline.outputs.regression_metrics import MetricRootMeanSquaredError as MetricRootMeanSquaredError
    from trw_pipeline.outputs.regression_metrics import default_regression_metrics as default_regression_metrics
    from trw_pipeline.outputs.segmentation import OutputSegmentation as OutputSegmentation
    from trw_pipeline.outputs.segmentation_metrics import MetricDice as MetricDice
    from trw_pipeline.outputs.segmentation_metrics import MetricIoU as MetricIoU
    from trw_pipeline.outputs.segmentation_metrics import default_segmentation_metrics as default_segmentation_metrics
    from trw_pipeline.repeat import run_trainer_repeat as run_trainer_repeat
    from trw_pipeline.reporting.boxplots import boxplots as boxplots
    from trw_pipeline.reporting.classification_report import classification_report as classification_report
    from trw_pipeline.reporting.classification_report import list_classes_from_mapping as list_classes_from_mapping
    from trw_pipeline.reporting.confusion_matrix import confusion_matrix as confusion_matrix
    from trw_pipeline.reporting.figures import export_figure as export_figure
    from trw_pipeline.reporting.history_plot import plot_group_histories as plot_group_histories
    from trw_pipeline.reporting.images import as_image_ui8 as as_image_ui8
    from trw_pipeline.reporting.images import as_rgb_image as as_rgb_image
    from trw_pipeline.reporting.images import export_image as export_image
    from trw_pipeline.reporting.roc import plot_roc as plot_roc
    from trw_pipeline.sequences.adaptor_torch import SequenceAdaptorTorch as SequenceAdaptorTorch
    from trw_pipeline.sequences.iterator import SequenceIterator as SequenceIterator
    from trw_pipeline.sequences.job_options import JobOptions as JobOptions
    from trw_pipeline.sequences.reservoir_options import ReservoirOptions as ReservoirOptions
    from trw_pipeline.sequences.samplers import Sampler as Sampler
    from trw_pipeline.sequences.samplers import SamplerClassResampling as SamplerClassResampling
    from trw_pipeline.sequences.samplers import SamplerRandom as SamplerRandom
    from trw_pipeline.sequences.samplers import SamplerSequential as SamplerSequential
    from trw_pipeline.sequences.samplers import SamplerSubsetRandom as SamplerSubsetRandom
    from trw_pipeline.sequences.sequence import Sequence as Sequence
    from trw_pipeline.sequences.sequence import SequenceArray as SequenceArray
    from trw_pipeline.sequences.sequence import SequenceAsyncReservoir as SequenceAsyncReservoir
    from trw_pipeline.sequences.sequence import SequenceBatch as SequenceBatch
    from trw_pipeline.sequences.sequence import SequenceCache as SequenceCache
    from trw_pipeline.sequences.sequence import SequenceCollate as SequenceCollate
    from trw_pipeline.sequences.sequence import SequenceDataset as SequenceDataset
    from trw_pipeline.sequences.sequence import SequenceIterable as SequenceIterable
    from trw_pipeline.sequences.sequence import SequenceMap as SequenceMap
    from trw_pipeline.sequences.sequence import SequenceMaxSamples as SequenceMaxSamples
    from trw_pipeline.sequences.sequence import SequenceMix as SequenceMix
    from trw_pipeline.sequences.sequence import SequencePrefetch as SequencePrefetch
    from trw_pipeline.sequences.sequence import SequenceReBatch as SequenceReBatch
    from trw_pipeline.sequences.sequence import SequenceShard as SequenceShard
    from trw_pipeline.sequences.sequence import SequenceShuffle as SequenceShuffle
    from trw_pipeline.sequences.sequence import SequenceSubBatch as SequenceSubBatch
    from trw_pipeline.sequences.sequence import SequenceZip as SequenceZip
    from trw_pipeline.timing import time_it as time_it
    from trw_pipeline.trainer import Trainer as Trainer
    from trw_pipeline.training.callback import Callback as Callback
    from trw_pipeline.training.default_names import (
        find_default_dataset_and_split_names as find_default_dataset_and_split_names,
    )
    from trw_pipeline.training.loop import create_losses_fn as create_losses_fn
    from trw_pipeline.training.loop import default_sum_all_losses as default_sum_all_losses
    from trw_pipeline.training.loop import epoch_train_eval as epoch_train_eval
    from trw_pipeline.training.loop import eval_loop as eval_loop
    from trw_pipeline.training.loop import train_loop as train_loop
    from trw_pipeline.training.loop import trainer_callbacks_per_batch as trainer_callbacks_per_batch
    from trw_pipeline.training.optimizers import Schedule as Schedule
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
    "CallbackActivationStatistics": "callbacks.activation_statistics",
    "CallbackAdaptorClinicadl": "callbacks.adaptor_clinicadl",
    "CallbackCheckpoint": "callbacks.checkpoint",
    "CallbackDataSummary": "callbacks.data_summary",
    "CallbackClearTensorboardLog": "callbacks.tensorboard",
    "CallbackEarlyStopping": "callbacks.early_stopping",
    "CallbackEpochSummary": "callbacks.epoch_summary",
    "CallbackExportAugmentations": "callbacks.export_augmentations",
    "CallbackExportBestHistory": "callbacks.export_best_history",
    "CallbackExportClassificationErrors": "callbacks.export_classification_errors",
    "CallbackExportClassificationReport": "callbacks.export_classification_report",
    "CallbackExportConvolutionKernel": "callbacks.export_convolution_kernel",
    "CallbackExplainDecision": "callbacks.explain_decision",
    "CallbackExportHistory": "callbacks.export_history",
    "CallbackExportSamples": "callbacks.export_samples",
    "CallbackLearningRateFinder": "callbacks.learning_rate_finder",
    "CallbackLearningRateRecorder": "callbacks.learning_rate_recorder",
    "CallbackModelSummary": "callbacks.model_summary",
    "CallbackProgressBar": "callbacks.progress_bar",
    "CallbackReport": "callbacks.report",
    "CallbackResourceMonitor": "callbacks.resource_monitor",
    "CallbackSaveLastModel": "callbacks.save_last_model",
    "CallbackSkipEpoch": "callbacks.skip_epoch",
    "CallbackTensorboardEmbedding": "callbacks.tensorboard",
    "CallbackTensorboardRecordHistory": "callbacks.tensorboard",
    "CallbackTensorboardRecordModel": "callbacks.tensorboard",
    "CallbackTrainLog": "callbacks.train_log",
    "CallbackWorstSamplesByEpoch": "callbacks.worst_samples_by_epoch",
    "CallbackZipSources": "callbacks.zip_sources",
    "CheckpointError": "errors",
    "CleanAddedHooks": "nets.hooks",
    "ClosedError": "errors",
    "CodecError": "errors",
    "Compression": "executors.compression",
    "ExecutorError": "errors",
    "ExplainableAlgorithm": "explain.algorithms",
    "ExplanationError": "errors",
    "FailedJobError": "errors",
    "Failure": "executors.failures",
    "FilterFixed": "nets.filters",
    "FilterGaussian": "nets.filters",
    "GradCam": "explain.grad_cam",
    "GuidedBackprop": "explain.guided_backprop",
    "IntegratedGradients": "explain.integrated_gradients",
    "JobError": "errors",
    "JobTimeoutError": "errors",
    "JobExecutor": "executors.job_executor",
    "JobOptions": "sequences.job_options",
    "LossDiceMulticlass": "outputs.losses",
    "MeaningfulPerturbation": "explain.meaningful_perturbation",
    "Metric": "outputs.metrics",
    "MetricAUROC": "outputs.classification_metrics",
    "MetricClassificationError": "outputs.classification_metrics",
    "MetricDice": "outputs.segmentation_metrics",
    "MetricF1": "outputs.classification_metrics",
    "MetricIoU": "outputs.segmentation_metrics",
    "MetricMeanAbsoluteError": "outputs.regression_metrics",
    "MetricR2": "outputs.regression_metrics",
    "MetricRootMeanSquaredError": "outputs.regression_metrics",
    "MetricSensitivitySpecificity": "outputs.classification_metrics",
    "MetricStateful": "outputs.metrics",
    "MissingExtraError": "errors",
    "MonitorCallback": "callbacks.monitor",
    "NonFiniteLossError": "errors",
    "Output": "outputs.output",
    "OutputClassification": "outputs.classification",
    "ReservoirOptions": "sequences.reservoir_options",
    "OutputEmbedding": "outputs.embedding",
    "OutputRecord": "outputs.record",
    "OutputRegression": "outputs.regression",
    "OutputSegmentation": "outputs.segmentation",
    "Result": "executors.job",
    "Run": "training.run",
    "Sampler": "sequences.samplers",
    "SamplerClassResampling": "sequences.samplers",
    "SamplerRandom": "sequences.samplers",
    "SamplerSequential": "sequences.samplers",
    "SamplerSubsetRandom": "sequences.samplers",
    "Schedule": "training.optimizers",
    "Sequence": "sequences.sequence",
    "SequenceAdaptorTorch": "sequences.adaptor_torch",
    "SequenceArray": "sequences.sequence",
    "SequenceAsyncReservoir": "sequences.sequence",
    "SequenceBatch": "sequences.sequence",
    "SequenceCache": "sequences.sequence",
    "SequenceCollate": "sequences.sequence",
    "SequenceDataset": "sequences.sequence",
    "SequenceIterable": "sequences.sequence",
    "SequenceIterator": "sequences.iterator",
    "SequenceMap": "sequences.sequence",
    "SequenceMaxSamples": "sequences.sequence",
    "SequencePrefetch": "sequences.sequence",
    "SequenceMix": "sequences.sequence",
    "SequenceReBatch": "sequences.sequence",
    "SequenceShuffle": "sequences.sequence",
    "SequenceShard": "sequences.sequence",
    "SequenceSubBatch": "sequences.sequence",
    "SequenceZip": "sequences.sequence",
    "Trainer": "trainer",
    "TrwError": "errors",
    "WorkerLostError": "errors",
    "as_image_ui8": "reporting.images",
    "as_rgb_image": "reporting.images",
    "auroc": "outputs.auroc",
    "boxplots": "reporting.boxplots",
    "classification_report": "reporting.classification_report",
    "confusion_matrix": "reporting.confusion_matrix",
    "create_or_recreate_folder": "files",
    "default_algorithm_args": "explain.algorithms",
    "default_classification_metrics": "outputs.classification_metrics",
    "default_information_removal_smoothing": "explain.meaningful_perturbation",
    "default_regression_metrics": "outputs.regression_metrics",
    "default_segmentation_metrics": "outputs.segmentation_metrics",
    "empty_result": "executors.result_slot",
    "WorkerOptions": "executors.worker_options",
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
    "default_collate_fn": "batches.collate",
    "default_export_filter": "callbacks.export_convolution_kernel",
    "default_identify_learning_rate_section": "callbacks.learning_rate_finder",
    "default_per_epoch_callbacks": "callbacks.defaults",
    "default_post_training_callbacks": "callbacks.defaults",
    "default_pre_training_callbacks": "callbacks.defaults",
    "default_sample_uid_name": "typing",
    "default_sum_all_losses": "training.loop",
    "epoch_train_eval": "training.loop",
    "eval_loop": "training.loop",
    "export_figure": "reporting.figures",
    "export_image": "reporting.images",
    "find_default_dataset_and_split_names": "training.default_names",
    "find_first_forward_convolution": "nets.reflection",
    "find_last_forward_convolution": "nets.reflection",
    "find_last_forward_types": "nets.reflection",
    "find_tensor_leaves_with_grad": "nets.reflection",
    "get_device": "batches.device",
    "len_batch": "batches.length",
    "list_classes_from_mapping": "reporting.classification_report",
    "plot_group_histories": "reporting.history_plot",
    "plot_roc": "reporting.roc",
    "model_summary": "nets.model_summary",
    "post_process_output_for_gradient_attribution": "explain.score",
    "run_trainer_repeat": "repeat",
    "safe_filename": "files",
    "set_optimizer_learning_rate": "training.optimizers",
    "time_it": "timing",
    "to_value": "batches.device",
    "train_loop": "training.loop",
    "trainer_callbacks_per_batch": "training.loop",
    "transfer_batch_to_device": "batches.device",
    "upsample": "nets.upsample",
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
