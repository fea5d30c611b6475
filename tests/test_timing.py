import logging
import re

import pytest

from trw_pipeline.timing import time_it


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
