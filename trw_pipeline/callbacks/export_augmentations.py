"""What a sample becomes each time that it is augmented."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import nn

from trw_pipeline.callbacks.sample_export import SampleExport, UidSearch, nb_epochs_done
from trw_pipeline.callbacks.second_look import (
    SecondLook,
    are_known_by_place,
    every_split,
    only_uids,
    places_of,
    shown,
    uids_of,
)
from trw_pipeline.reporting.sample_files import distinct_file_names
from trw_pipeline.sequences.stage import check_count
from trw_pipeline.training.callback import Callback
from trw_pipeline.training.history import History
from trw_pipeline.training.options import Options
from trw_pipeline.training.randomness import split_seed
from trw_pipeline.typing import Split, default_sample_uid_name

if TYPE_CHECKING:
    from trw_pipeline.training.run import Run

_logger = logging.getLogger(__name__)

_READ_FOR_ONE = 100
"""A pass over a split that is no chain ends after so many samples for each that is looked for."""


class CallbackExportAugmentations(Callback):
    """Exports a few samples several times each, as the split makes them anew in each epoch.

    Writes `<run folder>/<dirname>/<dataset>/<dataset>_<split>_s<uid>_a<number>.txt`, and beside it a picture or an
    array of each larger feature: see `export_sample`. The batches are as the training gets them, without the model.

    A chain of ours makes these samples alone, in this process, once for each of the epochs that come next, and its own
    epochs stay as they are; a sample is found by its `uid_name` at the source of the chain, or, where it has none, in
    the batches. Of any other split whole epochs are read until all samples are found, of a long one at most 100 samples
    for each that is looked for. In a list without `uid_name` a sample is known by its place, from 0. A split whose
    samples can not be told apart, or that can be read only once, is left out with a warning.

    Args:
        nb_samples: of each dataset.
        nb_augmentation: so many times each.
        dirname: folder in the run folder.
        split_name: the split. None: the one that is trained on, or, in a dataset that has none, the first one.
        uid_name: feature of the batch that identifies a sample.
        keep_samples: whether a chain shows the same samples each time this runs; else others are drawn.

    Raises:
        ValueError: a number is less than 1.
        TypeError: a number is no int.
    """

    def __init__(
        self,
        nb_samples: int = 10,
        nb_augmentation: int = 5,
        dirname: str = "augmentations",
        split_name: str | None = None,
        uid_name: str = default_sample_uid_name,
        keep_samples: bool = False,
    ) -> None:
        self.nb_samples = check_count("nb_samples", nb_samples)
        self.nb_augmentation = check_count("nb_augmentation", nb_augmentation)
        self.dirname = dirname
        self.split_name = split_name
        self.uid_name = uid_name
        self.keep_samples = keep_samples

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
            options: has the run folder, the device and the name of the split that is trained on.
            history: its length chooses the samples.
            model: not used.
            losses: not used.
            outputs: not used.
            datasets: where the samples are.
            datasets_infos: has the names of the classes.
            callbacks_per_batch: see each batch.
            **kwargs: not used.

        Raises:
            MissingExtraError: there is a picture to write and Pillow is not installed.
        """
        again = SecondLook(options, model, losses, callbacks_per_batch)
        chosen = {name: self._chosen(dataset, options) for name, dataset in datasets.items() if dataset}
        for dataset_name, split_name, split in every_split(chosen):
            nb_epochs = nb_epochs_done(options, history)
            export = SampleExport(options, nb_epochs, self.dirname, datasets_infos, dataset_name, split_name)
            uids = self._some_uids(split, 0 if self.keep_samples else len(history), again, dataset_name, split_name)
            if not uids:
                _logger.warning(
                    "no augmentations of %s/%s are exported: its batches have no feature %r",
                    dataset_name,
                    split_name,
                    self.uid_name,
                )
                continue
            names = dict(zip(uids, distinct_file_names(uids), strict=True))
            with shown(split, partial(only_uids, uids=uids, uid_name=self.uid_name)) as few:
                for number in range(self.nb_augmentation):
                    of_time = {uid: f"s{name}_a{number}" for uid, name in names.items()}
                    notes = {uid: {"augmentation": number} for uid in uids}
                    search = UidSearch(export, of_time, notes, self.uid_name, _READ_FOR_ONE * len(uids))
                    again.read(few, dataset_name, split_name, search)

    def _chosen(self, dataset: Any, options: Options) -> dict[str, Split]:
        train_split = options["workflow_options"]["train_split"]
        default = train_split if train_split in dataset else next(iter(dataset))
        name = default if self.split_name is None else self.split_name
        return {name: dataset[name]} if name in dataset else {}

    def _some_uids(self, split: Split, number: int, again: SecondLook, dataset_name: str, split_name: str) -> list[Any]:
        """Chooses samples; none if they have no uid, and are not known by their place either."""
        uids: dict[Any, None] = {}

        def look(run: Run) -> None:
            found = uids_of(run.batch, self.uid_name)
            if found is None and are_known_by_place(split):
                found = places_of(run.batch, len(uids))
            if found is None or len(uids) + len(found) >= self.nb_samples:
                run.split_stopped = True
            uids.update(dict.fromkeys(found or ()))

        def narrow(chain: Any) -> Any:
            return chain.with_seed(split_seed(number, dataset_name, split_name)).subsample(self.nb_samples)

        with shown(split, narrow) as few:
            again.read(few, dataset_name, split_name, look)
        return list(uids)[: self.nb_samples]
