"""Labels that the verifier cannot read, or does not reward as their own answer: a run never rewards such a prompt."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable
from concurrent.futures import Future

from sat_slime.prompts import PromptError
from sat_slime.reward import KILLED, Limits, Mode, Verdict, VerifierPool

MAX_WORKERS = 8
_OTHER_ANSWER = r"\boxed{-7919}"
"""An answer that is compared with each label, so that the verifier has to read the label."""
_UNREAD = {
    "undefined_label": "it has no value, such as 1/0: no answer is equal to it",
    "unparsed_label": "the verifier cannot read it, and compares it as text",
    "unevaluated": "a sum, product, integral, limit or derivative, which is compared as text",
    "too_large": "larger than what the verifier works out",
} | {reason: f"the verifier is ended over it ({reason})" for reason in KILLED}


def need_verifier() -> None:
    """Raises PromptError where math-verify is not installed."""
    if importlib.util.find_spec("math_verify") is None:
        raise PromptError(
            "math-verify is not installed, which labels are verified with: pip install '.[reward]' in a checkout"
        )


def own_answer(label: str, mode: Mode) -> str:
    """Return a response whose answer is the label, in the form that the mode reads."""
    return f"Answer: {label}" if mode == "math_dapo" else f"Answer: \\boxed{{{label}}}"


def default_workers() -> int:
    """Return half the number of cores, as in a run, and at most MAX_WORKERS."""
    return max(1, min(MAX_WORKERS, (os.cpu_count() or 2) // 2))


def label_faults(labels: Iterable[str], mode: Mode, pool: VerifierPool) -> dict[str, str]:
    """Return what is wrong with labels, by label: not rewarded as their own answer, or not read by the verifier."""
    faults: dict[str, str] = {}
    waiting: list[tuple[str, Future[Verdict], Future[Verdict]]] = []
    for label in dict.fromkeys(labels):
        if len(label) > pool.limits.label_chars:
            faults[label] = f"{len(label)} characters, above the verifier's {pool.limits.label_chars}"
            continue
        waiting.append((label, pool.submit(own_answer(label, mode), label, mode), pool.submit(_OTHER_ANSWER, label)))
    for label, own, other in waiting:
        if other.result().reason == "undefined_label":
            faults[label] = _UNREAD["undefined_label"]
        elif not own.result().reward:
            faults[label] = f"not rewarded as its own answer by {mode} ({own.result().reason})"
        elif (reason := other.result().reason) in _UNREAD:
            faults[label] = _UNREAD[reason]
    return faults


def same_answer(first: str, second: str, pool: VerifierPool) -> bool:
    """Return whether two labels are the same answer."""
    limit = pool.limits.label_chars
    return first == second or (
        max(len(first), len(second)) <= limit and bool(pool.verify(own_answer(first, "default"), second).reward)
    )


def new_pool(workers: int | None = None) -> VerifierPool:
    """Return a pool of verifiers; default: `default_workers`. Raises PromptError where math-verify is not installed."""
    need_verifier()
    return VerifierPool(default_workers() if workers is None else workers, Limits())
