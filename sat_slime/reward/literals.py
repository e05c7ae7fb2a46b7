r"""Numbers as answers write them, read exactly: 34, 1,234, 0.50, 2/3, \frac{2}{3}, 1\frac12, 2\times10^9, 5 million."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

MAX_DIGITS = 2000
MAX_EXPONENT = 1000
MIN_ROUNDED_DIGITS = 4
"""Significant digits from which on a decimal may stand for the number that it rounds: 0.3333 is 1/3, 0.33 is not."""

_WHOLE = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)"
_DECIMAL = re.compile(rf"({_WHOLE}?)(\.[0-9]*)?")
_LATEX_FRACTION = r"\\frac\s*(?:\{{\s*({n})\s*\}}|([0-9]))\s*(?:\{{\s*({n})\s*\}}|([0-9]))".format(n=rf"-?{_WHOLE}")
_FRACTION = re.compile(rf"(?:({_WHOLE})\s*(?=\\)\+?\s*)?{_LATEX_FRACTION}")
_SLASH = re.compile(rf"(?:({_WHOLE})\s+)?({_WHOLE})\s*/\s*({_WHOLE})")
_SCIENTIFIC = re.compile(
    r"(.+?)\s*(?:(?:\\times|\\cdot|\*|x)\s*10\s*\^\s*(?:\{\s*([+-]?[0-9]+)\s*\}|([+-]?[0-9]+))|[eE]([+-]?[0-9]+))"
)
_MAGNITUDE = re.compile(r"(.+?)\s*(?:\\text\{\s*)?(million|billion|trillion)s?\s*\}?")
_MAGNITUDES = {"million": 10**6, "billion": 10**9, "trillion": 10**12}


@dataclass(frozen=True)
class Literal:
    """A number that is written out."""

    value: Fraction
    whole: bool
    """Written as an integer: 5, not 5.0 or 10/2."""
    decimals: int | None = None
    """Digits after the point, where it is a decimal."""
    significant: int = 0
    """Significant digits of a decimal."""

    def rounds(self, value: Fraction) -> bool:
        """Return whether this decimal is `value` rounded to its digits, and has enough of them."""
        if self.decimals is None or self.significant < MIN_ROUNDED_DIGITS:
            return False
        return abs(self.value - value) * 2 * Fraction(10) ** self.decimals <= 1


def read_literal(text: str) -> Literal | None:
    """Return the number that a cleaned answer without percent sign writes out, or None."""
    if not text or len(text) > MAX_DIGITS or text[-1] not in "0123456789.}ns":
        return None
    text = text.strip()
    number = _unsigned(text[1:].strip() if text[0] in "-+" else text)
    if number is None or text[0] != "-":
        return number
    return Literal(-number.value, number.whole, number.decimals, number.significant)


def _unsigned(text: str) -> Literal | None:
    decimal = _DECIMAL.fullmatch(text)
    if decimal:
        return _decimal(*decimal.groups())
    fraction = _FRACTION.fullmatch(text)
    if fraction:
        whole, *parts = fraction.groups()
        return _fraction(whole, parts[0] or parts[1], parts[2] or parts[3])
    slash = _SLASH.fullmatch(text)
    if slash:
        return _fraction(*slash.groups())
    scientific = _SCIENTIFIC.fullmatch(text)
    if scientific:
        mantissa = _DECIMAL.fullmatch(scientific[1])
        exponent = int(next(filter(None, scientific.groups()[1:]))[:8])
        number = _decimal(*mantissa.groups()) if mantissa else None
        return None if number is None or abs(exponent) > MAX_EXPONENT else _scaled(number, exponent)
    magnitude = _MAGNITUDE.fullmatch(text)
    if magnitude and (number := _unsigned(magnitude[1])):
        return Literal(number.value * _MAGNITUDES[magnitude[2]], number.whole)
    return None


def _decimal(whole: str, fraction: str | None) -> Literal | None:
    if not whole and len(fraction or "") < 2:
        return None
    digits = (fraction or "")[1:]
    number = whole.replace(",", "") + digits
    value = Fraction(int(number), 10 ** len(digits))
    if not digits:
        return Literal(value, True)
    return Literal(value, False, len(digits), len(number.lstrip("0")))


def _scaled(number: Literal, exponent: int) -> Literal:
    value = number.value * Fraction(10) ** exponent
    if number.decimals is None:
        return Literal(value, value.denominator == 1)
    return Literal(value, False, number.decimals - exponent, number.significant)


def _fraction(whole: str | None, numerator: str, denominator: str) -> Literal | None:
    top, bottom = (int(part.replace(",", "")) for part in (numerator, denominator))
    if bottom == 0 or (whole and (top < 0 or bottom < 0)):
        return None
    return Literal(int((whole or "0").replace(",", "")) + Fraction(top, bottom), False)
