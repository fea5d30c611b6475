import sys

import numpy as np
import pytest
from PIL import Image

from trw_pipeline.errors import MissingExtraError
from trw_pipeline.reporting.history_plot import plot_group_histories, plot_history


def picture(path):
    with Image.open(path) as image:
        assert image.format == "PNG"
        return np.asarray(image.convert("RGB")).astype(int)


def nb_coloured(pixels):
    """Pixels that are not grey: those of curves, their marks and the legend."""
    return int((np.ptp(pixels, axis=2) > 40).sum())


@pytest.mark.slow
def test_each_curve_is_drawn_in_a_colour_of_its_own(tmp_path):
    curves = {"train": [(0, 1.0), (1, 0.5)], "valid": [(0, 1.5), (1, 0.75)]}
    plot_history(tmp_path / "two.png", curves, "title", "loss")
    plot_history(tmp_path / "one.png", {"train": curves["train"]}, "title", "loss")
    two, one = picture(tmp_path / "two.png"), picture(tmp_path / "one.png")
    assert two.shape == one.shape == (540, 840, 3)
    orange = (two[..., 0] - two[..., 2] > 150).sum()
    assert orange > 100
    assert (one[..., 0] - one[..., 2] > 150).sum() == 0


@pytest.mark.slow
def test_a_single_point_can_be_seen(tmp_path):
    plot_history(tmp_path / "point.png", {"valid": [(0, 1.0)]}, "title", "loss")
    plot_history(tmp_path / "none.png", {"valid": [(0, float("nan"))]}, "title", "loss")
    assert nb_coloured(picture(tmp_path / "point.png")) > nb_coloured(picture(tmp_path / "none.png"))


@pytest.mark.slow
def test_names_with_dollar_signs_are_no_formulas(tmp_path):
    plot_history(tmp_path / "a.png", {r"$\split$": [(0, 1.0)]}, r"$\title$", r"$\metric$", r"$\epoch$")
    assert picture(tmp_path / "a.png").size


@pytest.mark.slow
def test_the_users_own_figures_stay_as_they_are(tmp_path):
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    mine = plt.figure()
    try:
        plot_history(tmp_path / "a.png", {"train": [(0, 1.0)]}, "title", "loss")
        assert plt.get_fignums() == [mine.number]
    finally:
        plt.close(mine)


def test_without_matplotlib_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'trw_pipeline\[plot\]'"):
        plot_history(tmp_path / "a.png", {}, "title", "loss")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_no_curves_are_an_empty_plot(tmp_path):
    plot_history(tmp_path / "a.png", {}, "title", "loss")
    assert nb_coloured(picture(tmp_path / "a.png")) == 0


RED, BLUE = (1.0, 0.0, 0.0), (0.0, 0.0, 1.0)


def nb_red_and_blue(path):
    """Pixels of about these colours, with what is blended at their edges."""
    red, green, blue = picture(path).transpose(2, 0, 1)
    return int(((red > 180) & (green < 120) & (blue < 120)).sum()), int(((blue > 180) & (red < 120)).sum())


@pytest.mark.slow
@pytest.mark.parametrize("colors", [[RED, BLUE], lambda nb_groups: [RED, BLUE][:nb_groups]])
def test_the_curves_of_a_group_have_its_colour(tmp_path, colors):
    groups = {"a": [[(0, 1.0), (1, 2.0)]], "b": [[(0, 5.0), (1, 6.0)], [(0, 7.0), (1, 8.0)]]}
    path = plot_group_histories(tmp_path / "new", groups, "two groups", "epoch", "loss", colors=colors)
    assert path == tmp_path / "new" / "two groups.png"
    red, blue = nb_red_and_blue(path)
    assert red > 500
    assert 1.5 * red < blue < 2.5 * red  # two curves against one, and an entry of the legend each


@pytest.mark.slow
def test_of_a_group_the_first_curves_are_drawn(tmp_path):
    curves = [[(0, float(index)), (1, float(index))] for index in range(4)]
    one, two, all_ = (
        nb_red_and_blue(plot_group_histories(tmp_path, {"a": curves}, f"{most}", "x", "y", most, [RED]))[0]
        for most in (1, 2, 9)
    )
    assert one < two < all_


def test_groups_that_can_not_be_drawn_are_refused(tmp_path):
    with pytest.raises(ValueError, match="at least one group"):
        plot_group_histories(tmp_path, {}, "title", "x", "y")
    with pytest.raises(ValueError, match="max_nb_plots_per_group must be at least 1, got 0"):
        plot_group_histories(tmp_path, {"a": []}, "title", "x", "y", 0)
    with pytest.raises(ValueError, match="colors must be"):
        plot_group_histories(tmp_path, {"a": []}, "title", "x", "y", colors=[[2.0, 0.0, 0.0]])
    assert list(tmp_path.iterdir()) == []
