import math

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from trw_pipeline.reporting.learning_rate_plot import plot_learning_rates


@pytest.mark.slow
def test_losses_that_diverged_are_marks_and_the_good_section_is_told(tmp_path, monkeypatch):
    figures = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda figure, *a, **k: (figures.append(figure), save(figure, *a, **k)))
    rates = [0.1, 0.2, 0.4, 0.8, 1.6]
    plot_learning_rates(tmp_path / "a.png", rates, [1.0, 0.5, 0.4, 1e9, math.nan], (1, 2), "$a$: train")
    (axes,) = figures[0].axes
    curve, marks, best = axes.lines
    assert curve.get_xdata().tolist() == rates
    assert np.isnan(curve.get_ydata()).tolist() == [False, False, False, True, True]
    assert list(marks.get_xdata()) == [0.8, 1.6]
    assert best.get_xdata() == [0.4, 0.4]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["loss", "diverges", "falls", "best: 0.4"]
    assert (axes.get_xscale(), axes.get_title()) == ("log", "$a$: train")
    with Image.open(tmp_path / "a.png") as image:
        assert image.size == (840, 540)


@pytest.mark.slow
def test_there_may_be_no_good_section_and_no_number_at_all(tmp_path):
    plot_learning_rates(tmp_path / "a.png", [0.1], [math.nan], None, "d: train")
    assert (tmp_path / "a.png").stat().st_size > 1000
