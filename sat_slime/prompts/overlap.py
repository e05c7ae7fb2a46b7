"""Problems of one set that are in another: the same, or nearly so."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from sat_slime.prompts.text import digest, normalize, tokens

RUN = 8
"""Tokens in a row that are compared."""
NEAR = 0.5
"""Share of a problem's runs that another has to hold to be nearly the same."""


@dataclass(frozen=True)
class Overlap:
    """What of an evaluation's problem another holds."""

    of: int
    """Its row."""
    share: float
    """Of the evaluation problem's runs of tokens; 1 where both are the same."""
    same: bool


class Problems:
    """The evaluation's problems, to hold others against."""

    def __init__(self, problems: Iterable[tuple[int, str]]) -> None:
        """problems: row and text of each."""
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
        """With the one that it holds most of, if that is at least NEAR."""
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
