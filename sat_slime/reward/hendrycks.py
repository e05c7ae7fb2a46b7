"""The string normalization of the MATH data set (Hendrycks et al., 2021): what it makes the same is the same answer."""

from __future__ import annotations

import re

_ONLY_TEXT = re.compile(r"^\\text\{(.+?)\}$")
_DROPPED = ("\\left", "\\right", "^{\\circ}", "^\\circ", "\\$")
_INTEGERS = re.compile(r"(-?[1-9][0-9]*|-?0)/(-?[1-9][0-9]*|-?0)")


def hendrycks(answer: str, drop_left_side: bool = True) -> str:
    r"""Return the normalized answer. `drop_left_side`: `k = 5` becomes `5`, for a left side of up to two characters.

    What the original fails on, such as a \sqrt that nothing follows, comes back stripped only.
    """
    answer = answer.strip()
    only_text = _ONLY_TEXT.search(answer)
    if only_text:
        answer = only_text[1].strip()
    text = answer.replace("\n", "").replace("\\!", "").replace("\\\\", "\\")
    text = text.replace("tfrac", "frac").replace("dfrac", "frac")
    for dropped in _DROPPED:
        text = text.replace(dropped, "")
    if "\\text{ " in text:  # in MATH this is always a unit
        text, *units = text.split("\\text{ ")
        if len(units) > 1:
            return answer
    text = text.replace("\\%", "").replace(" .", " 0.").replace("{.", "{0.")
    if not text:
        return text
    if text[0] == ".":
        text = "0" + text
    left, equals, right = text.partition("=")
    if drop_left_side and equals and "=" not in right and len(left) <= 2:
        text = right
    if re.search(r"\\sqrt$", text):
        return answer
    text = re.sub(r"\\sqrt([^{])", r"\\sqrt{\1}", text).replace(" ", "")
    fractions = _braced_fractions(text)
    if fractions is None:
        return answer
    text = "\\frac{1}{2}" if fractions == "0.5" else fractions
    over = _INTEGERS.fullmatch(text)
    # As in the original, where int() of both has to print as it was written: -0/1 does not.
    if over and all(part != "-0" for part in over.groups()):
        text = f"\\frac{{{over[1]}}}{{{over[2]}}}"
    return text


def _braced_fractions(text: str) -> str | None:
    r"""\frac12 and \frac1{72} with braces; unchanged where a \frac has no room for both; None where nothing follows."""
    head, *parts = text.split("\\frac")
    if any(not part for part in parts):
        return None
    done = head
    for part in parts:
        if part[0] == "{":
            done += "\\frac" + part
        elif len(part) < 2:
            return text
        elif part[1] == "{":
            done += f"\\frac{{{part[0]}}}{part[1:]}"
        else:
            done += f"\\frac{{{part[0]}}}{{{part[1]}}}{part[2:]}"
    return done
