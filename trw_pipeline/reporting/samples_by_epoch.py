"""The losses of samples over the epochs, as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trw_pipeline.reporting.figures import new_figure, write_figure

_MOST_NAMED_ROWS = 40
_MOST_NAMED_COLUMNS = 12
_MOST_CHARACTERS = 24
"""Of the name of a sample, so that the names leave room for the picture."""

_HIGHEST_PERCENTILE = 99
"""What is above has the colour of it: one sample that is far off would make all others look alike."""


def plot_samples_by_epoch(
    path: str | Path, losses: np.ndarray, uids: Sequence[Any], epochs: Sequence[int], title: str
) -> None:
    """Plot a matrix of losses to a PNG file, written atomically: a row for each sample, a column for each epoch.

    Dark is a low loss, bright a high one; what is not finite is grey. Losses above their 99th percentile have its
    colour. Of up to 40 rows each has the uid of its sample beside it.

    Args:
        path: the file; its folder must exist.
        losses: (samples, epochs), NaN where a sample has no loss in an epoch.
        uids: of the rows.
        epochs: of the columns.
        title: above the plot.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    figure = new_figure(7.0, 2.0 + 4.5 * min(1.0, max(0.25, len(uids) / _MOST_NAMED_ROWS)))
    axes = figure.add_subplot()
    axes.set_facecolor("0.7")
    finite = losses[np.isfinite(losses)]
    bounds = (finite.min(), np.percentile(finite, _HIGHEST_PERCENTILE, method="higher")) if finite.size else (0.0, 1.0)
    shown = np.ma.masked_invalid(losses)
    image = axes.imshow(shown, aspect="auto", interpolation="nearest", cmap="inferno", vmin=bounds[0], vmax=bounds[1])
    is_cut = bool(finite.size and finite.max() > bounds[1])
    figure.colorbar(image, ax=axes, label="loss", extend="max" if is_cut else "neither")
    axes.set_title(title, parse_math=False, wrap=True)
    axes.set_xlabel("epoch")
    columns = range(0, len(epochs), -(-len(epochs) // _MOST_NAMED_COLUMNS))
    axes.set_xticks(columns, [str(epochs[column]) for column in columns])
    if len(uids) <= _MOST_NAMED_ROWS:
        axes.set_yticks(range(len(uids)), [_short(uid) for uid in uids], fontsize=7, parse_math=False)
        axes.set_ylabel("sample")
    else:
        axes.set_ylabel(f"{len(uids)} samples")
    write_figure(path, figure)


def _short(uid: Any) -> str:
    text = str(uid)
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 3]}..."
