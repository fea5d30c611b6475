import json

import pytest

from benchmarks.comparison import Column, Comparison, Goal, measured, run


def rounds_of(**values):
    """Makes the rounds of contenders with one figure."""
    return {name: [{"rate": value} for value in of_rounds] for name, of_rounds in values.items()}


def comparison(**values):
    """Makes a comparison whose contenders give these figures, one after the other."""
    turns = {name: iter(of_rounds) for name, of_rounds in values.items()}
    return Comparison(
        "two of them",
        {name: lambda name=name: {"rate": next(turns[name])} for name in values},
        [Column("per s", "rate"), Column("x base", "rate", "base")],
        [Goal("ours", "rate", at_least=2, base="base")],
        {"peer": "it is not installed"},
    )


def test_a_column_shows_median_and_range():
    assert Column("", "rate").cell(rounds_of(ours=[3.0, 1.0, 2.0]), "ours") == "2 (1-3)"


def test_a_column_with_a_base_shows_ratios_within_rounds():
    rounds = rounds_of(ours=[10.0, 20.0, 30.0], base=[1.0, 10.0, 3.0])

    assert Column("", "rate", "base").cell(rounds, "ours") == "10 (2-10)"


def test_an_inverse_column_divides_the_base():
    rounds = rounds_of(ours=[10.0, 20.0], peer=[1.0, 5.0])

    assert Column("", "rate", "ours", inverse=True).cell(rounds, "peer") == "7 (4-10)"


def test_a_column_of_medians_has_no_range():
    assert Column("", "rate", median_only=True).cell(rounds_of(ours=[3.0, 1.0, 2.0]), "ours") == "2"


@pytest.mark.parametrize("column", [Column("", "other"), Column("", "rate", "absent")])
def test_a_cell_without_its_figure_or_its_base_is_empty(column):
    assert column.cell(rounds_of(ours=[1.0]), "ours") == ""


@pytest.mark.parametrize(
    ("goal", "reached"),
    [
        (Goal("ours", "rate", at_least=2.0), True),
        (Goal("ours", "rate", at_least=2.1), False),
        (Goal("ours", "rate", at_most=2.0), True),
        (Goal("ours", "rate", at_most=1.9), False),
        (Goal("ours", "rate", at_most=0), False),
        (Goal("ours", "rate", at_least=0.5, base="base"), True),
        (Goal("ours", "rate", at_least=0.6, base="base"), False),
    ],
)
def test_a_goal_is_reached_by_the_median(goal, reached):
    line = goal.line(rounds_of(ours=[1.0, 2.0, 9.0], base=[2.0, 4.0, 18.0]))

    assert line.endswith(", reached" if reached else ", MISSED")


def test_a_goal_of_nothing_is_reached_by_nothing_only():
    goal = Goal("ours", "rate", at_most=0)

    assert goal.is_reached_by(0.0)
    assert not goal.is_reached_by(0.5)


def test_a_goal_says_which_contender_is_missing():
    assert Goal("ours", "rate", at_least=2, base="peer").line(rounds_of(ours=[1.0])) == (
        "goal: ours / peer, rate, at least 2: not measured, without peer"
    )


@pytest.mark.parametrize("limits", [{}, {"at_least": 1, "at_most": 2}])
def test_a_goal_has_one_limit(limits):
    with pytest.raises(ValueError, match="at_least or at_most"):
        Goal("ours", "rate", **limits)


def test_every_contender_is_measured_in_every_round():
    assert measured(comparison(ours=[4.0, 6.0], base=[1.0, 2.0]), 2) == rounds_of(ours=[4.0, 6.0], base=[1.0, 2.0])


def test_a_report_has_a_row_a_contender_then_who_is_left_out_then_goals():
    two = comparison(ours=[4.0, 6.0], base=[1.0, 2.0])

    assert two.report(measured(two, 2)).splitlines() == [
        "          per s     x base",
        "----  ---------  ---------",
        "ours    5 (4-6)  3.5 (3-4)",
        "base  1.5 (1-2)    1 (1-1)",
        "left out: peer (it is not installed)",
        "goal: ours / base, rate, at least 2: 3.5 (3-4), reached",
    ]


def test_a_run_makes_and_measures_only_what_is_asked_for(capsys):
    def never(quick):
        raise AssertionError("this one was not asked for")

    run("bench", {"a": lambda quick: comparison(ours=[4.0], base=[2.0]), "b": never}, ["--quick", "--only", "a"])

    assert "a: two of them; 1 rounds" in capsys.readouterr().out


def test_a_run_tells_its_comparisons_whether_they_should_be_quick(capsys):
    told = []

    def maker(quick):
        told.append(quick)
        return comparison(ours=[4.0] * 5, base=[2.0] * 5)

    run("bench", {"a": maker}, ["--quick"])
    run("bench", {"a": maker}, [])

    assert told == [True, False]
    assert "not to be quoted" in capsys.readouterr().out


def test_a_run_keeps_the_figures_of_every_round(tmp_path):
    path = tmp_path / "figures.json"
    made = comparison(ours=[4.0, 6.0], base=[2.0, 3.0])

    run("bench", {"a": lambda quick: made}, ["--quick", "--rounds", "2", "--json", str(path)])

    assert json.loads(path.read_text())["comparisons"] == {"a": rounds_of(ours=[4.0, 6.0], base=[2.0, 3.0])}


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--only", "c"], r"--only must name some of \['a'\], got \['c'\]"),
        (["--rounds", "4"], "--rounds must be at least 5, got 4"),
    ],
)
def test_a_run_refuses(arguments, why, capsys):
    with pytest.raises(SystemExit):
        run("bench", {"a": lambda quick: comparison(ours=[1.0], base=[1.0])}, arguments)

    assert why.replace("\\", "") in capsys.readouterr().err
