"""The callbacks of a training whose user asks for nothing special."""

from __future__ import annotations

import functools
import importlib.util
import itertools
import logging
import os
import sys
import sysconfig
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from trw_pipeline.callbacks.activation_statistics import CallbackActivationStatistics
from trw_pipeline.callbacks.data_summary import CallbackDataSummary
from trw_pipeline.callbacks.epoch_summary import CallbackEpochSummary
from trw_pipeline.callbacks.explain_decision import CallbackExplainDecision
from trw_pipeline.callbacks.export_augmentations import CallbackExportAugmentations
from trw_pipeline.callbacks.export_best_history import CallbackExportBestHistory
from trw_pipeline.callbacks.export_classification_errors import CallbackExportClassificationErrors
from trw_pipeline.callbacks.export_classification_report import CallbackExportClassificationReport
from trw_pipeline.callbacks.export_convolution_kernel import CallbackExportConvolutionKernel
from trw_pipeline.callbacks.export_history import CallbackExportHistory
from trw_pipeline.callbacks.export_samples import CallbackExportSamples
from trw_pipeline.callbacks.learning_rate_finder import CallbackLearningRateFinder
from trw_pipeline.callbacks.learning_rate_recorder import CallbackLearningRateRecorder
from trw_pipeline.callbacks.model_summary import CallbackModelSummary
from trw_pipeline.callbacks.report import CallbackReport
from trw_pipeline.callbacks.save_last_model import CallbackSaveLastModel
from trw_pipeline.callbacks.tensorboard import (
    CallbackTensorboardEmbedding,
    CallbackTensorboardRecordHistory,
    CallbackTensorboardRecordModel,
)
from trw_pipeline.callbacks.train_log import CallbackTrainLog
from trw_pipeline.callbacks.worst_samples_by_epoch import CallbackWorstSamplesByEpoch
from trw_pipeline.callbacks.zip_sources import CallbackZipSources
from trw_pipeline.errors import MissingExtraError
from trw_pipeline.training.callback import Callback

_logger = logging.getLogger(__name__)

_MODULES = {
    "explain": "captum",
    "images": "PIL",
    "onnx": "onnxscript",  # it needs the module `onnx`
    "plot": "matplotlib",
    "tensorboard": "tensorboard",
}
"""Extra -> the module that it brings."""

_MOST_FILES = 2000
"""Of a folder of sources: one with more, such as a home, is not looked through at the start of each training."""

_NB_EXPLAINED = 3
"""Each takes five pictures and hundreds of passes through the model."""

_NEEDS: dict[type[Callback], tuple[str, ...]] = {
    CallbackExplainDecision: ("plot", "explain"),
    CallbackExportAugmentations: ("images",),
    CallbackExportClassificationErrors: ("images",),
    CallbackExportClassificationReport: ("plot",),
    CallbackExportConvolutionKernel: ("images",),
    CallbackExportHistory: ("plot",),
    CallbackExportSamples: ("images",),
    CallbackLearningRateFinder: ("plot",),
    CallbackLearningRateRecorder: ("plot",),
    CallbackTensorboardEmbedding: ("tensorboard",),
    CallbackTensorboardRecordHistory: ("tensorboard",),
    CallbackTensorboardRecordModel: ("tensorboard", "onnx"),
    CallbackWorstSamplesByEpoch: ("images", "plot"),
}
"""The extras without which a callback can not do its work."""


def default_pre_training_callbacks(
    logger: Callable[[str], Any] | None = None,
    with_lr_finder: bool = False,
    with_export_augmentations: bool = True,
) -> list[Any]:
    """Make the callbacks that run before training.

    The sources of the program in `sources.zip`, summaries of the model and of the data, and some samples of each split.
    One whose extra is not installed is left out, and a warning names it once.

    Args:
        logger: takes the texts. None: they are logged.
        with_lr_finder: whether many learning rates are tried on copies of the model, which takes a while.
        with_export_augmentations: whether some samples are exported several times, each augmented anew.

    Returns:
        New callbacks.
    """
    callbacks: list[Callback] = [
        CallbackZipSources(folder_of_program()),
        CallbackModelSummary(logger),
        CallbackDataSummary(logger),
        CallbackExportSamples(dirname="random_samples"),
    ]
    if with_export_augmentations:
        callbacks.append(CallbackExportAugmentations())
    if with_lr_finder:
        callbacks.append(CallbackLearningRateFinder())
    return _of_what_is_installed(callbacks)


def default_per_epoch_callbacks(
    logger: Callable[[str], Any] | None = None,
    with_worst_samples_by_epoch: bool = True,
    with_activation_statistics: bool = False,
    convolutional_kernel_export_frequency: int | None = None,
) -> list[Any]:
    """Make the callbacks that run at the end of each epoch.

    A summary, a row of `trainlog.csv`, the numbers of the epoch for TensorBoard, the learning rates, which are plotted
    at the end, and the page `report.html`. One whose extra is not installed is left out, and a warning names it once.

    Args:
        logger: takes the texts. None: they are logged.
        with_worst_samples_by_epoch: whether the samples with the greatest losses are followed over the epochs.
        with_activation_statistics: whether the text of what each layer gives is among them.
        convolutional_kernel_export_frequency: epochs from one export of the first convolution to the next; None: no
            export.

    Returns:
        New callbacks.
    """
    callbacks: list[Callback] = [
        CallbackEpochSummary(logger),
        CallbackTrainLog(),
        CallbackTensorboardRecordHistory(),
        CallbackLearningRateRecorder(),
        CallbackReport(),
    ]
    if with_worst_samples_by_epoch:
        callbacks.append(CallbackWorstSamplesByEpoch())
    if with_activation_statistics:
        callbacks.append(CallbackActivationStatistics(logger_fn=logger))
    if convolutional_kernel_export_frequency is not None:
        callbacks.append(CallbackExportConvolutionKernel(convolutional_kernel_export_frequency))
    return _of_what_is_installed(callbacks)


def default_post_training_callbacks(
    embedding_name: str = "embedding",
    dataset_name: str | None = None,
    split_name: str | None = None,
    discard_train_error_export: bool = False,
    export_errors: bool = True,
    explain_decision: bool = True,
) -> list[Any]:
    """Make the callbacks that run after training.

    The model as `last.model` and in ONNX, with its graph and an embedding for TensorBoard; plots of the history, the
    best value of each metric, reports of classifications, samples that were classified wrongly, and for three samples
    what made the model say what it said. One whose extra is not installed is left out, and a warning names it once.

    Args:
        embedding_name: the head whose output is shown as an embedding, if the model has it.
        dataset_name: the dataset of the samples that are embedded and explained. None: the first.
        split_name: their split. None: the first that is not trained on.
        discard_train_error_export: whether wrong classifications of the split that is trained on are left out.
        export_errors: whether samples that are classified wrongly are exported.
        explain_decision: whether anything is explained.

    Returns:
        New callbacks.
    """
    callbacks: list[Callback] = [
        CallbackSaveLastModel(),
        CallbackExportHistory(),
        CallbackExportBestHistory(),
        CallbackExportClassificationReport(),
        CallbackTensorboardRecordModel(dataset_name, split_name),
        CallbackTensorboardEmbedding(embedding_name, dataset_name, split_name, maybe_optional=True),
    ]
    if export_errors:
        callbacks.append(CallbackExportClassificationErrors(discard_train=discard_train_error_export))
    if explain_decision:
        callbacks.append(
            CallbackExplainDecision(_NB_EXPLAINED, dataset_name=dataset_name, split_name=split_name),
        )
    return _of_what_is_installed(callbacks)


def folder_of_program() -> Path:
    """Find the sources of the program that runs.

    Returns:
        The folder of its package, or of its script. That of this package where there is none (in a notebook), where the
        program is installed with the libraries (a test runner), and where so much lies beside the script that it is no
        folder of sources.
    """
    ours, file = Path(__file__).parents[1], getattr(sys.modules["__main__"], "__file__", None)
    if file is None:
        return ours
    folder = Path(file).absolute().parent
    while (folder / "__init__.py").exists() and (folder.parent / "__init__.py").exists():
        folder = folder.parent
    libraries = {Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib", "scripts")}
    is_installed = folder in libraries or not libraries.isdisjoint(folder.parents)
    nb_files = itertools.accumulate(len(names) + len(files) for _, names, files in os.walk(folder))
    return ours if is_installed or any(nb > _MOST_FILES for nb in nb_files) else folder


def _of_what_is_installed(callbacks: Iterable[Callback]) -> list[Any]:
    """Leave out what would end the training with a `MissingExtraError`: nobody has asked for it."""
    kept: list[Callback] = []
    for callback in callbacks:
        needs = _NEEDS.get(type(callback), ())
        missing = [extra for extra in needs if importlib.util.find_spec(_MODULES[extra]) is None]
        if missing:
            _warn(type(callback).__name__, ",".join(missing))
        else:
            kept.append(callback)
    return kept


@functools.cache
def _warn(name: str, extra: str) -> None:
    """Say it once in a program, however many trainings it makes."""
    _logger.warning("left out of the default callbacks: %s", MissingExtraError(name, extra))
