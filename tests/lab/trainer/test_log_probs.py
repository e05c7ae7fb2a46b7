"""Log-probs on real megatron-core where the engine sampled from a nucleus."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from trainer_process import CONSTRAINED, in_trainer, make_config, make_samples

pytest.importorskip("megatron.core", reason="the trainer needs megatron-core")
pytestmark = pytest.mark.engine


def masked_log_probs(trainer, initial: str) -> dict:
    from sat_slime.lab.trainer.log_probs import whole_log_probs
    from sat_slime.lab.trainer.model import forward_logits

    trainer.load_initial(Path(initial))
    micro = trainer._microbatches(make_samples(trainer.config, top_p=0.7))[0]
    model, output = trainer.policy.model, trainer.policy.model.module.output_layer.weight
    log_probs, entropy, head = trainer.scorer.score(model, micro, replay=False, entropy="value", head=True)
    (slope,) = torch.autograd.grad(log_probs.sum(), [output])
    logits = forward_logits(model, micro.token_ids, micro.layout)[micro.rows]
    logits = logits.detach()
    plain = whole_log_probs(logits, trainer.config.rollout.temperature)
    return {
        "log_probs": log_probs.detach(),
        "entropy": entropy.detach(),
        "slope": slope,
        "head": head,
        "whole": whole_log_probs(logits, trainer.config.rollout.temperature, micro.distribution.isfinite()),
        "plain": plain,
        "kept": micro.distribution.isfinite(),
        "targets": micro.output_ids,
    }


def test_the_softmax_is_over_the_engines_nucleus(initial):
    found = in_trainer(masked_log_probs, make_config(method=CONSTRAINED, rollout={"top_p": 0.7}), initial["moe"])
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
    assert torch.equal(found["head"], found["whole"]) and not found["head"].requires_grad
