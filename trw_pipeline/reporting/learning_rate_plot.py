"""The loss over the learning rate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_learning_rates(
    figure: Figure, rates: Sequence[float], losses: Sequence[float], section: tuple[int, int] | None, title: str
) -> None:
    """Draw losses over learning rates, on a logarithmic axis.

    Args:
        figure: an empty one.
        rates: positive, growing.
        losses: one for each rate. Those that are not finite, or more than twice the first, are marks at the upper
            edge: in the same scale nothing would be seen of the others.
        section: positions of the first and the last rate of the good ones, which is marked; or None.
        title: above the plot.
    """
    axes = figure.add_subplot()
    axes.set_xscale("log")
    axes.set_xlim(rates[0] / 1.5, rates[-1] * 1.5)  # before there are points: a single one has no range
    limit = losses[0] + abs(losses[0]) if math.isfinite(losses[0]) else math.inf
    seen = [loss if math.isfinite(loss) and loss <= limit else math.nan for loss in losses]
    axes.plot(rates, seen, marker=".", label="loss")
    left_out = [rate for rate, loss in zip(rates, seen, strict=True) if math.isnan(loss)]
    if left_out:
        edge = axes.get_xaxis_transform()
        axes.plot(left_out, [0.97] * len(left_out), "x", color="red", transform=edge, label="diverges")
    if section is not None:
        first, last = (rates[position] for position in section)
        axes.axvspan(first, last, alpha=0.15, color="green", label="falls")
        axes.axvline(last, color="green", linestyle="--", label=f"best: {last:.3g}")
    axes.set_title(title, parse_math=False)
    axes.set_xlabel("learning rate")
    axes.set_ylabel("loss")
    axes.grid(alpha=0.3)
    axes.legend()
