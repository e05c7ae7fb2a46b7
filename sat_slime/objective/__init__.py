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
    Clip,
    IcePop,
    KPop,
    Method,
    SeqClip,
    check_method,
    compose_method,
    method_names,
    named_method,
    no_op_at_ratio_one,
)
from .mismatch_parts import mismatch_parts
from .surrogate import Surrogate, policy_surrogate, staleness_score
from .trust_region import contraction_factors, scope_too_small, tail_quantile

__all__ = [
    "DPPO",
    "DRPO",
    "PAPER_METHODS",
    "SAT",
    "SPO",
    "TIS",
    "Clip",
    "IcePop",
    "KPop",
    "Method",
    "MetricAccumulator",
    "PolicyLoss",
    "SeqClip",
    "Surrogate",
    "TokenBatch",
    "check_method",
    "compose_method",
    "contraction_factors",
    "low_variance_kl",
    "method_names",
    "mismatch_histogram",
    "mismatch_metrics",
    "mismatch_parts",
    "named_method",
    "no_op_at_ratio_one",
    "policy_loss",
    "policy_surrogate",
    "response_mean_weights",
    "scope_too_small",
    "staleness_score",
    "tail_quantile",
    "token_mean_weights",
]
