"""The mathematics: what each token adds to the objective, in torch alone."""

from .batch import TokenBatch
from .diagnostics import MetricAccumulator, mismatch_histogram, mismatch_metrics
from .loss import PolicyLoss, low_variance_kl, policy_loss, response_mean_weights, token_mean_weights
from .method import (
    DPPO,
    DRPO,
    PAPER_METHODS,
    SAT,
    SPO,
    TIS,
    TRPO,
    Clip,
    IcePop,
    KPop,
    Method,
    SeqClip,
    base_names,
    check_method,
    compose_method,
    method_names,
    named_method,
    no_op_at_ratio_one,
)
from .mismatch_parts import mismatch_parts
from .ratio import DENOMINATORS
from .stabilizer import STABILIZERS, Stabilizer
from .step_constraint import backtrack, divergence_metrics, step_stands, total_variation
from .support import log_probs_on_support, on_support
from .surrogate import Surrogate, policy_surrogate, staleness_score
from .trust_region import contraction_factors, scope_too_small, tail_quantile

__all__ = [
    "DENOMINATORS",
    "DPPO",
    "DRPO",
    "PAPER_METHODS",
    "SAT",
    "SPO",
    "STABILIZERS",
    "TIS",
    "TRPO",
    "Clip",
    "IcePop",
    "KPop",
    "Method",
    "MetricAccumulator",
    "PolicyLoss",
    "SeqClip",
    "Stabilizer",
    "Surrogate",
    "TokenBatch",
    "backtrack",
    "base_names",
    "check_method",
    "compose_method",
    "contraction_factors",
    "divergence_metrics",
    "log_probs_on_support",
    "low_variance_kl",
    "method_names",
    "mismatch_histogram",
    "mismatch_metrics",
    "mismatch_parts",
    "named_method",
    "no_op_at_ratio_one",
    "on_support",
    "policy_loss",
    "policy_surrogate",
    "response_mean_weights",
    "scope_too_small",
    "staleness_score",
    "step_stands",
    "tail_quantile",
    "token_mean_weights",
    "total_variation",
]
