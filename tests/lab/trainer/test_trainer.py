"""The trainer on real megatron-core: R3, checkpoints, weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from trainer_process import (
    SPLITS,
    assert_same_weights,
    in_trainer,
    make_config,
    make_initial,
    make_samples,
    train_three_steps,
)

pytest.importorskip("megatron.core", reason="the trainer needs megatron-core")
pytestmark = pytest.mark.engine


METHOD = {"base": "gspo", "sat": {"enabled": True, "scope": "step"}}


@pytest.fixture(scope="module")
def single(initial, tmp_path_factory) -> dict[bool, tuple[list[dict], Path]]:
    """Metrics and final weights, R3 off and on."""
    results = {}
    for r3 in (False, True):
        out = tmp_path_factory.mktemp("single") / "final"
        found = in_trainer(train_three_steps, make_config(method={**METHOD, "r3": r3}), initial["moe"], str(out))
        results[r3] = (json.loads(found["metrics"]), out)
    return results


@pytest.mark.parametrize("r3", [False, True], ids=["free routing", "r3"])
@pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS.keys())
def test_a_step_is_the_same_however_its_tokens_are_cut(split, r3, single, initial, tmp_path):
    config = make_config(method={**METHOD, "r3": r3}, train=split)
    found = in_trainer(train_three_steps, config, initial["moe"], str(tmp_path / "final"))
    expected, final = single[r3]
    for ours, theirs in zip(json.loads(found["metrics"]), expected, strict=True):
        assert ours.keys() == theirs.keys()
        for name in theirs:
            assert ours[name] == pytest.approx(theirs[name], rel=2e-3, abs=2e-5), name
    assert_same_weights(tmp_path / "final", final, atol=2e-4)


@pytest.mark.parametrize("experts_per_token", [1, 2])  # a dense model has none: either is without effect
def test_dense_model_trains(experts_per_token, initial):
    model = {"experts": 0, "experts_per_token": experts_per_token}
    config = make_config(model=model, method={"base": "grpo"})
    found = json.loads(in_trainer(train_three_steps, config, initial["dense"])["metrics"])
    assert "routing/flip_rate" not in found[0]
    assert found[2]["loss/policy"] < found[0]["loss/policy"]


@pytest.mark.parametrize("family", ["qwen3", "qwen2"])
def test_tied_embeddings_train(family, tmp_path):
    model = {"family": family, "experts": 0, "tied_embeddings": True}
    initial = str(tmp_path / "initial")
    in_trainer(make_initial, make_config(model=model), initial)
    config = make_config(model=model, method={"base": "grpo"})
    in_trainer(train_three_steps, config, initial, str(tmp_path / "after"))
    before, after = load_file(f"{initial}/model.safetensors"), load_file(tmp_path / "after" / "model.safetensors")
    assert "lm_head.weight" not in after
    assert all((after[name] - before[name]).abs().max() > 1e-3 for name in after)


def routers_of(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in load_file(folder / "model.safetensors").items() if ".mlp.gate." in name}


@pytest.mark.parametrize("r3", [False, True], ids=["free routing", "r3"])
def test_the_router_of_a_single_expert_learns(r3, initial, tmp_path):
    config = make_config(model={"experts_per_token": 1}, method={**METHOD, "r3": r3})
    in_trainer(train_three_steps, config, initial["moe"], str(tmp_path / "final"))
    before, after = routers_of(Path(initial["moe"])), routers_of(tmp_path / "final")
    assert len(before) == 2
    assert all((after[name] - before[name]).abs().max() > 1e-3 for name in before)


def step_on_a_broken_number(trainer, initial: str, value: float, folder: str) -> dict:
    trainer.load_initial(Path(initial))
    samples = make_samples(trainer.config)
    samples[1].log_probs[2] = value
    try:
        trainer.train(samples)
        said = ""
    except FloatingPointError as error:
        said = str(error)
    trainer.export_weights(Path(folder))
    return {"said": said}


@pytest.mark.parametrize("base", ["grpo", "spo"])
def test_a_number_that_is_not_finite_ends_the_step_and_leaves_the_weights(base, initial, tmp_path):
    config = make_config(
        method={"base": base}, train={"tokens_per_microbatch": 4096}, diagnose={"split_every_n_steps": 0}
    )
    found = in_trainer(step_on_a_broken_number, config, initial["moe"], float("nan"), str(tmp_path / "after"))
    assert "1 of" in found["said"] and "rollout_log_probs is nan" in found["said"]
    assert_same_weights(tmp_path / "after", Path(initial["moe"]), atol=0)


def several_optimizer_steps(trainer, initial: str) -> dict:
    trainer.load_initial(Path(initial))
    results = trainer.train(make_samples(trainer.config))
    return {
        "steps": torch.tensor([r.metrics["step"] for r in results]),
        "lags": [r.metrics["lag/mean"] for r in results],
    }


def test_several_optimizer_steps_per_rollout(initial):
    config = make_config(
        pipeline={"optimizer_steps_per_rollout": 3},
        method={"base": "grpo", "sat": True, "denominator": "trainer"},
        diagnose={"split_every_n_steps": 0},
    )
    found = in_trainer(several_optimizer_steps, config, initial["moe"])
    assert found["steps"].tolist() == [1, 2, 3] and found["lags"] == [0, 1, 2]


def save_and_go_on(trainer, initial: str, folder: str) -> dict:
    trainer.load_initial(Path(initial))
    samples = make_samples(trainer.config, top_p=trainer.config.rollout.top_p)
    trainer.export_weights(Path(folder) / "v0")
    trainer.train(samples)
    trainer.save(Path(folder))
    metrics = [trainer.train(samples)[0].metrics for _ in range(2)]
    return {"metrics": json.dumps(metrics)}


def load_and_go_on(trainer, initial: str, folder: str) -> dict:
    trainer.load_reference(Path(initial))
    trainer.load(Path(folder), updates=1)
    trainer.remember_weights(Path(folder) / "v0", 0)
    samples = make_samples(trainer.config, top_p=trainer.config.rollout.top_p)
    metrics = [trainer.train(samples)[0].metrics for _ in range(2)]
    return {"metrics": json.dumps(metrics)}


@pytest.mark.parametrize(
    "dtype, method, top_p",
    [
        ("float32", {"base": "gspo", "r3": True}, 1.0),
        ("bfloat16", {"base": "gspo", "r3": True}, 1.0),
        ("bfloat16", {"base": "trpo", "top_p_replay": True, "trpo": {"delta": 0.48}}, 0.9),
    ],
    ids=["fp32", "bf16", "bf16, trpo, top-p"],
)
def test_a_loaded_trainer_goes_on_bit_for_bit(dtype, method, top_p, initial, tmp_path):
    config = make_config(train={"dtype": dtype}, method=method, rollout={"top_p": top_p})
    undisturbed = in_trainer(save_and_go_on, config, initial["moe"], str(tmp_path))
    resumed = in_trainer(load_and_go_on, config, initial["moe"], str(tmp_path))
    assert undisturbed == resumed
