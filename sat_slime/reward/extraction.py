r"""The answer of a response, sought in PRIME's order: after "answer:" or "answer is", there in the last \boxed, else as
text.

Every function takes time linear in the response, whatever it holds.
"""

from __future__ import annotations

import re

from sat_slime.reward.prose import answer_of, conclusion, is_called_unordered, listed, says_something

ANSWER_MARKERS = ("answer:", "answer is", "answers are")
TRAILING_MARKERS = ("is answer", "is the answer", "are answers", "are the answers")
CONNECTORS = ("be ", "is ", "are ", "=", ": ", "get ", "be\n", "is\n", "are\n", ":\n", "get\n")
"""PRIME's connectors, in PRIME's order: each is looked for in what the one before has left."""

_MARKED = re.compile(
    r"\banswers?\s*(?:=|equals?\b)|\banswers?,? (?:therefore|then|hence|thus),? (?:is|are)\b|"
    r"\banswers? (?:must|should|would|will|has to|have to|to|turns out to|comes out to) be\b|(?:^|\n)#### ",
    re.IGNORECASE,
)
_TRAILING = re.compile(
    r"\b(?:is|are|as|will be|must be|should be|would be) (?:(?:the|our|my|your|this) )?"
    r"(?:(?:final|correct|required|desired|only) )*answers?\b",
    re.IGNORECASE,
)
_SUPPOSED = re.compile(
    r"\b(?:suppose|assume|if|whether)(?: that)? (?:(?:the|our|this|final|correct) )*$", re.IGNORECASE
)
_DOUBTED = re.compile(r"\b(?:whether|doubt|unsure|suppose|assume|if)\b", re.IGNORECASE)
_SENTENCE_END = re.compile(r"(?<!\\)[.!?](?:\s|$)")
_NO_FACTORIAL = re.compile(r"(?<![0-9a-z)\\])!(?:\s|$)|(?<!\\)[.?](?:\s|$)")
"""The end of a sentence that no marker announces, in which 3! is a number."""
_PARAGRAPH = re.compile(r"\n\s*\n(?!\s*(?:\$\$|\\\[))")
_UNFINISHED = re.compile(r"(?:\b(?:is|are|be|get|have|obtain|equals?|to)|[:=,])\s*$", re.IGNORECASE)
_MAX_BOXES = 16
_TAIL = 8000
"""Characters from the end in which the last sentences are looked for."""
_BOXES = re.compile(
    r"(?:[\s$,;]|\\[()\[\],;:! ]|\\q?quad|\\text\s*\{\s*(?:and|or)\s*\}|and\b|or\b|[a-zA-Z](?:_\{?\w\}?)?\s*=)*"
)


def extract(response: str) -> str | None:
    """Return the answer, or None. docs/reward.md says where it differs from `prime_extract`."""
    text = response.replace("**:", ":")  # **Answer**: 5
    text = text.rpartition("</think>")[2].partition("<think>")[0]  # a thought that does not end is no answer
    marked = None if _says_answer(last_box(text)) else _after_markers(text)
    box = _last_boxes(marked if marked is not None else text)
    if box is not None:
        return box.strip() or None
    if marked is not None and any(character.isdigit() for character in marked):
        return _marked_answer(marked)
    if (box := _last_boxes(text)) is not None:
        return box.strip() or None
    if marked is not None:
        return _marked_answer(marked)
    return _last_answer(text)


def _says_answer(box: str | None) -> bool:
    r"""Return whether a box holds a marker itself, as \boxed{\text{The answer is } 5}: that announces nothing outside
    it."""
    return box is not None and any(marker in box.lower() for marker in ANSWER_MARKERS)


def _last_boxes(text: str) -> str | None:
    r"""Return the last box; with those before it between which only signs and `or` stand: \boxed{3} or \boxed{5}."""
    boxes = last_box(text)
    for _ in range(_MAX_BOXES if boxes is not None else 0):
        text = text.rpartition("\\boxed")[0]
        other = last_box(text)
        if other is None:
            break
        between = text.rpartition("\\boxed")[2].partition("{")[2][len(other) + 1 :]
        if not _BOXES.fullmatch(between) or not re.search(r"and|or|,|;", between):
            break
        joined = "or" if "or" in between or is_called_unordered(text.rpartition("\\boxed")[0]) else ","
        boxes = f"{other} {joined} {boxes}"
    return boxes


def last_box(text: str) -> str | None:
    r"""Return what the last \boxed{...}, or without one the last \fbox{...}, holds; None when it does not close."""
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
        position = response.lower().rfind(marker)
        if position >= 0:
            response = response[position + len(marker) :].strip()
    for marker in TRAILING_MARKERS:
        position = response.lower().rfind(marker)
        if position >= 0:
            response = response[:position].strip()
    response = _prime_box(response) or response
    position = response.rfind(". ")
    if position >= 0:
        response = response[:position].strip()
    for marker in CONNECTORS:
        position = response.lower().rfind(marker)
        if position >= 0:
            response = response[position + len(marker) :].strip()
    return response


def _after_markers(text: str) -> str | None:
    """Return what follows the last "answer:", in that "answer is", and so on; None when there is none of them."""
    marked = None
    for marker in ANSWER_MARKERS:
        position = _rfind(text, marker)
        if position >= 0 and not _SUPPOSED.search(text[max(0, position - 60) : position]):
            marked = text = text[position + len(marker) :].strip()
    for match in _last_match(_MARKED, text):
        marked = text = text[match.end() :].strip()
    for match in _last_match(_TRAILING, text):
        # At 0 nothing stands before it; a box behind it is the later answer.
        before = text[: match.start()].strip()
        if before and "\\boxed" not in text[match.end() :] and not _DOUBTED.search(_sentences(before)[-1]):
            marked = before if marked is not None else _sentences(before)[-1]
    return marked


def _last_match(pattern: re.Pattern[str], text: str) -> list[re.Match[str]]:
    return list(pattern.finditer(text))[-1:]


def _rfind(text: str, marker: str) -> int:
    """`rfind` in any case. A text whose lower case has another length is searched as it is."""
    lowered = text.lower()
    return (lowered if len(lowered) == len(text) else text).rfind(marker)


def _marked_answer(text: str) -> str | None:
    """Return the answer in the first line, up to the end of its sentence; what comes after it explains."""
    # A list that begins the answer follows a marker's colon.
    text = listed(f":\n{text}" if text[:1] in "-*•1(" else text).lstrip(" \t\r\n:*")
    for opening, closing in (("$$", "$$"), ("\\[", "\\]")):
        if text.startswith(opening) and (end := text.find(closing, 2)) > 0:
            return text[2:end].strip() or None
    line = text.partition("\n")[0]
    stop = _SENTENCE_END.search(line)
    line = line[: stop.start() if stop else None].strip(" \t\r*")
    return (answer_of(line, announced=True) or None) if line else None


def _last_answer(text: str) -> str | None:
    """Return the answer of a response without box and marker: what its last sentence says that says anything."""
    sentences = _sentences(text)
    if sentences[0].lower() in ("yes", "no") and not any(map(str.isdigit, sentences[-1])):
        return sentences[0]
    said = next((sentence for sentence in reversed(sentences) if says_something(sentence)), sentences[-1])
    return answer_of(conclusion(said)) or None


def _sentences(text: str) -> list[str]:
    """Return the last sentences, at least one."""
    paragraphs = _PARAGRAPH.split(text[-_TAIL:].strip())
    joined = [paragraphs[0]]
    for paragraph in paragraphs[1:]:
        if _UNFINISHED.search(joined[-1]):
            joined[-1] += f"\n{paragraph}"
        else:
            joined.append(paragraph)
    sentences = []
    for paragraph in map(listed, joined):
        start = 0
        for end in _NO_FACTORIAL.finditer(paragraph):
            sentences.append(paragraph[start : end.start()].strip())
            start = end.end()
        sentences.append(paragraph[start:].strip())
    return [sentence for sentence in sentences if sentence] or [""]


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
