r"""Takes off what LaTeX and prose put around an answer, before it is compared: sizes, spaces, fonts, units, dollars."""

from __future__ import annotations

import re

from sat_slime.reward.spelling import respelled
from sat_slime.reward.structure import is_name
from sat_slime.reward.units import compound, without_currency, without_degrees, without_unit

MAX_ANSWER = 2000
"""The most characters of an answer: more is no answer, and the expressions below take more than linear time."""

_MATRIX = re.compile(r"\\begin\{(?:[a-zA-Z]*matrix|cases|array|aligned)\}")
_GROUPED = re.compile(r"(?<=[0-9])(?:\\[,!;:]|\{,\}|,\\!|\\ )\s*(?=[0-9]{3}(?![0-9]))")
_FONTS = "normal|rm|bf|it|sf|tt|sc|up|md|sl"
_BEFORE = r"(?<=[\s0-9)}\]])(?<![a-zA-Z\\])"
_REPLACED = [
    (re.compile(r"\\[dtc]frac(?![a-zA-Z])"), r"\\frac"),
    (re.compile(r"\\(?:left|right)\s*\.|\\(?:left|right|middle|[bB]igg?[lrm]?)(?![a-zA-Z])"), ""),
    (re.compile(r"\\(?:displaystyle|textstyle|scriptstyle|limits|nolimits|boxed)(?![a-zA-Z])"), ""),
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
_NEARLY = re.compile(
    r"(?<=\S)\s*[,(]?\s*(?:or|i\.e\.,?|which is)?\s*(?:\\text\{\s*)?\b(?:approximately|about|roughly)\s*\}?\s*(?=[0-9])"
)
_SAID = re.compile(r"^\\text\s*\{[^{}]*[a-z]{2}[^{}]*(?:\bis|\bare|:|=)\s*\}\s*(?=\S)")
_ROUNDED = re.compile(r"\s*(?:\\text\s*\{\s*)?\(\s*(?:rounded|correct|to|nearest)\s[^{}()]*\)\s*\}?$")
_CONSTANTS = ("\\pi", "\\infty", "e", "i")
_ONLY_TEXT = re.compile(r"\\text\{([^{}]*)\}")
_SPACES = re.compile(r"\s+")
_ARTICLE = re.compile(r"^(?:an?|the) (?=[a-z][a-z' -]{2,}$)")
_CHOSEN = re.compile(r"^(?:option|choice|answer|letter) (?=\(?[a-j]\)?$)")


def clean(answer: str) -> str:
    """Return the answer as one line of plain mathematics. Cleaning it again changes nothing that matters; it never
    fails."""
    return split_unit(answer)[0]


def split_unit(answer: str) -> tuple[str, str]:
    """Return the cleaned answer, and the name of its unit: "" without one, or with one that has no name."""
    text, currency = without_currency(respelled(answer))
    text, degree = without_degrees(text)
    if not _MATRIX.search(text):
        text = re.sub(r"\\\\(?=[a-zA-Z({\[])", r"\\", text).rstrip("\\")
    text = _GROUPED.sub("", _ZERO_COMMA.sub("0.", text.replace("\\%", "%")))
    text = _DECIMAL_COMMA.sub(".", text)
    for pattern, replacement in _REPLACED:
        text = pattern.sub(replacement, text)
    text = _SPACES.sub(" ", text).strip().rstrip(".,;:").strip()
    text = _ROUNDED.sub("", text)
    text = _ABOUT.sub("", _SAID.sub("", text))
    text = _ABOUT.sub("", _exactly(_NEARLY.sub(r" \\approx ", text)))
    if several := compound(text):
        return several, ""
    text, unit = without_unit(text)
    return _outer_braces(text.strip()), unit or degree or currency


def _exactly(text: str) -> str:
    r"""Return what is compared of an approximation: of `\sqrt{2} \approx 1.41` the root, of `x \approx 11` that x is
    11."""
    if (match := _APPROXIMATELY.search(text)) is None:
        return text
    exact, near = text[: match.start()].strip(), text[match.end() :].strip()
    name = exact.rpartition("=")[2].strip()
    if exact and near and is_name(name) and name not in _CONSTANTS:
        return f"{exact} = {near}"
    return exact or near


def words(text: str) -> str:
    """Return an answer in words, the way it is compared: lower case, no fonts, no punctuation around it."""
    text = _ONLY_TEXT.sub(r"\1", text).lower()
    text = _SPACES.sub(" ", text).strip(" .,;:!'\"`")
    if len(text) <= MAX_ANSWER:
        text = _CHOSEN.sub("", _ARTICLE.sub("", text))
    if len(text) >= 3 and text[0] == "(" and text[-1] == ")" and text[1:-1].isalpha():
        text = text[1:-1]  # (A), one of several choices
    return text


def _outer_braces(text: str) -> str:
    """Return the text without braces around all of it: {x} is x."""
    while len(text) > 2 and text[0] == "{" and text[-1] == "}" and "{" not in text[1:-1] and "}" not in text[1:-1]:
        text = text[1:-1].strip()
    return text
