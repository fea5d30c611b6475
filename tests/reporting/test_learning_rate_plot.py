import math

import numpy as np
import pytest

from trw_pipeline.reporting.figures import new_figure, write_figure
from trw_pipeline.reporting.learning_rate_plot import draw_learning_rates


@pytest.mark.slow
def test_losses_that_diverged_are_marks_and_the_good_section_is_told():
    figure = new_figure(7.0, 4.5)
    rates = [0.1, 0.2, 0.4, 0.8, 1.6]
    draw_learning_rates(figure, rates, [1.0, 0.5, 0.4, 1e9, math.nan], (1, 2), "$a$: train")
    (axes,) = figure.axes
    curve, marks, best = axes.lines
    assert curve.get_xdata().tolist() == rates
    assert np.isnan(curve.get_ydata()).tolist() == [False, False, False, True, True]
    assert list(marks.get_xdata()) == [0.8, 1.6]
    assert best.get_xdata() == [0.4, 0.4]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["loss", "diverges", "falls", "best: 0.4"]
    assert (axes.get_xscale(), axes.get_title()) == ("log", "$a$: train")


@pytest.mark.slow
def test_there_may_be_no_good_section_and_no_number_at_all(tmp_path):
    figure = new_figure(7.0, 4.5)
    draw_learning_rates(figure, [0.1], [math.nan], None, "d: train")
    write_figure(tmp_path / "a.png", figure)
    assert (tmp_path / "a.png").stat().st_size > 1000
