from __future__ import annotations

import math

import paper_equations as paper
import pytest
import torch

from sat_slime.objective import log_probs_on_support, on_support


def random_nuclei(n: int, vocabulary: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, vocabulary, dtype=torch.float64, generator=generator) * 3
    kept = torch.rand(n, vocabulary, generator=generator) < 0.4
    kept[torch.arange(n), torch.randint(0, vocabulary, (n,), generator=generator)] = True
    return logits, kept


def test_value_and_gradient_are_the_equation() -> None:
    logits, kept = random_nuclei(30, 16, seed=0)
    targets = torch.multinomial(kept.double(), 1, generator=torch.Generator().manual_seed(1))
    leaf = logits.clone().requires_grad_()
    log_probs = log_probs_on_support(leaf, kept)
    log_probs.gather(1, targets).sum().backward()
    for row in range(30):
        nucleus = {a for a in range(16) if kept[row, a]}
        values = logits[row].tolist()
        assert log_probs[row].tolist() == pytest.approx(paper.truncated_log_probs(values, nucleus), abs=1e-12)
        target, slopes = int(targets[row]), []
        for a in range(16):
            ends = []
            for step in (1e-6, -1e-6):
                moved = list(values)
                moved[a] += step
                ends.append(paper.truncated_log_probs(moved, nucleus)[target])
            slopes.append((ends[0] - ends[1]) / 2e-6)
        assert leaf.grad[row].tolist() == pytest.approx(slopes, abs=1e-8)


def test_a_full_mask_changes_nothing_and_a_single_token_is_certain() -> None:
    logits, _ = random_nuclei(8, 5, seed=2)
    assert torch.equal(log_probs_on_support(logits, torch.ones(8, 5, dtype=torch.bool)), logits.log_softmax(-1))
    alone = torch.nn.functional.one_hot(torch.arange(8) % 5, 5).bool()
    leaf = logits.clone().requires_grad_()
    log_probs = log_probs_on_support(leaf, alone)
    assert (log_probs[alone] == 0).all() and (log_probs[~alone] == -math.inf).all()
    log_probs[alone].sum().backward()
    assert not leaf.grad.any()


def test_a_part_of_the_vocabulary_may_have_nothing_kept() -> None:
    # This is as on a tensor-parallel rank, where the caller takes the softmax over all parts.
    parts = on_support(torch.randn(2, 3, requires_grad=True), torch.tensor([[False] * 3, [True, False, True]]))
    assert (parts[0] == -math.inf).all() and parts[1].isfinite().sum() == 2
