"""The mathematics: what each token adds to the objective, in torch alone. Begin with surrogate.py."""

from .clips import Clip
from .method import (
    PAPER_METHODS,
    Method,
    check_method,
    compose,
    compose_method,
    method_names,
    named_method,
)
from .metrics import Metric, MetricAccumulator
from .mismatch import mismatch_histogram, mismatch_metrics, mismatch_parts
from .quantile import tail_quantile
from .sat import SAT, contraction_factors
from .stabilizer import Gate, Judge, Radii, Score, Stabilizer, Surrogate, Weight
from .surrogate import Result, log_ratio, policy_surrogate, threshold_scores
from .tokens import DENOMINATORS, TokenBatch, Tokens, broken_tokens

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
    "compose_method",
    "contraction_factors",
    "log_ratio",
    "method_names",
    "mismatch_histogram",
    "mismatch_metrics",
    "mismatch_parts",
    "named_method",
    "policy_surrogate",
    "tail_quantile",
    "threshold_scores",
]
