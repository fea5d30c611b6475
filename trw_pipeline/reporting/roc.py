"""The receiver operating characteristic of a classification into two classes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from trw_pipeline.outputs.auroc import auroc
from trw_pipeline.reporting.figures import DPI, add_legend, as_colors, export_figure, new_figure, wrapped


def roc_curve(trues: Any, found_scores_1: Any) -> tuple[np.ndarray, np.ndarray]:
    """Compute the points of a ROC curve, one for each score that occurs.

    Args:
        trues: (N,), the classes: 1 (or True) is class 1, everything else is not.
        found_scores_1: (N,) numbers, higher where class 1 is more probable.

    Returns:
        False positive rates and true positive rates, (P,) float64 in [0, 1], both from 0 to 1 and never falling: of the
        samples of another class, and of class 1, the share whose score is at least as high as each one that occurs.

    Raises:
        ValueError: the shapes are not (N,) and the same, one of the classes has no sample, or a score is NaN.
    """
    positive, scores = np.asarray(trues) == 1, np.asarray(found_scores_1)
    if positive.ndim != 1 or positive.shape != scores.shape:
        raise ValueError(f"trues and found_scores_1 must be of one shape (N,), got {positive.shape} and {scores.shape}")
    nb_positive = int(positive.sum())
    if not 0 < nb_positive < len(positive):
        raise ValueError(f"a ROC needs samples of class 1 and others, got {nb_positive} of {len(positive)} of class 1")
    if np.isnan(scores).any():
        raise ValueError("the scores of a ROC must not be NaN")
    values, place = np.unique(-scores.astype(np.float64), return_inverse=True)  # the highest first
    hits = np.cumsum(np.bincount(place[positive], minlength=len(values)))
    alarms = np.cumsum(np.bincount(place[~positive], minlength=len(values)))
    return np.append(0.0, alarms / alarms[-1]), np.append(0.0, hits / hits[-1])


def plot_roc(
    export_path: str | Path,
    trues: Any,
    found_scores_1: Any,
    title: str,
    label_name: str | Sequence[str] | None = None,
    colors: Any = None,
    *,
    name: str | None = None,
) -> Path:
    """Draw the ROC curve of a classification into two classes, or several, to `<export_path>/<title>.png`.

    The legend tells the area under each curve.

    Args:
        export_path: the folder; made if it is absent.
        trues: (N,), the classes: 1 (or True) is class 1, everything else is not. A list of such arrays for several.
        found_scores_1: (N,) numbers, higher where class 1 is more probable. A list of such arrays for several curves.
        title: above the plot, and the name of the file: see `export_figure`.
        label_name: name of the curve in the legend, or a list of them. None: they have none.
        colors: (M, 3) in [0, 1], red, green and blue of each curve, from the first again where there are more curves.
            None: colours that can be told apart.
        name: of the file, in place of the title.

    Returns:
        The file.

    Raises:
        ValueError: there are not as many scores and names as truths; or a curve can not be drawn, see `roc_curve`.
        MissingExtraError: matplotlib is not installed.
    """
    if not _is_several(trues):
        trues, found_scores_1 = [trues], [found_scores_1]
        label_name = [label_name] if isinstance(label_name, str) else label_name
    names = [""] * len(trues) if label_name is None else [label_name] if isinstance(label_name, str) else label_name
    if not len(trues) == len(found_scores_1) == len(names):
        raise ValueError(
            f"trues, found_scores_1 and label_name must be lists of one length, got {len(trues)}, "
            f"{len(found_scores_1)} and {len(names)}"
        )
    curves = [roc_curve(*each) for each in zip(trues, found_scores_1, strict=True)]
    areas = [auroc(*each) for each in zip(trues, found_scores_1, strict=True)]
    figure = new_figure(6.0, 5.5)
    axes = figure.add_subplot()
    axes.plot([0, 1], [0, 1], color="grey", linestyle=":")  # what guessing gives
    legend: dict[str, Any] = {}
    for number, (curve, area, color) in enumerate(zip(curves, areas, as_colors(colors, len(curves)), strict=True)):
        (line,) = axes.plot(*curve, color=color, linewidth=2)
        text = f"{names[number]} AUC = {area:.3f}".strip()
        legend[text if text not in legend else f"{text} ({number})"] = line
    axes.set_title(wrapped(title, 45), parse_math=False)
    axes.set_xlabel("False positive rate (1 - specificity)")
    axes.set_ylabel("True positive rate (sensitivity)")
    axes.set(xlim=(-0.01, 1.01), ylim=(-0.01, 1.01))
    axes.grid(alpha=0.3)
    add_legend(axes, legend)
    return export_figure(export_path, title if name is None else name, dpi=DPI, figure=figure)


def _is_several(trues: Any) -> bool:
    """Whether these are the truths of several curves: a list of arrays, where one is a sequence of numbers."""
    return isinstance(trues, (list, tuple)) and bool(trues) and bool(np.ndim(cast("Sequence[Any]", trues)[0]))
