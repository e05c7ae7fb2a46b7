"""Problems of one set that another holds too: the same, or nearly the same."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from sat_slime.prompts.text import digest, normalize, tokens

RUN = 8
"""Tokens in a row, a run, are compared at once."""
NEAR = 0.5
"""The share of a problem's runs that another one has to hold to be nearly the same."""


@dataclass(frozen=True)
class Overlap:
    """The part of an evaluation's problem that another problem holds."""

    of: int
    """The row of the evaluation's problem."""
    share: float
    """The share of its runs that the other holds; 1 where both are the same."""
    same: bool


class Problems:
    """The problems of an evaluation, with which others are compared."""

    def __init__(self, problems: Iterable[tuple[int, str]]) -> None:
        """problems: the row and the text of each."""
        self._same: dict[bytes, int] = {}
        self._having: defaultdict[str, list[int]] = defaultdict(list)
        self._runs: dict[int, int] = {}
        for number, problem in problems:
            self._same.setdefault(digest(normalize(problem)), number)
            runs = _runs(problem)
            self._runs[number] = len(runs)
            for run in runs:
                self._having[run].append(number)

    def overlap(self, problem: str) -> Overlap | None:
        """Return the overlap with the problem of which this one holds most, if that is at least NEAR."""
        if (of := self._same.get(digest(normalize(problem)))) is not None:
            return Overlap(of, 1.0, True)
        held = Counter(of for run in _runs(problem) for of in self._having.get(run, ()))
        shares = {of: count / self._runs[of] for of, count in held.items()}
        most = max(shares, key=lambda of: shares[of], default=None)
        if most is None or shares[most] < NEAR:
            return None
        return Overlap(most, shares[most], False)


def _runs(problem: str) -> set[str]:
    words = tokens(problem)
    return {" ".join(words[start : start + RUN]) for start in range(max(1, len(words) - RUN + 1))}
