import dataclasses
import math

import pytest
import torch
from dump_files import step_batch
from paper_equations import decide, gradient, random_tokens

from sat_slime.objective import (
    DPPO,
    SAT,
    Clip,
    IcePop,
    TokenBatch,
    compose,
    compose_method,
    method_names,
    named_method,
    policy_surrogate,
)
from sat_slime.report.replay.gradient import (
    CLIPPED,
    KEPT,
    MASKED,
    REWEIGHTED,
    SpanView,
    StepView,
    spans,
    token_gradient,
)
from sat_slime.report.replay.selection import lacks
from sat_slime.report.replay.step_batch import StepBatch

REPLAYED = [name for name in method_names() if lacks(named_method(name), has_checkpoint=True) is None]


def step_of(tokens, microbatches=None):
    """The tokens of paper_equations as a step, in float64."""
    batch = tokens.batch()
    return StepBatch(
        "step",
        batch.log_probs.detach(),
        batch.rollout_log_probs,
        batch.advantages,
        batch.mask,
        torch.tensor(tokens.lengths),
        microbatches or [len(tokens.lengths)],
        checkpoint_log_probs=batch.proximal_log_probs,
        proximal_log_probs=batch.proximal_log_probs,
    )


def replayed(method, step):
    view = StepView(step)
    (span,) = spans(step, at_least=10**9)
    return token_gradient(method, SpanView(view, span))


@pytest.mark.parametrize("name", [*REPLAYED, "sat-grpo-tis"])
@pytest.mark.parametrize("seed", range(3))
def test_weight_is_the_derivative_of_the_equations(name, seed):
    base = name.removeprefix("sat-").removesuffix("-tis")
    method = compose_method(base, sat=True, tis=True) if name == "sat-grpo-tis" else named_method(name)
    tokens = random_tokens(seed, [5, 1, 9, 6])
    expected = gradient(method, tokens, decide(method, tokens), [1.0] * len(tokens.log_pi))
    assert replayed(method, step_of(tokens)).weights.tolist() == pytest.approx(expected, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("name", REPLAYED)
def test_weight_is_the_gradient_that_a_run_takes(name):
    method = named_method(name)
    step = step_batch([30, 4, 17, 50], seed=1)
    log_probs = step.log_probs.clone().requires_grad_()
    batch = TokenBatch(log_probs, step.rollout_log_probs, step.advantages, step.mask, step.lengths)
    policy_surrogate(method, batch).values.sum().backward()
    torch.testing.assert_close(replayed(method, step).weights, log_probs.grad, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("name", "spread"), [("sat-grpo", 0.15), ("sat-gspo", 0.7)])
def test_microbatches_have_their_own_quantile_and_a_step_one(name, spread):
    step = step_batch([20, 30, 10, 25, 40, 5, 12, 18] * 2, 2, spread, microbatches=[5, 8, 3])
    sat = compose(named_method(name).base, [SAT(alpha=0.6)])
    view = StepView(step)
    for at_least in (1, 200, 10**9):  # however they are put together
        found = [token_gradient(sat, SpanView(view, span)).weights for span in spans(step, at_least)]
        expected = []
        token = response = 0
        for size in step.microbatches:
            lengths = step.lengths[response : response + size]
            inside = slice(token, token + int(lengths.sum()))
            alone = step_batch([1])
            columns = ("log_probs", "rollout_log_probs", "advantages", "mask")
            parts = {key: getattr(step, key)[inside] for key in columns}
            alone = dataclasses.replace(alone, lengths=lengths, microbatches=[size], **parts)
            expected.append(replayed(sat, alone).weights)
            token, response = inside.stop, response + size
        assert torch.equal(torch.cat(found), torch.cat(expected))
    whole = compose(sat.base, [SAT(alpha=0.6, scope="step")])
    one = replayed(sat, dataclasses.replace(step, microbatches=[len(step.lengths)])).weights
    parts = torch.cat([token_gradient(whole, SpanView(view, span)).weights for span in spans(step, 1)])
    assert torch.equal(parts, one)
    assert not torch.equal(parts, torch.cat(expected))


def one_token(ratio, advantage, method):
    """Fate of a token of that ratio, mu one half."""
    mu = torch.tensor([math.log(0.5)])
    step = StepBatch("step", mu + math.log(ratio), mu, torch.tensor([advantage]), torch.tensor([True]),
                     torch.tensor([1]), [1])  # fmt: skip
    return int(replayed(method, step).fates[0])


CASES = [
    (
        named_method("grpo").called_by("clip"),
        [(1.3, 1.0, CLIPPED), (0.7, -1.0, CLIPPED), (1.3, -1.0, KEPT), (0.7, 1.0, KEPT), (1.1, 1.0, KEPT)],
    ),
    (
        compose(named_method("grpo").base, trust_region=Clip(dual=3.0)).called_by("dual"),
        [(4.0, -1.0, CLIPPED), (2.0, -1.0, KEPT)],
    ),
    (compose(DPPO()), [(1.1, 1.0, MASKED), (1.1, -1.0, KEPT), (1.3, 1.0, CLIPPED)]),
    (compose(IcePop(0.9, 1.1)), [(1.15, 1.0, MASKED), (0.7, 1.0, MASKED), (1.0, 1.0, KEPT)]),
    (named_method("grpo-tis"), [(1.5, 1.0, REWEIGHTED), (3.0, -1.0, REWEIGHTED), (1.0, 1.0, KEPT)]),
    (named_method("spo"), [(1.1, 1.0, REWEIGHTED), (0.7, -1.0, REWEIGHTED)]),
]


@pytest.mark.parametrize(("method", "tokens"), CASES, ids=[method.name for method, _ in CASES])
def test_fates_are_those_of_the_definitions(method, tokens):
    assert [one_token(ratio, advantage, method) for ratio, advantage, _ in tokens] == [fate for *_, fate in tokens]
