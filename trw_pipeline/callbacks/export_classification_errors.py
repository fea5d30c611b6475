"""The samples that were taken for another class."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from trw_pipeline.batches.length import len_batch
from trw_pipeline.callbacks.sample_export import SampleExport, classifiers_of, nb_epochs_done, predicted_classes
from trw_pipeline.callbacks.second_look import SecondLook, every_split, nb_samples_of, shown
from trw_pipeline.outputs.class_counts import NOT_A_CLASS
from trw_pipeline.outputs.classification import OutputClassification
from trw_pipeline.sequences.stage import check_count
from trw_pipeline.training.callback import Callback
from trw_pipeline.training.history import History
from trw_pipeline.training.options import Options

if TYPE_CHECKING:
    from trw_pipeline.training.run import Run


class CallbackExportClassificationErrors(Callback):
    """Exports samples that a head takes for another class than theirs.

    Writes `<run folder>/<dirname>/<dataset>/<dataset>_<split>_s<number>_e<epochs>.txt`, `epochs` being those that are
    finished, and beside it a picture or an array of each larger feature: see `export_sample`. The text names the
    heads that are `wrong`: a sample is written once, however many they are.

    The split is read and judged again, because what the model said in the evaluation does not tell which input it was
    of. Reading stops at `max_samples` errors, at the number of samples that the last evaluation had, or at a batch that
    no `OutputClassification` judges; one that judges fewer samples than the batch has does not tell which. A generator,
    or whatever else can be read only once, is left out with a warning.

    Args:
        max_samples: the most of each split.
        discard_train: whether the split that is trained on is left out.
        dirname: folder in the run folder.

    Raises:
        ValueError: `max_samples` is less than 1.
        TypeError: it is no int.
    """

    def __init__(self, max_samples: int = 100, discard_train: bool = True, dirname: str = "errors") -> None:
        self.max_samples = check_count("max_samples", max_samples)
        self.discard_train = discard_train
        self.dirname = dirname

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
        """Export the errors.

        Args:
            options: has the run folder, the device and the name of the split that is trained on.
            history: tells how many epochs are finished, and how many samples a split has.
            model: judges the samples.
            losses: dataset name -> loss function.
            outputs: not used.
            datasets: where the samples are.
            datasets_infos: has the names of the classes.
            callbacks_per_batch: see each batch before the model does.
            **kwargs: not used.

        Raises:
            MissingExtraError: there is a picture to write and Pillow is not installed.
        """
        again = SecondLook(options, model, losses, callbacks_per_batch)
        for dataset_name, split_name, split in every_split(datasets):
            if self.discard_train and split_name == options["workflow_options"]["train_split"]:
                continue
            nb_epochs = nb_epochs_done(options, history)
            export = SampleExport(options, nb_epochs, self.dirname, datasets_infos, dataset_name, split_name)
            search = _Search(export, self.max_samples, nb_samples_of(history, dataset_name, split_name))
            with shown(split) as another:
                again.judge(another, dataset_name, split_name, search)


class _Search:
    """Looks for errors in the batches of a split, and writes them.

    Args:
        export: writes them.
        max_errors: so many end the split.
        max_samples: so many samples read end it too.
    """

    def __init__(self, export: SampleExport, max_errors: int, max_samples: float) -> None:
        self._export = export
        self._max_errors = max_errors
        self._max_samples = max_samples
        self._nb_read = 0

    def __call__(self, run: Run) -> None:
        """Look at one batch."""
        nb_samples = len_batch(run.batch)
        judged = {output: _is_wrong(head, run) for output, head in classifiers_of(run).items()}
        wrong = {output: of_head for output, of_head in judged.items() if len(of_head) == nb_samples}
        if not wrong:
            run.split_stopped = True
            return
        for index in range(nb_samples):
            names = [output for output, of_head in wrong.items() if of_head[index]]
            if names and self._export.nb_written < self._max_errors:
                self._export.write(run, index, notes={"wrong": ", ".join(names)})
        self._nb_read += nb_samples
        if self._export.nb_written == self._max_errors or self._nb_read >= self._max_samples:
            run.split_stopped = True


def _is_wrong(head: OutputClassification, run: Run) -> list[bool]:
    truth: torch.Tensor = run.batch[head.classes_name]
    wrong = (predicted_classes(head) != truth) & (truth != NOT_A_CLASS)
    return wrong.tolist()
