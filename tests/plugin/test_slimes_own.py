"""What slime has itself is the same here, through the whole of its loss_function: value and gradient.

Bit for bit where both take the same sums. slime sums a response in fp32, the objective in float64: so a weight that is
such a sum agrees up to rounding, and a gate that only compares one agrees to the bit.
"""

from __future__ import annotations

import importlib
import inspect
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from slime_step import Layout, make_args, make_problem, on_ranks, steps

pytestmark = [pytest.mark.needs_slime, pytest.mark.usefixtures("slimes_loss")]

LOSS = "slime.backends.megatron_utils.loss"
EXAMPLE = "examples.train_infer_mismatch_helper.mis"
"""slime's example of token and sequence corrections, importable where slime's checkout is on the path."""


@dataclass(frozen=True)
class Pair:
    """A method here, and slime's flags for the same."""

    method: dict[str, Any]
    flags: dict[str, Any]
    over_mu: bool = False
    """Whether the ratio is over mu: both have --use-rollout-logprobs then."""
    exact: bool = True


def _example(**settings: Any) -> dict[str, Any]:
    """The flags of slime's example, with its settings."""
    defaults = {
        "tis_level": "token",
        "tis_mode": "truncate",
        "tis_upper_bound": 2.0,
        "tis_lower_bound": 0.0,
        "tis_batch_normalize": False,
        "use_rs": False,
        "rs_level": "geometric",
        "rs_lower_bound": 0.9,
        "rs_upper_bound": 1.1,
        "rs_veto_threshold": None,
    }
    path = f"{EXAMPLE}.compute_mis_weights_with_cp"
    return {"use_tis": True, "custom_tis_function_path": path} | defaults | settings


CISPO = {"advantage_estimator": "cispo"}
OPSM = {"delta": 0.02}
GEO = {"low": 0.9, "high": 1.1}
PAIRS = {
    "cispo": Pair({"base": "cispo"}, CISPO | {"eps_clip": 1.0, "eps_clip_high": 4.0}, over_mu=True),
    "cispo, narrow": Pair(
        {"base": "cispo", "cispo": {"eps_low": 0.1, "eps_high": 0.2}},
        CISPO | {"eps_clip": 0.1, "eps_clip_high": 0.2},
        over_mu=True,
    ),
    "cispo with TIS": Pair(
        {"base": "cispo", "tis": True}, CISPO | {"eps_clip": 1.0, "eps_clip_high": 4.0, "use_tis": True}
    ),
    "OPSM": Pair({"base": "grpo", "opsm": OPSM}, {"use_opsm": True, "opsm_delta": 0.02}, over_mu=True),
    "OPSM on GSPO": Pair(
        {"base": "gspo", "opsm": OPSM},
        {"use_opsm": True, "opsm_delta": 0.02, "advantage_estimator": "gspo"},
        over_mu=True,
    ),
    "TIS": Pair({"base": "grpo", "tis": True}, {"use_tis": True, "tis_clip": 2.0}),
    "IcePop": Pair(
        {"base": "icepop", "icepop": {"low": 0.8, "high": 1.3, "form": "weight"}},
        {"use_tis": True, "custom_tis_function_path": f"{LOSS}.icepop_function", "tis_clip_low": 0.8, "tis_clip": 1.3},
    ),
    "the example, token": Pair({"base": "grpo", "tis": True}, _example()),
    "the example, token mask": Pair(
        {"base": "grpo", "decoupled": {"cap": 1.3}}, _example(tis_mode="mask", tis_upper_bound=1.3)
    ),
    "the example, sequence": Pair({"base": "grpo", "seq_tis": True}, _example(tis_level="sequence"), exact=False),
    "the example, geometric mask": Pair({"base": "grpo", "tis": True, "mis_geo": GEO}, _example(use_rs=True)),
    "the example, geometric mask without a cap": Pair(
        {"base": "grpo", "seq_mask_tis": GEO}, _example(use_rs=True, tis_upper_bound=1e6)
    ),
    "the example, veto": Pair(
        {"base": "grpo", "tis": True, "veto": {"low": 0.6}},
        _example(use_rs=True, rs_lower_bound=1e-3, rs_upper_bound=1e3, rs_veto_threshold=0.6),
    ),
}


@pytest.mark.parametrize("layout", [Layout(), Layout(cp=2), Layout(cp=2, allgather_cp=True)], ids=str)
def test_loss_and_gradient_are_slimes_own(layout: Layout) -> None:
    pytest.importorskip(EXAMPLE, reason="slime's examples are beside its package in a checkout")
    problem, jobs = make_problem(spread=0.4), []
    for pair in PAIRS.values():
        both = {"use_rollout_logprobs": pair.over_mu, "global_batch_size": 8 if pair.over_mu else 4}
        jobs.append((make_args({"method": pair.method}, **both), problem))
        jobs.append((make_args(None, loss_type="policy_loss", **both, **pair.flags), problem))
    for results in on_ranks(layout, steps, jobs):
        for (name, pair), mine, slimes in zip(PAIRS.items(), results[::2], results[1::2], strict=True):
            assert slimes.gradient.abs().sum() > 0, name
            if pair.exact:
                assert all(torch.equal(a, b) for a, b in zip(mine.losses, slimes.losses, strict=True)), name
                assert torch.equal(mine.gradient, slimes.gradient), name
            for a, b in zip([*mine.losses, mine.gradient], [*slimes.losses, slimes.gradient], strict=True):
                torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6, msg=name)


EVERYTHING = {"use_tis": True, "use_kl_loss": True, "entropy_coef": 0.01, "eps_clip_c": 1.5}
OFF = {
    "plain": {},
    "TIS": {"use_tis": True},
    "KL": {"use_kl_loss": True},
    "unbiased KL": {"use_kl_loss": True, "use_unbiased_kl": True},
    "entropy": {"entropy_coef": 0.01},
    "dual clip": {"eps_clip_c": 1.5},
    "per token": {"calculate_per_token_loss": True},
    "recomputed": {"recompute_loss_function": True},
    "everything": EVERYTHING,
    "everything per token, recomputed": EVERYTHING
    | {"calculate_per_token_loss": True, "recompute_loss_function": True},
}


@pytest.mark.parametrize("layout", [Layout(), Layout(cp=2), Layout(cp=2, allgather_cp=True), Layout(tp=2)], ids=str)
@pytest.mark.parametrize("estimator", ["grpo", "gspo"])
def test_off_is_slimes_own_loss_to_the_bit(estimator: str, layout: Layout) -> None:
    problem, jobs = make_problem(spread=0.4), []
    # two optimizer steps a rollout: the ratio is not always 1
    common = {"advantage_estimator": estimator, "eps_clip_high": 0.28, "global_batch_size": 4}
    if "eps_clip_c" not in inspect.getsource(importlib.import_module(LOSS).policy_loss_function):
        common["eps_clip_c"] = None  # this slime takes --eps-clip-c and leaves it out of its loss
    for flags in OFF.values():
        both = {**flags, **common}
        method = {"base": estimator, "tis": both.pop("use_tis", False), "denominator": "trainer"}
        jobs += [(make_args({"method": method}, **both), problem)]
        jobs += [(make_args(None, loss_type="policy_loss", use_tis=method["tis"], **both), problem)]
    for results in on_ranks(layout, steps, jobs):
        for (name, flags), mine, slimes in zip(OFF.items(), results[::2], results[1::2], strict=True):
            assert all(torch.equal(a, b) for a, b in zip(mine.losses, slimes.losses, strict=True)), name
            assert torch.equal(mine.gradient, slimes.gradient) and mine.gradient.abs().sum() > 0, name
            compared = ["loss", "pg_loss", "pg_clipfrac", "ppo_kl", "entropy_loss", "train_rollout_logprob_abs_diff"]
            compared += ["kl_loss"] if "use_kl_loss" in flags else []
            assert [mine.metrics[key] for key in compared] == [slimes.metrics[key] for key in compared], name
