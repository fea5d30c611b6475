"""An input, what of it speaks for a class, and both over each other."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trw_pipeline.reporting.figures import export_figure, new_figure
from trw_pipeline.reporting.images import as_image_ui8, as_rgb_image

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_CHANNELS = 8
"""Of an input that are shown one by one; a first axis longer than that is not one of channels."""

_SIDE = 2.6
"""Inches of a picture."""

_DPI = 100
"""Dots per inch: a picture has 260 pixels, which is enough to see the points of the usual inputs of networks."""

_MARGINS = {"left": 0.01, "right": 0.99, "bottom": 0.025}
_WIDTHS = (1, 1, 0.05, 0.16, 1)
"""Of the input, the explanation, the bar of its colours, the numbers at that, and both over each other."""

_TITLE_WIDTH = 100
"""Characters of a line of the title that fit above three pictures."""


def with_channels(sample: np.ndarray) -> np.ndarray:
    """Give the features of one sample an axis of channels, if they have none.

    Args:
        sample: a vector (x), a signal (C, x), an image (y, x) or (C, y, x), a volume (z, y, x) or (C, z, y, x). Where
            that is not clear, a first axis of up to 8 is one of channels.

    Returns:
        `(C, x)`, `(C, y, x)` or `(C, z, y, x)`; a view.
    """
    has_channels = sample.ndim == 4 or (sample.ndim in (2, 3) and len(sample) <= MOST_CHANNELS)
    return sample if has_channels else sample[np.newaxis]


def export_explanation(
    folder: Path, name: str, sample: np.ndarray, relevance: np.ndarray, title: str, average_filters: bool = True
) -> None:
    """Draw an explanation into the PNG file of this name: see `export_figure`.

    Of an image there are three pictures beside each other: the image, the relevance, and both over each other; of a
    volume those of its middle slices across z, y and x; of a signal the relevance is behind the curve, and below it.
    Relevance of both signs is red where it speaks for the class and blue where it speaks against it.

    Args:
        folder: where the file is.
        name: of the file, without suffix.
        sample: `(C, x)`, `(C, y, x)` or `(C, z, y, x)`, what was explained.
        relevance: the same shape, or with one channel; not finite values are drawn as 0.
        title: above the pictures; long lines are wrapped.
        average_filters: show the mean over the channels; else each channel by itself, 8 of them at most.

    Raises:
        ValueError: the shapes do not fit.
        MissingExtraError: matplotlib is not installed.
    """
    if not 2 <= sample.ndim <= 4 or relevance.shape not in (sample.shape, (1, *sample.shape[1:])):
        raise ValueError(f"relevance must have the shape of the sample {sample.shape}, got {relevance.shape}")
    relevance = np.nan_to_num(relevance.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    if average_filters:
        relevance = relevance.mean(0, keepdims=True)
    pairs = [pair for plane in _planes(sample, relevance) for pair in _by_channel(*plane, average_filters)]
    figure, top = _titled_figure(title, 2 if sample.ndim == 2 else len(pairs))
    colors = _colors(relevance)
    if sample.ndim == 2:
        _draw_signal(figure, top, sample, relevance, colors)
    else:
        _draw_images(figure, top, pairs, colors)
    export_figure(folder, name, dpi=_DPI, figure=figure)


def _planes(sample: np.ndarray, relevance: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """An image as it is; of a volume the middle slices."""
    if sample.ndim != 4:
        return [(sample, relevance)]
    return [tuple(part.take(part.shape[axis] // 2, axis) for part in (sample, relevance)) for axis in (1, 2, 3)]


def _by_channel(image: np.ndarray, relevance: np.ndarray, average: bool) -> list[tuple[np.ndarray, np.ndarray]]:
    """What is drawn side by side: an image `(y, x)` or of three colours, and a relevance `(y, x)`."""
    if average:
        return [(image if len(image) == 3 else image.mean(0), relevance[0])]
    return [(channel, relevance[min(index, len(relevance) - 1)]) for index, channel in enumerate(image[:MOST_CHANNELS])]


def _colors(relevance: np.ndarray) -> dict[str, Any]:
    greatest = float(np.abs(relevance).max(initial=0.0)) or 1.0
    if relevance.min(initial=0.0) < 0:
        return {"cmap": "RdBu_r", "vmin": -greatest, "vmax": greatest}
    return {"cmap": "magma", "vmin": 0.0, "vmax": greatest}


def _draw_images(figure: Figure, top: float, pairs: list[tuple[np.ndarray, np.ndarray]], colors: Any) -> None:
    # Places by hand: a layout that is found costs more time than all the rest.
    grid = figure.add_gridspec(len(pairs), 5, top=top, wspace=0.05, hspace=0.08, **_MARGINS, width_ratios=_WIDTHS)
    for number, (image, relevance) in enumerate(pairs):
        axes = [figure.add_subplot(grid[number, column]) for column in (0, 1, 2, 4)]
        picture = as_rgb_image(as_image_ui8(image)).transpose(1, 2, 0)
        axes[0].imshow(picture)
        shown = axes[1].imshow(relevance, **colors)
        axes[3].imshow(picture.mean(2), cmap="gray", vmin=0, vmax=255)
        # What does not count is not seen, so that the image is.
        axes[3].imshow(relevance, alpha=0.8 * np.abs(relevance) / colors["vmax"], **colors)
        for name, one in zip(("input", "explanation", "both"), (axes[0], axes[1], axes[3]), strict=True):
            one.set_axis_off()
            if number == 0:
                one.set_title(name, fontsize=9)
        figure.colorbar(shown, cax=axes[2], format="%.2g").ax.tick_params(labelsize=7)


def _draw_signal(figure: Figure, top: float, sample: np.ndarray, relevance: np.ndarray, colors: Any) -> None:
    grid = figure.add_gridspec(2, 1, top=top, left=0.1, right=0.98, bottom=0.06, hspace=0.08)
    above = figure.add_subplot(grid[0])
    below = figure.add_subplot(grid[1], sharex=above)
    mean = relevance.mean(0)
    marker = "." if sample.shape[1] <= 50 else ""
    _draw_curves(above, sample, marker)
    above.set_ylabel("input")
    low, high = above.get_ylim()
    colors = colors if colors["vmin"] < 0 else {**colors, "cmap": "Reds"}  # white where nothing counts
    above.imshow(mean[np.newaxis], extent=(-0.5, len(mean) - 0.5, low, high), aspect="auto", alpha=0.5, **colors)
    above.tick_params(labelbottom=False)
    _draw_curves(below, relevance, marker)
    below.axhline(0, color="gray", linewidth=0.5)
    below.set_ylabel("explanation")


def _draw_curves(axes: Axes, curves: np.ndarray, marker: str) -> None:
    for curve in curves[:MOST_CHANNELS]:
        axes.plot(curve, marker=marker, linewidth=1)
    axes.margins(x=0)


def _titled_figure(title: str, nb_rows: int) -> tuple[Figure, float]:
    """A figure with its title, and where the room for pictures ends above."""
    lines = [part for line in title.split("\n") for part in textwrap.wrap(line, _TITLE_WIDTH) or [""]]
    of_title = 0.16 * len(lines) + 0.35  # inches, with the names above the pictures
    height = nb_rows * _SIDE + of_title + 0.1
    figure = new_figure(3 * _SIDE + 0.9, height, is_laid_out=False)
    figure.text(0.5, 1 - 0.06 / height, "\n".join(lines), fontsize=9, ha="center", va="top", parse_math=False)
    return figure, 1 - of_title / height
