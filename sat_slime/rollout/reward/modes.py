"""One verification, in the mode asked for. It may hang, or take all memory: call it in a worker process only."""

from __future__ import annotations

import functools
import re

from sat_slime.rollout.reward import math_dapo, prime_math
from sat_slime.rollout.reward.comparison import compare
from sat_slime.rollout.reward.extraction import extract
from sat_slime.rollout.reward.verdict import Mode, Verdict, verdict

_INTEGER = re.compile(r"([+-]?)([0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,2000})")
_boxed_label = re.compile(r"\s*\\boxed\s*\{(.*)\}\s*", re.DOTALL)


def judge(response: str, label: str, mode: Mode) -> Verdict:
    """The verdict on a response. Raises MemoryError, after which the process should not go on."""
    label = _unboxed(label)
    if mode == "default":
        return _judge(extract(response), label)
    if mode == "strict_integer":
        answer = extract(response)
        return verdict(answer, "no_answer" if answer is None else compare_integers(answer, label))
    if mode == "math_dapo":
        answer = math_dapo.extract(response)
        return verdict(answer, "no_answer" if answer is None else math_dapo.compare(answer, label))
    if mode == "prime_math":
        answer = prime_math.extract(response)
        return verdict(answer or None, prime_math.compare(answer, label))
    raise ValueError(f"mode {mode!r} is unknown")


def compare_integers(answer: str, label: str) -> str:
    """Both written as integers, with a sign, leading zeros or thousands separators at most, and nothing else."""
    wanted = _INTEGER.fullmatch(label.strip())
    if wanted is None:
        return "unparsed_label"
    given = _INTEGER.fullmatch(answer.strip().strip("$").strip().removesuffix("."))
    if given is None:
        return "unparsed"
    return "number" if _value(given) == _value(wanted) else "different"


def _judge(answer: str | None, label: str) -> Verdict:
    return verdict(answer, "no_answer" if answer is None else _compare(answer, label))


# The responses to one prompt come close together, and often give one answer.
_compare = functools.lru_cache(maxsize=1024)(compare)


def _unboxed(label: str) -> str:
    r"""Some data sets keep \boxed around their labels."""
    if "\\boxed" not in label:
        return label
    match = _boxed_label.fullmatch(label)
    return match[1] if match else label


def _value(match: re.Match[str]) -> int:
    return int(match[1] + match[2].replace(",", ""))
