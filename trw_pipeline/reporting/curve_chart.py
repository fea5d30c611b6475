"""Curves over the epochs as SVG, drawn here so that a page of them is a file that loads nothing."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from trw_pipeline.reporting.markup import Markup, element
from trw_pipeline.reporting.number_text import number_text

EpochCurve: TypeAlias = Sequence[tuple[int, float]]
"""Points (epoch, value), epochs rising."""

NB_COLOURS = 8
"""Curves that have a colour of their own; the next ones have them again, dashed."""

_WIDTH, _HEIGHT = 360.0, 200.0  # of the drawing, in units that the browser stretches to the width of the page
_LEFT, _RIGHT, _TOP, _BOTTOM = 46.0, 350.0, 10.0, 176.0  # of what is between the axes
_NB_MARKED = 40  # A curve of so many points has a mark at each.
_NB_DRAWN = 400  # A longer curve is drawn by the extremes of its parts: more points than that nobody could see.
_LOG_RATIO = 30.0  # Positive values that differ by more are shown on a logarithmic axis.


def curve_chart(
    title: str,
    curves: Mapping[str, EpochCurve],
    colours: Mapping[str, int] | None = None,
    best: Mapping[str, int] | None = None,
    as_percent: bool = False,
) -> Markup:
    """Draw curves into one chart, with its title and a legend.

    Args:
        title: of the chart.
        curves: name -> points (epoch, value), epochs rising. Values that are not finite leave a gap.
        colours: name -> number of its colour, from 0; by default the order of the curves.
        best: name -> the epoch that gets a ring.
        as_percent: the values are shares, and shown in %.

    Returns:
        A `<figure>`. The values of an epoch can be read by pointing at it, or by the arrow keys. Where all values are
        positive and differ by a factor of 30, the axis is logarithmic.
    """
    colours = {name: i for i, name in enumerate(curves)} if colours is None else colours
    factor = 100.0 if as_percent else 1.0
    values = {name: {epoch: factor * value for epoch, value in points} for name, points in curves.items()}
    epochs = _epochs_drawn(values)
    scale = _Scale(epochs, [value for points in values.values() for value in points.values()])
    lines = [
        element(
            "g",
            _curve(points, epochs, scale, None if best is None else best.get(name)),
            class_=colour_class(colours[name]),
            data_name=name,
            data_values=json.dumps([number_text(points[epoch]) if epoch in points else None for epoch in epochs]),
        )
        for name, points in values.items()
    ]
    drawing = element(
        "svg",
        _axes(scale),
        element("line", class_="here", y1=_TOP, y2=_BOTTOM, visibility="hidden"),
        lines,
        viewBox=f"0 0 {_WIDTH:g} {_HEIGHT:g}",
        role="img",
        tabindex=0,
        aria_label=f"{title} over the epochs: {', '.join(curves)}",
        data_epochs=json.dumps(epochs),
        data_span=json.dumps([_LEFT, _RIGHT]),
    )
    legend = [element("span", name, class_=colour_class(colours[name])) for name in curves]
    note = ", ".join(["%"] * as_percent + ["log scale"] * scale.is_log)
    heading = element("h3", title, element("span", f" ({note})", class_="quiet small") if note else None)
    caption = element("figcaption", heading, element("span", legend, class_="legend"))
    return element("figure", caption, drawing, element("output", aria_live="polite"))


def colour_class(number: int) -> str:
    """Give the class of the page that colours a curve."""
    return f"c{number % NB_COLOURS}" + (" dashed" if number // NB_COLOURS % 2 else "")


class _Scale:
    """From epochs and values to places in the drawing."""

    def __init__(self, epochs: Sequence[int], values: Sequence[float]) -> None:
        self.first, self.last = (epochs[0], epochs[-1]) if epochs else (0, 0)
        finite = [value for value in values if math.isfinite(value)] or [0.0]
        low, high = min(finite), max(finite)
        self.is_log = low > 0 and high / low >= _LOG_RATIO
        if self.is_log:
            self._low, self._high = math.log10(low), math.log10(high)
        else:
            # A curve that does not change lies in the middle.
            margin = 0.06 * (high - low) or 0.5 * abs(high) or 0.5
            self._low, self._high = low - margin, high + margin
            if low >= 0 > self._low:
                self._low = 0.0

    def x(self, epoch: int) -> float:
        share = 0.5 if self.first == self.last else (epoch - self.first) / (self.last - self.first)
        return round(_LEFT + share * (_RIGHT - _LEFT), 1)

    def y(self, value: float) -> float:
        place = math.log10(value) if self.is_log else value
        return round(_BOTTOM - (place - self._low) / (self._high - self._low) * (_BOTTOM - _TOP), 1)

    def ticks(self) -> list[float]:
        """Round values on the vertical axis, two to six."""
        if not self.is_log:
            return _round_steps(self._low, self._high, 5)
        powers = range(math.floor(self._low), math.ceil(self._high) + 1)
        for digits in ((1, 2, 5), (1, 3), (1,)):
            ticks = [digit * 10.0**power for power in powers for digit in digits]
            inside = [tick for tick in ticks if self._low <= math.log10(tick) <= self._high]
            if len(inside) <= 6:
                return inside
        return inside[:: math.ceil(len(inside) / 6)]

    def epoch_ticks(self) -> list[int]:
        if self.first == self.last:
            return [self.first]
        return sorted({round(tick) for tick in _round_steps(self.first, self.last, 6) if tick == int(tick)})


def _round_steps(low: float, high: float, nb: int) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten between two bounds: about `nb`."""
    raw = (high - low) / nb
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(digit * power for digit in (1, 2, 5, 10) if digit * power >= raw)
    first, last = math.ceil(low / step), math.floor(high / step)
    return [float(f"{number * step:.12g}") for number in range(first, last + 1)]


def _epochs_drawn(curves: Mapping[str, Mapping[int, float]]) -> list[int]:
    """The epochs of all curves; of many, those where a curve has the least or the greatest value of a part."""
    epochs = sorted({epoch for points in curves.values() for epoch in points})
    if len(epochs) <= _NB_DRAWN:
        return epochs
    size = math.ceil(2 * len(epochs) / _NB_DRAWN)
    kept = {epochs[0], epochs[-1]}
    for start in range(0, len(epochs), size):
        part = epochs[start : start + size]
        for points in curves.values():
            known = [epoch for epoch in part if epoch in points]
            if known:
                kept |= {min(known, key=lambda epoch: points[epoch]), max(known, key=lambda epoch: points[epoch])}
    return sorted(kept)


def _curve(points: Mapping[int, float], epochs: Sequence[int], scale: _Scale, best: int | None) -> list[Markup]:
    known = [(epoch, points[epoch]) for epoch in epochs if epoch in points]
    pieces: list[list[tuple[float, float]]] = [[]]
    for epoch, value in known:
        if math.isfinite(value):
            pieces[-1].append((scale.x(epoch), scale.y(value)))
        elif pieces[-1]:
            pieces.append([])
    way = " ".join("M" + "L".join(f"{x:g} {y:g}" for x, y in piece) for piece in pieces if len(piece) > 1)
    drawn = [element("path", d=way, class_="curve")] if way else []
    is_marked = len(known) <= _NB_MARKED
    places = [place for piece in pieces for place in piece if is_marked or len(piece) == 1]
    drawn += [element("circle", cx=f"{x:g}", cy=f"{y:g}", r="2.2", class_="point") for x, y in places]
    if best is not None and math.isfinite(points.get(best, math.nan)):
        drawn.append(element("circle", cx=scale.x(best), cy=scale.y(points[best]), r="4.2", class_="best"))
    return drawn


def _axes(scale: _Scale) -> list[Markup]:
    drawn: list[Markup] = []
    for tick in scale.ticks():
        y = scale.y(tick)
        drawn.append(element("line", x1=_LEFT, x2=_RIGHT, y1=y, y2=y, class_="grid"))
        drawn.append(element("text", number_text(tick), x=_LEFT - 6, y=y + 4, text_anchor="end"))
    for epoch in scale.epoch_ticks():
        drawn.append(element("text", epoch, x=scale.x(epoch), y=_BOTTOM + 16, text_anchor="middle"))
    return drawn
