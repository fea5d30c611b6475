"""The samples that the model finds hardest."""

from __future__ import annotations

import importlib
import logging
import math
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from torch import nn

from trw_pipeline.callbacks.sample_export import SampleExport, UidSearch
from trw_pipeline.callbacks.second_look import (
    SecondLook,
    are_known_by_place,
    as_uids,
    losses_by_sample,
    only_uids,
    shown,
)
from trw_pipeline.errors import MissingExtraError
from trw_pipeline.outputs.classification import OutputClassification
from trw_pipeline.outputs.output import LossTerm, Output
from trw_pipeline.outputs.regression import OutputRegression
from trw_pipeline.outputs.segmentation import OutputSegmentation
from trw_pipeline.reporting.sample_files import file_name
from trw_pipeline.reporting.samples_by_epoch import plot_samples_by_epoch
from trw_pipeline.sequences.stage import check_count
from trw_pipeline.training.callback import Callback
from trw_pipeline.training.history import History
from trw_pipeline.training.looking import can_be_read_again
from trw_pipeline.training.options import Options
from trw_pipeline.typing import Datasets, Split, default_sample_uid_name

if TYPE_CHECKING:
    from trw_pipeline.training.run import Run

_logger = logging.getLogger(__name__)

LossesBySample: TypeAlias = dict[Any, list[tuple[float, int]]]
"""uid -> its (loss, epoch), in the order of the epochs."""

_Place: TypeAlias = tuple[str, str, str]
"""Names of dataset, split and output."""

_Noted: TypeAlias = tuple["np.ndarray | list[Any]", np.ndarray]
"""uids of samples, as an array where they are numbers, and their losses: small and quick to save in a checkpoint."""


class CallbackWorstSamplesByEpoch(Callback):
    """Follows the samples with the highest losses through the training, and exports them at its end.

    | file in `<run folder>/<dirname>/<dataset>` | content |
    |---|---|
    | `<dataset>_<split>_<output>.png` | losses of the worst samples, a row for each, over the epochs |
    | `<dataset>_<split>_<output>_s<rank>.txt`, and beside it | one of them, judged by the model as it is then |

    At the end of each epoch it notes the `worst_k_samples` highest losses of each head and split that ran, and nothing
    else. The worst samples are those whose noted losses add up to most: a loss that was not among the highest of its
    epoch counts as 0, and is grey in the picture. Several losses of a sample in one epoch count as their mean, a loss
    that is NaN as the highest there is. A resumed training goes on with what was noted.

    A sample is known by `uids_name`, which the head must have as `sample_uid_name` and the batch as a feature; in a
    list without it by its place, from 0. Other splits whose samples have no uid are left out, with a warning.

    To export samples the split is read again until all are found: of a chain of ours these samples alone are made, in
    this process. Those of a split that can be read only once are not exported.

    Args:
        split_names: splits to follow. None: all.
        output_name: head to follow. None: all of the kinds in `output_of_interest`.
        dataset_name: dataset to follow. None: all.
        dirname: folder in the run folder.
        sort_samples_by_loss_error: whether the rows of the picture are in the order of the ranks; else in that of the
            uids, to compare several trainings.
        worst_k_samples: losses to note of an epoch, and rows of the picture. None: all.
        export_top_k_samples: so many of the worst samples are exported, 0 or more.
        uids_name: feature that identifies a sample.
        output_of_interest: kinds of heads to follow.

    Raises:
        ValueError: a number is out of range. At the end of the first epoch: there is no such dataset, split or head.
        TypeError: a number is no int.
    """

    def __init__(
        self,
        split_names: Collection[str] | None = None,
        output_name: str | None = None,
        dataset_name: str | None = None,
        dirname: str = "worst_samples_by_epoch",
        sort_samples_by_loss_error: bool = True,
        worst_k_samples: int | None = 1000,
        export_top_k_samples: int = 50,
        uids_name: str = default_sample_uid_name,
        output_of_interest: tuple[type[Output], ...] = (OutputClassification, OutputSegmentation, OutputRegression),
    ) -> None:
        self.split_names = [split_names] if isinstance(split_names, str) else split_names
        self.output_name = output_name
        self.dataset_name = dataset_name
        self.dirname = dirname
        self.sort_samples_by_loss_error = sort_samples_by_loss_error
        self.worst_k_samples = None if worst_k_samples is None else check_count("worst_k_samples", worst_k_samples)
        self.export_top_k_samples = export_top_k_samples and check_count("export_top_k_samples", export_top_k_samples)
        self.uids_name = uids_name
        self.output_of_interest = output_of_interest
        self._begin()

    def _begin(self) -> None:
        self._noted: dict[_Place, dict[int, _Noted]] = {}
        self._nb_samples: dict[_Place, int] = {}
        self._is_exported = True
        self._is_checked = False
        self._warned: set[_Place] = set()

    def on_fit_start(self, run: Run) -> None:
        """Begin anew; a training that goes on loads its state after this.

        Raises:
            MissingExtraError: matplotlib is not installed: better now than at the end.
        """
        try:
            importlib.import_module("matplotlib")
        except ImportError as error:
            raise MissingExtraError("CallbackWorstSamplesByEpoch", "plot") from error
        self._begin()

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
        """Note the losses of the newest epoch, and export the worst samples if it is the last one.

        Args:
            options: has the run folder and the device.
            history: its length tells the epoch.
            model: judges the samples that are exported.
            losses: dataset name -> loss function.
            outputs: have `losses` and `uid` of each head; None: nothing is done.
            datasets: where the samples are.
            datasets_infos: has the names of the classes.
            callbacks_per_batch: see each batch before the model does.
            **kwargs: `last_epoch`; without it, this is after the training.

        Raises:
            MissingExtraError: matplotlib or Pillow is not installed.
        """
        if not outputs:
            return
        if not self._is_checked:
            self.first_time(datasets, outputs)
        self._note(len(history) - 1, datasets, outputs)
        if kwargs.get("last_epoch", True):
            self.export_stats(model, losses, datasets, datasets_infos, options, callbacks_per_batch)

    def on_fit_end(self, run: Run) -> None:
        """Export the worst samples of a training that ended before its last epoch."""
        if not self._is_exported:
            infos = run.datasets_infos
            self.export_stats(run.model, run.losses, run.datasets, infos, run.options, run.callbacks_per_batch)

    def first_time(self, datasets: Datasets, outputs: Any) -> None:
        """Check that what is to be followed is there.

        Args:
            datasets: dataset -> split name -> split.
            outputs: dataset -> split -> output -> loss term, of any epoch.

        Raises:
            ValueError: it is not; the message says what is.
        """
        wanted = [name for name in datasets if self.dataset_name in (None, name)]
        if not wanted:
            raise ValueError(f"dataset_name must be one of {list(datasets)}, got {self.dataset_name!r}")
        splits = {split for name in wanted for split in datasets[name]}
        unknown = set(self.split_names or ()) - splits
        if unknown:
            raise ValueError(f"split_names must be among {sorted(splits)}, got {sorted(unknown)}")
        heads = {output for name in wanted for terms in outputs.get(name, {}).values() for output in terms}
        if self.output_name is not None and self.output_name not in heads:
            raise ValueError(f"output_name must be one of {sorted(heads)}, got {self.output_name!r}")
        self._is_checked = True

    @staticmethod
    def sort_split_data(
        errors_by_sample: Mapping[Any, Collection[tuple[float, int]]],
        worst_k_samples: int | None,
        discard_first_n_epochs: int = 0,
    ) -> list[tuple[Any, list[tuple[float, int]]]]:
        """Sort samples, the worst first.

        Args:
            errors_by_sample: uid -> its (loss, epoch).
            worst_k_samples: so many are given; None: all.
            discard_first_n_epochs: losses of the epochs before this one are left out: they are noisy.

        Returns:
            (uid, its (loss, epoch) that count), by falling sum of losses; of equal ones those given first.
        """
        kept = [
            (uid, [(loss, epoch) for loss, epoch in errors if epoch >= discard_first_n_epochs])
            for uid, errors in errors_by_sample.items()
        ]
        return sorted(kept, key=lambda one: -_total(one[1]))[:worst_k_samples]

    def export_stats(
        self,
        model: nn.Module,
        losses: Any,
        datasets: Any,
        datasets_infos: Any,
        options: Options,
        callbacks_per_batch: Any,
    ) -> None:
        """Write the pictures, and the worst samples of each split.

        Args:
            model: judges the samples.
            losses: dataset name -> loss function.
            datasets: where the samples are.
            datasets_infos: has the names of the classes.
            options: has the run folder and the device.
            callbacks_per_batch: see each batch before the model does.

        Raises:
            MissingExtraError: matplotlib or Pillow is not installed.
        """
        again = SecondLook(options, model, losses, callbacks_per_batch)
        for place, by_epoch in self._noted.items():
            worst = self.sort_split_data(_by_sample(by_epoch), self.worst_k_samples)
            self._plot(place, worst, sorted(by_epoch), options)
            dataset_name, split_name, _ = place
            if can_be_read_again(datasets[dataset_name][split_name], f"{dataset_name}/{split_name}"):
                where = (options, max(by_epoch) + 1, self.dirname, datasets_infos, dataset_name, split_name)
                self._export(place, worst[: self.export_top_k_samples], again, datasets, SampleExport(*where))
        self._is_exported = True

    def state_dict(self) -> dict[str, Any]:
        """Give what was noted."""
        return {
            "noted": [
                [*place, [[epoch, uids, losses] for epoch, (uids, losses) in by_epoch.items()]]
                for place, by_epoch in self._noted.items()
            ],
            "nb_samples": list(self._nb_samples.values()),
            "is_exported": self._is_exported,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take it back."""
        self._begin()
        for (dataset, split, output, by_epoch), nb_samples in zip(state["noted"], state["nb_samples"], strict=True):
            self._noted[dataset, split, output] = {epoch: (uids, losses) for epoch, uids, losses in by_epoch}
            self._nb_samples[dataset, split, output] = nb_samples
        self._is_exported = state["is_exported"]

    def _note(self, epoch: int, datasets: Any, outputs: Any) -> None:
        for dataset_name, splits in outputs.items():
            for split_name, terms in splits.items():
                for output, term in terms.items():
                    place = (dataset_name, split_name, output)
                    if self._is_wanted(place, term):
                        self._note_split(place, epoch, datasets[dataset_name][split_name], term)

    def _is_wanted(self, place: _Place, term: LossTerm) -> bool:
        dataset_name, split_name, output = place
        return (
            self.dataset_name in (None, dataset_name)
            and (self.split_names is None or split_name in self.split_names)
            and self.output_name in (None, output)
            and isinstance(term.get(Output.output_ref_tag), self.output_of_interest)
        )

    def _note_split(self, place: _Place, epoch: int, split: Split, term: LossTerm) -> None:
        losses = losses_by_sample(term)
        if losses is None:
            return
        head = term[Output.output_ref_tag]
        uids = as_uids(term["uid"]) if "uid" in term and head.sample_uid_name == self.uids_name else None
        if uids is None and are_known_by_place(split):
            uids = list(range(len(losses)))
        if uids is None or len(uids) != len(losses):
            if place not in self._warned:
                _logger.warning("the samples of %s have no %r: the worst are not followed", place, self.uids_name)
            self._warned.add(place)
            return
        by_epoch = self._noted.setdefault(place, {})
        for later in [one for one in by_epoch if one >= epoch]:  # of a training before this one
            del by_epoch[later]
        by_epoch[epoch] = _highest(uids, losses.numpy(), self.worst_k_samples)
        self._nb_samples[place] = len(uids)
        self._is_exported = False

    def _plot(self, place: _Place, worst: list[Any], epochs: list[int], options: Options) -> None:
        rows = worst if self.sort_samples_by_loss_error else sorted(worst, key=lambda one: _sortable(one[0]))
        matrix = np.full((len(rows), len(epochs)), np.nan)
        for row, (_, losses) in enumerate(rows):
            for loss, epoch in losses:
                matrix[row, epochs.index(epoch)] = loss
        folder = Path(options["workflow_options"]["current_logging_directory"]) / self.dirname / file_name(place[0])
        folder.mkdir(parents=True, exist_ok=True)
        title = "highest losses of {}/{}: {}".format(*place)
        plot_samples_by_epoch(folder / f"{file_name(*place)}.png", matrix, [uid for uid, _ in rows], epochs, title)

    def _export(self, place: _Place, worst: list[Any], again: SecondLook, datasets: Any, export: SampleExport) -> None:
        if not worst:
            return
        dataset_name, split_name, output = place
        names = {uid: f"{file_name(output)}_s{rank}" for rank, (uid, _) in enumerate(worst)}
        notes = {
            uid: {
                "rank": rank,
                "uid": uid,
                f"{output} loss by epoch": ", ".join(f"{epoch}: {loss:.6g}" for loss, epoch in losses),
            }
            for rank, (uid, losses) in enumerate(worst)
        }
        search = UidSearch(export, names, notes, self.uids_name, self._nb_samples[place])
        narrow = partial(only_uids, uids=list(names), uid_name=self.uids_name)
        with shown(datasets[dataset_name][split_name], narrow) as few:
            again.judge(few, dataset_name, split_name, search)


def _highest(uids: list[Any], losses: np.ndarray, nb: int | None) -> _Noted:
    """The highest losses of an epoch, falling, and whose they are."""
    if len(set(uids)) < len(uids):
        several: dict[Any, list[float]] = {}
        for uid, loss in zip(uids, losses.tolist(), strict=True):
            several.setdefault(uid, []).append(loss)
        uids, losses = list(several), np.array([sum(of_uid) / len(of_uid) for of_uid in several.values()])
    order = np.argsort(-np.nan_to_num(losses, nan=math.inf), kind="stable")[:nb]
    highest = [uids[index] for index in order.tolist()]
    are_numbers = all(type(uid) is int for uid in highest)
    return np.array(highest) if are_numbers else highest, losses[order]


def _by_sample(by_epoch: Mapping[int, _Noted]) -> LossesBySample:
    samples: LossesBySample = {}
    for epoch in sorted(by_epoch):
        uids, losses = by_epoch[epoch]
        for uid, loss in zip(uids if isinstance(uids, list) else uids.tolist(), losses.tolist(), strict=True):
            samples.setdefault(uid, []).append((loss, epoch))
    return samples


def _total(losses: Collection[tuple[float, int]]) -> float:
    total = sum(loss for loss, _ in losses)
    return math.inf if math.isnan(total) else total


def _sortable(uid: Any) -> tuple[str, Any]:
    """Numbers among numbers, texts among texts."""
    return ("", uid) if isinstance(uid, (int, float)) else (type(uid).__name__, str(uid))
