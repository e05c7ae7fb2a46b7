r"""Whether an answer is the label: as text, as exact numbers, part by part, and last as parsed mathematics.

Only the symbolic step parses mathematics. It runs in the worker processes, and is imported there alone.
"""

from __future__ import annotations

import re

from sat_slime.rollout.reward.cleaning import MAX_ANSWER, clean, words
from sat_slime.rollout.reward.hendrycks import hendrycks
from sat_slime.rollout.reward.literals import Literal, read_literal
from sat_slime.rollout.reward.structure import MAX_PARTS, is_name, split_list, split_relation, strip_membership
from sat_slime.rollout.reward.verdict import CORRECT

_BASE = re.compile(r"^([0-9A-Za-z]+)_\{?([0-9]{1,2})\}?$")
_NO_LIST = re.compile(r"\\(?:cup|cap|setminus|pm|mp|le|ge|ne|lt|gt|in)(?![a-zA-Z])|[<>]")
"""What makes more of a list than its parts."""


def compare(answer: str, label: str) -> str:
    """The reason of the verdict: one of CORRECT or WRONG."""
    if answer.strip() == label.strip():
        return "text" if label.strip() else "no_answer"
    if len(answer) > MAX_ANSWER:
        return "too_long"
    return _compare(clean(answer), clean(label))


def _compare(answer: str, label: str, depth: int = 0) -> str:
    if not answer:
        return "no_answer"
    answer, answer_percent = _percent(answer)
    label, label_percent = _percent(label)
    wanted, given = read_literal(label), read_literal(answer)
    if wanted is not None and given is not None:
        return _compare_literals(given, answer_percent, wanted, label_percent)
    same = hendrycks(answer, drop_left_side=False) == hendrycks(label, drop_left_side=False)
    if same or words(answer) == words(label):
        return "text"
    if depth < 3 and (reason := _compare_parts(answer, label, depth)) is not None:
        return reason
    return _compare_symbolic(answer, label, given, wanted, answer_percent and not label_percent)


def _percent(text: str) -> tuple[str, bool]:
    if text.endswith("%"):
        return text.removesuffix("%").rstrip("\\").strip(), True
    return text, False


def _compare_literals(given: Literal, given_percent: bool, wanted: Literal, wanted_percent: bool) -> str:
    """The sign % may be left out, or be carried out: of the label 50% both 50 and 0.5 are right. A whole number without
    the sign has neither factor nor rounding."""
    candidates = [(given.value, wanted.value)]
    if given_percent != wanted_percent:
        if wanted_percent:
            candidates.append((given.value, wanted.value / 100))
        elif not wanted.whole:
            candidates.append((given.value / 100, wanted.value))
    if any(mine == theirs for mine, theirs in candidates):
        return "number"
    if wanted.whole and not wanted_percent:
        return "different"
    rounded = given_percent == wanted_percent and (given.rounds(wanted.value) or wanted.rounds(given.value))
    return "number" if rounded and not given.whole else "different"


def _compare_parts(answer: str, label: str, depth: int) -> str | None:
    """The reason where the structure decides; None: it does not."""
    base = _BASE.fullmatch(label.replace(" ", ""))
    if base:
        same_base = _BASE.fullmatch(answer.replace(" ", ""))
        digits, of_base = same_base.groups() if same_base else (answer.replace(" ", ""), base[2])
        return "text" if (digits.lower(), of_base) == (base[1].lower(), base[2]) else "different"
    answer, label = strip_membership(answer), strip_membership(label)
    mine, theirs = split_relation(answer), split_relation(label)
    if len(mine) > 1 or len(theirs) > 1:
        reason = _compare_relations(mine, theirs, answer, label, depth)
        if reason is not None:
            return reason
    return _compare_lists(answer, label, depth)


def _compare_relations(mine: list[str], theirs: list[str], answer: str, label: str, depth: int) -> str | None:
    if len(split_list(answer)[1]) > 1 or len(split_list(label)[1]) > 1:
        names_tuple = is_name(mine[0]) or is_name(theirs[0])
        if not names_tuple:
            return None  # x = 1, y = 2
    if len(theirs) == 1:  # 1 + 1 = 2 for the label 2
        return _compare(mine[-1], label, depth + 1) if mine[-1] else None
    if not is_name(theirs[0]):  # the label is an equation
        return "different" if len(mine) == 1 else None
    if len(mine) == 1:
        return _compare(answer, theirs[-1], depth + 1)
    if is_name(mine[0]) and mine[0].replace(" ", "") != theirs[0].replace(" ", ""):
        return None  # y = 0 is not x = 0, but y = x is x = y
    if not is_name(mine[0]):
        return None
    return _compare(mine[-1], theirs[-1], depth + 1)


def _compare_lists(answer: str, label: str, depth: int) -> str | None:
    opening, wanted, closing = split_list(label)
    mine_opening, given, mine_closing = split_list(answer)
    if len(wanted) == 1 and len(given) == 1 and "\\{" not in (opening, mine_opening):
        if (given[0], wanted[0]) == (answer, label):
            return None
        return _compare(given[0], wanted[0], depth + 1)  # (5) is 5
    if len(wanted) > MAX_PARTS or len(given) > MAX_PARTS:
        return "too_large"
    if _NO_LIST.search(answer) or _NO_LIST.search(label):
        return None
    if len(wanted) != len(given):
        return None if opening == mine_opening == "\\{" else "different"  # {1, 1} is {1}
    unordered = opening == "\\{" or mine_opening == "\\{"
    if unordered and (opening in ("(", "[") or mine_opening in ("(", "[")):
        return "different"
    if not unordered:
        if opening and mine_opening and (opening, closing) != (mine_opening, mine_closing):
            return "different"
        if not mine_opening and (opening, closing) not in (("", ""), ("(", ")")):
            return "different"  # an interval has its brackets
        if not opening and (mine_opening, mine_closing) not in (("", ""), ("(", ")")):
            return "different"
        unordered = all(len(split_relation(part)) == 2 for part in wanted + given)  # y = 2, x = 1
    return _match(given, wanted, unordered, depth)


def _match(given: list[str], wanted: list[str], unordered: bool, depth: int) -> str:
    reason, left = "text", list(given)
    for i, part in enumerate(wanted):
        candidates = left if unordered else given[i : i + 1]
        reasons = ((candidate, _compare(candidate, part, depth + 1)) for candidate in candidates)
        found = next(((candidate, reason) for candidate, reason in reasons if reason in CORRECT), None)
        if found is None:
            return "different"
        reason = found[1]
        if unordered:
            left.remove(found[0])
    return reason


def _compare_symbolic(
    answer: str, label: str, given: Literal | None, wanted: Literal | None, answer_is_percent: bool
) -> str:
    from sat_slime.rollout.reward.symbolic import equivalent

    if wanted is not None and wanted.whole and words(answer).replace(" ", "").isalpha():
        return "unparsed"  # a word is no number
    rounding = next((number for number in (given, wanted) if number is not None and number.decimals is not None), None)
    if wanted is not None and wanted.whole:
        rounding = None
    reason = equivalent(answer, label, rounding)
    if reason == "different" and answer_is_percent and not (wanted is not None and wanted.whole):
        reason = equivalent(rf"\frac{{{answer}}}{{100}}", label, None)
    return reason
