"""The mismatch d = log pi - log mu between trainer and rollout engine: its metrics over an optimizer step, and
what it is made of, token by token (Eq. split)."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch.distributed as dist
from torch import Tensor

from .metrics import gather
from .quantile import gathered, tail_quantile

_QUANTILES = {"q50": 0.5, "q90": 0.9, "q99": 0.99}


def mismatch_metrics(
    log_probs: Tensor,
    rollout_log_probs: Tensor,
    mask: Tensor,
    *,
    checkpoint_log_probs: Tensor | None = None,
    group: dist.ProcessGroup | None = None,
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
    pi, mu = (column.detach()[mask].double() for column in (log_probs, rollout_log_probs))
    d = pi - mu
    of_all = gathered(d, group)
    n = len(of_all)
    if n_nan := int(of_all.isnan().sum()):
        raise ValueError(
            f"{n_nan} of {n} log-ratios are NaN: look for NaN or infinite log-probs among the active tokens"
        )
    sizes = of_all.abs()
    levels = {name: float(tail_quantile(sizes, alpha)) for name, alpha in _QUANTILES.items()}

    size, w = d.abs(), (d - of_all.amax()).exp() if n else d
    sums = {"d_pi": size.sum(), "k3_kl": (d.expm1() - d).sum(), "w": w.sum(), "w2": w.square().sum()}
    if checkpoint_log_probs is not None:
        pi_l = checkpoint_log_probs.detach()[mask].double()
        along = (pi - pi_l) * d.sign()
        sums |= {"policy": (pi - pi_l).abs().sum(), "implementation": (pi_l - mu).abs().sum()}
        sums["policy_of_mean"] = along.sum()
        for name in ("q90", "q99"):
            tail = size > levels[name]
            sums |= {f"of_{name}": size[tail].sum(), f"policy_of_{name}": along[tail].sum()}
    of_ranks = gather({name: float(value) for name, value in sums.items()}, group)
    total = {name: math.fsum(part[name] for part in of_ranks) for name in sums}

    means = [name for name in ("d_pi", "k3_kl", "policy", "implementation") if name in total]
    metrics = {f"mismatch/{name}": total[name] / max(n, 1) for name in means}
    metrics |= {f"mismatch/{name}": value for name, value in levels.items()}
    metrics["mismatch/max"] = float(sizes.amax()) if n else 0.0
    metrics["mismatch/ess"] = total["w"] ** 2 / (n * total["w2"]) if n else 1.0
    for name, of in {"mean": "d_pi", "q90": "of_q90", "q99": "of_q99"}.items():
        if "policy" in total and total[of]:
            metrics[f"mismatch/policy_of_{name}"] = total[f"policy_of_{name}"] / total[of]
    return metrics


def mismatch_parts(scores: Mapping[str, Tensor], *, replayed: bool) -> dict[str, Tensor]:
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
