import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from subprocess import DEVNULL, PIPE

import pytest

from benchmarks.harness import (
    CpuClock,
    Spread,
    alternate,
    machine,
    machine_line,
    order_of_round,
    ratios,
    shown,
    table,
    values_of,
    write_json,
)


def figures(*values):
    return [{"rate": value} for value in values]


def test_even_rounds_go_forwards_and_odd_rounds_backwards():
    assert [order_of_round(["a", "b", "c"], number) for number in range(3)] == [
        ["a", "b", "c"],
        ["c", "b", "a"],
        ["a", "b", "c"],
    ]


def test_contenders_take_turns_in_the_order_of_each_round():
    ran = []

    def contender(name):
        def measure():
            ran.append(name)
            return {"rate": float(len(ran))}

        return measure

    rounds = alternate({"a": contender("a"), "b": contender("b")}, nb_rounds=3)

    assert ran == ["a", "b", "b", "a", "a", "b"]
    assert rounds == {"a": figures(1.0, 4.0, 5.0), "b": figures(2.0, 3.0, 6.0)}


def test_a_contender_that_raises_ends_the_run():
    def broken():
        raise OSError("no pool")

    with pytest.raises(OSError, match="no pool"):
        alternate({"a": lambda: {"rate": 1.0}, "b": broken}, nb_rounds=1)


def test_no_rounds_are_refused():
    with pytest.raises(ValueError, match="nb_rounds must be at least 1, got 0"):
        alternate({"a": lambda: {"rate": 1.0}}, nb_rounds=0)


def test_spread_of_an_odd_number_of_values():
    assert Spread.of([5.0, 1.0, 9.0]) == Spread(median=5.0, low=1.0, high=9.0)


def test_spread_of_an_even_number_of_values_has_the_mean_of_the_middle_two():
    assert Spread.of([4.0, 1.0, 2.0, 100.0]) == Spread(median=3.0, low=1.0, high=100.0)


def test_spread_of_nothing_is_refused():
    with pytest.raises(ValueError, match="at least one value"):
        Spread.of([])


def test_values_of_takes_one_figure_of_every_round():
    assert values_of([{"rate": 1.0, "cost": 9.0}, {"rate": 2.0, "cost": 8.0}], "cost") == [9.0, 8.0]


def test_the_median_of_ratios_is_not_the_ratio_of_medians():
    # Pairs: 10/1, 20/10, 30/3. The medians are 20 and 3, whose ratio belongs to no round.
    paired = ratios(figures(10.0, 20.0, 30.0), figures(1.0, 10.0, 3.0), "rate")

    assert paired == [10.0, 2.0, 10.0]
    assert Spread.of(paired).median == 10.0


def test_ratios_need_the_same_number_of_rounds():
    with pytest.raises(ValueError, match="pairs of rounds, got 2 and 1"):
        ratios(figures(1.0, 2.0), figures(1.0), "rate")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (0.0012345, "0.00123"),
        (1.0, "1"),
        (12.345, "12.3"),
        (123.45, "123"),
        (999.6, "1,000"),
        (45678.0, "45,700"),
        (1234567.0, "1,230,000"),
    ],
)
def test_numbers_are_shown_with_three_digits_that_count(value, text):
    assert shown(value) == text


def test_a_spread_is_shown_as_median_and_range():
    assert str(Spread(12.34, 10.0, 4567.0)) == "12.3 (10-4,570)"


def test_table_aligns_the_first_column_left_and_the_others_right():
    assert table(["", "rate"], [["a", "1"], ["long", "12,000"]]) == "\n".join(
        [
            "        rate",
            "----  ------",
            "a          1",
            "long  12,000",
        ]
    )


def test_a_row_without_a_cell_for_each_column_is_refused():
    with pytest.raises(ValueError, match=r"must have 2 cells, got 1: \['a'\]"):
        table(["", "rate"], [["a"]])


def test_cpu_clock_counts_what_this_process_computes_and_not_what_it_sleeps():
    clock, own = CpuClock(), time.process_time()
    time.sleep(0.05)
    sum(range(500_000))
    own_s, elapsed_s = time.process_time() - own, clock.elapsed_s()

    # The search for descendants is in neither; what else stands between the four readings is microseconds of ours.
    assert elapsed_s == pytest.approx(own_s, abs=0.01)


COMPUTES = "import time\nwhile time.process_time() < 0.05: pass\nprint('done', flush=True)\ninput()"


@contextmanager
def running(program, *arguments):
    """Runs a program that says a line when it has done its work, and ends when its input does."""
    command = [sys.executable, "-S", "-c", program, *arguments]
    with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL) as process:
        process.stdout.readline()
        yield process


def test_cpu_clock_counts_the_whole_of_a_child_that_started_since():
    clock = CpuClock()

    with running(COMPUTES):
        assert clock.elapsed_s() >= 0.05


def test_cpu_clock_does_not_count_what_a_child_used_before():
    with running(COMPUTES):
        clock, own = CpuClock(), time.process_time()

        assert clock.elapsed_s() == pytest.approx(time.process_time() - own, abs=0.02)


def test_cpu_clock_counts_the_child_of_a_child_as_workers_of_a_fork_server_are():
    starts_another = "import subprocess, sys; subprocess.run([sys.executable, '-S', '-c', sys.argv[1]])"
    clock = CpuClock()

    with running(starts_another, COMPUTES):
        assert clock.elapsed_s() >= 0.05


def test_cpu_clock_refuses_to_lose_a_process_that_ended():
    with running(COMPUTES) as process:
        clock = CpuClock()

    with pytest.raises(RuntimeError, match=f"process {process.pid} ended"):
        clock.elapsed_s()


def test_machine_line_has_neither_host_name_nor_path():
    line = machine_line(machine())

    assert os.uname().nodename not in line.replace(",", " ").split()
    assert os.sep not in line


def test_json_keeps_the_figures_of_every_round(tmp_path):
    path = tmp_path / "report.json"

    write_json(path, {"workloads": {"small": {"a": figures(1.5, 2.5)}}})

    assert json.loads(path.read_text()) == {"workloads": {"small": {"a": [{"rate": 1.5}, {"rate": 2.5}]}}}
