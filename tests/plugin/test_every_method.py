"""Every method that slime can run goes through slime's own loss_function, and is the objective there too."""

from __future__ import annotations

from dataclasses import replace

import fake_slime
import pytest
import torch
from slime_step import Layout, make_args, make_problem, on_ranks, step, steps
from table_objective import LAYOUTS, assert_same_step, by_the_objective, in_order_of_ranks, needs_real, with_nuclei

from sat_slime.config.method_section import method_switches
from sat_slime.config.slime_checks import not_on_slime
from sat_slime.objective import method_names, named_method
from sat_slime.plugin.step import current


@pytest.fixture(scope="module", autouse=True)
def slime():
    """Puts the real slime in place, or a stand-in for the few functions of it that a loss needs."""
    pytest.importorskip("megatron.core", reason="slime's loss reads Megatron's parallel state")
    fake_slime.install_where_missing()
    yield
    fake_slime.remove()


METHODS = [name for name in method_names() if not not_on_slime(named_method(name))]


def test_all_but_those_that_say_why_run_on_slime() -> None:
    assert set(method_names()) - set(METHODS) == {
        "trpo",
    }


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_the_objective(name: str) -> None:
    method = named_method(name)
    problem = with_nuclei(make_problem()) if method.top_p_replay else make_problem()
    args = make_args(
        {"method": method_switches(name)},
        keep_old_actor=method.denominator == "checkpoint",
        use_rollout_routing_replay=method.routing_replay,
        rollout_top_p=0.9 if method.top_p_replay else 1.0,
    )
    (result,) = on_ranks(Layout(), step, args, problem)
    loss, gradient = by_the_objective(method, problem)
    assert result.metrics["loss"] == pytest.approx(loss, rel=1e-5, abs=1e-6)
    torch.testing.assert_close(result.gradient.double(), gradient, rtol=1e-4, atol=1e-6)
    assert torch.isfinite(result.gradient).all() and all(value == value for value in result.metrics.values())
    for one in (*method.gates, *method.weights):
        assert any(key.startswith(f"{one.prefix()}/") for key in result.metrics), one.name


SPLIT = {
    "mis-geo": {"base": "grpo", "mis_geo": {"enabled": True, "low": 0.9, "high": 1.1}},
    "opsm": {"base": "grpo", "opsm": {"enabled": True, "delta": 0.02}},
    "trm-max": {"base": "grpo", "trm_max": {"enabled": True, "delta": 0.15}},
    "trm-mean": {"base": "grpo", "trm_mean": {"enabled": True, "delta": 0.04}},
    "veto": {"base": "grpo", "veto": {"enabled": True, "low": 0.6}},
    "seq-tis": {"base": "grpo", "seq_tis": True},
    "seq-mask-tis": {"base": "gspo", "seq_mask_tis": {"enabled": True, "low": 0.9, "high": 1.1}},
    "flash": {"base": "flash", "flash": {"delta": 0.004}},
    "vespo": {"base": "vespo"},
    "gmpo": {"base": "gmpo", "gmpo": {"eps_low": 0.2, "eps_high": 0.2}},
    "m2po": {"base": "m2po", "m2po": {"scope": "microbatch", "threshold": 0.02}},
    "m2po by lag": {"base": "m2po", "m2po": {"scope": "microbatch", "threshold": 0.01, "power": 0.9}},
    "lag-power": {"base": "grpo", "sat": True, "lag_power": True},
    "lag-power-gspo": {"base": "gspo", "lag_power": True},
    "bapo": {"base": "grpo", "bapo": {"enabled": True, "scope": "microbatch", "share": 0.55}},
    "sat-tv": {"base": "gspo", "sat": {"enabled": True, "score": "tv", "alpha": 0.5}},
    "a3po": {"base": "grpo", "decoupled": True, "a3po": True},
    "topr": {"base": "topr"},
}
"""Methods that read more than one token of a response, or facts of it, with settings at which some responses are
dropped and others kept."""


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_responses_that_are_split_over_ranks_count_as_one(layout: Layout) -> None:
    """Each data-parallel rank holds one of the single rank's two micro-batches."""
    needs_real(layout)
    problem = make_problem()
    sections = [{"method": section} for section in SPLIT.values()]
    whole = in_order_of_ranks(problem, layout.dp)
    (expected,) = on_ranks(Layout(), steps, [(make_args(dict(section)), whole) for section in sections])
    spread = replace(problem, n_microbatches=2 // layout.dp)
    for results in on_ranks(layout, steps, [(make_args(dict(section)), spread) for section in sections]):
        for name, result, one in zip(SPLIT, results, expected, strict=True):
            assert_same_step(result, one)
            masked = result.metrics.get(f"{name.replace('-', '_')}/masked")
            assert masked is None or name in ("topr", "vespo") or 0 < masked < 1, name


@pytest.mark.parametrize("name", ["grpo-decoupled-a3po", "topr"])
def test_lags_and_rewards_change_what_is_learnt(name: str) -> None:
    problem = make_problem()
    other = replace(problem, lags=[lags + 1 for lags in problem.lags], rewards=[-reward for reward in problem.rewards])
    first, second = on_ranks(Layout(), steps, [(make_args(name), problem), (make_args(name), other)])[0]
    assert (first.gradient - second.gradient).abs().max() > 1e-3


def test_the_lag_grows_with_the_optimizer_steps_of_a_batch() -> None:
    lags = on_ranks(Layout(), lags_after_a_step, make_args("grpo"), problem := make_problem())[0]
    assert all(torch.equal(now, before + 1) for now, before in zip(lags, problem.lags, strict=True))


def lags_after_a_step(layout, args, problem):
    step(layout, args, problem)
    return current().responses.lags_of(problem.tokens)


@pytest.mark.parametrize("name, what", [("grpo-decoupled-a3po", "lags"), ("topr", "rewards")])
def test_facts_that_were_not_told_are_named(name: str, what: str) -> None:
    problem = replace(make_problem(), **{what: None})
    with pytest.raises(RuntimeError, match=rf"the {what} of these responses were not told.*driver"):
        on_ranks(Layout(), step, make_args(name), problem)
