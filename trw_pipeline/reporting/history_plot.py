"""Curves over the epochs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from trw_pipeline.reporting.figures import DPI, add_legend, as_colors, export_figure, new_figure, wrapped, write_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Curve: TypeAlias = Sequence[tuple[float, float]]
"""Points (epoch, value)."""


def plot_history(path: str | Path, curves: Mapping[str, Curve], title: str, ylabel: str, xlabel: str = "epoch") -> None:
    """Plot curves into one PNG file, written atomically.

    Args:
        path: the file; its folder must exist.
        curves: name -> points (epoch, value), in the order of the legend. Every point has a mark, so that a curve of a
            single epoch can be seen; values that are not finite leave a gap.
        title: above the plot.
        ylabel: what the values are.
        xlabel: what the epochs are.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    figure = _drawn([(name, [curve]) for name, curve in curves.items()], None, title, xlabel, ylabel)
    write_figure(path, figure)


def plot_group_histories(
    root: str | Path,
    history_values: Mapping[str, Sequence[Curve]],
    title: str,
    xlabel: str,
    ylabel: str,
    max_nb_plots_per_group: int = 5,
    colors: Any = None,
) -> Path:
    """Plot groups of curves, such as all runs of each configuration, to `<root>/<title>.png`.

    Args:
        root: the folder; made if it is absent.
        history_values: group -> its curves, each a list of (epoch, value). A group has one colour and one entry in the
            legend; values that are not finite leave a gap.
        title: above the plot, and the name of the file: see `export_figure`.
        xlabel: what the epochs are.
        ylabel: what the values are.
        max_nb_plots_per_group: so many curves of a group are drawn, the first ones; at least 1.
        colors: (N, 3) in [0, 1], red, green and blue of each group, from the first again where there are more groups;
            or a function of the number of groups that gives them. None: colours that can be told apart.

    Returns:
        The file.

    Raises:
        ValueError: there is no group, or an argument is out of range.
        MissingExtraError: matplotlib is not installed.
    """
    if not history_values:
        raise ValueError("history_values must have at least one group, got none")
    if max_nb_plots_per_group < 1:
        raise ValueError(f"max_nb_plots_per_group must be at least 1, got {max_nb_plots_per_group}")
    chosen = colors(len(history_values)) if callable(colors) else colors
    groups = [(name, curves[:max_nb_plots_per_group]) for name, curves in history_values.items()]
    figure = _drawn(groups, chosen, title, xlabel, ylabel)
    return export_figure(root, title, dpi=DPI, figure=figure)


def _drawn(groups: Sequence[tuple[str, Iterable[Curve]]], colors: Any, title: str, xlabel: str, ylabel: str) -> Figure:
    figure = new_figure(7.0, 4.5)
    axes = figure.add_subplot()
    legend: dict[str, Any] = {}
    for (name, curves), color in zip(groups, as_colors(colors, len(groups)), strict=True):
        for points in curves:
            (line,) = axes.plot([x for x, _ in points], [y for _, y in points], marker=".", color=color)
            legend.setdefault(name, line)
    axes.set_title(wrapped(title, 45), parse_math=False)
    axes.set_xlabel(xlabel, parse_math=False)
    axes.set_ylabel(ylabel, parse_math=False)
    axes.locator_params(axis="x", integer=True)
    axes.grid(alpha=0.3)
    add_legend(axes, legend)
    return figure
