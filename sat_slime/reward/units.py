r"""Units of answers: found, taken off, and named, so that 5 cm is 5 and no 5 m."""

from __future__ import annotations

import re

_UNITS = {
    "mm": "mm|millimet(?:er|re)s?", "cm": "cm|centimet(?:er|re)s?", "km": "km|kilomet(?:er|re)s?",
    "m": "m|met(?:er|re)s?", "mile": "mi|miles?", "foot": "ft|foot|feet", "inch": "in|inch(?:es)?", "yard": "yd|yards?",
    "mg": "mg|milligrams?", "kg": "kg|kilograms?", "gram": "g|grams?", "pound": "lbs?|pounds?", "ounce": "oz|ounces?",
    "ml": "ml|mL|millilit(?:er|re)s?", "liter": "L|lit(?:er|re)s?", "gallon": "gal|gallons?",
    "ms": "ms|milliseconds?", "second": "s|secs?|seconds?", "minute": "mins?|minutes?", "hour": "h|hrs?|hours?",
    "day": "days?", "week": "weeks?", "month": "months?", "year": "years?", "am": r"[aA]\.?[mM]\.?",
    "pm": r"[pP]\.?[mM]\.?", "dollar": "dollars?|USD", "cent": "cents?", "euro": "euros?|EUR",
    "degree": "degs?|degrees?",
    "celsius": "(?:degrees? )?(?:C|Celsius)", "fahrenheit": "(?:degrees? )?(?:F|Fahrenheit)",
    "radian": "rad|radians?", "mile/hour": "mph", "km/hour": "kph",
    "": "units?|people|persons?|students?|ways?|points?|digits?|solutions?",
}  # fmt: skip
"""Units by the names under which they are compared; words without a name say nothing that could be wrong."""
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]{2,12})\s*")
_COMPOUND = re.compile(rf"\s*(?:{_PART.pattern}){{2,4}}")
_CURRENCIES = {
    "\\$": "dollar",
    "€": "euro",
    "£": "pound sterling",
    "\\pounds": "pound sterling",
    "¥": "yen",
    "₹": "rupee",
}
_CURRENCY = re.compile(r"(\\\$|[€£¥₹]|\\pounds(?![a-zA-Z]))\s*")
_WORD = "|".join(_UNITS.values())
_POWER = r"\s*(?:\^\s*\{?\s*[23]\s*\}?|squared|cubed)"
_KINDS = r"(?:square|sq\.?|cubic|cu\.?)"
_NAME = re.compile(rf"({_KINDS})?\s*({_WORD})({_POWER})?")
_ONE = rf"(?:{_KINDS}\s*)?(?:{_WORD})(?![a-zA-Z])(?:{_POWER})?"
_BARE = re.compile(rf"(?<=[0-9}}])\s*({_ONE}(?:\s*(?:/|\s+per\s+)\s*{_ONE})?(?:\s+{_ONE})*)$")
_ONE_LETTER = re.compile(r"(?<=[0-9}])[ghsLm]$|(?<=[0-9}])\s*(?:in|[CF])$")
_TEXT = re.compile(
    rf"(?<=[0-9)}}a-z])\s*\\text\{{([^{{}}]*)\}}((?:{_POWER})?)\s*(?:/\s*\\text\{{([^{{}}]*)\}}((?:{_POWER})?))?$"
)
_FRACTION = re.compile(
    rf"(?<=[0-9)}}])\s*\\frac\s*\{{\s*\\text\{{([^{{}}]*)\}}()\s*\}}\s*\{{\s*\\text\{{([^{{}}]*)\}}((?:{_POWER})?)\s*\}}$"
)
_DEGREE = re.compile(r"\s*(?:\^\s*(?:\\circ(?![a-zA-Z])|\{\s*\\circ\s*\})|\\degrees?(?![a-zA-Z]))")
_ALL_TEXT = re.compile(r"\s*\\text\s*\{\s*([-+]?\s*[0-9][^{}]*)\}\s*")
_NO_UNIT = re.compile(
    r"(?:[mbtr]+illion|thousand|hundred|dozen|times|squared|cubed|factorial)s?\b|.*[0-9]", re.IGNORECASE
)


def without_currency(text: str) -> tuple[str, str]:
    r"""Return the text without `\$` and the like, and the name of the first."""
    found = _CURRENCY.search(text)
    return (_CURRENCY.sub("", text), _CURRENCIES[found[1]]) if found else (text, "")


def without_degrees(text: str) -> tuple[str, str]:
    """Return the text without signs of degrees, and `degree` where it ends with one."""
    ends = [match.end() for match in _DEGREE.finditer(text)]
    unit = "degree" if ends and not text[ends[-1] :].strip(" $.}") else ""
    return _DEGREE.sub("", text), unit


def compound(text: str) -> str | None:
    """`2 hour, 30 minute` for `2 hours and 30 minutes`; None: it is no quantity in several units."""
    plain = re.sub(r"\\text\s*\{([^{}]*)\}", r" \1 ", text)
    plain = re.sub(r"\band\b|,(?=\s)", " ", plain)
    if not _COMPOUND.fullmatch(plain):
        return None
    return ", ".join(f"{number} {_single_name(unit) or unit}" for number, unit in _PART.findall(plain))


def without_unit(text: str) -> tuple[str, str]:
    """Return the text without the unit at its end, and that unit's name: "" where it has no name here."""
    if whole := _ALL_TEXT.fullmatch(text):
        text = whole[1].strip()
    unit = _FRACTION.search(text) or _TEXT.search(text)
    if unit and not _NO_UNIT.match(unit[1].strip()):
        written = unit[1].strip() + unit[2] + (f"/{unit[3].strip()}{unit[4]}" if unit[3] else "")
        if written in ("percent", "%"):
            return f"{text[: unit.start()]}%", ""
        return text[: unit.start()], _name(written)
    text = re.sub(r"(?<=[0-9])\s*(?:percent|percentage|pct)$", "%", text)
    unit = _BARE.search(text)
    if unit is None or _ONE_LETTER.search(text):  # 5m is a product
        return text, ""
    return text[: unit.start()], _name(unit[1].strip())


def _name(written: str) -> str:
    """`cm^2` for `square centimeters`, `km/hour` for `kilometers per hour`."""
    names = [_single_name(part.strip()) for part in re.split(r"/|\bper\b", written)]
    return "/".join(names) if all(names) else ""


def _single_name(written: str) -> str:
    unit = _NAME.fullmatch(written) or _NAME.fullmatch(written.lower())
    if unit is None:
        return ""
    name = next(name for name, words in _UNITS.items() if re.fullmatch(words, unit[2]))
    kind = (unit[1] or "") + (unit[3] or "")
    power = "2" if "sq" in kind or "2" in kind else "3" if kind else ""
    return f"{name}^{power}" if name and power else name
