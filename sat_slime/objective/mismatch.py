"""The mismatch d = log pi - log mu between trainer and rollout engine: its metrics over an optimizer step, its
histogram, and what it is made of, token by token (Eq. split)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from .quantile import tail_quantile
from .ranks import gather

HISTOGRAM_EDGES = tuple(10.0 ** (exponent / 8) for exponent in range(-64, 17))
"""Edges of mismatch_histogram in |d|: 1e-8 to 1e2, eight to a decade."""


_QUANTILES = {"q50": 0.5, "q90": 0.9, "q99": 0.99}


def mismatch_metrics(
    log_probs: torch.Tensor,
    rollout_log_probs: torch.Tensor,
    mask: torch.Tensor,
    *,
    checkpoint_log_probs: torch.Tensor | None = None,
    group: torch.distributed.ProcessGroup | None = None,
) -> dict[str, float]:
    """Measure the mismatch d = log pi - log mu over the active tokens of an optimizer step, exact across ranks.

    mismatch/d_pi is mean |d| (Eq. mismatch-metric), of the token ratio for every method; q50, q90, q99 and max are of
    |d|; k3_kl is mean(e^d - 1 - d), the low-variance estimate of KL(mu || pi) on samples of mu; ess is
    (sum w)^2 / (n sum w^2) with w = e^d, the effective share of the sample. With checkpoint_log_probs (pi_l),
    mismatch/policy = mean |log pi - log pi_l| and mismatch/implementation = mean |log pi_l - log mu| (Eq. split), and
    mismatch/policy_of_{mean,q90,q99} is the policy part's share of mean |d|, and of |d| over the tokens beyond q90 and
    q99: a token's part counts in the direction of its d, so that the implementation part's share is the rest.

    Args:
        log_probs, rollout_log_probs, mask, checkpoint_log_probs: (N,), this rank's; N may be 0 on some ranks.
        group: ranks that hold parts of the step's tokens.

    Returns:
        Plain numbers, the same on all ranks; without any token all are 0, ess 1.
    """
    mu = rollout_log_probs.detach()[mask].double()
    d = log_probs.detach()[mask].double() - mu
    largest = max(gather(float(d.amax()) if len(d) else -math.inf, group))
    sums = {
        "n": float(len(d)),
        "d_pi": float(d.abs().sum()),
        "k3_kl": float((d.expm1() - d).sum()),
        "w": float((d - largest).exp().sum()),
        "w2": float((2 * (d - largest)).exp().sum()),
        "max": float(d.abs().amax()) if len(d) else 0.0,
    }
    quantiles = {name: float(tail_quantile(d.abs(), alpha, group)) for name, alpha in _QUANTILES.items()}
    if checkpoint_log_probs is not None:
        checkpoint = checkpoint_log_probs.detach()[mask].double()
        policy = log_probs.detach()[mask].double() - checkpoint
        sums["policy"] = float(policy.abs().sum())
        sums["implementation"] = float((checkpoint - mu).abs().sum())
        for name, beyond in {"mean": -1.0, "q90": quantiles["q90"], "q99": quantiles["q99"]}.items():
            tail = d.abs() > beyond
            sums[f"of_{name}"] = float(d[tail].abs().sum())
            sums[f"policy_of_{name}"] = float((policy * d.sign())[tail].sum())
    parts = gather(sums, group)
    total = {name: math.fsum(part[name] for part in parts) for name in sums}
    n = max(total["n"], 1.0)
    metrics = {"mismatch/d_pi": total["d_pi"] / n, "mismatch/k3_kl": total["k3_kl"] / n}
    metrics |= {f"mismatch/{name}": value for name, value in quantiles.items()}
    metrics["mismatch/max"] = max(part["max"] for part in parts)
    metrics["mismatch/ess"] = total["w"] ** 2 / (n * total["w2"]) if total["n"] else 1.0
    for name in ("policy", "implementation"):
        if name in total:
            metrics[f"mismatch/{name}"] = total[name] / n
    for name in ("mean", "q90", "q99"):
        if total.get(f"of_{name}"):
            metrics[f"mismatch/policy_of_{name}"] = total[f"policy_of_{name}"] / total[f"of_{name}"]
    return metrics


def mismatch_histogram(
    abs_log_ratio: torch.Tensor, group: torch.distributed.ProcessGroup | None = None
) -> dict[str, list[Any]]:
    """Return the counts of |d| on fixed logarithmic edges, over all ranks.

    Args:
        abs_log_ratio: (n,) |d| of the active tokens.

    Returns:
        `edges`, E numbers, and `counts`, E + 1: below the first edge (0 included), [edge, next edge) each, and from
        the last edge on.
    """
    values = abs_log_ratio.detach().double().flatten()
    edges = torch.tensor(HISTOGRAM_EDGES, dtype=torch.float64, device=values.device)
    counts = torch.bincount(torch.bucketize(values, edges, right=True), minlength=len(edges) + 1)
    if group is not None:
        torch.distributed.all_reduce(counts, group=group)
    return {"edges": list(HISTOGRAM_EDGES), "counts": counts.tolist()}


def mismatch_parts(scores: Mapping[str, torch.Tensor], *, replayed: bool) -> dict[str, torch.Tensor]:
    """Return the parts of d that sum to it, each log-prob being compared with the next on the way from pi to mu.

    Write A for the weights in training and B for those that generated; own and engine for the routes; C for B in the
    engine's data type, along the engine's routes. The method's own routes are `own`, with R3 (`replayed`) `engine`.

        policy_weights   A(engine) - B(engine)          what the updates changed at fixed routes
        policy_routes    the rest of log pi - log pi_l  what they changed by sending tokens to other experts
        routing          B(method) - B(engine)          other experts at equal weights; 0 under R3
        precision        B(engine) - C                  rounding of weights and activations to the engine's type
        rest             C - mu                         kernels, order of sums, KV cache

    The first two are the policy part, the others the implementation part. The order is a choice: the paper's appendix
    on the sources of mismatch says why there is no unique one.

    Args:
        scores: (N,) log-probs by the names of token dumps: log_probs, rollout_log_probs, checkpoint_log_probs, and as
            many as there are of log_probs_replayed, checkpoint_log_probs_replayed, checkpoint_log_probs_engine_dtype.
        replayed: the method trains with R3.

    Returns:
        (N,) float64 each. A dense model has one `policy` and no routing; without re-scoring the parts are `policy` and
        `implementation`; without checkpoint_log_probs there are none.
    """
    known = {name: values.double() for name, values in scores.items() if values.is_floating_point()}
    if "checkpoint_log_probs" not in known:
        return {}
    pi_l, mu = known["checkpoint_log_probs"], known["rollout_log_probs"]
    policy = known["log_probs"] - pi_l
    in_engine_dtype = known.get("checkpoint_log_probs_engine_dtype")
    if in_engine_dtype is None:
        return {"policy": policy, "implementation": pi_l - mu}
    ends = {"rest": in_engine_dtype - mu}
    along = known.get("checkpoint_log_probs_replayed")
    if along is None:
        return {"policy": policy, "precision": pi_l - in_engine_dtype, **ends}
    weights = policy if replayed else known["log_probs_replayed"] - along
    return {
        "policy_weights": weights,
        "policy_routes": policy - weights,
        "routing": pi_l - along,
        "precision": along - in_engine_dtype,
        **ends,
    }
