"""Which class was taken for which, as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trw_pipeline.reporting.figures import DIGIT, DPI, POINTS, export_figure, name_ticks, new_figure, wrapped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LEAST_INCHES, _INCHES_OF_CLASS, _MOST_INCHES = 3.0, 0.5, 14.0
_SAMPLES, _SHARE, _PERCENT = "samples", "share of the true class", "percent of the true class"


@dataclass(frozen=True)
class Confusion:
    """How often the samples of each class were taken for each class.

    Attributes:
        ids: (C,) int64, the classes, in the order of the axes.
        counts: (C, C) int64; rows are the true classes, columns the predicted ones.
        nb_samples: (C,) int64, samples of each true class, with those taken for a class that is left out.
    """

    ids: np.ndarray
    counts: np.ndarray
    nb_samples: np.ndarray

    def shares(self) -> np.ndarray:
        """Give the counts as shares of the samples of the true class, (C, C); a class without samples has NaN."""
        with np.errstate(invalid="ignore"):
            return self.counts / self.nb_samples[:, np.newaxis]


def count_confusion(
    classes_predictions: Any,
    classes_trues: Any,
    sort_by_decreasing_sample_size: bool = True,
    excludes_classes_with_samples_less_than: int | None = None,
) -> Confusion:
    """Count which class was taken for which; a class is there if it is in the truth or was predicted.

    Args:
        classes_predictions: (N,) integers, the classes that were predicted.
        classes_trues: (N,) integers, the true classes.
        sort_by_decreasing_sample_size: classes with more samples in the truth come first, those with equally many by
            their number. Otherwise all are sorted by their number.
        excludes_classes_with_samples_less_than: classes with fewer samples in the truth are left out. None: none is.

    Raises:
        ValueError: the shapes are not (N,) and the same, there is no sample, or no class is left.
        TypeError: the classes are not integers.
    """
    found, truth = np.asarray(classes_predictions), np.asarray(classes_trues)
    if found.ndim != 1 or found.shape != truth.shape or not len(truth):
        raise ValueError(
            f"classes_predictions and classes_trues must be of one shape (N,), N at least 1, got {found.shape} and "
            f"{truth.shape}"
        )
    for name, classes in (("classes_predictions", found), ("classes_trues", truth)):
        if classes.dtype.kind not in "iu":
            raise TypeError(f"{name} must be integers, got {classes.dtype}")
    ids, places = np.unique(np.concatenate([truth, found]).astype(np.int64), return_inverse=True)
    of_truth, of_found = places[: len(truth)], places[len(truth) :]
    counts = np.bincount(of_truth * len(ids) + of_found, minlength=len(ids) ** 2).reshape(len(ids), len(ids))
    nb_samples = counts.sum(1)
    order = np.argsort(-nb_samples, kind="stable") if sort_by_decreasing_sample_size else np.arange(len(ids))
    least = excludes_classes_with_samples_less_than
    if least is not None:
        order = order[nb_samples[order] >= least]
        if not len(order):
            raise ValueError(
                f"excludes_classes_with_samples_less_than must leave a class, got {least}, and the largest has "
                f"{nb_samples.max()} samples"
            )
    return Confusion(ids[order], counts[np.ix_(order, order)], nb_samples[order])


def confusion_matrix(
    export_path: str | Path,
    classes_predictions: Any,
    classes_trues: Any,
    classes: Sequence[str] | None = None,
    normalize: bool = False,
    title: str = "Confusion matrix",
    cmap: Any = "plasma",
    display_numbers: bool = True,
    maximum_chars_per_line: int = 50,
    rotate_x: float | None = None,
    rotate_y: float | None = None,
    display_names_x: bool = True,
    sort_by_decreasing_sample_size: bool = True,
    excludes_classes_with_samples_less_than: int | None = None,
    main_font_size: float = 16,
    sub_font_size: float = 8,
    normalize_unit_percentage: bool = False,
    *,
    name: str | None = None,
) -> Path:
    """Draw which class was taken for which, to `<export_path>/<title>.png`.

    A row for each true class, with its number of samples, and a column for each predicted one; a class is there if it
    is in the truth or was predicted. The picture grows with the classes, up to 14 inches; from there on, numbers that
    do not fit their cells are left out, and of the names as many are written as there is room for.

    Args:
        export_path: the folder; made if it is absent.
        classes_predictions: (N,) integers, the classes that were predicted.
        classes_trues: (N,) integers, the true classes.
        classes: the name of class 0, of class 1, ...; a class that has none is called by its number.
        normalize: show shares of the samples of the true class: a row adds up to 1, less what was taken for a class
            that is left out. The row of a class without samples is empty.
        title: above the plot, and the name of the file: see `export_figure`.
        cmap: colours of the cells, of matplotlib, or the name of one.
        display_numbers: whether each cell shows its number.
        maximum_chars_per_line: the title is broken into lines of so many characters.
        rotate_x: rotation of the names on the x axis, in degrees. None: 0 if they are short, else 90.
        rotate_y: rotation of the names on the y axis, in degrees. None: 0.
        display_names_x: whether the x axis has the names of the classes. Otherwise it has their numbers, and the y axis
            both.
        sort_by_decreasing_sample_size: classes with more samples come first, so that one can see whether errors may be
            due to few samples.
        excludes_classes_with_samples_less_than: classes with fewer samples in the truth are left out. None: none is.
        main_font_size: of title and axes, in points.
        sub_font_size: of names and numbers, in points.
        normalize_unit_percentage: show shares in percent.
        name: of the file, in place of the title.

    Returns:
        The file.

    Raises:
        ValueError: the shapes are not (N,) and the same, there is no sample, no class is left, or nothing is called
            `cmap`.
        TypeError: the classes are not integers.
        MissingExtraError: matplotlib is not installed.
    """
    confusion = count_confusion(
        classes_predictions,
        classes_trues,
        sort_by_decreasing_sample_size,
        excludes_classes_with_samples_less_than,
    )
    unit = (_PERCENT if normalize_unit_percentage else _SHARE) if normalize else _SAMPLES
    values = {_SAMPLES: confusion.counts, _SHARE: confusion.shares(), _PERCENT: 100 * confusion.shares()}[unit]
    names = [_name_of(number, classes) for number in confusion.ids]
    numbers = [str(number) for number in confusion.ids]
    size = min(max(_LEAST_INCHES, _INCHES_OF_CLASS * len(names)), _MOST_INCHES)
    pitch = POINTS * size / len(names)
    # The cells fill the figure, so that their size is known; what is written around them makes the picture larger.
    figure = new_figure(size, size, is_laid_out=False)
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set_title(wrapped(title, maximum_chars_per_line), fontsize=main_font_size, parse_math=False)
    axes.set_xlabel("Predicted class", fontsize=main_font_size)
    axes.set_ylabel("True class (samples)", fontsize=main_font_size)
    _draw_cells(figure, axes, values, cmap, unit, sub_font_size)
    on_x = names if display_names_x else numbers
    on_y = names
    if not display_names_x:
        on_y = [text if text == number else f"{number} {text}" for number, text in zip(numbers, names, strict=True)]
    name_ticks(axes.xaxis, on_x, pitch, rotate_x, sub_font_size)
    in_truth = [f" ({nb_samples})" for nb_samples in confusion.nb_samples]
    name_ticks(axes.yaxis, on_y, pitch, rotate_y or 0, sub_font_size, in_truth)
    if display_numbers:
        _write_numbers(axes, values, unit, pitch, sub_font_size)
    return export_figure(export_path, title if name is None else name, dpi=DPI, figure=figure, tight=True)


def _name_of(number: int, classes: Sequence[str] | None) -> str:
    return str(classes[number]) if classes is not None and 0 <= number < len(classes) else str(number)


def _draw_cells(figure: Figure, axes: Axes, values: np.ndarray, cmap: Any, unit: str, font_size: float) -> None:
    axes.set_facecolor("lightgrey")  # what a row without samples shows
    top = {_SHARE: 1.0, _PERCENT: 100.0}.get(unit, max(float(values.max()), 1.0))
    image = axes.imshow(values, cmap=cmap, vmin=0.0, vmax=top, aspect="equal", interpolation="nearest")
    width = 0.15 / figure.get_figwidth()  # of 0.15 inches
    bar = figure.colorbar(image, cax=figure.add_axes((1.0 + width, 0.0, width, 1.0)), label=unit)
    bar.ax.tick_params(labelsize=font_size)


def _write_numbers(axes: Axes, values: np.ndarray, unit: str, pitch: float, font_size: float) -> None:
    """Write the number of each cell in the middle of it, if all fit; black on bright cells, white on dark ones."""
    form = {_SHARE: ".2f", _PERCENT: ".1f"}.get(unit, "d")
    longest = max(len(format(value, form)) for value in (values.dtype.type(0), np.nanmax(values, initial=0)))
    if longest * DIGIT * font_size > pitch:
        return
    red, green, blue, _ = axes.get_images()[0].to_rgba(values).transpose(2, 0, 1)
    is_bright = 0.299 * red + 0.587 * green + 0.114 * blue > 0.5  # luma of Rec. 601
    for (row, column), value in np.ndenumerate(values):
        if not np.isnan(value):
            color = "black" if is_bright[row, column] else "white"
            text = format(value, form)
            cell = axes.text(column, row, text, ha="center", va="center", color=color, fontsize=font_size)
            cell.set_in_layout(False)  # to ask each where it ends takes longer than to draw it
