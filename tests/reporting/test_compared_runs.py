import html
import re
from pathlib import Path

from trw_pipeline.reporting.comparison import comparison_page
from trw_pipeline.reporting.run_record import RunRecord


def record(errors, **changed):
    epochs = [{"d": {"valid": {"y": {"error": error}}, "train": {"info": {"samples_per_s": 4.0}}}} for error in errors]
    given = {"name": "r", "state": "completed", "updated": 0.0, "nb_epochs": len(epochs), "epochs": epochs}
    return RunRecord(**{**given, **changed})


def shown(page):
    page = re.sub(r"<(style|script)>.*?</\1>", "", page, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split())


def test_the_best_run_of_each_metric_is_marked_and_the_best_of_all_is_named():
    page = comparison_page({Path("/a/x"): record([0.5, 0.4]), Path("/a/y"): record([0.6, 0.3, 0.7])})
    text = shown(page)
    assert "2 runs x y y has the best d · valid · y · error : 0.3." in text.replace("error:", "error :")
    assert "d · valid · y · error lower 0.4 (1) ★ 0.3 (1)" in text


def test_equal_runs_are_all_the_best():
    errors = {"x": [0.5], "y": [0.6], "z": [0.7, 0.5]}
    text = shown(comparison_page({Path("/a") / name: record(given) for name, given in errors.items()}))
    assert text.count("★ 0.5") == 2
    assert "x, z have the best d · valid · y · error : 0.5." in text.replace("error:", "error :")


def test_a_metric_that_a_run_has_not_has_an_empty_cell():
    other = record([0.5], epochs=[{"d": {"valid": {"z": {"dice": 0.5}}}}])
    text = shown(comparison_page({Path("/a/x"): record([0.5]), Path("/a/y"): other}))
    assert "d · valid · y · error lower ★ 0.5 (0) d · valid · z · dice higher ★ 0.5 (0)" in text


def test_curves_lie_over_one_another_in_the_colours_of_their_runs():
    page = comparison_page({Path("/a/x"): record([0.5, 0.4]), Path("/a/y"): record([0.6, 0.3, 0.7])})
    assert re.findall(r'<g class="(c\d)" data-name="(\w)"', page) == [("c0", "x"), ("c1", "y")]
    assert "[&quot;0.5&quot;, &quot;0.4&quot;, null]" in page


def test_runs_of_the_same_name_are_told_apart_by_their_folders():
    text = shown(comparison_page({Path("/a/r0"): record([0.5]), Path("/b/r0"): record([0.4])}))
    assert "a/r0 Completed 1" in text
    assert "b/r0 Completed 1" in text


def test_options_that_differ_are_listed_and_no_others():
    options = {"lr": "0.1", "same": "1", "workflow_options.trainer_run": "0"}
    others = {"lr": "0.2", "same": "1", "workflow_options.trainer_run": "1", "more": "x"}
    text = shown(comparison_page({Path("/x"): record([0.5], options=options), Path("/y"): record([1], options=others)}))
    assert text.endswith("Options that differ option x y lr 0.1 0.2 more x")


def test_runs_that_have_nothing_to_compare_yet_are_listed():
    empty = record([], state="running", nb_epochs=5)
    text = shown(comparison_page({Path("/x"): empty, Path("/y"): empty}))
    assert "x Running 0" in text
    assert "Best values" not in text
