import logging
import re

import pytest

from trw_pipeline.timing import Stopwatch, time_it


def test_each_call_tells_its_time_and_gives_what_the_function_gives():
    told = []

    @time_it("sum", log=told.append)
    def total(a, b, *, c=0):
        """Adds."""
        return a + b + c

    assert (total(1, 2), total(1, b=2, c=3)) == (3, 6)
    assert (total.__name__, total.__doc__) == ("total", "Adds.")
    assert len(told) == 2
    assert all(re.fullmatch(r"sum took \d+(\.\d+)?(e-\d+)? s", text) for text in told)


def test_a_call_that_raises_tells_its_time_too():
    told = []

    @time_it("fails", told.append)
    def fails():
        raise KeyError("passes through")

    with pytest.raises(KeyError, match="passes through"):
        fails()
    assert len(told) == 1


def test_by_default_the_text_of_the_function_is_logged(caplog):
    def function():
        return 1

    with caplog.at_level(logging.INFO, logger="trw_pipeline.timing"):
        assert time_it()(function)() == 1
    assert caplog.messages[0].startswith(f"{function} took ")


def test_arguments_can_be_given_with_the_function():
    power = time_it("power", log=lambda text: None)(pow, 2, mod=7)
    assert power(5) == 4
    assert power(5, mod=3) == 2


def test_a_stopwatch_adds_up_the_time_in_which_it_runs():
    times = iter([10.0, 13.0, 15.0, 100.0, 101.0])
    watch = Stopwatch(2.0)
    assert watch.elapsed_s == 2.0
    watch.start(times.__next__)
    assert watch.elapsed_s == 2.0 + 3.0
    watch.stop()
    assert watch.elapsed_s == 2.0 + 5.0
    watch.start(times.__next__)
    watch.stop()
    watch.stop()
    assert watch.elapsed_s == 2.0 + 5.0 + 1.0


def test_a_stopwatch_that_runs_goes_on_when_it_is_started():
    now = [10.0]
    watch = Stopwatch()
    watch.start(lambda: now[0])
    now[0] = 12.0
    watch.start(lambda: now[0])
    now[0] = 15.0
    assert watch.elapsed_s == 5.0
