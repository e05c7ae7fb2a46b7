r"""PRIME's verifier (`prime_math` in verl), its verdicts without its `eval`.

First prm800k's grading: Hendrycks' strings, then a normalization of its own, tuples part by part, `simplify(a - b)`.
Then ToRA's: numbers to a relative 1e-4, also with a factor 100 either way, tuples again, and mathematics to 1e-4.
Where PRIME calls `eval`, `parse_expr` and ANTLR's LaTeX, this reads numbers and LaTeX by grammar: docs/reward.md.
"""

from __future__ import annotations

import math
import re

from sat_slime.reward.cleaning import SIGNS
from sat_slime.reward.symbolic import equal_expressions

TOLERANCE = 1e-4
_BRACKETS = "()[]"
_UNITS = (
    "degree", "cm", "centimeter", "meter", "mile", "second", "minute", "hour", "day", "week", "month", "year", "foot",
    "feet", "inch", "yard", "liter",
)  # fmt: skip
_NOT_TRIED = re.compile(r"\^[{(]|\^[0-9]+\^|\^[0-9][0-9]+")
_FRACTION = re.compile(r"^-?[0-9]+.?/0*[1-9][0-9]*.?$")
_THOUSANDS = re.compile(r"(?<=[0-9]),(?=[0-9]{3}(?![0-9]))")
_ONLY_TEXT = re.compile(r"^\\text\{(.+?)\}$")
_QUOTIENT = re.compile(r"(-?[1-9][0-9]*|0)/(-?[1-9][0-9]*|0)")
_LAYOUT = re.compile(
    r"\\(?:left|right|middle|[bB]igg?[lrm]?|(?:display|text|script)style|(?:no)?limits|q?quad|boxed|fbox|operatorname|"
    r"overline|underline|widehat|overrightarrow|bm|boldsymbol|sf|tt|(?:text|math)?(?:bf|rm|it)|text|ensuremath|"
    r"[lL]arge|checkmark|[lr]brace|triangle|thinspace|[mh]box|(?:text)?color\s*\{[a-z]*\})(?![a-zA-Z])|\\[^a-zA-Z]|~"
)
_SIGNS = {name: sign for sign, name in SIGNS.items()}
_SIGNS |= {"leq": "≤", "geq": "≥", "neq": "≠", "lt": "<", "gt": ">", "varnothing": "∅"}
"""What commands print; another prints its name."""
_SYMBOLS = (("√", "sqrt"), ("π", "pi"), ("∞", "inf"), ("∪", "U"), ("·", "*"), ("⋅", "*"), ("×", "*"))


def compare(answer: str, label: str) -> str:
    """Return the reason of the verdict in this mode."""
    answer = answer[:1000]
    if hendrycks(answer) == hendrycks(label):
        return "text"
    mine, theirs = normalize(answer), normalize(label)
    if mine.replace(" ", "") == theirs.replace(" ", ""):
        return "text"
    if mine and _equal_parts(mine, theirs):
        return "symbolic"
    values = (math.pi, 3.14) if "\\pi" in answer + label else (math.pi,)
    return "number" if any(_math_equal(answer, label, pi) for pi in values) else "different"


def hendrycks(answer: str, drop_left_side: bool = True) -> str:
    r"""Return the answer as the MATH data set normalizes it (Hendrycks et al., 2021), for which equal strings are the
    same answer; what the original fails on, such as a \sqrt that nothing follows, comes back stripped only.
    `drop_left_side`: `k = 5` becomes `5`, for a left side of up to two characters."""
    answer = answer.strip()
    if only_text := _ONLY_TEXT.search(answer):
        answer = only_text[1].strip()
    text = answer.replace("\n", "").replace("\\!", "").replace("\\\\", "\\")
    text = text.replace("tfrac", "frac").replace("dfrac", "frac")
    text = re.sub(r"\\left|\\right|\^\{\\circ\}|\^\\circ|\\\$", "", text)
    if text.count("\\text{ ") > 1:
        return answer
    text = text.partition("\\text{ ")[0]  # in MATH this is always a unit
    text = re.sub(r"(?<![^ {])\.", "0.", text.replace("\\%", ""))
    left, equals, right = text.partition("=")
    if drop_left_side and equals and "=" not in right and len(left) <= 2:
        text = right
    if re.search(r"\\sqrt$", text):
        return answer
    text = re.sub(r"\\sqrt([^{])", r"\\sqrt{\1}", text).replace(" ", "")
    if re.search(r"\\frac(?:\\frac|$)", text):
        return answer
    if not re.search(r"\\frac[^{](?:\\frac|$)", text):
        text = re.sub(r"\\frac([^{])([^{])", r"\\frac{\1}{\2}", text)
        text = re.sub(r"\\frac([^{])\{", r"\\frac{\1}{", text)
    over = _QUOTIENT.fullmatch("1/2" if text == "0.5" else text)
    return f"\\frac{{{over[1]}}}{{{over[2]}}}" if over else text


def normalize(answer: str) -> str:
    """prm800k's normalization: percent and dollar signs, units, words for powers of ten, LaTeX to text."""
    text = _ONLY_TEXT.sub(r"\1", answer)
    text = text.replace("\\%", "%").replace("\\$", "$").replace("$", "").replace("%", "")
    text = text.replace(" or ", " , ").replace(" and ", " , ")
    text = text.replace("million", "*10^6").replace("billion", "*10^9").replace("trillion", "*10^12")
    for unit in _UNITS:
        text = re.sub(rf"{unit}(es)?(s)? *(\^[0-9]+)?", "", text)
    text = re.sub(r"\^ *\\circ", "", text)
    if text[:1] == "{" and text[-1:] == "}":
        text = text[1:-1]
    text = re.sub(r",\\! *", "", text)
    if "\\" in text:
        text = _plain(text)
    text = re.sub(r"- *", "-", text)
    text = re.sub(r"([0-9]) +([0-9])", r"\1+\2", text).lower()
    return str(round(_float(_THOUSANDS.sub("", text)))) if _is_integer(text) else text


def _plain(latex: str) -> str:
    r"""Return LaTeX as text: \frac{a}{b} as a/b, \sqrt{a} as sqrt(a), symbols by name, layout and braces dropped."""
    text = re.sub(r"\\[td]frac", r"\\frac", latex.replace("\\pmod ", "\\pmod"))
    for _ in range(8):  # nested, from the inside
        text = re.sub(r"\\frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}", r" \1/\2", text)
        text = re.sub(r"\\sqrt\s*\{([^{}]*)\}", r"√(\1)", text)
        text = re.sub(r"\\[a-z]*(?:text|mathrm|mathbf)[a-z]*\s*\{([^{}]*)\}", r"\1", text)
    text = _LAYOUT.sub("", text.replace("\\\\", ";"))
    text = re.sub(r"\\([a-zA-Z]+)", lambda command: _SIGNS.get(command[1], command[1]), text)
    for symbol, name in _SYMBOLS:
        text = text.replace(symbol, name)
    return text.replace("{", "").replace("}", "").strip(" ;")


def _equal_parts(mine: str, theirs: str) -> bool:
    given, wanted = _split_tuple(mine), _split_tuple(theirs)
    if len(wanted) > 1 and (theirs[0], theirs[-1]) != (mine[0], mine[-1]):
        return False
    return len(given) == len(wanted) and all(map(_equal_part, given, wanted))


def _equal_part(given: str, wanted: str) -> bool:
    if _FRACTION.search(wanted) and _FRACTION.search(given):
        return given == wanted  # an unreduced fraction is wrong here, and right by ToRA's rule below
    if _is_integer(wanted) != _is_integer(given):
        return False
    both = f"({wanted})-({given})"
    letters = {character for character in both.replace("sqrt", "").replace("frac", "") if character.isalpha()}
    return len(letters) <= 2 and not _NOT_TRIED.search(both) and equal_expressions(given, wanted, None)


def _math_equal(answer: str, label: str, pi: float, depth: int = 0) -> bool:
    answer, label = _tora_normalize(answer, pi), _tora_normalize(label, pi)
    if answer.strip().lower() == label.strip().lower() or answer.replace(" ", "") == label.replace(" ", ""):
        return True
    number, value = (_float(text.replace("{,}", "").replace(",", "")) for text in (answer, label))
    if not math.isnan(number + value):
        return any(math.isclose(value * factor, number, rel_tol=TOLERANCE) for factor in (0.01, 1, 100))
    answer, label = answer.strip(), label.strip()
    if not answer or not label:
        return False
    if _without_brackets(answer, label):
        return True
    if "," in answer and "," in label and depth < 2:
        brackets, inner = answer[0] + answer[-1], slice(None)
        if brackets == label[0] + label[-1] and brackets in ("()", "[]", "(]", "[)"):
            inner = slice(1, -1)
        given, wanted = answer[inner].split(","), label[inner].split(",")
        if len(given) == len(wanted):
            pairs = zip(given, wanted, strict=True)
            return all(_math_equal(mine.strip(), theirs.strip(), math.pi, depth + 1) for mine, theirs in pairs)
    return not (answer + label).isalpha() and equal_expressions(answer, label, TOLERANCE)  # BAC is one symbol


def _tora_normalize(text: str, pi: float) -> str:
    if re.match(r"\$[0-9]+(\.[0-9]+)?", text):
        return text[1:]
    if re.match(r"^[0-9]+(\.[0-9]+)?\\?%$", text):
        return text.rstrip("%").rstrip("\\")
    if "_" in text and math.isfinite(digits := _float(text.split("_")[0])):
        text = str(int(digits))  # 1011_2: the base is dropped
    if "\\pi" in text and (product := re.fullmatch(r"\s*([+-]?[0-9]*\.?[0-9]*)\s*\\pi\s*(?:/\s*([0-9.]+))?\s*", text)):
        # PRIME's `eval` is for this alone: a number times pi.
        factor = _float(product[1] + "1" if product[1] in ("", "+", "-") else product[1])
        divisor = _float(product[2] or "1")
        if divisor and not math.isnan(factor + divisor):
            return repr(factor * pi / divisor)
    return text


def _without_brackets(answer: str, label: str) -> bool:
    mine, theirs = answer, label
    if (answer[0] + answer[-1] == "[]" and label[0] != "(") or (answer[0] + answer[-1] == "()" and label[0] != "["):
        mine, theirs = mine.strip("[]()"), theirs.strip("[]()")
    drop = str.maketrans("", "", "{}()")
    return mine.translate(drop) == theirs.translate(drop)


def _split_tuple(text: str) -> list[str]:
    text = _THOUSANDS.sub("", text)
    inner = text[1:-1]
    if len(text) > 2 and text[0] in _BRACKETS and text[-1] in _BRACKETS and not any(b in inner for b in _BRACKETS):
        return [part.strip() for part in inner.split(",")]
    return [text]


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _is_integer(text: str) -> bool:
    number = _float(_THOUSANDS.sub("", text))
    return math.isfinite(number) and abs(number - round(number)) <= 1e-7
