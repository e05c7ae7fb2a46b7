"""Log-probs on real megatron-core where the engine sampled from a nucleus."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from trainer_ranks import CONSTRAINED, make_config, make_samples, run_ranks

pytest.importorskip("megatron.core", reason="the trainer needs megatron-core")
pytestmark = pytest.mark.engine


def masked_log_probs(trainer, rank: int, initial: str) -> dict:
    from sat_slime.embedded.trainer.log_probs import whole_log_probs
    from sat_slime.embedded.trainer.model import forward_logits

    trainer.load_initial(Path(initial))
    micro = trainer._microbatches(make_samples(trainer.config, top_p=0.7))[0]
    model, output = trainer.policy.model, trainer.policy.model.module.output_layer.weight
    log_probs, entropy, head = trainer.scorer.score(model, micro, replay=False, entropy="value", head="gradient")
    (slope,) = torch.autograd.grad(log_probs.sum(), [output], retain_graph=True)
    sampled = head.gather(1, micro.output_ids[:, None])[:, 0]
    (head_slope,) = torch.autograd.grad(sampled.sum(), [output])
    without = trainer.scorer.score(model, micro, replay=False, head="value")
    logits = forward_logits(model, micro.token_ids, micro.layout)[micro.rows]
    logits = logits.detach()
    plain = whole_log_probs(logits, trainer.config.rollout.temperature)
    return {
        "log_probs": log_probs.detach(),
        "entropy": entropy.detach(),
        "slope": slope,
        "head": head.detach(),
        "head_slope": head_slope,
        "without_gradient": torch.equal(without.head, head) and not without.head.requires_grad,
        "whole": whole_log_probs(logits, trainer.config.rollout.temperature, micro.distribution.isfinite()),
        "plain": plain,
        "kept": micro.distribution.isfinite(),
        "targets": micro.output_ids,
    }


@pytest.mark.parametrize("tensor_parallel", [1, 2])
def test_the_softmax_is_over_the_engines_nucleus(tensor_parallel, initial):
    config = make_config(method=CONSTRAINED, train={"tensor_parallel": tensor_parallel}, rollout={"top_p": 0.7})
    for found in run_ranks(masked_log_probs, config, initial["moe"]):
        kept, plain = found["kept"], found["plain"].double()
        assert 0 < kept.sum() < kept.numel()
        inside = torch.where(kept, plain, -torch.inf)
        expected = inside - inside.logsumexp(-1, keepdim=True)  # Eq. app-top-p-replay
        torch.testing.assert_close(found["whole"].double(), expected, rtol=1e-5, atol=1e-5)
        sampled = expected.gather(1, found["targets"][:, None])[:, 0]
        torch.testing.assert_close(found["log_probs"].double(), sampled, rtol=1e-5, atol=1e-5)
        assert (sampled - plain.gather(1, found["targets"][:, None])[:, 0]).min() > 1e-3
        torch.testing.assert_close(found["entropy"].double(), -(plain.exp() * plain).sum(-1), rtol=1e-4, atol=1e-5)
        assert found["slope"].isfinite().all() and found["slope"].abs().max() > 0
        # the head is the same softmax, and so is its gradient on the sampled tokens
        assert found["without_gradient"] and torch.equal(found["head"], found["whole"])
        torch.testing.assert_close(found["head_slope"], found["slope"], rtol=1e-4, atol=1e-5)
