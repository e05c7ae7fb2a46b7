"""One verification: the answer of a response is compared with the label, as text, as exact numbers, part by part, and
last as parsed mathematics. It may hang, or take all memory: only the worker processes import this.

Of 5,167 answers with known verdicts, math-verify's `parse` and `verify` behind the same extraction reward 242 wrong
ones (other units, ratios, orders, bases, unsolved equations, what has no value), and refuse 408 right ones; here it
is none and one.
"""

from __future__ import annotations

import functools
import re

from sat_slime.reward import prime_math
from sat_slime.reward.cleaning import MAX_ANSWER, split_unit, without_unit, words
from sat_slime.reward.extraction import extract, prime_extract, unboxed
from sat_slime.reward.structure import (
    MAX_PARTS,
    OR,
    SET,
    Literal,
    case_tells,
    is_name,
    is_polynomial,
    is_variable,
    read_literal,
    same_name,
    split_choice,
    split_list,
    split_ratio,
    split_relation,
    split_residues,
    spread,
    strip_membership,
)
from sat_slime.reward.symbolic import equivalent, read
from sat_slime.reward.verdict import CORRECT, Mode, Verdict, verdict

_BASE = re.compile(r"^([0-9A-Za-z]+)_\{?([0-9]{1,2})\}?$")
_DEFINED = re.compile(r"(?:[^\\/:!^]|\\(?:sqrt(?!\s*\[)|text|pi|cdot|times|le|ge|in|cup|cap|pm|[{}])(?![a-zA-Z]))*")
"""Matches text that divides nothing, takes no power, and applies no function but a root."""
_UNKNOWN_SIZE = re.compile(r"\s*\|\s*[ntxy]\s*\|\s*")
"""Matches the absolute value of what is usually unknown: |x| = 5 means two numbers. |z| or |AB| may be asked for."""
_AND = re.compile(
    r"((?:[^a-zA-Z\\<>=,;]|\\[a-zA-Z]+)+?)(?:\\text\s*\{\s*and\s*\}|and)((?:[^a-zA-Z\\<>=,;]|\\[a-zA-Z]+)+)"
)
"""Matches two numbers, `1728 and 1331`, which have no order where answer and label are written so."""
_THOUSANDS = re.compile(r"(?<![0-9,.(\[{])[1-9][0-9]{0,2}(?:,[0-9]{3})+(?![0-9]|,[0-9])")
"""Matches a number that is no list where answer and label differ otherwise: 1,024 is 2^{10}, x = 1,234 is 1234."""
_LETTER = re.compile(r"(?:\\text\{)?\(?[A-J]\)?\}?")
_LETTERS = re.compile(r"[A-J](?:,?[A-J])+")
_NO_LIST = re.compile(r"\\(?:cup|cap|setminus|pm|mp|le|ge|ne|lt|gt|in)(?![a-zA-Z])|[<>]")
"""Signs that make more of a list than its parts."""
_PERIODS = re.compile(r"(?<![a-zA-Z\\_])[kmn](?![a-zA-Z_])")  # letters of any integer: k\pi is n\pi


def judge(response: str, label: str, mode: Mode) -> Verdict:
    """Return the verdict on a response. Raises MemoryError, after which the process should not go on."""
    label = unboxed(label)
    answer = extract(response) if mode == "default" else prime_extract(response)
    if undefined(label):
        return verdict(answer or None, "undefined_label")
    if not answer:
        return verdict(None, "no_answer")
    reason = compare(answer, label) if mode == "default" else prime_math.compare(answer, label)
    if reason in CORRECT and undefined(answer):
        reason = "undefined"
    return verdict(answer, reason)


@functools.lru_cache(maxsize=1024)  # the responses to one prompt come close together, and often give the same answer
def compare(answer: str, label: str) -> str:
    """Return the reason of the verdict: one of CORRECT or WRONG."""
    if answer.strip() == label.strip():
        return "text" if label.strip() else "no_answer"
    if len(answer) > MAX_ANSWER:
        return "too_long"
    if _AND.fullmatch(answer) and _AND.fullmatch(label):
        answer, label = (_AND.sub(r"\1 or \2", text) for text in (answer, label))
    (mine, my_unit), (theirs, their_unit) = split_unit(answer), split_unit(label)
    if my_unit and their_unit and my_unit != their_unit:
        return "different"  # 5 m is not 5 cm
    reason = _compare_choices(mine, theirs) or _compare(mine, theirs)
    my_bare, their_bare = (_THOUSANDS.sub(lambda number: number[0].replace(",", ""), side) for side in (mine, theirs))
    return reason if reason in CORRECT or (my_bare, their_bare) == (mine, theirs) else _compare(my_bare, their_bare)


def _compare_choices(answer: str, label: str) -> str | None:
    """Compares choices with a letter and a value: `(C) 12` is C, and is 12. None where neither side is one."""
    letter, value = split_choice(answer)
    wanted_letter, wanted = split_choice(label)
    if not letter and not wanted_letter:
        return None
    if letter and wanted_letter and letter != wanted_letter:
        return "different"
    if (letter or wanted_letter).lower() in (words(answer), words(label)):
        return "text"
    if _LETTER.fullmatch(value if letter else wanted):
        return "different"  # (B) A is B; (C) i may be i
    return _compare(value, wanted)


@functools.lru_cache(maxsize=1024)
def undefined(text: str, depth: int = 0) -> bool:
    """Return whether a text is, or holds, something without a value, such as 1/0, which is equal to nothing. A function
    that has none somewhere, such as 1/x, is defined."""
    if len(text) > MAX_ANSWER:
        return False
    text = _percent(split_unit(text)[0])[0]
    if words(text) == "nan":
        return True
    if read_literal(text) is not None or _DEFINED.fullmatch(text):
        return False
    text = strip_membership(text)
    if (found := read(text)) != "unparsed" or depth == 3:
        return bool(found == "undefined")
    parts = [part for side in split_relation(text) for part in split_list(side)[1]]
    return len(parts) > 1 and any(undefined(part, depth + 1) for part in parts)


def _compare(answer: str, label: str, depth: int = 0) -> str:
    if not answer:
        return "no_answer"
    answer, answer_percent = _percent(answer)
    label, label_percent = _percent(label)
    wanted, given = read_literal(_comma_as_point(label)), read_literal(_comma_as_point(answer))
    if wanted is not None and not wanted.whole and given is None:
        given = read_literal(_comma_as_point(answer, _COMMA))
    if wanted is not None and given is not None:
        return _compare_literals(given, answer_percent, wanted, label_percent)
    # Units are off already: MATH's normalization takes any text after a space, such as `dozen`, for one too.
    mine, theirs = (
        prime_math.hendrycks(text.replace("\\text{ ", "\\text{"), drop_left_side=False) for text in (answer, label)
    )
    if mine == theirs or (words(answer) == words(label) and not case_tells(label)):
        return "text"
    if mine.replace(",", "") == theirs.replace(",", "") and all(map(_LETTERS.fullmatch, (mine, theirs))):
        return "text"  # choices: A, B, D is ABD
    if depth < 3 and (reason := _compare_parts(answer, label, depth)):
        return reason
    return _compare_symbolic(answer, label, given, wanted, answer_percent and not label_percent)


_COMMA = r"[0-9]{1,3}(?:\.[0-9]{3})*,[0-9]+|[0-9]+,[0-9]+"
_SURE_COMMA = r"[0-9]{1,3}(?:\.[0-9]{3})+,[0-9]+|0,[0-9]{2,}|[0-9]+,0[0-9](?:[0-9]{2,4})?"
"""A decimal comma that can be neither a list's nor of thousands, as in 0,25 and 3,05 and 1.234,5."""


def _comma_as_point(text: str, comma: str = _SURE_COMMA) -> str:
    return text.replace(".", "").replace(",", ".") if re.fullmatch(f"-?(?:{comma})", text) else text


def _percent(text: str) -> tuple[str, bool]:
    bare = text.removesuffix("%")
    return (text, False) if bare == text or re.search(r"=|\\lor|, ", text) else (bare.rstrip("\\").strip(), True)


def _compare_literals(given: Literal, given_percent: bool, wanted: Literal, wanted_percent: bool) -> str:
    """Compares two numbers. The sign % may be left out, or carried out: for the label 50% both 50 and 0.5 are right.
    Without it a whole number allows neither that factor nor rounding."""
    hundredth = wanted_percent - given_percent  # 1: the answer may be one of the label; -1: the other way round
    exact = wanted.whole and not wanted_percent
    scaled = given if exact else given.hundredfold(hundredth)
    if wanted.value in (given.value, scaled.value):
        return "number"
    if exact or given.whole:
        return "different"
    return "number" if scaled.rounds(wanted.value) or wanted.rounds(scaled.value) else "different"


def _compare_parts(answer: str, label: str, depth: int) -> str | None:
    """Return the reason where the structure of both decides; None where it does not."""
    if base := _BASE.fullmatch(label.replace(" ", "")):
        written = re.sub(r"[ {}]", "", answer).lower()
        return "text" if written in (base[1].lower(), "_".join(base.groups()).lower()) else "different"
    my_terms, their_terms = split_ratio(answer), split_ratio(label)
    if max(len(my_terms), len(their_terms)) > 2 and "=" not in answer + label:
        return _compare_ratios(my_terms, their_terms, depth)
    if reason := _compare_residues(answer, label, depth):
        return reason
    answer, label = spread(strip_membership(answer)), spread(strip_membership(label))
    if (OR in answer) != (OR in label):  # x_1 = 2, x_2 = 3 is x = 2, 3
        answer, label = (spread(re.sub(r"\b([xyzt])_\{?[1-9]\}?(?=\s*=)", r"\1", text)) for text in (answer, label))
    return _compare_relations(answer, label, depth) or _compare_lists(answer, label, depth)


def _compare_relations(answer: str, label: str, depth: int) -> str | None:
    mine, theirs = split_relation(answer), split_relation(label)
    if len(mine) == len(theirs) == 1:
        return None
    are_lists = len(split_list(answer)[1]) > 1 or len(split_list(label)[1]) > 1
    if are_lists and (max(len(mine), len(theirs)) > 2 or not (is_name(mine[0]) or is_name(theirs[0]))):
        return None  # x = 1, y = 2
    if len(theirs) == 1:  # 1 + 1 = 2 for the label 2
        unsolved = len(mine) == 2 and (is_polynomial(mine[0]) or _UNKNOWN_SIZE.fullmatch(mine[0]))
        unsolved = unsolved and _compare(mine[0], mine[1], depth + 1) not in CORRECT  # x^2 - 4 = (x-2)(x+2)
        if unsolved or not all(_may_equal(side, mine[-1]) for side in mine[:-1]):
            return "different"  # 2x = 4 is not 4; 1 = 2 = 5
        return _compare(mine[-1], label, depth + 1) if mine[-1] else None
    if not is_name(theirs[0]):  # the label is an equation
        return "different" if len(mine) == 1 else None
    if len(mine) > 1 and is_name(mine[0]) and not same_name(mine[0], theirs[0], alone=depth == 0):
        # y = 0 is not x = 0, but y = x is x = y
        return None if is_variable(mine[0]) and is_variable(theirs[0]) else "different"
    return _compare(mine[-1], theirs[-1], depth + 1) if len(mine) == 1 or is_name(mine[0]) else None


def _may_equal(side: str, other: str) -> bool:
    """Return whether two sides are not numbers that differ by more than rounding."""
    first, second = read_literal(side), read_literal(other)
    return first is None or second is None or abs(first.value - second.value) <= abs(second.value) / 100


def _compare_residues(answer: str, label: str, depth: int) -> str | None:
    """Compares residues of one modulus, in any order and up to its multiples; without one a number is only itself."""
    name, values, modulus = split_residues(answer)
    wanted_name, wanted_values, wanted_modulus = split_residues(label)
    if modulus == wanted_modulus == 0:
        return None
    if not modulus or not wanted_modulus:
        if wanted_name or len(values) != 1 or len(wanted_values) != 1:
            return "different"  # 7 is one of the solutions x = 7 mod 11
        residue = read_literal(values[0])
        if modulus and residue is not None and abs(residue.value) >= modulus:
            return "different"  # 5 mod 1 is 0
        return _compare(values[0], wanted_values[0], depth + 1)
    if modulus != wanted_modulus or (name and wanted_name and not same_name(name, wanted_name, alone=depth == 0)):
        return "different"
    numbers = [[read_literal(value) for value in parts] for parts in (values, wanted_values)]
    residues = [{n.value % modulus for n in parts if n is not None and n.whole} for parts in numbers]
    if any(len(found) != len(parts) for found, parts in zip(residues, numbers, strict=True)):
        return None
    return "number" if residues[0] == residues[1] else "different"


def _compare_ratios(mine: list[str], theirs: list[str], depth: int) -> str:
    """Compares ratios term by term, up to a common factor of numbers."""
    if len(mine) != len(theirs):
        return "different"
    numbers = [(read_literal(a), read_literal(b)) for a, b in zip(mine, theirs, strict=True)]
    values = [(a.value, b.value) for a, b in numbers if a is not None and b is not None]
    if len(values) == len(mine) and any(a for a, _ in values):
        first, second = next(pair for pair in values if pair[0])
        return "number" if second and all(a * second == b * first for a, b in values) else "different"
    return _match(mine, theirs, False, depth)


def _compare_lists(answer: str, label: str, depth: int) -> str | None:
    (brackets, given), (wanted_brackets, wanted) = split_list(answer), split_list(label)
    if len(wanted) == 1 and len(given) == 1 and SET not in (brackets, wanted_brackets):
        if (given[0], wanted[0]) == (answer, label):
            return None
        return _compare(given[0], wanted[0], depth + 1)  # (5) is 5
    if len(wanted) > MAX_PARTS or len(given) > MAX_PARTS:
        return "too_large"
    if _NO_LIST.search(answer) or _NO_LIST.search(label):
        return None
    alternatives = OR in answer or OR in label
    if alternatives and "(" in brackets + wanted_brackets:
        return "different"  # a pair is not one of two
    wanted = wanted * len(given) if len(wanted) == 1 and OR in answer else wanted  # 5/2 or 2.5 is 5/2
    if len(wanted) != len(given):
        return None if brackets == wanted_brackets == SET else "different"  # {1, 1} is {1}
    if brackets != wanted_brackets and {brackets, wanted_brackets} not in ({"", "()"}, {"", SET}):
        return "different"  # an interval has its brackets
    unordered = alternatives or SET in (brackets, wanted_brackets)
    unordered = unordered or all(len(split_relation(part)) == 2 for part in wanted + given)  # y = 2, x = 1
    points = [part[0] == "(" and len(split_list(part)[1]) > 1 for part in wanted + given]
    unordered = unordered or (brackets == wanted_brackets == "" and all(points))
    names = [{side[0] for side in map(split_relation, parts) if len(side) == 2} for parts in (given, wanted)]
    if unordered and bool(names[0]) != bool(names[1]) and max(map(len, names)) > 1:
        return "different"  # x = 1, y = 2 says more than {1, 2}
    return _match(given, wanted, unordered, depth)


def _match(given: list[str], wanted: list[str], unordered: bool, depth: int) -> str:
    reason, left = "text", list(map(without_unit, given))
    for part, unit in map(without_unit, wanted):
        for candidate in left if unordered else left[:1]:
            if len({unit, candidate[1]} - {""}) < 2 and (reason := _compare(candidate[0], part, depth + 1)) in CORRECT:
                left.remove(candidate)
                break
        else:
            return "different"
    return reason


def _compare_symbolic(answer: str, label: str, given: Literal | None, wanted: Literal | None, percent: bool) -> str:
    exact = wanted is not None and wanted.whole
    in_order = len(label) > 2 and label.isalpha() and label.isupper()
    if (exact or in_order) and words(answer).replace(" ", "").isalpha():
        return "unparsed"  # a word is no number, and BAC an order and no product
    decimals = (number for number in (given, wanted) if number is not None and number.decimals is not None)
    answer, label = strip_membership(answer), strip_membership(label)
    if all(r"\pi" in text and len(set(_PERIODS.findall(text))) == 1 for text in (answer, label)):
        answer, label = (_PERIODS.sub("k", text) for text in (answer, label))  # k\pi is n\pi
    reason = equivalent(answer, label, None if exact else next(decimals, None))
    if reason == "different" and percent and not exact:
        reason = equivalent(rf"\frac{{{answer}}}{{100}}", label, None)
    return reason
