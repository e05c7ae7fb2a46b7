"""The numbers that "Stale but Stable" (arXiv 2607.18722) publishes of its lag grid. One seed a cell,
Qwen3-30B-A3B-Base, AIME24.

Copied from the paper's LaTeX source; docs/reproduction.md lists where the paper contradicts itself.
"""

from __future__ import annotations

from dataclasses import dataclass

PAPER_LABEL = "paper, 30B, one seed"
"""How a number from here is marked wherever it stands beside one of ours."""
SOURCE = "Stale but Stable, arXiv 2607.18722, Table 1 (tab:main-combined)"
BASE_MODEL_SCORE = 9.38
"""AIME24 of Qwen3-30B-A3B-Base, %; Table 1."""
LAGS = (1, 8)
ANSWERS_PER_EVALUATION = 480
"""30 problems x 16 samples; Appendix Experimental Details."""


@dataclass(frozen=True)
class PaperCell:
    """One cell of Table 1."""

    method: str
    """Our name of the method."""
    lag: int
    score: float
    """Best observed AIME24, %."""
    step: int
    """Step of that evaluation, slime's iteration number."""
    d_pi: float
    """Mean |log pi - log mu| of the last epoch, nats."""
    collapsed: bool
    """Marked as collapsing later."""


def _row(
    method: str, scores: tuple[float, float], steps: tuple[int, int], d_pi: tuple[float, float], collapsed: bool = False
) -> list[PaperCell]:
    """Return the cells at lag 1 and lag 8; the paper marks collapse at lag 8 alone."""
    return [
        PaperCell(method, lag, score, step, mismatch, collapsed and lag == 8)
        for lag, score, step, mismatch in zip(LAGS, scores, steps, d_pi, strict=True)
    ]


_CELLS = [
    *_row("grpo", (31.25, 30.17), (429, 429), (0.0103, 0.0110), collapsed=True),
    *_row("gspo", (32.25, 31.46), (474, 424), (0.0097, 0.0109), collapsed=True),
    *_row("grpo-r3", (31.83, 29.58), (314, 214), (0.0058, 0.0218)),
    *_row("gspo-r3", (34.00, 33.13), (379, 214), (0.0091, 0.0158)),
    *_row("grpo-tis", (31.62, 31.46), (254, 374), (0.0108, 0.0169)),
    *_row("gspo-tis", (32.88, 31.21), (319, 279), (0.0151, 0.0208)),
    *_row("grpo-tis-r3", (31.79, 31.79), (324, 239), (0.0048, 0.0081)),
    *_row("gspo-tis-r3", (31.88, 32.92), (329, 359), (0.0054, 0.0068)),
    *_row("dppo", (33.96, 32.71), (324, 289), (0.0108, 0.0118)),
    *_row("sat-grpo", (32.71, 32.08), (404, 299), (0.0101, 0.0108)),
    *_row("sat-gspo", (34.17, 32.71), (254, 359), (0.0095, 0.0107)),
    *_row("sat-grpo-r3", (33.75, 33.13), (284, 289), (0.0056, 0.0079)),
    *_row("sat-gspo-r3", (35.83, 34.79), (379, 359), (0.0056, 0.0076)),
]
MAIN_TABLE: dict[tuple[str, int], PaperCell] = {(cell.method, cell.lag): cell for cell in _CELLS}
"""Table 1 by (method, lag). The appendix's tables (app-exp-gspo, -r3, -tis, -dppo) repeat its scores."""


def paper_cell(method: str, lag: int | None) -> PaperCell | None:
    """Return a cell of Table 1; None for what the paper did not run."""
    return None if lag is None else MAIN_TABLE.get((method, lag))
