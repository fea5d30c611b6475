"""What samples look like, and what the model says of them."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import nn

from trw_pipeline.batches.length import len_batch
from trw_pipeline.callbacks.sample_export import SampleExport, nb_epochs_done
from trw_pipeline.callbacks.second_look import SecondLook, every_split, shown
from trw_pipeline.sequences.stage import check_count
from trw_pipeline.training.callback import Callback
from trw_pipeline.training.history import History
from trw_pipeline.training.options import Options

if TYPE_CHECKING:
    from trw_pipeline.training.run import Run


class CallbackExportSamples(Callback):
    """Exports samples of each split, with what the model says of them.

    Writes `<run folder>/<dirname>/<dataset>/<dataset>_<split>_s<number>_e<epochs>.txt`, `epochs` being those that are
    finished, and beside it a picture or an array of each larger feature: see `export_sample`.

    The model judges the samples in evaluation mode. Of a chain of ours it is given some that are drawn at random, made
    in this process, the same ones each time (see `Sequence.subsample`); of any other split the first ones. A generator,
    or whatever else can be read only once, is left out with a warning.

    Args:
        max_samples: of each split.
        dirname: folder in the run folder.
        loss_terms_inclusion: what is written of the loss terms of each head, where they have it, beside the loss of the
            sample. None: `output`.
        feature_exclusions: features of the batch that are not written. None: all are.
        dataset_exclusions: datasets that are left out.
        split_exclusions: splits that are left out.

    Raises:
        ValueError: `max_samples` is less than 1.
        TypeError: it is no int.
    """

    def __init__(
        self,
        max_samples: int = 20,
        dirname: str = "samples",
        loss_terms_inclusion: Collection[str] | None = None,
        feature_exclusions: Collection[str] | None = None,
        dataset_exclusions: Collection[str] | None = None,
        split_exclusions: Collection[str] | None = None,
    ) -> None:
        self.max_samples = check_count("max_samples", max_samples)
        self.dirname = dirname
        self.loss_terms_inclusion = ("output",) if loss_terms_inclusion is None else loss_terms_inclusion
        self.feature_exclusions = feature_exclusions or ()
        self.dataset_exclusions = dataset_exclusions or ()
        self.split_exclusions = split_exclusions or ()

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
        """Export the samples.

        Args:
            options: has the run folder and the device.
            history: tells how many epochs are finished.
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
        wanted = {name: dataset for name, dataset in datasets.items() if name not in self.dataset_exclusions}
        for dataset_name, split_name, split in every_split(wanted):
            if split_name in self.split_exclusions:
                continue
            where = (self.dirname, datasets_infos, dataset_name, split_name)
            export = SampleExport(
                options, nb_epochs_done(options, history), *where, self.loss_terms_inclusion, self.feature_exclusions
            )
            with shown(split, lambda chain: chain.subsample(self.max_samples)) as few:
                again.judge(few, dataset_name, split_name, partial(self._export, export))

    def _export(self, export: SampleExport, run: Run) -> None:
        for index in range(len_batch(run.batch)):
            export.write(run, index)
            if export.nb_written == self.max_samples:
                run.split_stopped = True
                return
