r"""The outer structure of an answer: lists, tuples, sets, intervals, unions of left and right sides."""

from __future__ import annotations

import re

MAX_PARTS = 64
_PIECE = re.compile(r"\\\{|\\\}|\\[a-zA-Z]+|\\.|.", re.DOTALL)
_VARIABLE = re.compile(
    r"\s*(?:[a-zA-Z]|\\[a-zA-Z]+)(?:_\{?\w{1,6}\}?)?'?\s*(?:\(\s*[a-zA-Z](?:\s*,\s*[a-zA-Z])*\s*\))?\s*"
)
_TUPLE_OF_VARIABLES = re.compile(r"\s*\(\s*[a-zA-Z](?:_\{?\w\}?)?(?:\s*,\s*[a-zA-Z](?:_\{?\w\}?)?)+\s*\)\s*")
_MEMBER = re.compile(r"\s*[a-zA-Z]\s*\\in(?![a-zA-Z])\s*")


def split_list(text: str) -> tuple[str, list[str], str]:
    r"""Opening bracket, elements, closing bracket of `(1, 2]`, `\{1, 2\}` or `1, 2`; without brackets they are "".

    A text without a comma or semicolon outside of brackets is a list of itself, without brackets, unless it is a set.
    """
    opening, inner, closing = _unwrap(text)
    parts = [part for part in _split(inner, ",;") if part]
    if len(parts) > 1 or opening == "\\{":
        return opening, parts, closing
    return "", [inner if opening == "(" else text], ""


def split_relation(text: str) -> list[str]:
    """The sides of a chain of equations: `x = y = 1` has three."""
    return _split(text, "=") if "=" in text else [text]


def is_name(side: str) -> bool:
    """Whether a left side only names what the right side is: `x`, `f(x)`, `(x, y)`."""
    return bool(_VARIABLE.fullmatch(side) or _TUPLE_OF_VARIABLES.fullmatch(side))


def strip_membership(text: str) -> str:
    r"""`x \in [0, 1]` is `[0, 1]`."""
    match = _MEMBER.match(text)
    return text[match.end() :] if match else text


def nesting(text: str) -> int:
    """Brackets in brackets, at the deepest."""
    depth = deepest = 0
    for _, _, step in _depth_steps(text):
        depth += step
        deepest = max(deepest, depth)
    return deepest


def _unwrap(text: str) -> tuple[str, str, str]:
    """What one pair of brackets holds that stands around all of it."""
    text = text.strip()
    for opening, closings in (("\\{", ("\\}",)), ("(", (")", "]")), ("[", ("]", ")"))):
        for closing in closings:
            inner = text[len(opening) : -len(closing)]
            if text.startswith(opening) and text.endswith(closing) and len(text) > len(opening) and _balanced(inner):
                return opening, inner.strip(), closing
    return "", text, ""


def _depth_steps(text: str):
    for piece in _PIECE.finditer(text):
        token = piece[0]
        step = 1 if token in ("(", "[", "{", "\\{") else -1 if token in (")", "]", "}", "\\}") else 0
        yield piece, token, step


def _balanced(text: str) -> bool:
    depth = 0
    for _, _, step in _depth_steps(text):
        depth += step
        if depth < 0:
            return False
    return depth == 0


def _split(text: str, separators: str) -> list[str]:
    """At the separators that stand in no brackets; `<=`, `>=`, `!=` and `:=` are none."""
    parts, depth, start, before = [], 0, 0, ""
    if "\\begin" in text:
        return [text]
    for piece, token, step in _depth_steps(text):
        depth += step
        if depth == 0 and token in separators and before not in ("<", ">", "!", ":"):
            parts.append(text[start : piece.start()].strip())
            start = piece.end()
        before = token
    parts.append(text[start:].strip())
    return parts
