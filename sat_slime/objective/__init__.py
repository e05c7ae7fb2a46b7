"""The mathematics: what each token adds to the objective, on torch tensors. Begin with surrogate.py."""

import importlib
from typing import TYPE_CHECKING, Any

from .clips import Clip
from .method import PAPER_METHODS, Method, check_method, compose, method_names, named_method
from .metrics import Metric, MetricAccumulator
from .sat import SAT, contraction_factors
from .stabilizer import Gate, Judge, Radii, Score, Stabilizer, Surrogate, Weight
from .terms import DENOMINATORS

if TYPE_CHECKING:
    from .mismatch import mismatch_metrics, mismatch_parts
    from .quantile import tail_quantile
    from .surrogate import Result, policy_surrogate, threshold_scores
    from .tokens import TokenBatch, Tokens, broken_tokens


def __getattr__(name: str) -> Any:
    """A name of the modules that import torch, for which reading a run's settings does not wait."""
    if name in __all__:
        for module in ("mismatch", "quantile", "surrogate", "tokens"):
            names = vars(importlib.import_module(f".{module}", __name__))
            if name in names:
                return names[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "DENOMINATORS",
    "PAPER_METHODS",
    "SAT",
    "Clip",
    "Gate",
    "Judge",
    "Method",
    "Metric",
    "MetricAccumulator",
    "Radii",
    "Result",
    "Score",
    "Stabilizer",
    "Surrogate",
    "TokenBatch",
    "Tokens",
    "Weight",
    "broken_tokens",
    "check_method",
    "compose",
    "contraction_factors",
    "method_names",
    "mismatch_metrics",
    "mismatch_parts",
    "named_method",
    "policy_surrogate",
    "tail_quantile",
    "threshold_scores",
]
