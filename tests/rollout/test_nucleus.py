from __future__ import annotations

import math

import numpy as np
import pytest

from sat_slime.rollout.nucleus import nucleus, truncate


def by_hand(probs: list[float], top_p: float) -> set[int]:
    """SGLang's rule, applied to one token after the other."""
    kept, mass = set(), 0.0
    for token in sorted(range(len(probs)), key=lambda a: -probs[a]):
        if mass > top_p:
            break
        kept.add(token)
        mass += probs[token]
    return kept


@pytest.mark.parametrize("top_p", [0.01, 0.3, 0.8, 0.95, 0.999])
def test_the_rule_and_the_distribution_over_what_it_keeps(top_p):
    rng = np.random.default_rng(0)
    logits = 3 * rng.standard_normal((200, 16))
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    kept = nucleus(log_probs, top_p)
    cut = truncate(log_probs, kept)
    assert cut.dtype == np.float32
    for row, mask, values in zip(log_probs, kept, cut, strict=True):
        probs = np.exp(row).tolist()
        tokens = by_hand(probs, top_p)
        assert set(np.flatnonzero(mask)) == tokens
        mass = math.fsum(probs[a] for a in tokens)
        expected = [math.log(p / mass) if a in tokens else -math.inf for a, p in enumerate(probs)]
        assert values.tolist() == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_the_most_likely_token_stays_and_the_edge_does():
    log_probs = np.log(np.array([[0.9, 0.06, 0.04], [0.5, 0.25, 0.25], [1 / 3, 1 / 3, 1 / 3]]))
    assert nucleus(log_probs, 0.5).tolist() == [[True, False, False], [True, True, False], [True, True, False]]
    assert truncate(log_probs, nucleus(log_probs, 0.5))[0].tolist() == [0, -math.inf, -math.inf]


def test_tokens_of_probability_zero_are_cut_off():
    log_probs = np.array([[0.0, np.finfo(np.float32).min]])
    assert nucleus(log_probs, 0.999).tolist() == [[True, False]]
