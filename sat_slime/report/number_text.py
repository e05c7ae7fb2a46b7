"""Numbers as the tables of all reports write them."""

from __future__ import annotations

import math

DASH = "–"
"""Stands where there is no number."""
NBSP = "\N{NO-BREAK SPACE}"


def decimals(value: float, digits: int) -> str:
    """Return a number with so many digits behind the point; a dash for none."""
    return f"{value:.{digits}f}" if math.isfinite(value) else DASH


def percent(share: float) -> str:
    """Return a share as `12.3 %`; a dash for none."""
    # rounded first, so that there is no -0.0
    return f"{round(float(share), 3) + 0.0:.1%}".replace("%", f"{NBSP}%") if math.isfinite(share) else DASH


def percent_number(share: float) -> str:
    """Return a share in percent as `12.3`, below 1 with two digits, for a column that says the unit; a dash for
    none."""
    if not math.isfinite(share):
        return DASH
    value = 100 * share
    return "0" if value == 0 else f"{value:.1f}" if value >= 1 else f"{value:.2f}" if value >= 0.005 else "< 0.01"


def count_of(number: int, noun: str) -> str:
    """Return a count with its noun, as `1 step` and `1,024 steps`."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def minus(number: str) -> str:
    """Return the text of a number with a minus sign in the place of a hyphen."""
    return number.replace("-", "−")
