"""Methods by their names: labels, partners without a stabilizer, and the numbers that "Stale but Stable" (arXiv
2607.18722) publishes of them. A run may also bear a name that is none of a method.

The numbers are copied from the paper's LaTeX source; docs/reproduction.md lists where the paper contradicts itself.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from sat_slime.objective import PAPER_METHODS, Method, named_method
from sat_slime.objective.method import imported

PAPER_ORDER = [method.name for method in PAPER_METHODS]
WITH = " with "
"""It stands between a method and the settings in which its runs differ."""


def method_called(name: str) -> Method | None:
    """Return the method of that name, whatever its settings. None: there is none, or its base is outside this package
    and no run's settings named it, or could not be imported here. A name, which may be a folder's, has nothing
    imported."""
    name = name.partition(WITH)[0]
    if "." in name and not any(path in name for path in imported()):
        return None
    return _named(name)


@functools.cache
def _named(name: str) -> Method | None:
    try:
        return named_method(name)
    except ValueError:
        return None


def _behind(name: str) -> str:
    """Return what stands behind the method in a name."""
    return name.removeprefix(name.partition(WITH)[0])


def label_of(name: str) -> str:
    """Return `sat-gspo-r3` as the paper writes it, `SAT-GSPO w/ R3`, settings behind it; other names as they are."""
    method = method_called(name)
    return method.label + _behind(name) if method else name


def pairs_without(stabilizer: str, names: list[str]) -> list[tuple[str, str]]:
    """Return (name, name of that method without the stabilizer) of the methods that have it, with the settings that
    both may have."""
    pairs = []
    for name in names:
        if (one := method_called(name)) and one.has(stabilizer):
            own = [setting for part in one.stabilizers if part.name == stabilizer for setting in vars(part)]
            settings = _behind(name).removeprefix(WITH).split(", ")
            shared = ", ".join(setting for setting in settings if setting.partition(" ")[0] not in own)
            pairs.append((one.name + _behind(name), one.without(stabilizer).name + WITH * bool(shared) + shared))
    return pairs


PAPER_LABEL = "paper, 30B, one seed"
"""How a number from here is marked wherever it stands beside one of ours."""
SOURCE = "Stale but Stable, arXiv 2607.18722, Table 1 (tab:main-combined)"
BASE_MODEL_SCORE = 9.38
"""AIME24 of Qwen3-30B-A3B-Base, %; Table 1."""
ANSWERS_PER_EVALUATION = 480
"""30 problems x 16 samples; Appendix Experimental Details."""


class PaperCell(NamedTuple):
    """One cell of Table 1."""

    score: float
    """Best observed AIME24, %."""
    step: int
    """Step of that evaluation, slime's iteration number."""
    d_pi: float
    """Mean |log pi - log mu| of the last epoch, nats."""
    collapsed: bool
    """Marked as collapsing later."""


# at lag 1 and at lag 8; the appendix's tables (app-exp-gspo, -r3, -tis, -dppo) repeat the scores
_TABLE_1 = {
    "grpo": ((31.25, 429, 0.0103, False), (30.17, 429, 0.0110, True)),
    "gspo": ((32.25, 474, 0.0097, False), (31.46, 424, 0.0109, True)),
    "grpo-r3": ((31.83, 314, 0.0058, False), (29.58, 214, 0.0218, False)),
    "gspo-r3": ((34.00, 379, 0.0091, False), (33.13, 214, 0.0158, False)),
    "grpo-tis": ((31.62, 254, 0.0108, False), (31.46, 374, 0.0169, False)),
    "gspo-tis": ((32.88, 319, 0.0151, False), (31.21, 279, 0.0208, False)),
    "grpo-tis-r3": ((31.79, 324, 0.0048, False), (31.79, 239, 0.0081, False)),
    "gspo-tis-r3": ((31.88, 329, 0.0054, False), (32.92, 359, 0.0068, False)),
    "dppo": ((33.96, 324, 0.0108, False), (32.71, 289, 0.0118, False)),
    "sat-grpo": ((32.71, 404, 0.0101, False), (32.08, 299, 0.0108, False)),
    "sat-gspo": ((34.17, 254, 0.0095, False), (32.71, 359, 0.0107, False)),
    "sat-grpo-r3": ((33.75, 284, 0.0056, False), (33.13, 289, 0.0079, False)),
    "sat-gspo-r3": ((35.83, 379, 0.0056, False), (34.79, 359, 0.0076, False)),
}
MAIN_TABLE = {
    (method, lag): PaperCell(*cell)
    for method, cells in _TABLE_1.items()
    for lag, cell in zip((1, 8), cells, strict=True)
}
"""Table 1 by (method, lag). One seed a cell, Qwen3-30B-A3B-Base, AIME24."""
