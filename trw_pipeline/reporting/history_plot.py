"""Curves over the epochs."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from trw_pipeline.errors import MissingExtraError
from trw_pipeline.files import write_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Curve: TypeAlias = list[tuple[int, float]]
"""Points (epoch, value)."""

_DPI = 120
"""Dots per inch: the figure of 7 x 4.5 inches has 840 x 540 pixels, readable and about 30 kB."""


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
    figure = _new_figure()
    axes = figure.add_subplot()
    for name, points in curves.items():
        axes.plot([epoch for epoch, _ in points], [value for _, value in points], marker=".", label=name)
    # Names are data: a dollar sign in one is not the start of a formula.
    axes.set_title(title, parse_math=False)
    axes.set_xlabel(xlabel, parse_math=False)
    axes.set_ylabel(ylabel, parse_math=False)
    axes.locator_params(axis="x", integer=True)
    axes.grid(alpha=0.3)
    legend = axes.legend()
    for text in legend.get_texts():
        text.set_parse_math(False)
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=_DPI)
    write_bytes(path, image.getvalue())


def _new_figure() -> Figure:
    """A figure of its own: unlike `pyplot` it shares no state with the figures of the user, and needs no display."""
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415  an optional library
    except ImportError as error:
        raise MissingExtraError("a plot of the history", "plot") from error
    return Figure(figsize=(7.0, 4.5), layout="constrained")
