import sys

import numpy as np
import pytest
from matplotlib import colormaps
from matplotlib.figure import Figure
from PIL import Image

from trw_pipeline.reporting.figures import add_legend, as_colors, distinct_colors, export_figure, wrapped


def small_figure(color="white"):
    return Figure(figsize=(0.5, 0.25), facecolor=color)


def pixels(path):
    with Image.open(path) as image:
        assert image.format == "PNG"
        return np.asarray(image.convert("RGB"))


def test_a_figure_is_exported_under_its_name_into_a_new_folder(tmp_path):
    path = export_figure(tmp_path / "new" / "folder", "loss/train?", dpi=100, figure=small_figure("red"))
    assert path == tmp_path / "new" / "folder" / "losstrain.png"
    shown = pixels(path)
    assert shown.shape == (25, 50, 3)
    assert (shown == (255, 0, 0)).all()


@pytest.mark.parametrize(("nb_left", "expected"), [(10, "0123456789"), (5, "02468"), (3, "036"), (1, "0")])
def test_of_a_name_that_is_too_long_evenly_spread_characters_stay(tmp_path, nb_left, expected):
    maximum_length = len(str(tmp_path)) + len("/.png") + nb_left
    path = export_figure(tmp_path, "0123456789", maximum_length, 20, figure=small_figure())
    assert path.name == f"{expected}.png"
    assert path.is_file()


def test_no_name_is_too_long_for_the_file_system(tmp_path):
    path = export_figure(tmp_path, "é" * 300, 10_000, 20, figure=small_figure())
    assert path.is_file()
    assert set(path.stem) == {"é"}


def test_a_folder_that_leaves_no_room_for_a_name_is_refused(tmp_path):
    with pytest.raises(ValueError, match="maximum_length must leave room"):
        export_figure(tmp_path / "new", "a", len(str(tmp_path)), figure=small_figure())
    assert list(tmp_path.iterdir()) == []


def test_without_a_figure_the_current_one_of_pyplot_is_exported(tmp_path):
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    mine = plt.figure(figsize=(0.5, 0.25), facecolor="blue")
    try:
        path = export_figure(tmp_path, "mine", dpi=100)
        assert plt.get_fignums() == [mine.number]
        assert (pixels(path) == (0, 0, 255)).all()
    finally:
        plt.close(mine)
    with pytest.raises(ValueError, match="give figure="):
        export_figure(tmp_path, "nobody's")


def test_where_pyplot_was_never_imported_there_is_no_current_figure(tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "matplotlib.pyplot", raising=False)
    with pytest.raises(ValueError, match="give figure="):
        export_figure(tmp_path, "a")
    assert "matplotlib.pyplot" not in sys.modules


@pytest.mark.parametrize("nb_colors", [1, 10, 11, 20, 21, 200])
def test_colours_differ(nb_colors):
    colors = distinct_colors(nb_colors)
    assert colors.shape == (nb_colors, 3)
    assert ((colors >= 0) & (colors <= 1)).all()
    assert len(np.unique(colors, axis=0)) == nb_colors


def test_given_colours_are_taken_in_turn():
    red, blue = [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]
    assert as_colors([red, blue], 3).tolist() == [red, blue, red]
    assert np.array_equal(as_colors(None, 2), colormaps["tab10"]([0, 1])[:, :3])


@pytest.mark.parametrize("colors", [[], [1.0, 0.0, 0.0], [[1.0, 0.0]], [[0.0, 0.0, 1.5]], [[0.0, 0.0, float("nan")]]])
def test_what_are_no_colours_is_refused(colors):
    with pytest.raises(ValueError, match=r"colors must be \(N, 3\) in \[0, 1\]"):
        as_colors(colors, 1)


def test_lines_are_as_long_as_asked_for():
    assert wrapped("one two three\nfour", 7) == "one two\nthree\nfour"
    assert wrapped("abcdefgh", 3) == "abc\ndef\ngh"
    assert wrapped("one two three", 7, 2) == "one two\nthree"
    assert wrapped("one two three four", 7, 2) == "one two\nthree…"
    assert wrapped("abcdefgh", 3, 1) == "ab…"
    with pytest.raises(ValueError, match="got 0"):
        wrapped("a", 0)


@pytest.mark.parametrize("nb_entries", [1, 4, 5, 20, 200])
def test_a_legend_has_a_bounded_number_of_entries_and_says_how_many_are_missing(nb_entries):
    figure = Figure()
    axes = figure.add_subplot()
    entries = {f"_name {index} $": axes.plot([0], [index])[0] for index in range(nb_entries)}
    add_legend(axes, entries)
    (legend,) = [*figure.legends, *([axes.get_legend()] if axes.get_legend() else [])]
    assert bool(figure.legends) == (nb_entries > 4)
    texts = [text.get_text() for text in legend.get_texts()]
    assert len(texts) == min(nb_entries, 20)
    assert texts[0] == "\u200b_name 0 $"
    assert not any(text.get_parse_math() for text in legend.get_texts())
    assert texts[-1].endswith("and 180 more") == (nb_entries == 200)


def test_nothing_drawn_needs_no_legend():
    axes = Figure().add_subplot()
    add_legend(axes, {})
    assert axes.get_legend() is None
