"""Padded columns of the vocabulary take no part in log-probs, entropy and gradient."""

from __future__ import annotations

import math

import pytest
import torch
from padded_vocabulary import REAL, WIDTH, Chunk, hidden_states, slimes_log_probs, weights
from slime_step import Layout, on_ranks

from sat_slime.plugin.inside.padded_vocabulary import _fill, leave_out_padding, padded_columns


@pytest.mark.parametrize(
    ("width", "vocabulary", "rank", "first"),
    [(16, 16, 0, 16), (16, 11, 0, 11), (8, 11, 0, 8), (8, 11, 1, 3), (4, 11, 3, 0), (38016, 151936, 3, 37888)],
)
def test_padded_columns_of_a_rank(width, vocabulary, rank, first):
    assert padded_columns(width, vocabulary, rank) == first


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("temperature", [1.0, 0.1])
def test_log_probs_and_entropy_are_those_of_the_real_vocabulary(dtype, temperature):
    model = Chunk(weights(dtype))
    assert leave_out_padding([model], REAL, 0)
    logits = model(hidden_states(dtype)).float() / temperature
    expected = (hidden_states(dtype) @ weights(dtype)[:REAL].T).float() / temperature
    torch.testing.assert_close(logits.log_softmax(-1)[:, :REAL], expected.log_softmax(-1))
    assert (logits.softmax(-1)[:, REAL:] == 0).all()
    entropy = -(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1)
    torch.testing.assert_close(entropy, torch.distributions.Categorical(logits=expected).entropy())


def test_the_gradient_is_that_of_the_real_vocabulary_and_none_reaches_the_padding():
    model, plain = Chunk(weights()), weights().requires_grad_()
    leave_out_padding([model], REAL, 0)
    model(hidden_states()).log_softmax(-1)[:, 3].sum().backward()
    (hidden_states() @ plain[:REAL].T).log_softmax(-1)[:, 3].sum().backward()
    torch.testing.assert_close(model.module.module.output_layer.weight.grad, plain.grad)
    assert (model.module.module.output_layer.weight.grad[REAL:] == 0).all()


def test_without_padding_or_output_layer_nothing_is_hooked():
    assert not leave_out_padding([Chunk(weights())], WIDTH, 0)
    assert not leave_out_padding([torch.nn.Linear(2, 2)], REAL, 0)


def test_what_padding_costs_where_it_counts():
    """A padded logit is 0, so each log-prob is lower by log(1 + columns / sum of exp(real logits))."""
    padded = Chunk(weights())(hidden_states()).log_softmax(-1)[:, :REAL]
    real = hidden_states() @ weights()[:REAL].T
    cost = torch.log1p((WIDTH - REAL) * torch.exp(-torch.logsumexp(real, -1, keepdim=True)))
    torch.testing.assert_close(real.log_softmax(-1) - padded, cost.expand_as(padded))
    assert cost.mean() > 0.05
    assert math.log1p(128 * math.exp(-20)) < 3e-7  # Qwen3 at TP 4, where the real logits' log-sum-exp is 20


@pytest.mark.needs_slime
@pytest.mark.parametrize("tp", [1, 2])
def test_slimes_own_log_probs_leave_the_padding_out(tp):
    for found, expected in on_ranks(Layout(tp=tp), slimes_log_probs):
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)


def test_an_output_layer_that_returns_logits_alone():
    logits = torch.zeros(2, WIDTH)
    assert (_fill(REAL, torch.nn.Identity(), None, logits)[:, REAL:] < -1e29).all()
