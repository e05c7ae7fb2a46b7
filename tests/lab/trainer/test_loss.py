from __future__ import annotations

import math

import paper_equations as paper
import pytest
import torch

from sat_slime.lab.trainer.loss import low_variance_kl, policy_loss, token_mean_weights
from sat_slime.objective import named_method, policy_surrogate
from sat_slime.objective.tokens import response_mean_weights


def test_weights_are_the_two_averages() -> None:
    mask = torch.tensor([True, False, True, True, False, True])
    assert response_mean_weights(mask, [3, 0, 2, 1], 4).tolist() == pytest.approx([1 / 8, 0, 1 / 8, 1 / 4, 0, 1 / 4])
    assert token_mean_weights(mask, 8).tolist() == [0.125, 0, 0.125, 0.125, 0, 0.125]
    assert token_mean_weights(mask, 3)[0].item() == 1 / 3 and response_mean_weights(mask, [6], 3)[0].item() == 1 / 12
    assert response_mean_weights(mask[:0], [], 4).shape == (0,)
    assert response_mean_weights(torch.zeros(2, dtype=torch.bool), [2], 1).tolist() == [0, 0]


def test_loss_is_the_weighted_sum_of_its_terms() -> None:
    method = named_method("sat-grpo")
    tokens = paper.random_tokens(seed=2, lengths=[4, 7, 1])
    n = len(tokens.log_pi)
    generator = torch.Generator().manual_seed(0)
    ref, entropy = -torch.rand(2, n, generator=generator, dtype=torch.float64)
    weights = response_mean_weights(torch.tensor(tokens.mask), tokens.lengths, 3)
    batch = tokens.batch()

    loss = policy_loss(
        method, batch, weights, kl_coef=0.1, entropy_coef=0.01, ref_log_probs=ref, entropy=-entropy, group=None
    )

    surrogate = paper.surrogate(method, tokens, paper.decide(method, tokens))
    terms = {"policy": 0.0, "kl": 0.0, "entropy": 0.0}
    for span in tokens.responses:
        for t in span:
            w = 1 / (3 * len(span))
            x = ref[t].item() - tokens.log_pi[t]
            terms["policy"] -= w * surrogate[t]
            terms["kl"] += w * (math.exp(x) - 1 - x)
            terms["entropy"] += w * -entropy[t].item()
    total = terms["policy"] + 0.1 * terms["kl"] - 0.01 * terms["entropy"]
    assert loss.total.item() == pytest.approx(total, rel=1e-12)
    assert {k: loss.metrics[f"loss/{k}"].item() for k in terms} == pytest.approx(terms, rel=1e-12)
    assert loss.metrics["loss/total"].item() == loss.total.item() and not loss.metrics["loss/total"].requires_grad
    assert torch.equal(loss.surrogate.values, policy_surrogate(method, batch).values)


@pytest.mark.parametrize("reduction", ["response_mean", "token_mean"])
@pytest.mark.parametrize("name", ["grpo", "gspo", "dppo", "gspo-tis"])
def test_micro_batches_add_up_to_the_batch(name: str, reduction: str) -> None:
    method = named_method(name)
    lengths = [3, 5, 1, 0, 6, 2]
    tokens = paper.random_tokens(seed=4, lengths=lengths)
    ref = torch.full((len(tokens.log_pi),), -0.7, dtype=torch.float64)

    def loss_and_gradient(first: int, last: int) -> tuple[float, list[float]]:
        part = slice(sum(lengths[:first]), sum(lengths[:last]))
        micro = tokens.part(list(range(part.start, part.stop)), lengths[first:last])
        batch = micro.batch()
        if reduction == "response_mean":
            weights = response_mean_weights(batch.mask, batch.lengths, len(lengths))
        else:
            weights = token_mean_weights(batch.mask, len(tokens.active))
        loss = policy_loss(method, batch, weights, kl_coef=0.1, ref_log_probs=ref[part]).total
        loss.backward()
        return loss.item(), batch.log_probs.grad.tolist()

    whole, gradient = loss_and_gradient(0, 6)
    parts = [loss_and_gradient(*ends) for ends in ((0, 1), (1, 4), (4, 6))]
    assert sum(loss for loss, _ in parts) == pytest.approx(whole, rel=1e-12)
    assert [g for _, part in parts for g in part] == pytest.approx(gradient, rel=1e-12, abs=1e-15)


def test_low_variance_kl_known_values_and_cut() -> None:
    log_probs = torch.tensor([0.0, 0.0, -1.0, -200.0, 0.0], requires_grad=True)
    ref = torch.tensor([0.0, -1.0, 0.0, 0.0, -100.0])
    kl = low_variance_kl(log_probs, ref)
    assert kl.tolist() == pytest.approx([0.0, math.exp(-1), math.e - 2, 10.0, 10.0])
    kl.sum().backward()
    assert log_probs.grad.tolist() == pytest.approx([0.0, 1 - math.exp(-1), 1 - math.e, 0.0, 0.0])


def test_inactive_tokens_add_nothing_to_kl_and_entropy() -> None:
    tokens = paper.random_tokens(seed=6, lengths=[8])
    batch = tokens.batch()
    garbage = torch.where(batch.mask, 0.5, math.nan).double().requires_grad_()
    weights = token_mean_weights(batch.mask, 8)
    loss = policy_loss(
        named_method("grpo"), batch, weights, kl_coef=0.1, entropy_coef=0.1, ref_log_probs=-garbage, entropy=garbage
    )
    loss.total.backward()
    assert loss.total.isfinite() and batch.log_probs.grad.isfinite().all() and garbage.grad.isfinite().all()
    assert not batch.log_probs.grad[~batch.mask].any()


def test_metrics_without_coefficients_do_not_move_the_loss() -> None:
    tokens = paper.random_tokens(seed=8, lengths=[8])
    batch = tokens.batch()
    weights = token_mean_weights(batch.mask, 8)
    plain = policy_loss(named_method("grpo"), batch, weights)
    entropy = torch.ones(8, dtype=torch.float64)
    with_metrics = policy_loss(named_method("grpo"), batch, weights, ref_log_probs=-entropy, entropy=entropy)
    assert torch.equal(plain.total, with_metrics.total)
    assert "loss/kl" not in plain.metrics and "loss/entropy" in with_metrics.metrics


@pytest.mark.parametrize("coefficient, missing", [("kl_coef", "ref_log_probs"), ("entropy_coef", "entropy")])
def test_a_coefficient_needs_its_input(coefficient: str, missing: str) -> None:
    batch = paper.random_tokens(seed=1, lengths=[3]).batch()
    with pytest.raises(ValueError, match=f"{coefficient} is 0.1 and needs {missing}"):
        policy_loss(named_method("grpo"), batch, torch.ones(3), **{coefficient: 0.1})


def test_empty_micro_batch_has_a_loss_with_gradient() -> None:
    batch = paper.random_tokens(seed=1, lengths=[]).batch()
    loss = policy_loss(named_method("sat-gspo"), batch, torch.ones(0), kl_coef=0.1, ref_log_probs=torch.ones(0))
    assert loss.total.item() == 0
    loss.total.backward()
