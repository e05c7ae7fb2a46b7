"""One verification in a given mode. It may hang, or take all memory: call it in a worker process only."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable

from sat_slime.reward import prime_math
from sat_slime.reward.comparison import compare, undefined
from sat_slime.reward.extraction import extract
from sat_slime.reward.verdict import CORRECT, Mode, Verdict, verdict

_BOXED_LABEL = re.compile(r"\s*\\boxed\s*\{(.*)\}\s*", re.DOTALL)


def judge(response: str, label: str, mode: Mode) -> Verdict:
    """Return the verdict on a response. Raises MemoryError, after which the process should not go on."""
    label = _unboxed(label)
    answer = _EXTRACT[mode](response)
    if undefined(label):
        return verdict(answer or None, "undefined_label")
    if answer is None:
        return verdict(None, "no_answer")
    reason = _COMPARE[mode](answer, label)
    if reason in CORRECT and undefined(answer):
        reason = "undefined"
    return verdict(answer or None, reason)


_EXTRACT: dict[Mode, Callable[[str], str | None]] = {"default": extract, "prime_math": prime_math.extract}
_COMPARE: dict[Mode, Callable[[str, str], str]] = {
    # The responses to one prompt come close together, and often give the same answer.
    "default": functools.lru_cache(maxsize=1024)(compare),
    "prime_math": prime_math.compare,
}


def _unboxed(label: str) -> str:
    r"""Return the label without the \boxed that some data sets keep around it."""
    if "\\boxed" not in label:
        return label
    match = _BOXED_LABEL.fullmatch(label)
    return match[1] if match else label
