"""Figures that share no state with those of the user, and the files they go to.

What is written in them is data: a dollar sign in a name is not the start of a formula.
"""

from __future__ import annotations

import io
import math
import os
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trw_pipeline.errors import MissingExtraError
from trw_pipeline.files import without_special_characters, write_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

DPI = 120
"""Dots per inch: a figure of 7 x 4.5 inches has 840 x 540 pixels, readable and about 30 kB."""

POINTS = 72  # of an inch
DIGIT = 0.65  # width of a digit of the default font, in its size

_NAME_WIDTH = 24  # characters
_SUFFIX = ".png"
_LEGEND_WITHIN = 4
_LONGEST_LEGEND = 20
"""Entries of a legend within the axes, and beside them: what 4.5 inches have room for."""

_LONGEST_NAME = 255 - len(f"..12345678.tmp{_SUFFIX}")
"""Bytes: what file systems allow, less what `open_atomic` adds to the name while it writes."""


def new_figure(width: float, height: float, is_laid_out: bool = True) -> Figure:
    """Make an empty figure that belongs to nobody else: unlike one of `pyplot`, and it needs no display.

    Args:
        width: in inches.
        height: in inches.
        is_laid_out: whether axes are made smaller until what is written around them has room.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 (optional)
    except ImportError as error:
        raise MissingExtraError("a plot", "plot") from error
    return Figure(figsize=(width, height), layout="constrained" if is_laid_out else None)


def write_figure(path: str | Path, figure: Figure, dpi: float = DPI, tight: bool = False) -> None:
    """Write a figure into one PNG file, atomically.

    Args:
        path: the file; its folder must exist.
        figure: what to write.
        dpi: dots per inch.
        tight: see `export_figure`.
    """
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=dpi, bbox_inches="tight" if tight else None)
    write_bytes(path, image.getvalue())


def export_figure(
    path: str | Path,
    name: str,
    maximum_length: int = 259,
    dpi: float = 300,
    *,
    figure: Figure | None = None,
    tight: bool = False,
) -> Path:
    """Write a figure to `<path>/<name>.png`, atomically.

    Args:
        path: the folder; made if it is absent.
        name: of the file, without suffix; special characters are left out, as by `safe_filename`.
        maximum_length: of the absolute path, in characters. Of a name that is too long for it, or for a file system,
            so many characters stay as there is room for, evenly spread over it. Two such names may become the same.
        dpi: dots per inch.
        figure: what to write. None: the current figure of `matplotlib.pyplot`, which stays open.
        tight: the picture is as large as what is drawn, also beyond the figure, instead of as large as the figure.

    Returns:
        The file.

    Raises:
        ValueError: no figure is given and `pyplot` has none; or the folder leaves no room for a name.
    """
    if figure is None:
        pyplot: Any = sys.modules.get("matplotlib.pyplot")  # who has not imported it has drawn nothing with it
        if pyplot is None or not pyplot.get_fignums():
            raise ValueError("export_figure needs a figure: give figure=, or draw one with matplotlib.pyplot before")
        figure = pyplot.gcf()
        assert figure is not None, "pyplot has one"
    folder = Path(path)
    file = folder / f"{_shortened(without_special_characters(name), folder, maximum_length)}{_SUFFIX}"
    folder.mkdir(parents=True, exist_ok=True)
    write_figure(file, figure, dpi, tight)
    return file


def distinct_colors(nb_colors: int) -> np.ndarray:
    """Choose colours that can be told apart.

    Args:
        nb_colors: how many.

    Returns:
        (nb_colors, 3) float64 in [0, 1], red, green and blue: up to 10 those of matplotlib's `tab10`, up to 20 of
        `tab20`, above that hues of equal distance, which eyes do not tell apart for ever.
    """
    from matplotlib import colormaps  # noqa: PLC0415 (optional; whoever wants colours has a figure)

    if nb_colors > 20:
        return colormaps["hsv"](np.arange(nb_colors) / nb_colors)[:, :3]
    return colormaps["tab10" if nb_colors <= 10 else "tab20"](np.arange(nb_colors))[:, :3]


def as_colors(colors: Any, nb_colors: int) -> np.ndarray:
    """Give a colour to each of several things.

    Args:
        colors: (N, 3) in [0, 1], taken in turn; None for those of `distinct_colors`.
        nb_colors: how many are needed.

    Returns:
        (nb_colors, 3) float64.

    Raises:
        ValueError: `colors` has another shape or range.
    """
    if colors is None:
        return distinct_colors(nb_colors)
    given = np.asarray(colors, dtype=np.float64)
    if given.ndim != 2 or given.shape[1] != 3 or not len(given) or not ((given >= 0) & (given <= 1)).all():
        raise ValueError(f"colors must be (N, 3) in [0, 1], N at least 1, got {given.shape}: {given.tolist()[:5]}")
    return given[np.arange(nb_colors) % len(given)]


def add_legend(axes: Axes, entries: Mapping[str, Any]) -> None:
    """Explain what is drawn: a few entries within the axes where they hide least, more of them beside the axes.

    Args:
        axes: where.
        entries: text -> what it explains, in order; of more than 20 the first ones. Long texts are broken into lines.
    """
    shown = list(entries)[:_LONGEST_LEGEND]
    if not shown:
        return
    # matplotlib leaves a text out that begins with an underscore, which names of the user's may do.
    most_lines = 2 if len(shown) <= _LONGEST_LEGEND // 2 else 1
    texts = [wrapped(f"\u200b{name}" if name[:1] == "_" else name, 30, most_lines) for name in shown]
    if len(shown) < len(entries):
        texts[-1] += f"\n… and {len(entries) - len(shown)} more"
    parts = [entries[name] for name in shown]
    figure = axes.get_figure(root=True)
    if len(shown) <= _LEGEND_WITHIN or figure is None:
        legend = axes.legend(parts, texts)
    else:
        legend = figure.legend(parts, texts, loc="outside right upper", fontsize="small")
    for text in legend.get_texts():
        text.set_parse_math(False)


def name_ticks(
    axis: Axis,
    names: Sequence[str],
    pitch: float,
    rotation: float | None,
    font_size: float,
    ends: Sequence[str] | None = None,
) -> None:
    """Name what stands at 0, 1, 2, ... of an axis, every so many of them that no name lies on another.

    Args:
        axis: the axis.
        names: long ones are broken into as many lines as there is room for, and end in an ellipsis if that is too few.
        pitch: from one to the next, in points.
        rotation: of the names, in degrees. None: 0 if they are short enough to stand beside one another, else 90.
        font_size: in points.
        ends: follow the names, whatever their length.
    """
    line = 1.2 * font_size
    places = range(0, len(names), max(1, math.ceil(line / pitch)))
    most_lines = max(1, int(pitch / line))
    texts = [wrapped(names[place], _NAME_WIDTH, most_lines) + (ends[place] if ends else "") for place in places]
    if rotation is None:
        widest = max(len(part) for text in texts for part in text.split("\n"))
        rotation = 0 if widest * DIGIT * font_size <= pitch else 90
    axis.set_ticks(list(places), texts, fontsize=font_size, rotation=rotation, parse_math=False)


def wrapped(text: str, width: int, most_lines: int | None = None) -> str:
    """Break a text into lines.

    Args:
        text: line ends in it stay.
        width: characters of a line, at least 1.
        most_lines: what is beyond becomes an ellipsis. None: there is no bound.

    Raises:
        ValueError: `width` is less than 1.
    """
    if width < 1:
        raise ValueError(f"a line must have room for 1 character at least, got {width}")
    lines = [line for part in text.splitlines() for line in textwrap.wrap(part, width) or [""]]
    if most_lines is not None and len(lines) > most_lines:
        lines = [*lines[: most_lines - 1], lines[most_lines - 1][: width - 1] + "…"]
    return "\n".join(lines)


def _shortened(name: str, folder: Path, maximum_length: int) -> str:
    room = maximum_length - len(os.path.abspath(folder)) - len(os.sep) - len(_SUFFIX)
    if room < 1:
        raise ValueError(f"maximum_length must leave room for a name in {str(folder)!r}, got {maximum_length}")
    kept, nb_kept = name, min(room, len(name))
    while len(kept) > room or len(kept.encode()) > _LONGEST_NAME:
        kept = "".join(name[index * len(name) // nb_kept] for index in range(nb_kept))
        nb_kept -= 1
    return kept
