"""What the classifications of a model are like: reports, confusion matrices, ROC curves."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from torch import nn

from trw_pipeline.files import safe_filename, write_text
from trw_pipeline.outputs.classification import OutputClassification
from trw_pipeline.outputs.output import LossTerm, Output
from trw_pipeline.reporting.classification_report import classification_report, report_text
from trw_pipeline.reporting.confusion_matrix import confusion_matrix
from trw_pipeline.reporting.history_plot import plot_history
from trw_pipeline.reporting.roc import plot_roc
from trw_pipeline.training.callback import Callback
from trw_pipeline.training.class_names import class_names_of
from trw_pipeline.training.history import History, curves_of, epochs_of
from trw_pipeline.training.options import Options

_logger = logging.getLogger(__name__)

_MOST_CURVES = 10


class _Judged(NamedTuple):
    """What a head collected of a split, of the samples that have a class: scores (N, C), truth and found (N,)."""

    scores: np.ndarray
    truth: np.ndarray
    found: np.ndarray


class CallbackExportClassificationReport(Callback):
    """Tells how each `OutputClassification` that collects its outputs did, for each split that was evaluated.

    Writes to the run folder, each name without special characters:

    | file | content |
    |---|---|
    | `<output>-<dataset>-<split>-report.txt` | figures, a table of the classes, typical errors, confusions |
    | `<output>-<dataset>-<split>-cm.png` | see `confusion_matrix` |
    | `<output>-<dataset>-<split>-ROC.png` | of two classes: see `plot_roc` |
    | `<output>-<dataset>-<split>-history.png` | error over the epochs, and that of the 10 worst classes |

    In the post-training list it tells of the final evaluation, and knows the error of each class then alone. In the
    list of each epoch it tells of the newest one, and collects the errors of all classes.

    Args:
        with_confusion_matrix: whether there is the picture of confusions.
        with_ROC: whether there is the ROC. A split without samples of both classes has none.
        with_history: whether there are the errors over the epochs.
        with_report: whether there is the text.
    """

    max_class_names: ClassVar[int] = 40
    """With more classes, the text has no confusion matrix, and in the picture the x axis has no names."""

    def __init__(
        self,
        with_confusion_matrix: bool = True,
        with_ROC: bool = True,
        with_history: bool = True,
        with_report: bool = True,
    ) -> None:
        self.with_confusion_matrix = with_confusion_matrix
        self.with_ROC = with_ROC
        self.with_history = with_history
        self.with_report = with_report
        self._folder: Path | None = None  # of the training whose errors these are; None: of the next one
        self._errors: dict[tuple[str, str, str], dict[int, list[float]]] = {}  # split -> epoch -> error of each class

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
        """Write the files.

        Args:
            options: has the run folder and the number of epochs.
            history: has the errors of earlier epochs.
            model: not used.
            losses: not used.
            outputs: what to tell of; None: nothing.
            datasets: not used.
            datasets_infos: has the names of the classes:
                `datasets_infos[dataset][split]['output_mappings'][classes_name]['mappinginv']`, class -> name.
            callbacks_per_batch: not used.
            **kwargs: not used.

        Raises:
            MissingExtraError: matplotlib is not installed; the texts are written.
        """
        folder = Path(options["workflow_options"]["current_logging_directory"])
        if self._folder not in (None, folder):
            self._errors = {}
        self._folder = folder
        for dataset, splits in (outputs or {}).items():
            for split, terms in splits.items():
                names_of = class_names_of(datasets_infos, dataset, split)
                for output, term in terms.items():
                    judged = _judged(term, f"{output} of {dataset}/{split}")
                    if judged is not None:
                        mapping = names_of.get(term[Output.output_ref_tag].target_name, {})
                        names = [str(mapping.get(index, index)) for index in range(judged.scores.shape[1])]
                        self._export((dataset, split, output), judged, names, epochs_of(history, options))

    def state_dict(self) -> dict[str, Any]:
        """Give the errors of the classes in each epoch."""
        return {"errors": [[*key, dict(errors)] for key, errors in self._errors.items()]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take them back."""
        self._folder = None
        self._errors = {(dataset, split, output): dict(errors) for dataset, split, output, errors in state["errors"]}

    def _export(self, key: tuple[str, str, str], judged: _Judged, names: list[str], epochs: History) -> None:
        assert self._folder is not None, "this is called by __call__"
        dataset, split, output = key
        title = f"{dataset}/{split}: {output}"
        stem = safe_filename(f"{output}-{dataset}-{split}")
        mapping = dict(enumerate(names))
        report = classification_report(judged.scores, judged.truth, mapping, predictions=judged.found)
        if self.with_report:
            write_text(self._folder / f"{stem}-report.txt", report_text(report, mapping, self.max_class_names))
        if self.with_confusion_matrix:
            confusion_matrix(
                self._folder,
                judged.found,
                judged.truth,
                names,
                title=title,
                display_names_x=len(names) <= self.max_class_names,
                name=f"{stem}-cm",
            )
        if self.with_ROC and not math.isnan(report.get("auroc", math.nan)):  # else a class or a score is absent
            difference = judged.scores[:, 1] - judged.scores[:, 0]
            plot_roc(self._folder, judged.truth, difference, title, output, name=f"{stem}-ROC")
        if self.with_history:
            self._errors.setdefault(key, {})[len(epochs) - 1] = [report[f"error_{c}"] for c in range(len(names))]
            curves = {
                "all classes": curves_of(epochs).get((dataset, output, "classification error"), {}).get(split, [])
            }
            curves |= _worst_classes(self._errors[key], names)
            plot_history(self._folder / f"{stem}-history.png", curves, title, "classification error")


def _judged(term: LossTerm, name: str) -> _Judged | None:
    """What a classification collected; None of other heads, and where it has collected nothing that can be shown."""
    if not isinstance(term.get(Output.output_ref_tag), OutputClassification) or "output_truth" not in term:
        return None
    raw, truth, found = (np.asarray(term[part]) for part in ("output_raw", "output_truth", "output"))
    if truth.ndim == raw.ndim:
        raw = np.expand_dims(raw, 1)  # one score, without a column of its own
    scores = np.moveaxis(raw, 1, -1).reshape(-1, raw.shape[1])
    if scores.shape[1] == 1:
        scores = np.concatenate([-scores, scores], axis=1)
    truth, found = truth.reshape(-1), found.reshape(-1)
    valid = (truth >= 0) & (truth < scores.shape[1])  # others are of no class
    scores, truth, found = scores[valid], truth[valid], found[valid].astype(np.int64)
    if not len(truth) or found.min() < 0 or found.max() >= scores.shape[1]:
        _logger.warning("no report on %s: it has no samples, or predictions that are none of its classes", name)
        return None
    return _Judged(scores, truth.astype(np.int64), found)


def _worst_classes(errors: Mapping[int, list[float]], names: list[str]) -> dict[str, list[tuple[int, float]]]:
    """Curves of the classes whose newest error is the highest, by name."""
    newest = np.nan_to_num(errors[max(errors)], nan=-1.0)  # of a class without samples
    worst = np.argsort(-newest, kind="stable")[:_MOST_CURVES]
    return {
        names[index] if names.count(names[index]) == 1 else f"{index} {names[index]}": [
            (epoch, values[index]) for epoch, values in sorted(errors.items())
        ]
        for index in worst
    }
