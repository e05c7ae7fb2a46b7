"""The mathematics: what each token adds to the objective, in torch alone."""

from .batch import TokenBatch
from .batch_view import BatchView
from .loss import PolicyLoss, low_variance_kl, policy_loss, response_mean_weights, token_mean_weights
from .method import (
    PAPER_METHODS,
    Method,
    base_names,
    check_method,
    compose,
    compose_method,
    method_names,
    named_method,
)
from .metric import Metric
from .metrics import MetricAccumulator
from .mismatch import mismatch_histogram, mismatch_metrics
from .mismatch_parts import mismatch_parts
from .quantile import tail_quantile
from .ratio import DENOMINATORS
from .stabilizer import Gate, Penalty, Row, Stabilizer, StepConstraint, Style, Variant, Weight
from .stabilizers.dppo import DPPO
from .stabilizers.drpo import DRPO
from .stabilizers.icepop import IcePop
from .stabilizers.kpop import KPop
from .stabilizers.ppo import Clip
from .stabilizers.sat import SAT, contraction_factors, scope_too_small
from .stabilizers.seqclip import SeqClip
from .stabilizers.spo import SPO
from .stabilizers.tis import TIS
from .stabilizers.topp import log_probs_on_support, on_support
from .stabilizers.trpo import TRPO, backtrack, divergence_metrics, total_variation
from .surrogate import Surrogate, policy_surrogate, staleness_score

__all__ = [
    "DENOMINATORS",
    "DPPO",
    "DRPO",
    "PAPER_METHODS",
    "SAT",
    "SPO",
    "TIS",
    "TRPO",
    "BatchView",
    "Clip",
    "Gate",
    "IcePop",
    "KPop",
    "Method",
    "Metric",
    "MetricAccumulator",
    "Penalty",
    "PolicyLoss",
    "Row",
    "SeqClip",
    "Stabilizer",
    "StepConstraint",
    "Style",
    "Surrogate",
    "TokenBatch",
    "Variant",
    "Weight",
    "backtrack",
    "base_names",
    "check_method",
    "compose",
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
    "on_support",
    "policy_loss",
    "policy_surrogate",
    "response_mean_weights",
    "scope_too_small",
    "staleness_score",
    "tail_quantile",
    "token_mean_weights",
    "total_variation",
]
