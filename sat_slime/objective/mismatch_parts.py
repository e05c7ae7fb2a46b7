"""What the mismatch d = log pi - log mu is made of (Eq. split), token by token, from scores of the same tokens."""

from __future__ import annotations

from collections.abc import Mapping

import torch


def mismatch_parts(scores: Mapping[str, torch.Tensor], *, replayed: bool) -> dict[str, torch.Tensor]:
    """Parts of d that sum to it, each log-prob being compared with the next on the way from pi to mu.

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
