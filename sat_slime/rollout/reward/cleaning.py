r"""What LaTeX and prose put around an answer, taken off before it is compared: sizes, spaces, fonts, units, dollars."""

from __future__ import annotations

import re

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
_REPLACED = [
    (re.compile(r"\\[dtc]frac(?![a-zA-Z])"), r"\\frac"),
    (re.compile(r"\\(?:left|right)\s*\.|\\(?:left|right|middle|[bB]igg?[lrm]?)(?![a-zA-Z])"), ""),
    (re.compile(r"\\(?:displaystyle|textstyle|scriptstyle|limits|nolimits|boxed)(?![a-zA-Z])"), ""),
    (re.compile(r"\^\s*(?:\\circ(?![a-zA-Z])|\{\s*\\circ\s*\})|\\degrees?(?![a-zA-Z])"), ""),
    (re.compile(r"(?<!\\)\\[()\[\]](?=\s|$)|^\\[(\[]|\$"), ""),
    (re.compile(r"(?<!\\)\\[,;:!> ]|~|\\q?quad(?![a-zA-Z])|\\(?:h|ph)antom\{\}"), " "),
    (re.compile(r",?\s*\\(?:text|mbox|mathrm)\s*\{\s*(?:and|or)\s*\}|,?\s+(?:and|or)\s+"), ", "),
    (re.compile(r"\\(le|ge|ne)q(?![a-zA-Z])"), r"\\\1"),
    (re.compile(r"\\(?:operatorname|math(?:rm|bf|it|sf)|bm|boldsymbol|text(?:bf|it|rm)?|mbox)\s*\{"), r"\\text{"),
    (re.compile(r"\\lbrace(?![a-zA-Z])"), r"\\{"),
    (re.compile(r"\\rbrace(?![a-zA-Z])"), r"\\}"),
]  # fmt: skip
_APPROXIMATELY = re.compile(r"\\(?:approx|simeq)(?![a-zA-Z])")
_UNIT_WORDS = (
    "degrees? radians? units? dollars? cents? percent seconds? minutes? hours? days? weeks? months? years? meters? "
    "metres? centimeters? kilometers? miles? feet foot inch(?:es)? yards? liters? litres? grams? kilograms? pounds? "
    "people students? ways? points? digits? square cubic mm cm km m kg mph"
).replace(" ", "|")
_UNITS = re.compile(rf"(?<=[0-9}}])\s*(?:(?:{_UNIT_WORDS})(?:\s*\^\s*\{{?[23]\}}?)?\s*)+$")
_TEXT_UNIT = re.compile(r"(?<=[0-9)}a-z])\s*\\text\{([^{}]*)\}\s*(?:\^\s*\{?[0-9]\}?)?$")
_MAGNITUDES = ("million", "billion", "trillion")
_ONLY_TEXT = re.compile(r"\\text\{([^{}]*)\}")
_SPACES = re.compile(r"\s+")


def clean(answer: str) -> str:
    """The answer as one line of plain mathematics. Idempotent for what matters; never fails."""
    text = answer.translate(_UNICODE)
    if not _MATRIX.search(text):
        text = re.sub(r"\\\\(?=[a-zA-Z({\[])", r"\\", text).rstrip("\\")
    text = _GROUPED.sub("", text.replace("\\$", "").replace("\\%", "%"))
    for pattern, replacement in _REPLACED:
        text = pattern.sub(replacement, text)
    text = _SPACES.sub(" ", text).strip().rstrip(".,;:").strip()
    exact, approximately, _ = _partition(_APPROXIMATELY, text)
    if approximately and exact.strip():
        text = exact.strip()
    unit = _TEXT_UNIT.search(text)
    if unit and not unit[1].strip().lower().startswith(_MAGNITUDES):
        text = f"{text[: unit.start()]}%" if unit[1].strip() in ("percent", "%") else text[: unit.start()]
    else:
        text = re.sub(r"(?<=[0-9])\s*(?:percent|percentage|pct)$", "%", text)
        text = _UNITS.sub("", text)
    return _outer_braces(text.strip())


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
