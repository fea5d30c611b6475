"""What the callbacks that export samples have in common: which files they write, and what is in them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from trw_pipeline.batches.length import len_batch
from trw_pipeline.callbacks.second_look import losses_by_sample, places_of, sample_of, uids_of
from trw_pipeline.outputs.classification import OutputClassification
from trw_pipeline.outputs.output import LossTerm, Output
from trw_pipeline.outputs.targeted import OutputWithTarget
from trw_pipeline.reporting.sample_files import export_sample, file_name
from trw_pipeline.training.class_names import class_names_of
from trw_pipeline.training.history import History
from trw_pipeline.training.options import Options

if TYPE_CHECKING:
    from trw_pipeline.training.run import Run


class SampleExport:
    """Writes samples of one split to `<run folder>/<dirname>/<dataset>/<dataset>_<split>_<name>.*`.

    Args:
        options: have the run folder.
        nb_epochs: epochs that are finished, see `nb_epochs_done`.
        dirname: folder in the run folder.
        datasets_infos: have the names of the classes.
        dataset_name: name of the dataset.
        split_name: name of the split.
        loss_terms_inclusion: what is written of the loss terms of each head, where they have it, beside the loss.
        feature_exclusions: features of the batch that are not written.

    Attributes:
        nb_written: samples so far.
    """

    def __init__(
        self,
        options: Options,
        nb_epochs: int,
        dirname: str,
        datasets_infos: Any,
        dataset_name: str,
        split_name: str,
        loss_terms_inclusion: Collection[str] = ("output",),
        feature_exclusions: Collection[str] = (),
    ) -> None:
        run_folder = Path(options["workflow_options"]["current_logging_directory"])
        self._folder = run_folder / dirname / file_name(dataset_name)
        self._prefix = file_name(dataset_name, split_name)
        self._class_names = class_names_of(datasets_infos, dataset_name, split_name)
        self._loss_terms_inclusion = loss_terms_inclusion
        self._feature_exclusions = feature_exclusions
        self._nb_epochs = nb_epochs
        self.nb_written = 0

    def write(self, run: Run, index: int, name: str | None = None, notes: Mapping[str, Any] | None = None) -> None:
        """Write a sample.

        Args:
            run: has the batch, and the loss terms if it was judged.
            index: of the sample in the batch.
            name: of the files, after dataset and split. None: `s<number>_e<epochs>`, counted from 0.
            notes: come before everything else in the text.
        """
        said, class_names = self._said(run, index)
        features = {k: v for k, v in sample_of(run.batch, index).items() if k not in self._feature_exclusions}
        export_sample(
            self._folder,
            f"{self._prefix}_{name or f's{self.nb_written}_e{self._nb_epochs}'}",
            {"epochs": self._nb_epochs, **(notes or {}), **said, **features},
            {**self._class_names, **class_names},
        )
        self.nb_written += 1

    def _said(self, run: Run, index: int) -> tuple[dict[str, Any], dict[str, Mapping[int, str]]]:
        """What the heads say of a sample, and the names of the classes among that."""
        said: dict[str, Any] = {}
        class_names: dict[str, Mapping[int, str]] = {}
        for output, term in run.terms.items():
            losses = losses_by_sample(term)
            if losses is not None and len(losses) == len_batch(run.batch):  # else nobody knows whose they are
                said[f"{output} loss"] = float(losses[index])
            for name, values in {**_predicted(term), **term}.items():
                if name in self._loss_terms_inclusion:
                    said[f"{output} {name}"] = sample_of({**run.batch, name: values}, index)[name]
        for output, head in classifiers_of(run).items():
            class_names[f"{output} output"] = self._class_names.get(head.classes_name, {})
        return said, class_names


class UidSearch:
    """Looks in the batches of one epoch of a split for samples, and writes them; it ends the split when all are there.

    Batches that have no uids have the places of their samples, from 0, instead.

    Args:
        export: writes them.
        names: uid -> name of the files.
        notes: uid -> what comes first in the text.
        uid_name: feature of the batch that identifies a sample.
        max_samples: so many samples read end the split too.
    """

    def __init__(
        self,
        export: SampleExport,
        names: Mapping[Any, str],
        notes: Mapping[Any, Mapping[str, Any]],
        uid_name: str,
        max_samples: float,
    ) -> None:
        self._export = export
        self._left = dict(names)
        self._notes = notes
        self._uid_name = uid_name
        self._max_samples = max_samples
        self._nb_read = 0

    def __call__(self, run: Run) -> None:
        """Look at one batch."""
        uids = uids_of(run.batch, self._uid_name) or places_of(run.batch, self._nb_read)
        for index, uid in enumerate(uids):
            if uid in self._left:
                self._export.write(run, index, self._left.pop(uid), self._notes[uid])
        self._nb_read += len(uids)
        if not self._left or self._nb_read >= self._max_samples:
            run.split_stopped = True


def nb_epochs_done(options: Options, history: History) -> int:
    """Gives the epochs that are finished; the final evaluation is none."""
    return min(len(history), options["training_parameters"]["num_epochs"])


def classifiers_of(run: Run) -> dict[str, OutputClassification]:
    """Gives the heads that have judged the batch as a classification."""
    heads = {output: term.get(Output.output_ref_tag) for output, term in run.terms.items()}
    return {output: head for output, head in heads.items() if isinstance(head, OutputClassification)}


def predicted_classes(head: OutputClassification) -> torch.Tensor:
    """Gives the class `(N,)` that a head says each sample of its batch has, while the batch is at work."""
    return head.output_postprocessing(head.output.detach())


def _predicted(term: LossTerm) -> dict[str, Any]:
    """What a head with a target says, which its loss term has only where outputs are collected."""
    head = term.get(Output.output_ref_tag)
    return {"output": head.output_postprocessing(head.output.detach())} if isinstance(head, OutputWithTarget) else {}
