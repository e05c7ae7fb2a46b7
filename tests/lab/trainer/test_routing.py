"""Replayed routes on real megatron-core: those of the trainer itself change nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from trainer_process import in_trainer, make_config, make_samples

pytest.importorskip("megatron.core", reason="the trainer needs megatron-core")
pytestmark = pytest.mark.engine


def replay_checks(trainer, initial: str) -> dict:
    from sat_slime.lab.trainer import routing

    trainer.load_initial(Path(initial))
    micro = trainer._microbatches(make_samples(trainer.config))[0]
    with torch.no_grad():
        recorded: list[torch.Tensor] = []
        with routing.record(recorded):
            free = trainer.scorer.score(trainer.policy.model, micro, replay=False).log_probs
        own = micro.routed_experts.clone()
        for layer, choice in enumerate(recorded):
            own[:, layer] = choice
        result = {"flips of own routes": routing.flips_by_layer(recorded, own, micro.rows)}
        for name, routes in {
            "own": own,
            "own, order of experts swapped": own.flip(-1),
            "shifted by one token": own.roll(1, 0),
            "given": micro.routed_experts,
        }.items():
            with routing.replay(routes):
                replayed = trainer.scorer.score(trainer.policy.model, micro, replay=False).log_probs
            result[name] = (replayed - free).abs().max()
        after = trainer.scorer.score(trainer.policy.model, micro, replay=False).log_probs
        result["after"] = (after - free).abs().max()
    return result


def test_replaying_own_routes_changes_nothing_and_shifted_ones_do(initial):
    found = in_trainer(replay_checks, make_config(), initial["moe"])
    assert len(found["flips of own routes"]) and not found["flips of own routes"].any()
    assert found["own"] == 0 and found["after"] == 0
    assert found["own, order of experts swapped"] < 1e-5
    assert found["shifted by one token"] > 1e-3 and found["given"] > 1e-3
