"""What a method does to single tokens, against loops over tokens."""

import dataclasses
import math

import pytest
import torch
from dump_files import step_batch

from sat_slime.objective import SAT, Clip, TokenBatch, compose, method_names, named_method, policy_surrogate
from sat_slime.objective.gates import DPPO, IcePop
from sat_slime.objective.scores import CISPO
from sat_slime.report.dumps import StepBatch
from sat_slime.report.gradient import CLIPPED, KEPT, MASKED, REWEIGHTED, step_thresholds, token_gradient
from sat_slime.report.replay import lacks

EVERYTHING = frozenset({"checkpoint_log_probs", "lags"})
REPLAYED = [name for name in method_names() if lacks(named_method(name), EVERYTHING) is None]


def replayed(method, step):
    weights, fates, _ = token_gradient(method, step, *step_thresholds([method], step))
    return weights, fates


@pytest.mark.parametrize("name", REPLAYED)
def test_weight_is_the_gradient_that_a_run_takes(name):
    method = named_method(name)
    step = step_batch([30, 4, 17, 50], seed=1)
    lags = torch.randint(0, 5, step.mask.shape, generator=torch.Generator().manual_seed(7)).float()
    step = dataclasses.replace(step, log_probs=step.log_probs.clamp(max=-0.01), more={"lags": lags})
    log_probs = step.log_probs.clone().requires_grad_()
    columns = log_probs, step.rollout_log_probs, step.advantages, step.mask, step.lengths
    batch = TokenBatch(*columns, lags=lags)
    policy_surrogate(method, batch).values.sum().backward()
    torch.testing.assert_close(replayed(method, step)[0], log_probs.grad, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("name", "spread"), [("sat-grpo", 0.15), ("sat-gspo", 0.7)])
def test_microbatches_have_their_own_quantile_and_a_step_one(name, spread):
    step = step_batch([20, 30, 10, 25, 40, 5, 12, 18] * 2, 2, spread, microbatches=[5, 8, 3])
    sat = compose(named_method(name).base, [SAT(alpha=0.6, scope="microbatch")])
    for at_least in (1, 200, 10**9):  # however they are put together
        found = [token_gradient(sat, span, None)[0] for span in step.spans(at_least)]
        expected = [replayed(sat, step.part(number, number + 1))[0] for number in range(3)]
        assert torch.equal(torch.cat(found), torch.cat(expected))
    whole = compose(sat.base, [SAT(alpha=0.6, scope="step")])
    one = replayed(sat, dataclasses.replace(step, microbatches=[len(step.lengths)]))[0]
    parts = torch.cat([token_gradient(whole, span, *step_thresholds([whole], step))[0] for span in step.spans(1)])
    assert torch.equal(parts, one) and not torch.equal(parts, torch.cat(expected))


def one_token(ratio, advantage, method):
    """Fate of a token of that ratio, mu 0.2."""
    mu = torch.tensor([math.log(0.2)])
    step = StepBatch("step", mu + math.log(ratio), mu, torch.tensor([advantage]), torch.tensor([True]),
                     torch.tensor([1]), [1])  # fmt: skip
    return int(replayed(method, step)[1][0])


GRPO = named_method("grpo")
CASES = [
    (GRPO, [(1.3, 1.0, CLIPPED), (0.7, -1.0, CLIPPED), (1.3, -1.0, KEPT), (0.7, 1.0, KEPT), (1.1, 1.0, KEPT)]),
    (compose(GRPO.base, clip=Clip(dual=3.0)), [(4.0, -1.0, CLIPPED), (2.0, -1.0, KEPT)]),
    (compose(DPPO()), [(1.1, 1.0, MASKED), (1.1, -1.0, KEPT), (1.3, 1.0, CLIPPED)]),
    (compose(IcePop(0.9, 1.1)), [(1.15, 1.0, MASKED), (0.7, 1.0, MASKED), (1.0, 1.0, KEPT)]),
    (named_method("grpo-tis"), [(1.5, 1.0, REWEIGHTED), (3.0, -1.0, REWEIGHTED), (1.0, 1.0, KEPT)]),
    (named_method("spo"), [(1.1, 1.0, REWEIGHTED), (0.7, -1.0, REWEIGHTED)]),
    (named_method("cispo"), [(4.0, 1.0, KEPT), (0.1, -1.0, KEPT)]),
    (compose(CISPO(eps_high=1.0)), [(3.0, 1.0, REWEIGHTED), (1.5, 1.0, KEPT)]),
    (named_method("rollout-is"), [(1.3, -1.0, MASKED), (1.1, 1.0, KEPT)]),
    (named_method("topr"), [(0.7, 1.0, REWEIGHTED), (0.7, -1.0, KEPT), (1.5, -1.0, REWEIGHTED)]),
    (named_method("aspo"), [(1.3, 1.0, MASKED), (0.7, 1.0, REWEIGHTED), (1.3, -1.0, KEPT), (0.7, -1.0, MASKED)]),
    (named_method("flash"), [(3.0, 1.0, MASKED), (1.01, 1.0, KEPT)]),
    (named_method("cpgd"), [(1.3, 1.0, CLIPPED), (0.7, -1.0, CLIPPED), (1.1, 1.0, REWEIGHTED)]),
    (named_method("gmpo"), [(1.6, 1.0, CLIPPED), (1.3, 1.0, KEPT), (0.6, -1.0, CLIPPED)]),
    (named_method("m2po"), [(1.5, 1.0, MASKED), (1.5, -1.0, KEPT), (1.1, 1.0, KEPT)]),
    (named_method("ipo"), [(1.1, 1.0, REWEIGHTED), (3.0, 1.0, REWEIGHTED)]),
    (named_method("sapo"), [(1.0, -advantage, KEPT) for advantage in (0.3, 0.7, 1.1)] + [(1.3, -1.0, REWEIGHTED)]),
]


@pytest.mark.parametrize(("method", "tokens"), CASES, ids=[method.name for method, _ in CASES])
def test_fates_are_those_of_the_definitions(method, tokens):
    assert [one_token(ratio, advantage, method) for ratio, advantage, _ in tokens] == [fate for *_, fate in tokens]
