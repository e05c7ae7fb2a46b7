"""The rule of DAPO (verl's `math_dapo`, slime's `dapo`): the last line "Answer: ...", compared as a normalized string.

The normalization is Minerva's (Lewkowycz et al., 2022, appendix D.1), whose lists of words stand below.
"""

from __future__ import annotations

import re

TAIL = 300
"""Characters of the response that are read, from its end."""

_ANSWER = re.compile(r"(?i)Answer\s*:\s*([^\n]+)")
_SUBSTITUTED = (
    ("an ", ""), ("a ", ""), (".$", "$"), ("\\$", ""), ("\\ ", ""), (" ", ""), ("mbox", "text"),
    (",\\text{and}", ","), ("\\text{and}", ","), ("\\text{m}", "\\text{}"),
)  # fmt: skip
_REMOVED = (
    "square", "ways", "integers", "dollars", "mph", "inches", "hours", "km", "units", "\\ldots", "sue", "points",
    "feet", "minutes", "digits", "cents", "degrees", "cm", "gm", "pounds", "meters", "meals", "edges", "students",
    "childrentickets", "multiples", "\\text{s}", "\\text{.}", "\\text{\ns}", "\\text{}^2", "\\text{}^3",
    "\\text{\n}", "\\text{}", "\\mathrm{th}", "^\\circ", "^{\\circ}", "\\;", ",\\!", "{,}", '"', "\\dots",
    "<|im_end|>", "<|endoftext|>",
)  # fmt: skip
_WHOLE = re.compile(r"[+-]?[0-9]{1,2000}(?:\.[0-9]{0,2000})?")


def extract(response: str) -> str | None:
    """Return the text of the last line "Answer: ..." near the end, or None."""
    lines = _ANSWER.findall(response[-TAIL:])
    return lines[-1] if lines else None


def compare(answer: str, label: str) -> str:
    """`text` or `different`. A numeric label is cut to an integer, as slime does; another stays a string."""
    wanted = normalize(label)
    if _WHOLE.fullmatch(wanted):
        wanted = str(int(wanted.partition(".")[0]))
    return "text" if normalize(answer) == wanted else "different"


def normalize(answer: str) -> str:
    """Minerva's normalization of a final answer."""
    text = answer.split("=")[-1]
    for before, after in _SUBSTITUTED:
        text = text.replace(before, after)
    for word in _REMOVED:
        text = text.replace(word, "")
    text = re.sub(r"(.*?)(\$)(.*?)(\$)(.*)", r"$\3$", text)
    for font in ("text", "textbf", "overline"):
        text = re.sub(rf"\\{font}\{{(.*?)\}}", r"\1", text)
    text = re.sub(r"\\boxed\{(.*)\}", r"\1", text)
    text = re.sub(r"(frac)([^{])(.)", r"frac{\2}{\3}", text)
    text = re.sub(r"(sqrt)([^{])", r"sqrt{\2}", text).replace("$", "")
    if text.replace(",", "").isdigit():
        text = text.replace(",", "")
    return text.strip()
