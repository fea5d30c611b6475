"""What TensorBoard shows of a training: `tensorboard --logdir <folder of the runs>`.

Each callback writes to a folder of its own: of several files of events in one folder TensorBoard follows only the last.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from trw_pipeline.batches.device import to_value
from trw_pipeline.batches.length import holds_samples, len_batch
from trw_pipeline.callbacks.row_log import RowLog
from trw_pipeline.errors import MissingExtraError
from trw_pipeline.files import safe_filename, write_bytes
from trw_pipeline.nets.mode import looked_at
from trw_pipeline.reporting.images import sample_pictures
from trw_pipeline.reporting.model_graph import write_model_graph
from trw_pipeline.reporting.projector import thumbnail, write_embedding
from trw_pipeline.reporting.row_files import EventFile, event_protocol
from trw_pipeline.training.callback import Callback, create_hook_table, with_batch_callbacks
from trw_pipeline.training.class_names import class_names_of
from trw_pipeline.training.exported_model import export_model
from trw_pipeline.training.history import History
from trw_pipeline.training.looking import beside, can_be_read_again, first_batch, split_to_look_at
from trw_pipeline.training.options import Options
from trw_pipeline.training.run import Run
from trw_pipeline.training.split import heads_of, one_split
from trw_pipeline.typing import Batch, Datasets

_logger = logging.getLogger(__name__)

FOLDER = "tensorboard"
"""In the run folder."""


class CallbackTensorboardRecordHistory(RowLog):
    """Writes the numbers of each epoch for TensorBoard: `<run folder>/tensorboard/events.out.tfevents.history`.

    The scalars have the names of the columns of `CallbackTrainLog`, and the epoch, from 0, as their step. After each
    epoch they are on the disk; the final evaluation is no epoch and has none. A resumed training goes on in the file,
    in which each epoch is once; a TensorBoard that read the file meanwhile has to be started again.

    Needs the extra `tensorboard`: `MissingExtraError` before the first epoch.
    """

    def __init__(self) -> None:
        super().__init__(f"{FOLDER}/events.out.tfevents.history", EventFile)


class CallbackClearTensorboardLog(Callback):
    """Begins a training with no log for TensorBoard: deletes `<run folder>/tensorboard`, if it is there.

    Every run of a `Trainer` has a new folder, in which there is none; whoever trains into one folder again wants this.
    It has to hang before all that write there, first in the pre-training list. A training that is resumed keeps its
    log.
    """

    def on_fit_start(self, run: Run) -> None:
        """Delete the folder, unless the training goes on."""
        assert run.log_dir is not None, "a training in a folder"
        if not run.resumed and (run.log_dir / FOLDER).exists():
            shutil.rmtree(run.log_dir / FOLDER)


class CallbackTensorboardRecordModel(Callback):
    """Exports the model: its graph for TensorBoard, and the model itself in ONNX.

    Writes `<run folder>/tensorboard/model/events.out.tfevents.model` and `<run folder>/<onnx_folder>/model.onnx`, whose
    inputs and outputs have the names of the features that the model reads and of its heads. The model is traced with
    one batch, in evaluation mode, and stays as it is; where it can, the export takes any number of samples. A model
    that can not be traced or translated ends nothing: a warning says why, and what can not be made is not written.

    Needs the extras `tensorboard` and `onnx`.

    Args:
        dataset_name: dataset of the batch. None: the first.
        split_name: split of the batch. None: the first that is not trained on, else the one that is.
        onnx_folder: folder in the run folder. None: there is no ONNX, nor any need of its extra.
    """

    def __init__(
        self, dataset_name: str | None = None, split_name: str | None = None, onnx_folder: str | None = "onnx"
    ) -> None:
        self.dataset_name = dataset_name
        self.split_name = split_name
        self.onnx_folder = onnx_folder

    def __call__(
        self,
        options: Options,
        history: History,
        model: nn.Module,
        losses: Any,
        outputs: Any,
        datasets: Any,
        datasets_infos: Any,
        callbacks_per_batch: Any,
        **kwargs: Any,
    ) -> None:
        """Export the model.

        Args:
            options: has the run folder and the name of the training split.
            history: not used.
            model: what to export.
            losses: not used.
            outputs: not used.
            datasets: give the batch.
            datasets_infos: not used.
            callbacks_per_batch: see the batch before the model does.
            **kwargs: not used.

        Raises:
            ValueError: there is no such dataset or split.
            MissingExtraError: tensorboard, or what makes ONNX, is not installed.
        """
        event_protocol()
        workflow = options["workflow_options"]
        folder = Path(workflow["current_logging_directory"])
        names = split_to_look_at(datasets, self.dataset_name, self.split_name, workflow["train_split"])
        batch = first_batch(model, datasets, *names, callbacks_per_batch)
        if batch is None:
            return
        what = "traced"
        try:
            exported = export_model(model, batch)
            if not exported.has_any_batch_size:
                _logger.warning("the exported model takes %d samples at once, no other number", len_batch(batch))
            path = folder / FOLDER / "model" / "events.out.tfevents.model"
            path.parent.mkdir(parents=True, exist_ok=True)
            write_model_graph(path, exported.program, exported.inputs, exported.outputs)
            if self.onnx_folder is not None:
                what = "translated to ONNX"
                onnx = exported.as_onnx()
                (folder / self.onnx_folder).mkdir(parents=True, exist_ok=True)
                write_bytes(folder / self.onnx_folder / "model.onnx", onnx)
        except (MissingExtraError, OSError):
            raise
        except Exception as error:
            # Whatever a model does is legal in a training, and torch has many errors for what it can not trace.
            _logger.warning("the model can not be %s: %s", what, error)
            _logger.debug("the model can not be %s", what, exc_info=True)


def keep_small_features(feature_name: str, feature_value: Any) -> bool:
    """Choose the features that are shown with the samples of an embedding: those with one number or text a sample.

    Args:
        feature_name: name of the feature.
        feature_value: its value in a batch.
    """
    return holds_samples(feature_value) and len(feature_value) > 0 and np.shape(feature_value[0]) == ()


class CallbackTensorboardEmbedding(Callback):
    """Records an embedding of samples for the projector of TensorBoard, with what is known of each, and its picture.

    The split is read again, up to `maximum_samples` and no further, and put through the model in evaluation mode; the
    training does not notice. Writes to `<run folder>/tensorboard/embedding-<embedding_name>`: see `write_embedding`. In
    the list of each epoch the newest embedding takes the place of the one before. A split that can be read only once is
    passed over with a warning.

    Needs the extra `tensorboard`, and `images` for the pictures.

    Args:
        embedding_name: name of the head, such as an `OutputEmbedding`; its output is flattened.
        dataset_name: dataset of the samples. None: the first.
        split_name: split of the samples. None: the first that is not trained on, else the one that is.
        image_name: feature that is shown as picture. None: the first that is an image or a volume, if there is one and
            Pillow is installed.
        maximum_samples: as many are recorded, the first ones of the split; at least 1.
        keep_features_fn: (feature name, value of a batch) -> whether it becomes a column. Only features with a value a
            sample are asked for. Classes whose names are known have their names.
        maybe_optional: a model without that head is passed over instead of being an error.

    Raises:
        ValueError: `maximum_samples` is less than 1.
    """

    def __init__(
        self,
        embedding_name: str,
        dataset_name: str | None = None,
        split_name: str | None = None,
        image_name: str | None = None,
        maximum_samples: int = 2000,
        keep_features_fn: Callable[[str, Any], bool] = keep_small_features,
        *,
        maybe_optional: bool = False,
    ) -> None:
        if maximum_samples < 1:
            raise ValueError(f"maximum_samples must be at least 1, got {maximum_samples}")
        self.embedding_name = embedding_name
        self.dataset_name = dataset_name
        self.split_name = split_name
        self.image_name = image_name
        self.maximum_samples = maximum_samples
        self.keep_features_fn = keep_features_fn
        self.maybe_optional = maybe_optional

    def first_time(self, datasets: Datasets, options: Options) -> tuple[str, str]:
        """Choose the split whose samples are recorded.

        Args:
            datasets: dataset name -> split name -> split.
            options: name the split that is trained on.

        Returns:
            Name of the dataset, name of the split.

        Raises:
            ValueError: there is no such dataset or split.
        """
        train_split = options["workflow_options"]["train_split"]
        return split_to_look_at(datasets, self.dataset_name, self.split_name, train_split)

    def __call__(
        self,
        options: Options,
        history: History,
        model: nn.Module,
        losses: Any,
        outputs: Any,
        datasets: Any,
        datasets_infos: Any,
        callbacks_per_batch: Any,
        **kwargs: Any,
    ) -> None:
        """Record the embedding.

        Args:
            options: has the run folder, the device and the name of the training split.
            history: not used.
            model: gives the embedding.
            losses: not used.
            outputs: not used.
            datasets: give the samples.
            datasets_infos: has the names of the classes:
                `datasets_infos[dataset][split]['output_mappings'][feature]['mappinginv']`, class -> name.
            callbacks_per_batch: see each batch before the model does.
            **kwargs: not used.

        Raises:
            ValueError: there is no such dataset, split, head or image.
            MissingExtraError: tensorboard is not installed; or Pillow, and an image was asked for.
        """
        event_protocol()
        workflow = options["workflow_options"]
        dataset_name, split_name = self.first_time(datasets, options)
        if not can_be_read_again(datasets[dataset_name][split_name], f"{dataset_name}/{split_name}"):
            return
        collected = _Collected(self, class_names_of(datasets_infos, dataset_name, split_name))
        hooks = with_batch_callbacks(create_hook_table(), callbacks_per_batch, None)
        run = Run(model, torch.device(workflow["device"]), hooks=hooks, dataset=dataset_name, split=split_name)
        with looked_at(model), beside(datasets[dataset_name][split_name]) as split:
            one_split(run, split, collected.look)
        if not collected.vectors:
            return  # no such head; or no samples, which the loop has warned of
        name = f"embedding-{safe_filename(self.embedding_name)}"
        write_embedding(
            Path(workflow["current_logging_directory"]) / FOLDER / name,
            self.embedding_name,
            np.concatenate(collected.vectors),
            collected.columns,
            collected.thumbnails,
        )


class _Collected:
    """What is recorded of the samples so far."""

    def __init__(self, wanted: CallbackTensorboardEmbedding, class_names: Mapping[str, Mapping[int, str]]) -> None:
        self.wanted = wanted
        self.class_names = class_names
        self.image_name = wanted.image_name
        self.vectors: list[np.ndarray] = []
        self.columns: dict[str, list[str]] = {}
        self.thumbnails: list[np.ndarray] = []
        self._nb_samples = 0
        self._are_pictures_wanted = wanted.image_name is not None or find_spec("PIL") is not None

    def look(self, run: Run) -> None:
        """Record the samples of a batch."""
        heads = heads_of(run)
        if self.wanted.embedding_name not in heads:
            if self.wanted.maybe_optional:
                run.split_stopped = True
                return
            raise ValueError(f"the model has no output {self.wanted.embedding_name!r}, it has {sorted(heads)}")
        output = heads[self.wanted.embedding_name].output
        assert output is not None, "the head is new"
        nb_left = self.wanted.maximum_samples - self._nb_samples
        vectors = to_value(output.detach()[:nb_left])
        nb_samples = len(vectors)
        self.vectors.append(vectors.reshape(nb_samples, -1))
        self._add_columns(run.batch, nb_samples)
        self._add_pictures(run.batch, nb_samples)
        self._nb_samples += nb_samples
        run.split_stopped = nb_samples == nb_left

    def _add_columns(self, batch: Batch, nb_samples: int) -> None:
        nb_in_batch = len_batch(batch)
        for name, value in batch.items():
            is_of_samples = holds_samples(value) and len(value) == nb_in_batch
            if is_of_samples and self.wanted.keep_features_fn(name, value):
                texts = self.columns.setdefault(name, [""] * self._nb_samples)
                mapping = self.class_names.get(name, {})
                plain = [
                    one.item() if isinstance(one, (np.generic, np.ndarray)) else one
                    for one in to_value(value[:nb_samples])
                ]
                texts += [str(mapping.get(one, one) if isinstance(one, int) else one) for one in plain]
        for texts in self.columns.values():
            texts += [""] * (self._nb_samples + nb_samples - len(texts))

    def _add_pictures(self, batch: Batch, nb_samples: int) -> None:
        if not self._are_pictures_wanted:
            return
        if self.image_name is None:
            self.image_name = next((name for name in batch if self._pictures(batch, name, 1)), None)
        if self.image_name is None:
            self._are_pictures_wanted = False
            return
        if self.image_name not in batch:
            raise ValueError(f"the batch has no feature {self.image_name!r}, it has {sorted(batch)}")
        self.thumbnails += self._pictures(batch, self.image_name, nb_samples)
        shapes = {picture.shape for picture in self.thumbnails}
        if len(shapes) != 1 or len(self.thumbnails) != self._nb_samples + nb_samples:
            _logger.warning("an embedding without pictures: those of %r are not all of one size", self.image_name)
            self.thumbnails, self._are_pictures_wanted = [], False

    def _pictures(self, batch: Batch, name: str, nb_samples: int) -> list[np.ndarray]:
        """A picture for each of the first samples that have one."""
        value = batch[name]
        if not holds_samples(value):
            return []
        shown = [sample_pictures(value[index])[:1] for index in range(nb_samples)]
        most = self.wanted.maximum_samples
        return [thumbnail(picture, most) for pictures in shown for picture in pictures]
