"""Steps of the table model without slime, and how steps of several layouts are compared."""

from __future__ import annotations

from dataclasses import replace

import fake_slime
import pytest
import torch
from slime_step import VOCAB, Layout, Problem, Step

from sat_slime.objective import Method, TokenBatch, policy_surrogate, threshold_scores

LAYOUTS = [Layout(dp=2), Layout(cp=2), Layout(cp=2, allgather_cp=True), Layout(tp=2), Layout(dp=2, cp=2)]


def by_the_objective(method: Method, problem: Problem) -> tuple[float, torch.Tensor]:
    """Loss and gradient of the table, without slime: two micro-batches, mean over responses of their token means."""
    table = problem.table.double().requires_grad_()
    total = torch.zeros((), dtype=torch.float64)
    half = len(problem.tokens) // 2
    parts = (slice(0, half), slice(half, None))
    batches = [token_batch(problem, part, table) for part in parts]
    threshold = None
    if method.threshold_is_of_the_step:
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
        rewards=torch.tensor(problem.rewards[part]).double().repeat_interleave(torch.tensor(lengths)),
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
    lists = (
        "tokens",
        "response_lengths",
        "loss_masks",
        "rollout_log_probs",
        "log_probs",
        "ref_log_probs",
        "advantages",
        "lags",
        "rewards",
    )
    return replace(problem, **{name: [getattr(problem, name)[i] for i in order] for name in lists})


def needs_real(layout: Layout) -> None:
    if not fake_slime.is_real() and (layout.cp > 1 or layout.tp > 1):
        pytest.skip("needs the real slime: its layouts of context- and tensor-parallel ranks")


def assert_same_step(step: Step, expected: Step) -> None:
    assert step.metrics.keys() == expected.metrics.keys()
    for key, value in expected.metrics.items():
        assert step.metrics[key] == pytest.approx(value, rel=1e-4, abs=1e-6), key
    torch.testing.assert_close(step.gradient, expected.gradient, rtol=1e-4, atol=1e-6)
