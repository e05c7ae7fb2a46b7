"""The optimizer on real megatron-core: fp32 masters, a gradient that is not finite, and TRPO's constraint."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from pathlib import Path

import pytest
import torch
from trainer_process import (
    CONSTRAINED,
    SPLITS,
    assert_same_weights,
    in_trainer,
    make_config,
    make_samples,
    train_three_steps,
)

from sat_slime.config.schema import LabConfig

pytest.importorskip("megatron.core", reason="the trainer needs megatron-core")
pytestmark = pytest.mark.engine


def test_bf16_keeps_fp32_masters(initial):
    config = make_config(train={"dtype": "bfloat16", "lr": 1e-4}, method={"base": "grpo", "r3": True})
    found = json.loads(in_trainer(train_three_steps, config, initial["moe"])["metrics"])
    assert found[2]["loss/policy"] < found[0]["loss/policy"]


def poisoned(trainer, initial: str) -> dict:
    trainer.load_initial(Path(initial))
    before = [p.detach().clone() for _, p in trainer.policy.named_parameters]
    samples = [dataclasses.replace(r, advantage=float("nan")) for r in make_samples(trainer.config)]
    try:
        trainer.train(samples)
    except FloatingPointError as error:
        same = all(torch.equal(a, b) for a, (_, b) in zip(before, trainer.policy.named_parameters, strict=True))
        return {"error": str(error), "unchanged": same}
    return {"error": "", "unchanged": False}


def test_a_gradient_that_is_not_finite_stops_before_the_weights_change(initial):
    found = in_trainer(
        poisoned, make_config(method={"base": "grpo"}, diagnose={"split_every_n_steps": 0}), initial["moe"]
    )
    assert "not finite" in found["error"] and found["unchanged"]


def constrained_steps(trainer, initial: str, out: str) -> dict:
    """Three steps, and whether each is the halved step of an unconstrained one and keeps to the constraint."""
    trainer.load_initial(Path(initial))
    trainer.export_weights(Path(tempfile.mkdtemp()) / "v0")
    samples = make_samples(trainer.config, top_p=0.9)
    config, microbatches = trainer.method.step_constraint, trainer._microbatches(samples)
    apply, full, kept, rows = trainer.optimizer.step, [], [], []

    def watched(number: int, loss: torch.Tensor) -> float:
        norm = apply(number, loss)
        full[:] = [m.detach().clone() for m in trainer.optimizer.masters]
        return norm

    trainer.optimizer.step = watched
    for _ in range(3):
        before, old = trainer.scorer.divergence(microbatches), [m.detach().clone() for m in trainer.optimizer.masters]
        metrics = trainer.train(samples)[0].metrics
        after, scale = trainer.scorer.divergence(microbatches), metrics["trpo/step_scale"]
        kept.append(config.accepts(before, after))
        moved = [torch.lerp(start, end, scale) for start, end in zip(old, full, strict=True)]
        kept.append(all(torch.equal(a, b) for a, b in zip(moved, trainer.optimizer.masters, strict=True)))
        kept.append(len(after) == 0 or metrics["trpo/tv_max"] >= float(after.max()))
        rows.append(metrics)
    trainer.export_weights(Path(out))
    return {"metrics": json.dumps(rows), "kept": kept}


def constrained_config(over: str, **train) -> LabConfig:
    # mu is made up and far from the policy: a mean of 0.45, a maximum of 0.77. A whole step would leave these regions.
    return make_config(
        method={**CONSTRAINED, "trpo": {"delta": {"state": 0.79, "mean": 0.48}[over], "over": over}},
        train=train,
        rollout={"top_p": 0.9},
        diagnose={"split_every_n_steps": 0},
    )


@pytest.mark.parametrize("over", ["state", "mean"])
def test_a_constrained_step_is_the_same_however_its_tokens_are_cut(over, initial, tmp_path):
    rows = []
    for split, settings in SPLITS.items():
        found = in_trainer(
            constrained_steps, constrained_config(over, **settings), initial["moe"], str(tmp_path / split)
        )
        assert all(found["kept"])
        rows.append(json.loads(found["metrics"]))
    assert any(0 < row["trpo/step_scale"] < 1 for row in rows[0])
    for ours, theirs in zip(*rows, strict=True):
        assert ours["trpo/step_scale"] == theirs["trpo/step_scale"]
        assert ours["trpo/backtracks"] == theirs["trpo/backtracks"]
        for name in ("trpo/tv_mean", "trpo/tv_max", "trpo/tv_mean_before", "loss/policy", "grad_norm"):
            assert ours[name] == pytest.approx(theirs[name], rel=2e-3, abs=2e-5), name
    assert_same_weights(*(tmp_path / split for split in SPLITS), atol=2e-4)
