"""The loss in slime's own loss_function is the objective, and the same under every layout."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch
from slime_step import VOCAB, Layout, Problem, Step, make_args, make_problem, on_ranks, step, steps

from sat_slime.config.method_section import build_method
from sat_slime.config.slime_schema import PluginConfig
from sat_slime.objective import (
    Method,
    TokenBatch,
    method_names,
    mismatch_metrics,
    named_method,
    policy_surrogate,
    threshold_scores,
)
from sat_slime.plugin.step import current

pytestmark = pytest.mark.usefixtures("slimes_loss")
LAYOUTS = [Layout(dp=2), Layout(cp=2), Layout(cp=2, allgather_cp=True), Layout(tp=2), Layout(dp=2, cp=2)]

OTHERS = {
    "dppo-kl": {"base": "dppo", "dppo": {"divergence": "kl", "delta_kl": 0.01}},
    "icepop": {"base": "icepop", "icepop": {"low": 0.8, "high": 1.3}},
    "icepop-weight": {"base": "icepop", "icepop": {"low": 0.8, "high": 1.3, "form": "weight"}},
    "kpop": {"base": "kpop", "kpop": {"phi": 0.01}},
    "sat-gspo-checkpoint": {"base": "gspo", "sat": {"scope": "microbatch"}, "denominator": "checkpoint"},
}
"""Methods with settings that their names do not tell."""


def method_of(name: str) -> Method:
    section = OTHERS.get(name)
    return named_method(name) if section is None else build_method(PluginConfig(method=section).method)


def args_of(name: str, **changes):
    method = method_of(name)
    flags = {"use_rollout_routing_replay": method.has("r3"), "rollout_top_p": 0.9 if method.has("topp") else 1.0}
    return make_args({"method": OTHERS.get(name, name)}, **flags, **changes)


@pytest.mark.parametrize("name", [*method_names(), *OTHERS])
def test_every_method_is_the_objective(name: str) -> None:
    """Loss and gradient are those of sat_slime.objective, whose tests compute the equations by brute force."""
    method = method_of(name)
    problem = with_nuclei(make_problem()) if method.has("topp") else make_problem()
    (result,) = on_ranks(Layout(), step, args_of(name), problem)
    loss, gradient = by_the_objective(method, problem)
    assert result.metrics["loss"] == pytest.approx(loss, rel=1e-5, abs=1e-6)
    torch.testing.assert_close(result.gradient.double(), gradient, rtol=1e-4, atol=1e-6)
    assert torch.isfinite(result.gradient).all() and all(value == value for value in result.metrics.values())
    for one in (*method.gates, *method.weights):
        assert any(key.startswith(f"{one.prefix()}/") for key in result.metrics), one.name


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
@pytest.mark.parametrize("name", ["grpo", "sat-gspo", "spo"])
def test_a_number_that_is_not_finite_ends_the_step_before_its_backward_pass(name: str, value: float) -> None:
    problem = make_problem(partial_masks=False)
    problem.rollout_log_probs[3][5] = value
    with pytest.raises(FloatingPointError, match=r"1 of .* token 5 of response 3 .* rollout_log_probs is"):
        on_ranks(Layout(), step, args_of(name), problem)


SPLIT = {
    "mis-geo": {"base": "grpo", "mis_geo": {"low": 0.9, "high": 1.1}},
    "opsm": {"base": "grpo", "opsm": {"delta": 0.02}},
    "trm-max": {"base": "grpo", "trm_max": {"delta": 0.15}},
    "trm-mean": {"base": "grpo", "trm_mean": {"delta": 0.04}},
    "veto": {"base": "grpo", "veto": {"low": 0.6}},
    "seq-tis": {"base": "grpo", "seq_tis": True},
    "seq-mask-tis": {"base": "gspo", "seq_mask_tis": {"low": 0.9, "high": 1.1}},
    "vespo": {"base": "vespo"},
    "m2po": {"base": "m2po", "m2po": {"scope": "microbatch", "threshold": 0.02}},
    "m2po by lag": {"base": "m2po", "m2po": {"scope": "microbatch", "threshold": 0.01, "power": 0.9}},
    "lag-power": {"base": "grpo", "sat": True, "lag_power": True},
    "lag-power-gspo": {"base": "gspo", "lag_power": True},
    "bapo": {"base": "grpo", "bapo": {"scope": "microbatch", "share": 0.55}},
    "a3po": {"base": "grpo", "decoupled": True, "a3po": True},
    "topr": {"base": "topr"},
}
"""Methods that read more than one token of a response, or facts of it, with settings at which some responses are
dropped and others kept."""


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_every_layout_gives_the_same(layout: Layout) -> None:
    """Loss, gradient and every metric are compared. Each data-parallel rank holds one of the single rank's two
    micro-batches, so that the scope of the micro-batch's quantile is the same, too."""

    def jobs(masked):
        whole = replace(masked, nuclei=None)
        of_sections = [(make_args({"method": section}), whole) for section in SPLIT.values()]
        plain = [(args_of(name, use_kl_loss=True), whole) for name in ("sat-grpo", "sat-gspo", "gspo-tis", "dppo")]
        return [*of_sections, *plain, *((args_of(name), masked) for name in ("sat-gspo-topp", "dppo-topp"))]

    problem = with_nuclei(make_problem())
    (expected,) = on_ranks(Layout(), steps, jobs(in_order_of_ranks(problem, layout.dp)))
    for results in on_ranks(layout, steps, jobs(replace(problem, n_microbatches=2 // layout.dp))):
        for result, one in zip(results, expected, strict=True):
            assert_same_step(result, one)
        for name, result in zip(SPLIT, results, strict=False):
            masked = result.metrics.get(f"{name.replace('-', '_')}/masked")
            assert masked is None or name in ("topr", "vespo") or 0 < masked < 1, name


@pytest.mark.parametrize("layout", [Layout(), *LAYOUTS], ids=str)
def test_the_step_threshold_is_that_of_all_tokens(layout: Layout) -> None:
    """However the step is cut into micro-batches and ranks, it is as if one micro-batch had all of them."""
    problem = make_problem()
    jobs, expected = [], []
    for base, key, settings in (("grpo", "sat", {}), ("gspo", "sat", {}), ("m2po", "m2po", {"threshold": 0.02})):
        whole = make_args({"method": {"base": base, key: {**settings, "scope": "microbatch"}}})
        (one,) = on_ranks(Layout(), step, whole, replace(problem, n_microbatches=1, log_probs=None))
        one.metrics.pop("sat/scope_too_small", None)  # it is not judged where the quantile is given
        section = {"method": {"base": base, key: {**settings, "scope": "step"}}}
        for n_microbatches in (1, 2):
            jobs.append((make_args(dict(section)), replace(problem, n_microbatches=n_microbatches)))
            expected.append(one)
    for results in on_ranks(layout, steps, jobs):
        for result, one in zip(results, expected, strict=True):
            assert_same_step(result, one)
            judged = "m2po/masked" if "m2po/masked" in result.metrics else "sat/gate_rate"
            assert 0 < result.metrics[judged] < 1


@pytest.mark.parametrize("name", ["sat-grpo", "sat-gspo", "dppo"])
def test_empty_and_masked_responses(name: str) -> None:
    """The step has a response without a token, one without an active token, and a micro-batch without either."""
    problem = make_problem(responses=((3, 0), (4, 0), (3, 5), (2, 4)))
    problem.loss_masks[3] = torch.zeros(4, dtype=torch.int)
    problem.rollout_log_probs[3][1] = float("nan")
    (result,) = on_ranks(Layout(), step, args_of(name, use_kl_loss=True, use_unbiased_kl=True), problem)
    assert all(value == value for value in result.metrics.values())
    assert torch.isfinite(result.gradient).all()


def test_metrics_are_those_of_all_active_tokens_of_the_step() -> None:
    problem = make_problem()
    whole = token_batch(problem, slice(None), problem.table.double())
    (result,) = on_ranks(Layout(), step, args_of("sat-gspo-checkpoint"), problem)
    log_probs = whole.log_probs, whole.rollout_log_probs
    expected = mismatch_metrics(*log_probs, whole.mask, checkpoint_log_probs=whole.proximal_log_probs)
    assert {name: result.metrics[name] for name in expected} == pytest.approx(expected, rel=1e-3)
    (result,) = on_ranks(Layout(), step, args_of("sat-grpo"), problem)
    assert 0 < result.metrics["sat/radius_high"] <= 0.2


@pytest.mark.parametrize(
    ("name", "missing", "says"),
    [
        ("sat-grpo", "rollout_log_probs", "needs rollout_log_probs"),
        ("sat-gspo-checkpoint", "log_probs", "needs proximal_log_probs"),
    ],
)
def test_what_the_batch_lacks_is_named(name: str, missing: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        on_ranks(Layout(), step, args_of(name), replace(make_problem(), **{missing: None}))


def test_the_lag_grows_with_the_optimizer_steps_of_a_batch() -> None:
    problem = make_problem()
    older = replace(problem, lags=[lags + 1 for lags in problem.lags])
    jobs = [(make_args("grpo-decoupled-a3po"), one) for one in (replace(problem, steps_before=1), older, problem)]
    grown, told, first = (result.gradient for result in on_ranks(Layout(), steps, jobs)[0])
    assert torch.equal(grown, told) and not torch.equal(grown, first)
    assert current().steps_on_batch == 1


def by_the_objective(method: Method, problem: Problem) -> tuple[float, torch.Tensor]:
    """Loss and gradient of the table, without slime: two micro-batches, mean over responses of their token means."""
    table = problem.table.double().requires_grad_()
    total = torch.zeros((), dtype=torch.float64)
    half = len(problem.tokens) // 2
    parts = (slice(0, half), slice(half, None))
    batches = [token_batch(problem, part, table) for part in parts]
    threshold = None
    if method.scope == "step":
        threshold = method.judge.threshold_of(torch.cat([threshold_scores(method, batch) for batch in batches]))
    for part, batch in zip(parts, batches, strict=True):
        values = policy_surrogate(method, batch, threshold=threshold).values
        for value, mask in zip(values.split(list(batch.lengths)), problem.loss_masks[part], strict=True):
            total = total - value.sum() / max(int(mask.sum()), 1) / len(problem.tokens)
    total.backward()
    return total.item(), table.grad


def token_batch(problem: Problem, part: slice, table: torch.Tensor) -> TokenBatch:
    tokens, lengths = problem.tokens[part], problem.response_lengths[part]
    rows = [table[t[-n - 1 : -1]] for t, n in zip(tokens, lengths, strict=True)]
    kept = problem.nuclei[part] if problem.nuclei else [torch.ones(n, VOCAB, dtype=torch.bool) for n in lengths]
    scored = [torch.where(mask, row, -torch.inf).log_softmax(-1) for row, mask in zip(rows, kept, strict=True)]
    return TokenBatch(
        torch.cat([s.gather(1, t[-n:, None])[:, 0] for s, t, n in zip(scored, tokens, lengths, strict=True)]),
        torch.cat(problem.rollout_log_probs[part]).double(),
        torch.cat(problem.advantages[part]).double(),
        torch.cat(problem.loss_masks[part]).bool(),
        lengths,
        torch.cat(problem.log_probs[part]).double(),
        lags=torch.cat(problem.lags[part]).double(),
        entropies=torch.special.entr(torch.cat(scored).exp()).sum(-1).detach(),
    )


def with_nuclei(problem: Problem) -> Problem:
    """The problem as if half of the vocabulary had been cut off at every position, but never the sampled token."""
    generator, nuclei = torch.Generator().manual_seed(1), []
    for tokens, n in zip(problem.tokens, problem.response_lengths, strict=True):
        kept = torch.rand(n, VOCAB, generator=generator) < 0.5
        kept[torch.arange(n), tokens[len(tokens) - n :]] = True
        nuclei.append(kept)
    return replace(problem, nuclei=nuclei)


def in_order_of_ranks(problem: Problem, dp: int) -> Problem:
    """The problem for a single rank: data-parallel rank r would hold responses r, r + dp, ...; here micro-batch r
    does."""
    order = [i for rank in range(dp) for i in range(rank, len(problem.tokens), dp)]
    lists = {field.name: getattr(problem, field.name) for field in fields(problem)}
    return replace(problem, **{k: [v[i] for i in order] for k, v in lists.items() if isinstance(v, list)})


def assert_same_step(step: Step, expected: Step) -> None:
    assert step.metrics.keys() == expected.metrics.keys()
    for key, value in expected.metrics.items():
        assert step.metrics[key] == pytest.approx(value, rel=1e-4, abs=1e-6), key
    torch.testing.assert_close(step.gradient, expected.gradient, rtol=1e-4, atol=1e-6)
