r"""The answer of a response. PRIME's order: what follows "answer:" or "answer is", in that the last \boxed, else text.

Every function takes time linear in the response, whatever it holds.
"""

from __future__ import annotations

import re

ANSWER_MARKERS = ("answer:", "answer is", "answers are")
TRAILING_MARKERS = ("is answer", "is the answer", "are answers", "are the answers")
CONNECTORS = ("be ", "is ", "are ", "=", ": ", "get ", "be\n", "is\n", "are\n", ":\n", "get\n")
"""PRIME's, in PRIME's order: each is looked for in what the one before has left."""

_CLOSED_THINKING = "</think>"
_SENTENCE_END = re.compile(r"[.!?](?:\s|$)")


def extract(response: str) -> str | None:
    """The answer, or None. Where it differs from `prime_extract`: docs/reward.md."""
    text = response.replace("**:", ":")  # **Answer**: 5
    thought_end = text.rfind(_CLOSED_THINKING)
    if thought_end >= 0:
        text = text[thought_end + len(_CLOSED_THINKING) :]
    marked = _after_markers(text)
    box = last_box(marked if marked is not None else text)
    if box is not None:
        return box.strip() or None
    if marked is not None and any(character.isdigit() for character in marked):
        return _first_sentence(marked)
    if (box := last_box(text)) is not None:
        return box.strip() or None
    if marked is not None:
        return _first_sentence(marked)
    return _after_connectors(text)


def last_box(text: str) -> str | None:
    r"""What the last \boxed{...}, or without one the last \fbox{...}, holds; None when it does not close."""
    start = text.rfind("\\boxed")
    length = len("\\boxed")
    if start < 0:
        start, length = text.rfind("\\fbox"), len("\\fbox")
    if start < 0:
        return None
    opening = start + length
    while opening < len(text) and text[opening].isspace():
        opening += 1
    if not text.startswith("{", opening):
        return None
    # `\{` is a brace of the answer, except in what a model left broken: \boxed{185\}.
    closing = _closing_brace(text, opening, escapes=True)
    if closing is None:
        closing = _closing_brace(text, opening, escapes=False)
    return None if closing is None else text[opening + 1 : closing]


def prime_extract(response: str) -> str:
    """PRIME's `match_answer`, step by step."""
    for marker in ANSWER_MARKERS:
        found = response.lower().rfind(marker)
        if found >= 0:
            response = response[found + len(marker) :].strip()
    for marker in TRAILING_MARKERS:
        found = response.lower().rfind(marker)
        if found >= 0:
            response = response[:found].strip()
    response = _prime_box(response) or response
    found = response.rfind(". ")
    if found >= 0:
        response = response[:found].strip()
    for marker in CONNECTORS:
        found = response.lower().rfind(marker)
        if found >= 0:
            response = response[found + len(marker) :].strip()
    return response


def _after_markers(text: str) -> str | None:
    """What follows the last "answer:", in that "answer is", and so on; None when there is none of them."""
    marked = None
    for marker in ANSWER_MARKERS:
        found = _rfind(text, marker)
        if found >= 0:
            marked = text = text[found + len(marker) :].strip()
    for marker in TRAILING_MARKERS:
        found = _rfind(text, marker)
        if found > 0:  # at 0 nothing stands before it
            marked = text = text[:found].strip()
    return marked


def _rfind(text: str, marker: str) -> int:
    """`rfind` in any case. A text whose lower case has another length is searched as it is."""
    lowered = text.lower()
    return (lowered if len(lowered) == len(text) else text).rfind(marker)


def _first_sentence(text: str) -> str | None:
    """The first line up to the end of its sentence: what comes after it explains."""
    line = text.lstrip(" \t\r\n:*").partition("\n")[0]
    end = _SENTENCE_END.search(line)
    return line[: end.start() if end else None].strip(" \t\r*") or None


def _after_connectors(text: str) -> str | None:
    """Of a response without box and marker: what its last sentence ends with."""
    text = text.rstrip().removesuffix(".")
    found = text.rfind(". ")
    if found >= 0:
        text = text[found + 2 :]
    for marker in CONNECTORS:
        found = _rfind(text, marker)
        if found >= 0 and (rest := text[found + len(marker) :].strip()):
            text = rest
    return text.strip() or None


def _closing_brace(text: str, opening: int, escapes: bool) -> int | None:
    depth = 0
    for brace in (_BRACE_OR_ESCAPE if escapes else _BRACE).finditer(text, opening):
        if brace[0] == "{":
            depth += 1
        elif brace[0] == "}":
            depth -= 1
            if depth == 0:
                return brace.start()
    return None


_BRACE = re.compile(r"[{}]")
_BRACE_OR_ESCAPE = re.compile(r"\\.|[{}]", re.DOTALL)


def _prime_box(text: str) -> str | None:
    start = text.rfind("\\boxed")
    if start < 0:
        start = text.rfind("\\fbox")
    opening = text.find("{", start) if start >= 0 else -1
    if opening < 0 or "}" in text[start:opening]:
        return None
    closing = _closing_brace(text, opening, escapes=False)
    return None if closing is None else text[opening + 1 : closing].strip()
