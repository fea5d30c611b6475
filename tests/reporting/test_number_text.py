import math

import pytest

from trw_pipeline.reporting.number_text import date_text, duration_text, number_text, percent_text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.123456, "0.1235"),
        (12.0, "12"),
        (206922.0, "206,922"),
        (-3.0, "-3"),
        (1.5e-7, "1.5e-07"),
        (12345.6, "12,346"),
        (1318.26, "1318"),
        (math.nan, "NaN"),
        (math.inf, "∞"),
        (-math.inf, "-∞"),
        (1e300, "1e+300"),
    ],
)
def test_numbers_have_four_digits_that_count(value, text):
    assert number_text(value) == text


@pytest.mark.parametrize(("share", "text"), [(0.0, "0.0 %"), (0.0312, "3.1 %"), (0.0999, "10 %"), (1.0, "100 %")])
def test_shares_are_in_percent(share, text):
    assert percent_text(share) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 ms"),
        (0.0123, "12 ms"),
        (4.2, "4.2 s"),
        (59.9, "60 s"),
        (75, "1 min 15 s"),
        (3600, "1 h 0 min"),
        (7380, "2 h 3 min"),
        (200_000, "2 d 7 h"),
    ],
)
def test_times_have_their_two_greatest_units(seconds, text):
    assert duration_text(seconds) == text


def test_a_date_can_be_read():
    assert date_text(0.0).startswith(("1970-01-01", "1969-12-31"))
