import html
import json
import math
import re

from trw_pipeline.reporting.curve_chart import colour_class, curve_chart


def points(chart):
    return [(float(x), float(y)) for x, y in re.findall(r'<circle cx="(\S+)" cy="(\S+)" r="2.2"', chart)]


def paths(chart):
    return re.findall(r'<path d="(.*?)"', chart)


def values(chart):
    return [json.loads(html.unescape(text)) for text in re.findall(r'data-values="(.*?)"', chart)]


def test_epochs_go_to_the_right_and_greater_values_up():
    (x0, y0), (x1, y1), (x2, y2) = points(curve_chart("loss", {"train": [(0, 1.0), (1, 3.0), (2, 2.0)]}))
    assert x0 < x1 < x2
    assert x1 - x0 == x2 - x1
    assert y1 < y2 < y0, "the vertical axis of SVG points down"
    assert y2 - y1 == y0 - y2


def test_a_value_that_is_not_finite_leaves_a_gap_and_is_told():
    chart = curve_chart("loss", {"train": [(0, 1.0), (1, 2.0), (2, math.nan), (3, 1.0), (4, 2.0)]})
    assert paths(chart)[0].count("M") == 2
    assert values(chart) == [["1", "2", "NaN", "1", "2"]]


def test_epochs_that_were_not_evaluated_leave_none():
    chart = curve_chart("loss", {"train": [(0, 1.0), (1, 1.0), (2, 1.0)], "valid": [(0, 2.0), (2, 1.0)]})
    assert [path.count("M") for path in paths(chart)] == [1, 1]
    assert values(chart) == [["1", "1", "1"], ["2", None, "1"]]


def test_a_long_curve_keeps_its_extremes_and_few_points():
    curve = [(epoch, 1.0 + 0.1 * math.sin(epoch)) for epoch in range(10_000)]
    curve[1234], curve[5678] = (1234, 9.0), (5678, -9.0)
    chart = curve_chart("loss", {"train": curve})
    [shown] = values(chart)
    assert len(shown) <= 420
    assert {"9", "-9"} <= set(shown)
    assert points(chart) == [], "marks would hide it"


def test_values_that_differ_by_much_are_on_a_logarithmic_axis():
    chart = curve_chart("loss", {"train": [(0, 100.0), (1, 10.0), (2, 1.0)]})
    (_, y0), (_, y1), (_, y2) = points(chart)
    assert abs((y1 - y0) - (y2 - y1)) < 0.11, "rounded to a tenth"
    assert "log scale" in chart
    assert "log scale" not in curve_chart("loss", {"train": [(0, 10.0), (1, 1.0)]})
    assert "log scale" not in curve_chart("loss", {"train": [(0, 100.0), (1, 0.0)]})


def test_the_best_epoch_has_a_ring_and_a_single_epoch_a_point():
    chart = curve_chart("error", {"valid": [(0, 0.5), (1, 0.25)]}, best={"valid": 1})
    ring = re.search(r'<circle cx="(\S+)" cy="(\S+)" r="4.2" class="best"', chart)
    assert (float(ring[1]), float(ring[2])) == points(chart)[1]
    assert len(points(curve_chart("error", {"valid": [(0, 0.5)]}))) == 1


def test_shares_are_shown_in_percent():
    assert values(curve_chart("waited", {"train": [(0, 0.25)]}, as_percent=True)) == [["25"]]


def test_constant_empty_and_infinite_curves_can_be_drawn():
    for curve in ([(0, 0.0), (1, 0.0)], [(0, -5.0), (1, -5.0)], [], [(0, math.inf), (1, math.nan)], [(7, 1e300)]):
        assert "<svg" in curve_chart("loss", {"train": curve})
        assert "nan" not in re.sub(r"data-\S+", "", curve_chart("loss", {"train": curve}))


def test_a_name_from_data_is_shown_and_not_obeyed():
    chart = curve_chart("<script>", {"a&b\"'": [(0, 1.0)]})
    assert "<script>" not in chart
    assert "a&amp;b&quot;" in chart


def test_the_ninth_curve_is_like_the_first_but_dashed():
    assert colour_class(0) == "c0"
    assert colour_class(8) == "c0 dashed"


def test_the_keyboard_reaches_it_in_every_browser():
    """Chromium takes an element that listens for the loss of focus for one that can have it; others do not."""
    assert '<svg viewBox="0 0 360 200" role="img" tabindex="0"' in curve_chart("loss", {"train": [(0, 1.0)]})
