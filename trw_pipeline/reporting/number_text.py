"""Numbers as people read them."""

from __future__ import annotations

import math
from datetime import datetime


def number_text(value: float) -> str:
    """Write a number with four digits that count; `NaN` and infinities by their names.

    >>> number_text(0.123456), number_text(12.0), number_text(1.5e-7), number_text(float("nan"))
    ('0.1235', '12', '1.5e-07', 'NaN')
    """
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "∞" if value > 0 else "-∞"
    if value == int(value) and abs(value) < 1e6:
        return f"{int(value):,}"
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e7 else f"{value:.4g}"


def percent_text(share: float) -> str:
    """Write a share in [0, 1] in percent.

    >>> percent_text(0.0312), percent_text(0.5)
    ('3.1 %', '50 %')
    """
    return f"{100 * share:.0f} %" if share >= 0.0995 else f"{100 * share:.1f} %"


def duration_text(seconds: float) -> str:
    """Write a time with its two greatest units.

    >>> duration_text(0.0123), duration_text(4.2), duration_text(75), duration_text(7380), duration_text(200_000)
    ('12 ms', '4.2 s', '1 min 15 s', '2 h 3 min', '2 d 7 h')
    """
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 60:
        return f"{seconds:.2g} s"
    for limit_s, unit, unit_s, smaller, smaller_s in (
        (3600.0, "min", 60, "s", 1),
        (86400.0, "h", 3600, "min", 60),
        (math.inf, "d", 86400, "h", 3600),
    ):
        if seconds < limit_s:
            whole, rest = divmod(int(seconds), unit_s)
            return f"{whole} {unit} {rest // smaller_s} {smaller}"
    return "∞"


def date_text(seconds: float) -> str:
    """Write a date, given as seconds since 1970, in the time zone of this machine."""
    return f"{datetime.fromtimestamp(seconds).astimezone():%Y-%m-%d %H:%M:%S %Z}"
