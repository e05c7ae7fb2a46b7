r"""What LaTeX and prose put around an answer, taken off before it is compared: sizes, spaces, fonts, units, dollars."""

from __future__ import annotations

import re

from sat_slime.rollout.reward.structure import is_name

MAX_ANSWER = 2000
"""Characters of an answer; more is no answer, and the expressions below take more than linear time."""

_UNICODE = str.maketrans(
    {
        "−": "-", "–": "-", "×": "\\times ", "·": "\\cdot ", "÷": "/", "π": "\\pi ", "∞": "\\infty ", "°": "",
        "≤": "\\le ", "≥": "\\ge ", "≠": "\\ne ", "∪": "\\cup ", "∩": "\\cap ", "∈": "\\in ", "≈": "\\approx ",
        "\u00a0": " ", "\u2009": " ", "\u202f": " ", "′": "'", "’": "'",
    }
)  # fmt: skip
_MATRIX = re.compile(r"\\begin\{(?:[a-zA-Z]*matrix|cases|array|aligned)\}")
_GROUPED = re.compile(r"(?<=[0-9])(?:\\[,!;:]|\{,\}|,\\!|\\ )\s*(?=[0-9]{3}(?![0-9]))")
_FONTS = "normal|rm|bf|it|sf|tt|sc|up|md|sl"
_BEFORE = r"(?<=[\s0-9)}\]])(?<![a-zA-Z\\])"
_REPLACED = [
    (re.compile(r"\\[dtc]frac(?![a-zA-Z])"), r"\\frac"),
    (re.compile(r"\\(?:left|right)\s*\.|\\(?:left|right|middle|[bB]igg?[lrm]?)(?![a-zA-Z])"), ""),
    (re.compile(r"\\(?:displaystyle|textstyle|scriptstyle|limits|nolimits|boxed)(?![a-zA-Z])"), ""),
    (re.compile(r"\^\s*(?:\\circ(?![a-zA-Z])|\{\s*\\circ\s*\})|\\degrees?(?![a-zA-Z])"), ""),
    (re.compile(r"(?<!\\)\\[()\[\]](?=\s|$)|^\\[(\[]|\$"), ""),
    (re.compile(r"(?<!\\)\\[,;:!> ]|~|\\q?quad(?![a-zA-Z])|\\(?:h|ph)antom\{\}"), " "),
    (re.compile(r"\\operatorname\s*\{(gcd|lcm)\}"), r"\\\1"),
    (re.compile(r"\{\s*\\(?:rm|bf|it|sf|tt)\s+([^{}]*)\}"), r"\\text{\1}"),
    (re.compile(r"\\(?:rm|bf|it|sf|tt)(?![a-zA-Z])"), ""),
    (re.compile(rf"\\(?:operatorname|bm|boldsymbol|mbox|(?:text|math)(?:{_FONTS}))\s*\{{"), r"\\text{"),
    (re.compile(rf",?\s*(?:\\text\s*\{{\s*,?\s*and\s*\}}|{_BEFORE}and(?![a-zA-Z]))\s*"), ", "),
    (re.compile(rf",?\s*(?:\\text\s*\{{\s*,?\s*or\s*\}}|{_BEFORE}or(?![a-zA-Z]))\s*"), r" \\lor "),
    (re.compile(r",?\s*\\(?:lor|vee)(?![a-zA-Z])\s*"), r" \\lor "),
    (re.compile(r"\\(le|ge|ne)q(?:slant)?(?![a-zA-Z])"), r"\\\1"),
    (re.compile(r"<\s*=|=\s*<"), r"\\le "),
    (re.compile(r">\s*="), r"\\ge "),
    (re.compile(r"\\lt(?![a-zA-Z])"), "<"),
    (re.compile(r"\\gt(?![a-zA-Z])"), ">"),
    (re.compile(r"\\varnothing(?![a-zA-Z])"), r"\\emptyset"),
    (re.compile(r"\\(?:thickapprox|simeq|doteq)(?![a-zA-Z])"), r"\\approx"),
    (re.compile(r"\\lbrace(?![a-zA-Z])"), r"\\{"),
    (re.compile(r"\\rbrace(?![a-zA-Z])"), r"\\}"),
]  # fmt: skip
_DECIMAL_COMMA = re.compile(r"(?<=[0-9])\{,\}(?=[0-9])")
_ZERO_COMMA = re.compile(r"(?<![0-9.,])0\{,\}(?=[0-9])")
_APPROXIMATELY = re.compile(r"\\approx(?![a-zA-Z])")
_ABOUT = re.compile(
    r"^(?:\\text\{\s*)?(?:approximately|approx\.?|about|roughly|around|exactly)(?:\s*\}|(?![a-zA-Z]))\s*"
)
_CONSTANTS = ("\\pi", "\\infty", "e", "i")
_UNITS = {
    "mm": "mm|millimet(?:er|re)s?", "cm": "cm|centimet(?:er|re)s?", "km": "km|kilomet(?:er|re)s?",
    "m": "m|met(?:er|re)s?", "mile": "mi|miles?", "foot": "ft|foot|feet", "inch": "in|inch(?:es)?", "yard": "yd|yards?",
    "mg": "mg|milligrams?", "kg": "kg|kilograms?", "gram": "g|grams?", "pound": "lbs?|pounds?", "ounce": "oz|ounces?",
    "ml": "ml|mL|millilit(?:er|re)s?", "liter": "L|lit(?:er|re)s?", "ms": "ms|milliseconds?",
    "second": "s|secs?|seconds?", "minute": "mins?|minutes?", "hour": "h|hrs?|hours?", "day": "days?", "week": "weeks?",
    "month": "months?", "year": "years?", "dollar": "dollars?|USD", "cent": "cents?", "euro": "euros?|EUR|€",
    "degree": "degs?|degrees?", "radian": "rad|radians?", "mph": "mph|miles per hour",
    "km/h": "km/h|kph|kilometers per hour", "m/s": "m/s|meters per second",
    "": "units?|people|persons?|students?|ways?|points?|digits?|square|cubic|sq\\.?|solutions?",
}  # fmt: skip
"""Of an answer's number, by name; those without are words that say nothing that could be wrong."""
_UNIT_WORDS = "|".join(_UNITS.values())
_POWER = r"(?:\s*\^\s*\{?[23]\}?|[²³])?"
_UNIT = re.compile(rf"(?<=[0-9}}])\s*((?:(?:{_UNIT_WORDS})(?![a-zA-Z]){_POWER}\s*)+)$")
_ONE_LETTER = re.compile(r"(?<=[0-9}])[ghsLm]$|(?<=[0-9}])\s*in$")
_TEXT_UNIT = re.compile(rf"(?<=[0-9)}}a-z])\s*\\text\{{([^{{}}]*)\}}\s*(?:/\s*\\text\{{([^{{}}]*)\}})?{_POWER}$")
_FRACTION_UNIT = re.compile(r"(?<=[0-9)}])\s*\\frac\s*\{\s*\\text\{([^{}]*)\}\s*\}\s*\{\s*\\text\{([^{}]*)\}\s*\}$")
_MAGNITUDES = ("million", "billion", "trillion")
_ONLY_TEXT = re.compile(r"\\text\{([^{}]*)\}")
_SPACES = re.compile(r"\s+")


def clean(answer: str) -> str:
    """The answer as one line of plain mathematics. Idempotent for what matters; never fails."""
    return split_unit(answer)[0]


def split_unit(answer: str) -> tuple[str, str]:
    """The cleaned answer, and the name of its unit: "" without one, or with one that has no name here."""
    text = answer.translate(_UNICODE)
    if not _MATRIX.search(text):
        text = re.sub(r"\\\\(?=[a-zA-Z({\[])", r"\\", text).rstrip("\\")
    text = _GROUPED.sub("", _ZERO_COMMA.sub("0.", text.replace("\\$", "").replace("\\%", "%")))
    text = _DECIMAL_COMMA.sub(".", text)
    for pattern, replacement in _REPLACED:
        text = pattern.sub(replacement, text)
    text = _SPACES.sub(" ", text).strip().rstrip(".,;:").strip()
    text = _ABOUT.sub("", _exactly(text))
    text, unit = _without_unit(text)
    return _outer_braces(text.strip()), unit


def _exactly(text: str) -> str:
    r"""Of `\sqrt{2} \approx 1.41` the root, of `x \approx 11` that x is 11."""
    exact, approximately, near = _partition(_APPROXIMATELY, text)
    exact, near = exact.strip(), near.strip()
    if not approximately:
        return text
    name = exact.rpartition("=")[2].strip()
    if exact and near and is_name(name) and name not in _CONSTANTS:
        return f"{exact} = {near}"
    return exact or near


def _without_unit(text: str) -> tuple[str, str]:
    unit = _FRACTION_UNIT.search(text) or _TEXT_UNIT.search(text)
    if unit and not unit[1].strip().lower().startswith(_MAGNITUDES):
        written = unit[1].strip() + (f"/{unit[2].strip()}" if unit[2] else "")
        if written in ("percent", "%"):
            return f"{text[: unit.start()]}%", ""
        return text[: unit.start()], _unit_name(written)
    text = re.sub(r"(?<=[0-9])\s*(?:percent|percentage|pct)$", "%", text)
    unit = _UNIT.search(text)
    if unit is None or _ONE_LETTER.search(text):  # 5m is a product
        return text, ""
    return text[: unit.start()], _unit_name(unit[1].strip())


def _unit_name(written: str) -> str:
    written = re.sub(_POWER + r"$", "", written).strip()
    return next((name for name, words in _UNITS.items() if name and re.fullmatch(words, written)), "")


def words(text: str) -> str:
    """An answer in words, the way it is compared: lower case, no fonts, no punctuation around it."""
    text = _ONLY_TEXT.sub(r"\1", text).lower()
    text = _SPACES.sub(" ", text).strip(" .,;:!'\"`")
    if len(text) >= 3 and text[0] == "(" and text[-1] == ")" and text[1:-1].isalpha():
        text = text[1:-1]  # (A), one of several choices
    return text


def _outer_braces(text: str) -> str:
    """{x} is x."""
    while len(text) > 2 and text[0] == "{" and text[-1] == "}" and "{" not in text[1:-1] and "}" not in text[1:-1]:
        text = text[1:-1].strip()
    return text


def _partition(pattern: re.Pattern[str], text: str) -> tuple[str, str, str]:
    match = pattern.search(text)
    return (text, "", "") if match is None else (text[: match.start()], match[0], text[match.end() :])
