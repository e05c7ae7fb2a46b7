import dataclasses

import numpy as np
import pytest
import torch
from dump_files import step_batch

from sat_slime.objective import log_ratio, policy_surrogate, tail_quantile
from sat_slime.report.gradient import SIZES, beyond_gate, scope_sweep, tokens_of
from sat_slime.report.replay import choose


@pytest.mark.parametrize("alpha", [0.5, 0.9, 0.999])
def test_gate_by_one_sort_equals_the_quantile_of_each_scope(alpha):
    generator = np.random.default_rng(0)
    values = np.round(generator.exponential(size=500), 2)  # with ties and zeros
    values[::7] = 0
    scope = generator.integers(0, 9, 500)
    scope[scope == 4] = 5  # one scope is empty, and of the last two nothing counts
    ascending = np.argsort(values)
    tokens, beyond, quantiles = beyond_gate(values[ascending], scope[ascending], 7, alpha)
    expected = {}
    for one in range(7):
        mine = torch.tensor(values[scope == one])
        q = tail_quantile(mine, alpha)
        expected |= {int(i): float(q) for i in np.flatnonzero((scope == one) & (values > float(q))) if q > 0}
    assert tokens == (scope < 7).sum()
    assert dict(zip(ascending[beyond].tolist(), quantiles.tolist(), strict=True)) == expected


def test_sweep_of_a_step_in_the_order_of_its_sampling():
    lengths = [3, 40, 7, 12, 9, 30, 5, 8, 21]
    order = torch.tensor([4, 0, 8, 2, 6, 1, 3, 7, 5])
    step = step_batch(lengths, seed=3, order=order)
    of_response, of_token = (candidate.method for candidate in choose("sat-gspo,sat-grpo"))
    by_response, by_token = (scope_sweep(method, step) for method in (of_response, of_token))
    d = log_ratio(of_response, tokens_of(step, of_response)).abs()
    responses = [part[m] for part, m in zip(d.split(lengths), step.mask.split(lengths), strict=True)]
    for column, size in enumerate(SIZES):
        gated = tokens = 0
        for start in range(0, len(lengths) - size + 1, size):
            mine = torch.cat([responses[i] for i in order[start : start + size]])
            gated += int((mine > tail_quantile(mine, 0.9)).sum())
            tokens += len(mine)
        assert by_response[:2, column].tolist() == [tokens, gated]
    active = int(step.mask.sum())
    assert 0 < by_token[0, 3] < active and not by_token[0, 4:-2].any()  # eight of nine responses
    assert by_token[0, -2:].tolist() == [active] * 2  # its micro-batch is the step
    assert not by_response[1, 0]  # one response: all its tokens tie


@pytest.mark.parametrize(("name", "spread"), [("sat-grpo", 0.15), ("sat-gspo", 0.7)])
def test_newly_clipped_is_that_of_the_surrogate(name, spread):
    lengths = torch.randint(5, 30, (64,), generator=torch.Generator().manual_seed(1)).tolist()
    step = step_batch(lengths, 6, spread)
    method = choose(name, ["sat.alpha=0.6", "clip.eps_low=0.15", "clip.eps_high=0.25"])[0].method
    for column in (4, 5, 6):
        size = SIZES[column]
        cut = dataclasses.replace(step, microbatches=[size] * (64 // size))
        results = [policy_surrogate(method, tokens_of(part, method)) for _, part in cut.each_microbatch()]
        newly = round(sum(float(one.metrics["sat/newly_clipped"]) * one.n for one in results))
        assert scope_sweep(method, cut)[2, [column, -2]].tolist() == [newly] * 2 and newly > 10
