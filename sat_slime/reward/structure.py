r"""How an answer is written: its outer structure, of lists, tuples, sets, intervals and sides, and its numbers, which
are read exactly: 34, 1,234, 0.50, 2/3, \frac{2}{3}, 1\frac12, 2\times10^9, 5 million."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

MAX_DIGITS = 2000
MAX_EXPONENT = 1000
MIN_ROUNDED_DIGITS = 4
"""Significant digits from which on a decimal may stand for the number that it rounds: 0.3333 is 1/3, 0.33 is not."""

_WHOLE = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,2}(?:,[0-9]{2})+,[0-9]{3}|[0-9]+)"
_SIDE = rf"\s*(?:\{{\s*(-?{_WHOLE})\s*\}}|([0-9]))"
_LITERAL = re.compile(
    rf"(?P<sign>[+-]?)\s*(?:(?:(?P<mixed>{_WHOLE})\s*(?=\\)\+?\s*)?\\frac{_SIDE}{_SIDE}|"
    rf"(?:(?P<with>{_WHOLE})\s+)?(?P<over>{_WHOLE}\s*/\s*{_WHOLE})|(?=\.?[0-9])(?P<digits>{_WHOLE}?)(?:\.(?P<decimals>[0-9]*))?"
    r"(?:\s*(?:(?:\\times|\\cdot|\*|x)\s*10\s*\^|[eE](?!\{))\s*(?P<exponent>\{\s*[+-]?[0-9]+\s*\}|[+-]?[0-9]+))?)"
    r"(?:\s*(?:\\text\{\s*)?(?P<magnitude>million|billion|trillion)s?\s*\}?)?"
)
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

    def hundredfold(self, times: int) -> Literal:
        """Return it times 100, or with -1 a hundredth of it."""
        decimals = None if self.decimals is None else self.decimals - 2 * times
        return Literal(self.value * Fraction(100) ** times, self.whole, decimals, self.significant)

    def rounds(self, value: Fraction) -> bool:
        """Return whether this decimal is `value` rounded to its digits, and has enough of them."""
        if self.decimals is None or self.significant < MIN_ROUNDED_DIGITS:
            return False
        return abs(self.value - value) * 2 * Fraction(10) ** self.decimals <= 1


def read_literal(text: str) -> Literal | None:
    """Return the number that a cleaned answer without percent sign writes out, or None."""
    if len(text) > MAX_DIGITS or (match := _LITERAL.fullmatch(text.strip())) is None:
        return None
    part = {name: (group or "").replace(",", "") for name, group in match.groupdict().items()}
    scale = (-1 if part["sign"] == "-" else 1) * _MAGNITUDES.get(part["magnitude"], 1)
    if match["digits"] is None:
        sides = part["over"].split("/") if part["over"] else filter(None, match.group(3, 4, 5, 6))
        top, bottom = (int(side.replace(",", "")) for side in sides)
        mixed = part["mixed"] or part["with"]
        if bottom == 0 or (mixed and (top < 0 or bottom < 0)):
            return None
        return Literal((int(mixed or 0) + Fraction(top, bottom)) * scale, False)
    digits, decimals, exponent = part["digits"], part["decimals"], int(part["exponent"].strip("{ }")[:8] or 0)
    if abs(exponent) > MAX_EXPONENT:
        return None
    value = Fraction(int(digits + decimals), 10 ** len(decimals)) * Fraction(10) ** exponent
    if decimals and not part["magnitude"]:
        return Literal(value * scale, False, len(decimals) - exponent, len((digits + decimals).lstrip("0")))
    return Literal(value * scale, not decimals and value.denominator == 1)


MAX_PARTS = 64
CLOCK = re.compile(r"(?<![0-9:.])[0-2]?[0-9]:(?:0[0-9]|[0-5][0-9]:[0-5][0-9])(?![0-9:.])")
"""Matches a time of day, 12:00 or 7:30:15, which is no quotient. 11:30 may be either."""
_BRACKETS = re.compile(r"(\\\{|[(\[])\s*(.*?)\s*(\\\}|[)\]])", re.DOTALL)
_PIECE = re.compile(r"\\\{|\\\}|\\[a-zA-Z]+|\\.|.", re.DOTALL)
_SUBSCRIPT = r"(?:_(?:\w|\{[^{}]{1,30}\}))"
_VARIABLE = re.compile(
    rf"\s*(?:[a-zA-Z]|\\[a-zA-Z]+){_SUBSCRIPT}?'{{0,2}}\s*(?:\(\s*[a-zA-Z](?:\s*,\s*[a-zA-Z])*\s*\))?\s*"
)
_TERM = r"(?:[0-9]+|\\frac\{[0-9]+\}\{[0-9]+\})?\*?[a-z](?:\^(?:[0-9]|\{[0-9]+\}))?|[0-9]+"
_POLYNOMIAL = re.compile(rf"-?(?:{_TERM})(?:[+-](?:{_TERM}))*")
_LETTER = r"(?:[a-zA-Z]|\\(?!pi|infty)[a-z]+\s*)(?:_\{?\w\}?)?"
_TUPLE_OF_VARIABLES = re.compile(rf"\s*\(\s*{_LETTER}(?:\s*,\s*{_LETTER})+\s*\)\s*")
_TUPLES = re.compile(rf"^\s*\(\s*({_LETTER}(?:\s*,\s*{_LETTER})+)\s*\)\s*=\s*\(([^()]*)\)\s*$")
"""Matches `(x, y) = (1, 2)`, which is `x, y = 1, 2`."""
_POINT = re.compile(r"^\s*([A-Z])\s*(\([^(),]*,[^()]*\))\s*$")  # A(1, 2) is A = (1, 2)
_ONE_POINT = re.compile(r"^\s*\\\{\s*(\([^(),]*,[^()]*\))\s*\\\}\s*$")  # \{(1, 2)\} is (1, 2)
_POINTS = r"[A-Z]'?(?:_?[0-9])?"
_QUANTITY = re.compile(
    "|".join(
        [
            rf"(?:m\s*)?(?:\\(?:angle|triangle|widehat|measuredangle)\s*)?\{{?(?:{_POINTS}){{2,5}}\}}?",
            rf"\\(?:overline|overrightarrow|vec|widehat|hat|bar)\s*\{{?\s*(?:{_POINTS}|[a-z]){{1,3}}\s*\}}?",
            rf"\|\s*(?:(?:{_POINTS}){{2}}|\\(?:overline|overrightarrow|vec)\s*\{{?\w{{1,2}}\}}?)\s*\|",
            rf"\[\s*(?:{_POINTS}){{3,6}}\s*\]|(?:(?:\\complement|C)_[A-Z]\s*)?[A-Z](?:\s*\\c[au]p\s*[A-Z])?",
            rf"[A-Z]{_SUBSCRIPT}?\s*(?:\([^()]{{1,30}}\)|\[[^\[\]]{{1,30}}\])",
            rf"[a-z]{_SUBSCRIPT}?(?:\^\{{-1\}})?'{{0,2}}\s*\(\s*-?[0-9./\\a-z{{}}]{{1,12}}(?:\s*,\s*-?[0-9]{{1,6}})*\s*\)",
            r"\\(?:sin|cos|tan|cot)\s*(?:\\angle\s*)?[A-Z]{1,3}",
            r"\\(?:max|min)(?:\s*[a-zA-Z]|\s*\([^()]{1,30}\))?",
            r"\\text\s*\{[^{}=]{1,60}\}(?:\s*\([^()]{1,20}\))?",
            r"[A-Za-z]{3,}(?: [A-Za-z]{1,20}){0,5}",
        ]
    )
)
"""Matches names of lengths, angles, areas, values of functions and probabilities, and words; no product, and no sum."""
_WORDS = re.compile(r"\\text\s*\{[^{}]*\}.*|[A-Za-z]{3,}(?: [A-Za-z]+)*")
_MEMBER = re.compile(r"\s*(?:[a-zA-Z]|\(\s*[a-zA-Z]\s*(?:,\s*[a-zA-Z]\s*)+\))\s*\\in(?![a-zA-Z])\s*")
_BUILDER = re.compile(
    r"\\\{\s*[a-zA-Z]\s*(?:\\in\s*\\mathbb\s*\{?R\}?)?\s*(?:\\mid(?![a-zA-Z])|[:|])\s*(.*[<>=].*|.*\\(?:le|ge|ne)(?![a-zA-Z]).*)\\\}"
)
_REAL_LINE = re.compile(r"\(\s*-\s*\\infty\s*,\s*\+?\s*\\infty\s*\)")
_CASES = re.compile(r"(?s)[\s\\{]*\\begin\{(cases|aligned|gathered|array)\}(?:\{[lcr| ]*\})?(.*)\\end\{\1\}\s*")
_ORDERED = re.compile(r"[<>]|\\(?:le|ge|ne|in|lt|gt|cup|cap|equiv|approx)(?![a-zA-Z])")
_PLUS_MINUS = re.compile(r"\\(?:pm|mp)(?![a-zA-Z])")
_CHOICE = re.compile(r"(?s)\(?([A-J])(?:\)|[.:])(?=[\s$])(?!\s*(?:\\lor|\(?[A-J][.)]))\s*(.+)")
_SYMBOLS = re.compile(r"(?<![a-zA-Z\\])[a-zA-Z](?![a-zA-Z])")
_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")
_MODULUS = re.compile(
    r"(?:\\pmod\s*\{?\s*([0-9]{1,30})\s*\}?|"
    r"\(\s*(?:\\b?mod|\\text\s*\{\s*mod\s*\}|mod)\s*\{?\s*([0-9]{1,30})\s*\}?\s*\))$"
)
OR = "\\lor"
SET = "\\{\\}"


def spread(text: str) -> str:
    r"""Return an answer of several solutions as one list, in which \lor stands between those whose order says nothing:
    `x = 1, 2` and `x = 1, x = 2` become `1 \lor 2`; `a, b = 1, 2` becomes `a = 1, b = 2`; systems in braces become
    lists, points side by side too."""
    if cases := _CASES.fullmatch(text):
        rows = [row.replace("&", "").strip(" ,;") for row in cases[2].split("\\\\")]
        text = ", ".join(row for row in rows if row)
    text = _systems(text) if OR in text else _TUPLES.sub(r"\1 = \2", _POINT.sub(r"\1 = \2", text))
    points = re.split(r"(?<=\))\s*(?=\()", text)
    if len(points) > 1 and all("," in point and _balanced(point) and point[0] == "(" for point in points):
        text = ", ".join(points)  # and no product
    parts = _split(text, (",", ";", OR))
    if not 1 <= len(parts) <= MAX_PARTS or _ORDERED.search(text):
        return text
    sides = [split_relation(part) for part in parts]
    names = [side[0].replace(" ", "") if len(side) == 2 and is_name(side[0]) else "" for side in sides]
    values = [side[-1] for side in sides]
    of_equations = {name for side, name in zip(sides, names, strict=True) if len(side) > 1}
    named = len(parts) > 1 and names[0] and of_equations == {names[0]}
    unnamed = max(map(len, sides)) == 1 and (len(parts) == 1 or _PLUS_MINUS.search(text))
    if unnamed or (named and (names.count(names[0]) == 1 or set(names) == {names[0]})):
        return f" {OR} ".join(_both_signs(value) for value in values)
    last = next((i for i, side in enumerate(sides) if len(side) == 2), 0)
    if last and len(parts) == 2 * last + 1 and all(is_name(parts[i]) for i in range(last)) and names[last]:
        left = [*parts[:last], sides[last][0]]
        right = [sides[last][1], *parts[last + 1 :]]
        return ", ".join(f"{name} = {value}" for name, value in zip(left, right, strict=True))
    return text


def _systems(text: str) -> str:
    r"""`x = 1, y = 2 \lor x = 2, y = 1` as points, where each has the same names in one order."""
    systems = [[split_relation(part) for part in _split(system, (",", ";"))] for system in _split(text, (OR,))]
    names = [[sides[0] for sides in system] for system in systems]
    if len(names[0]) < 2 or any(len(sides) != 2 for system in systems for sides in system):
        return text
    if any(found != names[0] for found in names) or not all(map(is_variable, names[0])):
        return text
    return ", ".join(f"({', '.join(value for _, value in system)})" for system in systems)


def _both_signs(value: str) -> str:
    found = _PLUS_MINUS.findall(value)
    if len(found) != 1 or ("," in value and value[0] != "(") or value.startswith("\\{"):
        return value
    before, _, after = value.partition(found[0])
    return f"{before}+{after} {OR} {before}-{after}" if before.strip() else f"{after.strip()} {OR} -{after.strip()}"


def split_list(text: str) -> tuple[str, list[str]]:
    r"""Return the brackets and elements of `(1, 2]`, `\{1, 2\}` or `1, 2`, whose brackets are "". A text without comma
    or semicolon outside of brackets is a list of itself, without brackets, unless it is a set."""
    match = _BRACKETS.fullmatch(text.strip())
    opening, inner, closing = match.groups() if match else ("", text.strip(), "")
    if (opening == "\\{") != (closing == "\\}") or not _balanced(inner):
        opening, inner, closing = "", text.strip(), ""
    parts = [part for part in _split(inner, (",", ";", OR)) if part]
    if len(parts) > 1 or opening == "\\{":
        return opening + closing, parts
    return "", [inner if opening == "(" else text]


def split_relation(text: str) -> list[str]:
    """Return the sides of a chain of equations: `x = y = 1` has three. A name comes first, also in `5 = x`."""
    sides = _split(text, ("=",)) if "=" in text else [text]
    return sides[::-1] if len(sides) == 2 and is_variable(sides[1]) and not is_name(sides[0]) else sides


def is_name(side: str) -> bool:
    """Return whether a left side only names what the right side is: `x`, `f(x)`, `(x, y)`, `|AB|`, `P(A)`."""
    return bool(_VARIABLE.fullmatch(side) or _TUPLE_OF_VARIABLES.fullmatch(side) or _QUANTITY.fullmatch(side.strip()))


def is_variable(side: str) -> bool:
    return bool(_VARIABLE.fullmatch(side))


def case_tells(text: str) -> bool:
    """Return whether a letter is two symbols in it, by its case: R/r is neither r/R nor 1. Elsewhere 2r is 2R."""
    symbols = "".join(_SYMBOLS.findall(text))
    return any(symbol.isupper() and symbol.lower() in symbols for symbol in symbols)


def is_polynomial(side: str) -> bool:
    """Return whether a side is a polynomial in one variable, and no name: `2x = 10` is an unsolved equation."""
    side = side.replace(" ", "")
    letters = set(re.findall("[a-z]", side.replace("frac", "")))
    return len(letters) == 1 and bool(_POLYNOMIAL.fullmatch(side)) and not is_variable(side)


def same_name(mine: str, theirs: str, alone: bool) -> bool:
    """Return whether two names may be of one quantity: spelled alike but for bars and spaces, or, where each stands
    `alone` and in no list, one of them in words."""
    plain = [re.sub(r"\\(?:overline|text|mathrm)|[\s|{}]|(?<=^[a-z])\([xtn]\)", "", name) for name in (mine, theirs)]
    in_words = [bool(_WORDS.fullmatch(name.strip())) for name in (mine, theirs)]
    return plain[0] == plain[1] or (alone and in_words[0] != in_words[1])


def split_ratio(text: str) -> list[str]:
    """Return the terms of a ratio: `3:2:1` has three."""
    return [text] if CLOCK.search(text) or ":" not in text else _split(text, (":",))


def split_choice(text: str) -> tuple[str, str]:
    """Return the letter and value of one of several choices, `(C) 12`; the letter is "" where it is none."""
    match = _CHOICE.fullmatch(_TEXT.sub(r"\1 ", text, count=1).strip())
    return (match[1], match[2].strip()) if match and match[2][0] not in "^_+/*=,|&" else ("", text)


def split_residues(text: str) -> tuple[str, list[str], int]:
    r"""Return the name, values and modulus of `x \equiv 3, 5 \pmod{7}`; the modulus is 0 where there is none."""
    if (match := _MODULUS.search(text)) is None:
        return "", [text], 0
    name, _, values = text[: match.start()].rpartition("\\equiv")
    return name.strip(), split_list(values.strip())[1], int(match[1] or match[2])


def strip_membership(text: str) -> str:
    r"""`x \in [0, 1]` is `[0, 1]`, `\{x : x > 1\}` is `x > 1`, and `(-\infty, \infty)` has a name."""
    if builder := _BUILDER.fullmatch(text):
        return builder[1]
    if match := _MEMBER.match(text):
        text = re.sub(r"^\{([^{}]*)\}$", r"\\{\1\\}", text[match.end() :].strip())
    return "\\mathbb{R}" if _REAL_LINE.fullmatch(text) else _ONE_POINT.sub(r"\1", text)


def nesting(text: str) -> int:
    """Return how deep brackets stand in brackets."""
    return max((depth for _, depth in _pieces(text)), default=0)


def _pieces(text: str) -> Iterator[tuple[str, int]]:
    """Yields the signs of a text, with the depth of brackets after each."""
    depth = 0
    for piece in _PIECE.findall(text):
        depth += (piece in ("(", "[", "{", "\\{")) - (piece in (")", "]", "}", "\\}"))
        yield piece, depth


def _balanced(text: str) -> bool:
    depths = [0, *(depth for _, depth in _pieces(text))]
    return min(depths) == depths[-1] == 0


def _split(text: str, separators: tuple[str, ...]) -> list[str]:
    """Splits at the separators that stand in no brackets; `<=`, `>=`, `!=` and `:=` are no separators."""
    if "\\begin" in text:
        return [text]
    parts, before = [""], ""
    for piece, depth in _pieces(text):
        if depth == 0 and piece in separators and before not in ("<", ">", "!", ":"):
            parts.append("")
        else:
            parts[-1] += piece
        before = piece
    return [part.strip() for part in parts]
