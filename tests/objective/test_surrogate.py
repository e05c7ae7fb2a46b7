"""What holds for every method, whatever its equation: of inactive, broken, huge, empty and half-precision batches."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import equations as paper
import pytest
import torch
from methods_under_test import LENGTHS, METHODS, at, beside
from torch.utils._python_dispatch import TorchDispatchMode

from sat_slime.objective import SAT, Clip, TokenBatch, Tokens, broken_tokens, compose, named_method, policy_surrogate
from sat_slime.objective.gates import DPPO, IcePop, KPop, SeqClip
from sat_slime.objective.scores import IPO

every_method = pytest.mark.parametrize("method", METHODS, ids=lambda method: f"{method.name}-{method.denominator}")
COLUMNS = ("log_probs", "rollout_log_probs", "advantages", "proximal_log_probs", "lags", "entropies")


def results(method, batch: TokenBatch, **more):
    """Values, gradient and clipped."""
    result = policy_surrogate(method, batch, **more)
    (gradient,) = torch.autograd.grad(result.values.sum(), batch.log_probs)
    return result.values.detach(), gradient, result.clipped


@every_method
def test_inactive_tokens_may_hold_anything(method) -> None:
    batch = paper.random_tokens(1, LENGTHS, 0.5).batch()
    before = results(method, batch)
    with torch.no_grad():
        for name in COLUMNS:
            getattr(batch, name)[~batch.mask] = math.nan
    after = results(method, batch)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert not after[0][~batch.mask].any() and not after[1][~batch.mask].any()


@every_method
def test_a_number_that_is_not_finite_makes_all_values_nan(method) -> None:
    read = ["log_probs", "rollout_log_probs", "advantages", *method.needs]
    read += ["proximal_log_probs"] if method.denominator in ("checkpoint", "trainer") else []
    for name, broken in itertools.product(read, (math.nan, math.inf, -math.inf)):
        batch = paper.random_tokens(1, LENGTHS, 0.3, inactive=0.0).batch()
        with torch.no_grad():
            getattr(batch, name)[7] = broken
        values, gradient, _ = results(method, batch)
        assert values.isnan().all() and gradient.isnan().any(), name


def test_broken_tokens_are_counted_and_the_first_is_named() -> None:
    batch = paper.random_tokens(1, [3, 0, 4], inactive=0.0).batch()
    assert broken_tokens(batch) == ""
    batch.mask[0] = False
    with torch.no_grad():
        batch.rollout_log_probs[0] = math.nan  # inactive: nobody asks
        batch.advantages[5], batch.rollout_log_probs[4] = math.inf, -math.inf
    text = broken_tokens(batch)
    assert "2 of 6 active tokens" in text and "token 1 of response 2" in text and "position 4" in text
    assert "rollout_log_probs is -inf" in text


@every_method
def test_huge_ratios_give_finite_numbers(method) -> None:
    d = torch.tensor([100.0, -100.0, 900.0, -900.0, 0.1, 100.0, -100.0, 0.0])
    advantages, ones = torch.tensor([1.0, 1.0, -1.0, -1.0, 0.0, -1.0, -1.0, 1.0]), torch.ones(8)
    facts = {"lags": torch.arange(8.0), "entropies": ones}
    for lengths in ([1] * 8, [8]):  # eight responses, and one
        batch = TokenBatch((d - 1).requires_grad_(), -ones, advantages, ones.bool(), lengths, -ones, **facts)
        values, gradient, _ = results(method, batch)
        assert values.isfinite().all() and gradient.isfinite().all(), lengths


@every_method
def test_a_batch_without_active_tokens_is_0(method) -> None:
    for lengths in ([], [0, 0], [3, 0, 2]):
        log_probs, ones = (-torch.rand(sum(lengths))).requires_grad_(), torch.ones(sum(lengths))
        facts = {"lags": ones, "entropies": ones}
        result = policy_surrogate(
            method, TokenBatch(log_probs, -ones, ones, torch.zeros(len(ones)).bool(), lengths, -ones, **facts)
        )
        (gradient,) = torch.autograd.grad(result.values.sum(), log_probs)
        assert not result.values.any() and not gradient.any() and result.n == 0, lengths
        assert all(math.isfinite(value) for value in result.metrics.values()), lengths


@pytest.mark.parametrize("name", ["sat-gspo", "dppo", "grpo-tis", "cispo", "spo"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_half_precision_is_widened_and_float64_stays(name: str, dtype: torch.dtype) -> None:
    tokens = paper.random_tokens(1, LENGTHS)
    result = policy_surrogate(named_method(name), tokens.batch(dtype))
    assert result.values.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    wide = paper.random_tokens(1, LENGTHS).batch(dtype)
    widened = TokenBatch(**{key: c.float() for key, c in wide.columns().items()}, mask=wide.mask, lengths=wide.lengths)
    if dtype != torch.float64:
        assert torch.equal(result.values, policy_surrogate(named_method(name), widened).values)


AT_ITS_END = [
    *map(compose, (IcePop(1.0, 1.0), KPop(0.0), SeqClip(1.0, 1.0))),
    *(at("grpo", beside(name, low=1.0, high=1.0)) for name in ("mis-geo", "seq-mask-tis", "veto")),
    *(at("grpo", beside(name, delta=0.0)) for name in ("opsm", "trm-max", "trm-mean")),
    *(at("grpo", beside(name, cap=1.0, form="mask")) for name in ("seq-tis", "decoupled")),
    at("grpo", beside("veto", low=1.0, form="suffix")),
    at("grpo", beside("estr", tau=0.0)),
]


@pytest.mark.parametrize("method", AT_ITS_END, ids=lambda method: method.name)
def test_a_range_holds_its_ends(method) -> None:
    ones, advantages = torch.ones(4).double(), torch.tensor([1.0, -1.0, -1.0, 1.0]).double()
    batch = TokenBatch(-ones, -ones, advantages, ones.bool(), [2, 2], -ones, entropies=ones)
    assert torch.equal(policy_surrogate(method, batch).values, advantages)


@pytest.mark.parametrize(
    ("base", "mu"),
    [
        *((base, 0.5) for base in (DPPO(delta=0.5), IPO(eps=0.5), named_method("grpo").base)),
        *((base, 1 - 1e-6) for base in (DPPO("kl"), KPop())),  # where pi may be 1 by rounding alone
    ],
)
def test_a_probability_that_has_moved_by_the_bound_itself_is_kept(base, mu) -> None:
    one, method = torch.ones(1).double(), compose(base, clip=Clip(eps_high=1.0))
    result = policy_surrogate(method, TokenBatch(0 * one, math.log(mu) * one, one, one.bool(), [1]))
    assert float(result.values) == pytest.approx(1 / mu, abs=1e-3) and not result.clipped.any()


@pytest.mark.parametrize("base", ["grpo", "gspo", "dppo", "grpo-tis", "grpo-lag-power"])
def test_sat_whose_gate_is_shut_is_its_base_to_the_bit(base: str) -> None:
    plain = named_method(base)
    shut = replace(plain, stabilizers=(plain.base, SAT(alpha=1.0), *plain.stabilizers[1:]))
    for dtype in (torch.float32, torch.float64):
        batch = paper.random_tokens(2, LENGTHS, 0.6).batch(dtype)
        pairs = zip(results(plain, batch), results(shut, batch), strict=True)
        assert all(torch.equal(without, with_sat) for without, with_sat in pairs)


@pytest.mark.parametrize("name", ["sat-gspo", "grpo", "sat-dppo"])
def test_a_log_ratio_of_the_callers_is_taken_with_its_gradient(name: str) -> None:
    method, batch = named_method(name), paper.random_tokens(2, LENGTHS, 0.4).batch()
    t = Tokens(method, batch)
    d = t.back(t.d).detach().requires_grad_()
    (slopes,) = torch.autograd.grad(policy_surrogate(method, batch, d=d).values.sum(), d)
    assert torch.equal(policy_surrogate(method, batch, d=d).values, policy_surrogate(method, batch).values)
    assert slopes[batch.mask].any() and not slopes[~batch.mask].any()


def test_what_a_method_reads_and_a_batch_lacks_is_an_error() -> None:
    batch = paper.random_tokens(1, [3]).batch()
    for name in ("grpo-lag-power", "grpo-a3po"):
        with pytest.raises(ValueError, match="lags"):
            policy_surrogate(named_method(name), replace(batch, lags=None))
    with pytest.raises(ValueError, match="proximal_log_probs"):
        policy_surrogate(named_method("sat-grpo-tis"), replace(batch, proximal_log_probs=None))
    with pytest.raises(ValueError, match="no clip interval"):
        policy_surrogate(replace(named_method("cispo"), clip=Clip()), batch)


@pytest.mark.parametrize(
    "lengths, alpha, small",
    [
        ([9, 91], 0.9, 1),
        ([10] * 10, 0.9, 0),
        ([10] * 10, 0.91, 1),
        ([11, *[8] * 11], 0.9, 1),
        ([10, *[9] * 10], 0.9, 0),
    ],
)
def test_a_scope_in_which_the_gate_cannot_open_is_measured(lengths, alpha, small) -> None:
    method = compose(named_method("gspo").base, [SAT(alpha=alpha, scope="microbatch")])
    batch = paper.random_tokens(1, lengths, inactive=0.0).batch()
    assert float(policy_surrogate(method, batch).metrics["sat/scope_too_small"]) == small
    assert "sat/scope_too_small" not in policy_surrogate(method, batch, threshold=0.1).metrics


class Kernels(TorchDispatchMode):
    """Counts operations but views, and waits for a number."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels = self.waits = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        aliases = [result.alias_info for result in function._schema.returns]
        self.waits += "_local_scalar_dense" in str(function)
        self.kernels += not any(alias is not None and not alias.is_write for alias in aliases)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("threshold", [None, torch.tensor(0.05)], ids=["of the micro-batch", "of the step"])
def test_a_micro_batch_costs_54_kernels_forward_27_backward_and_waits_for_no_number(threshold) -> None:
    batch = paper.random_tokens(1, [64] * 16, inactive=0.0).batch(torch.float32)
    with Kernels() as forward:
        values = policy_surrogate(named_method("sat-gspo"), batch, threshold=threshold).values
    with Kernels() as backward:
        values.backward(torch.ones_like(values))
    assert forward.kernels <= 54 and forward.waits == 0
    assert backward.kernels <= 28 and backward.waits == 0  # the ones that go in are one of them
