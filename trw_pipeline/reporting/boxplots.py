"""Which configuration has the best results: boxes of their trials, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from trw_pipeline.reporting.figures import DPI, POINTS, export_figure, name_ticks, new_figure, wrapped

_INCHES_OF_BOX = 0.6
_LEAST_INCHES, _MOST_INCHES = 6.0, 24.0


def boxplots(
    export_path: str | Path,
    features_trials: Mapping[str, Sequence[float] | np.ndarray],
    title: str,
    xlabel: str,
    ylabel: str,
    meanline: bool = False,
    plot_trials: bool = True,
    scale: str = "linear",
    y_range: tuple[float, float] | None = None,
    rotate_x: float | None = None,
    showfliers: bool = False,
    maximum_chars_per_line: int = 50,
    title_line_height: float = 0.055,
) -> Path:
    """Compare features by their trials, such as configurations by a measure of each of their runs.

    A box for each feature, to `<export_path>/<title>.png`: from its lower to its upper quartile, with a line at the
    median; the whiskers reach to the last trial within 1.5 times the height of the box (Tukey).

    Args:
        export_path: the folder; made if it is absent.
        features_trials: feature -> its trials, (N,) numbers. Those that are not finite are left out; a feature
            without any keeps an empty place.
        title: above the plot, and the name of the file: see `export_figure`.
        xlabel: what the features are.
        ylabel: what the trials measure.
        meanline: draw a line through the means of the features, from one to the next.
        plot_trials: draw a point for each trial, beside one another where they would lie on each other.
        scale: of the y axis: "linear", "log", or another one of matplotlib.
        y_range: least and greatest of the y axis. None: as the trials need it.
        rotate_x: rotation of the names of the features, in degrees. None: 0 if they are short, else 90.
        showfliers: mark the trials beyond the whiskers as outliers.
        maximum_chars_per_line: the title is broken into lines of so many characters.
        title_line_height: height that is kept free for each line of the title, as a share of the figure.

    Returns:
        The file.

    Raises:
        ValueError: there is no feature, its trials are not (N,), an argument is out of range, or `scale` is unknown.
        MissingExtraError: matplotlib is not installed.
    """
    if not features_trials:
        raise ValueError("features_trials must have at least one feature, got none")
    trials = [_finite(name, values) for name, values in features_trials.items()]
    lines = wrapped(title, maximum_chars_per_line)
    height_of_title = (lines.count("\n") + 1) * title_line_height
    if not 0 <= height_of_title < 0.9:
        raise ValueError(f"title_line_height must leave room for the plot, got {title_line_height} for {title!r}")
    if y_range is not None and not y_range[0] < y_range[1]:
        raise ValueError(f"y_range must be (least, greatest), got {y_range}")
    places = np.arange(len(trials))
    figure = new_figure(min(max(_LEAST_INCHES, 1 + _INCHES_OF_BOX * len(trials)), _MOST_INCHES), 4.5)
    figure.get_layout_engine().set(rect=(0, 0, 1, 1 - height_of_title))  # pyright: ignore[reportOptionalMemberAccess, reportCallIssue]
    figure.text(0.5, 0.99, lines, ha="center", va="top", fontsize="large", parse_math=False)
    axes = figure.add_subplot()
    axes.set_yscale(scale)
    axes.boxplot(trials, positions=places, showfliers=showfliers, widths=0.6)
    if plot_trials:
        for place, values in zip(places, trials, strict=True):
            axes.plot(place + _beside(len(values)), values, ".", color="tab:blue", alpha=0.6)
    if meanline:
        means = [values.mean() if len(values) else np.nan for values in trials]
        axes.plot(places, means, color="tab:orange", marker="o")
    if y_range is not None:
        axes.set_ylim(*y_range)
    name_ticks(axes.xaxis, list(features_trials), POINTS * figure.get_figwidth() / (len(trials) + 1), rotate_x, 10)
    axes.set_xlabel(xlabel, parse_math=False)
    axes.set_ylabel(ylabel, parse_math=False)
    axes.grid(axis="y", alpha=0.3)
    return export_figure(export_path, title, dpi=DPI, figure=figure)


def _finite(name: str, trials: Sequence[float] | np.ndarray) -> np.ndarray:
    values = np.asarray(trials, dtype=np.float64)
    if values.ndim != 1:
        raise ValueError(f"the trials of {name!r} must be (N,) numbers, got the shape {values.shape}")
    return values[np.isfinite(values)]


def _beside(nb_trials: int) -> np.ndarray:
    """Places of points around the middle of their box, the same each time: the fractions of the golden ratio.

    However many there are, neighbours lie apart (Weyl's theorem of equal distribution).
    """
    return 0.4 * (np.arange(nb_trials) * (np.sqrt(5) - 1) / 2 % 1 - 0.5)
