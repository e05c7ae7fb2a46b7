"""The mathematics: what each token adds to the objective, in torch alone."""

from .advantages import group_advantages
from .batch import Need, TokenBatch
from .batch_view import BatchView
from .combinations import check_method
from .loss import PolicyLoss, low_variance_kl, policy_loss, response_mean_weights, token_mean_weights
from .method import (
    PAPER_METHODS,
    Method,
    base_names,
    compose,
    compose_method,
    method_names,
    named_method,
)
from .metric import Metric
from .metrics import MetricAccumulator
from .mismatch import mismatch_histogram, mismatch_metrics, mismatch_parts
from .quantile import tail_quantile
from .ratio import DENOMINATORS
from .stabilizer import (
    Gate,
    Judge,
    Penalty,
    PolicyTerms,
    ProximalPolicy,
    RadiusControl,
    RadiusPolicy,
    Replacement,
    Row,
    Score,
    Stabilizer,
    StepConstraint,
    StepScale,
    Style,
    Variant,
    Weight,
)
from .stabilizers.clips.ppo import Clip
from .stabilizers.clips.sat import SAT, contraction_factors, scope_too_small
from .stabilizers.gates.dppo import DPPO
from .stabilizers.gates.icepop import IcePop
from .stabilizers.gates.kpop import KPop
from .stabilizers.gates.seqclip import SeqClip
from .stabilizers.penalties.drpo import DRPO
from .stabilizers.penalties.spo import SPO
from .stabilizers.runtime.topp import log_probs_on_support, on_support
from .stabilizers.runtime.trpo import TRPO, backtrack, divergence_metrics, total_variation
from .stabilizers.weights.tis import TIS
from .surrogate import Surrogate, interval_radii, policy_surrogate, supply_proximal, threshold_scores

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
    "Judge",
    "KPop",
    "Method",
    "Metric",
    "MetricAccumulator",
    "Need",
    "Penalty",
    "PolicyLoss",
    "PolicyTerms",
    "ProximalPolicy",
    "RadiusControl",
    "RadiusPolicy",
    "Replacement",
    "Row",
    "Score",
    "SeqClip",
    "Stabilizer",
    "StepConstraint",
    "StepScale",
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
    "group_advantages",
    "interval_radii",
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
    "supply_proximal",
    "tail_quantile",
    "threshold_scores",
    "token_mean_weights",
    "total_variation",
]
