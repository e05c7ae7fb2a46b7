"""The trainer rank on real megatron-core: parity across parallel layouts, R3, checkpoints, weights."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
import torch
from trainer_ranks import LAYOUTS, make_config, make_initial, make_samples, run_ranks

from sat_slime.config.schema import EmbeddedConfig
from sat_slime.embedded.rollout_batch import TrainSample

pytest.importorskip("megatron.core", reason="the trainer needs megatron-core")
pytestmark = pytest.mark.engine


def train_three_steps(trainer, rank: int, initial: str, out: str | None = None) -> dict:
    trainer.load_initial(Path(initial))
    trainer.export_weights(Path(tempfile.mkdtemp()) / "v0")
    samples = make_samples(trainer.config, routed=trainer.config.model.is_moe)
    metrics = [trainer.train(samples)[0].metrics for _ in range(3)]
    if out:
        trainer.export_weights(Path(out))
    return {"metrics": json.dumps(metrics)}


@pytest.fixture(scope="module")
def initial(tmp_path_factory) -> dict[str, str]:
    """Random weights of the tiny MoE model and of its dense sibling."""
    folders = {}
    for name, experts in (("moe", 4), ("dense", 0)):
        folders[name] = str(tmp_path_factory.mktemp("initial") / name)
        run_ranks(make_initial, make_config(model={"experts": experts}), folders[name])
    return folders


METHOD = {"base": "gspo", "sat": {"enabled": True, "scope": "step"}}


@pytest.fixture(scope="module")
def single(initial, tmp_path_factory) -> dict[bool, tuple[list[dict], Path]]:
    """Metrics and final weights of one rank, R3 off and on."""
    results = {}
    for r3 in (False, True):
        out = tmp_path_factory.mktemp("single") / "final"
        found = run_ranks(train_three_steps, make_config(method={**METHOD, "r3": r3}), initial["moe"], str(out))
        results[r3] = (json.loads(found[0]["metrics"]), out)
    return results


@pytest.mark.parametrize("r3", [False, True], ids=["free routing", "r3"])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_layouts_agree_with_one_rank(layout, r3, single, initial, tmp_path):
    config = make_config(method={**METHOD, "r3": r3}, train=layout)
    ranks = run_ranks(train_three_steps, config, initial["moe"], str(tmp_path / "final"))
    expected, final = single[r3]
    for found in ranks:
        for ours, theirs in zip(json.loads(found["metrics"]), expected, strict=True):
            assert ours.keys() == theirs.keys()
            for name in theirs:
                assert ours[name] == pytest.approx(theirs[name], rel=2e-3, abs=2e-5), name
    assert_same_weights(tmp_path / "final", final, atol=2e-4)


def assert_same_weights(ours: Path, theirs: Path, atol: float) -> None:
    from safetensors.torch import load_file

    a, b = load_file(ours / "model.safetensors"), load_file(theirs / "model.safetensors")
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=0, atol=atol, msg=lambda text, name=name: f"{name}: {text}")


def test_dense_model_trains(initial):
    config = make_config(model={"experts": 0}, method={"base": "grpo"}, train={"tensor_parallel": 2})
    found = json.loads(run_ranks(train_three_steps, config, initial["dense"])[0]["metrics"])
    assert "routing/flip_rate" not in found[0]
    assert found[2]["loss/policy"] < found[0]["loss/policy"]


def test_bf16_keeps_fp32_masters(initial):
    config = make_config(train={"dtype": "bfloat16", "lr": 1e-4}, method={"base": "grpo", "r3": True})
    found = json.loads(run_ranks(train_three_steps, config, initial["moe"])[0]["metrics"])
    assert found[2]["loss/policy"] < found[0]["loss/policy"]


# --------------------------------------------------------------------------------------------- within one rank


def several_optimizer_steps(trainer, rank: int, initial: str) -> dict:
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
    found = run_ranks(several_optimizer_steps, config, initial["moe"])[0]
    assert found["steps"].tolist() == [1, 2, 3] and found["lags"] == [0, 1, 2]


def replay_checks(trainer, rank: int, initial: str) -> dict:
    from sat_slime.embedded.trainer import routing

    trainer.load_initial(Path(initial))
    micro = trainer._microbatches(make_samples(trainer.config))[0]
    with torch.no_grad():
        recorded: list[torch.Tensor] = []
        with routing.record(recorded):
            free, _ = trainer.scorer.log_probs(trainer.policy.model, micro, replay=False)
        own = micro.routed_experts.clone()
        for layer, choice in enumerate(recorded):
            own[:, layer] = choice
        result = {"flips of own routes": torch.tensor(routing.count_flips(recorded, own, micro.rows))}
        for name, routes in {
            "own": own,
            "own, order of experts swapped": own.flip(-1),
            "shifted by one token": own.roll(1, 0),
            "given": micro.routed_experts,
        }.items():
            with routing.replay(routes):
                replayed, _ = trainer.scorer.log_probs(trainer.policy.model, micro, replay=False)
            result[name] = (replayed - free).abs().max()
        after, _ = trainer.scorer.log_probs(trainer.policy.model, micro, replay=False)
        result["after"] = (after - free).abs().max()
    return result


def test_replaying_own_routes_changes_nothing_and_shifted_ones_do(initial):
    found = run_ranks(replay_checks, make_config(), initial["moe"])[0]
    assert found["flips of own routes"][0] == 0 < found["flips of own routes"][1]
    assert found["own"] == 0 and found["after"] == 0
    assert found["own, order of experts swapped"] < 1e-5
    assert found["shifted by one token"] > 1e-3 and found["given"] > 1e-3


def save_and_go_on(trainer, rank: int, initial: str, folder: str) -> dict:
    trainer.load_initial(Path(initial))
    samples = make_samples(trainer.config, top_p=trainer.config.rollout.top_p)
    trainer.export_weights(Path(folder) / "v0")
    trainer.train(samples)
    trainer.save(Path(folder))
    metrics = [trainer.train(samples)[0].metrics for _ in range(2)]
    return {"metrics": json.dumps(metrics)}


def load_and_go_on(trainer, rank: int, initial: str, folder: str) -> dict:
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
def test_a_loaded_rank_goes_on_bit_for_bit(dtype, method, top_p, initial, tmp_path):
    train = {"dtype": dtype, "tensor_parallel": 2}
    config = make_config(train=train, method=method, rollout={"top_p": top_p})
    undisturbed = run_ranks(save_and_go_on, config, initial["moe"], str(tmp_path))
    resumed = run_ranks(load_and_go_on, config, initial["moe"], str(tmp_path))
    assert undisturbed == resumed


def poisoned(trainer, rank: int, initial: str) -> dict:
    trainer.load_initial(Path(initial))
    before = [p.detach().clone() for _, p in trainer.policy.named_parameters]
    samples = [TrainSample(s.response, float("nan")) for s in make_samples(trainer.config)]
    try:
        trainer.train(samples)
    except FloatingPointError as error:
        same = all(torch.equal(a, b) for a, (_, b) in zip(before, trainer.policy.named_parameters, strict=True))
        return {"error": str(error), "unchanged": same}
    return {"error": "", "unchanged": False}


def test_a_gradient_that_is_not_finite_stops_before_the_weights_change(initial):
    found = run_ranks(
        poisoned, make_config(method={"base": "grpo"}, diagnose={"split_every_n_steps": 0}), initial["moe"]
    )[0]
    assert "not finite" in found["error"] and found["unchanged"]


# ------------------------------------------------------------------------------- top-p masks, TRPO's constraint

CONSTRAINED = {"base": "trpo", "top_p_replay": True}


def masked_log_probs(trainer, rank: int, initial: str) -> dict:
    from sat_slime.embedded.trainer.log_probs import whole_log_probs
    from sat_slime.embedded.trainer.model import forward_logits

    trainer.load_initial(Path(initial))
    micro = trainer._microbatches(make_samples(trainer.config, top_p=0.7))[0]
    log_probs, entropy = trainer.scorer.log_probs(trainer.policy.model, micro, replay=False, entropy="value")
    (slope,) = torch.autograd.grad(log_probs.sum(), [trainer.policy.model.module.output_layer.weight])
    logits = forward_logits(trainer.policy.model, micro.token_ids, micro.layout)[micro.rows]
    plain = whole_log_probs(logits, trainer.config.rollout.temperature)
    return {
        "log_probs": log_probs.detach(),
        "entropy": entropy.detach(),
        "slope": slope,
        "whole": whole_log_probs(logits, trainer.config.rollout.temperature, micro.distribution.isfinite()),
        "plain": plain,
        "kept": micro.distribution.isfinite(),
        "targets": micro.targets,
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


def constrained_steps(trainer, rank: int, initial: str, out: str) -> dict:
    """Three steps, and whether each is the halved step of an unconstrained one and keeps to the constraint."""
    trainer.load_initial(Path(initial))
    trainer.export_weights(Path(tempfile.mkdtemp()) / "v0")
    samples = make_samples(trainer.config, top_p=0.9)
    config, microbatches = trainer.method.step_constraint, trainer._microbatches(samples)
    apply, full, kept, rows = trainer.optimizer.step, [], [], []

    def watched(number: int) -> float:
        norm = apply(number)
        full[:] = [m.detach().clone() for m in trainer.optimizer.masters]
        return norm

    trainer.optimizer.step = watched
    for _ in range(3):
        before, old = trainer.scorer.divergence(microbatches), [m.detach().clone() for m in trainer.optimizer.masters]
        metrics = trainer.train(samples)[0].metrics
        after, scale = trainer.scorer.divergence(microbatches), metrics["trpo/step_scale"]
        kept.append(config.stands(before, after, torch.distributed.group.WORLD))
        moved = [torch.lerp(start, end, scale) for start, end in zip(old, full, strict=True)]
        kept.append(all(torch.equal(a, b) for a, b in zip(moved, trainer.optimizer.masters, strict=True)))
        kept.append(len(after) == 0 or metrics["trpo/tv_max"] >= float(after.max()))
        rows.append(metrics)
    trainer.export_weights(Path(out))
    return {"metrics": json.dumps(rows), "kept": kept}


def constrained_config(over: str, **train) -> EmbeddedConfig:
    # mu is made up and far from the policy: a mean of 0.45, a maximum of 0.77. A whole step would leave these regions.
    return make_config(
        method={**CONSTRAINED, "trpo": {"delta": {"state": 0.79, "mean": 0.48}[over], "over": over}},
        train=train,
        rollout={"top_p": 0.9},
        diagnose={"split_every_n_steps": 0},
    )


@pytest.mark.parametrize(
    "over, layout",
    [("state", {"tensor_parallel": 2}), ("mean", {"data_parallel": 2, "expert_parallel": 2})],
    ids=["state, tensor parallel", "mean, data and expert parallel"],
)
def test_a_constrained_step_is_the_same_on_every_layout(over, layout, initial, tmp_path):
    (one,) = run_ranks(constrained_steps, constrained_config(over), initial["moe"], str(tmp_path / "one"))
    ranks = run_ranks(constrained_steps, constrained_config(over, **layout), initial["moe"], str(tmp_path / "ranks"))
    expected = json.loads(one["metrics"])
    assert all(one["kept"])
    assert any(0 < row["trpo/step_scale"] < 1 for row in expected)
    for found in ranks:
        assert all(found["kept"])
        for ours, theirs in zip(json.loads(found["metrics"]), expected, strict=True):
            assert ours["trpo/step_scale"] == theirs["trpo/step_scale"]
            assert ours["trpo/backtracks"] == theirs["trpo/backtracks"]
            for name in ("trpo/tv_mean", "trpo/tv_max", "trpo/tv_mean_before", "loss/policy", "grad_norm"):
                assert ours[name] == pytest.approx(theirs[name], rel=2e-3, abs=2e-5), name
    assert_same_weights(tmp_path / "ranks", tmp_path / "one", atol=2e-4)
