"""Re-scoring on real megatron-core: what a diagnosed step reports of its tokens."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
import torch
from trainer_process import SPLITS, in_trainer, make_config, make_samples

pytest.importorskip("megatron.core", reason="the trainer needs megatron-core")
pytestmark = pytest.mark.engine

DIAGNOSED = {"every_n_steps": 2, "split_every_n_steps": 0}
PAIR = {"pipeline": {"optimizer_steps_per_rollout": 2}, "diagnose": DIAGNOSED}
"""A batch has two steps, of which the first is diagnosed."""
ALWAYS = {"log_probs", "entropy"}
RESCORED = {
    "log_probs_own_routing",
    "log_probs_replayed",
    "expert_flips",
    "log_distribution",
    "checkpoint_log_probs",
    "checkpoint_log_probs_own_routing",
    "checkpoint_log_probs_replayed",
    "checkpoint_log_probs_engine_dtype",
    "checkpoint_expert_flips",
    "checkpoint_log_distribution",
}


def two_batches(trainer, initial: str, dump: bool) -> dict:
    """Columns and metrics of the last batch's steps, whose responses version 0 generated: lag 2 and 3."""
    trainer.load_initial(Path(initial))
    trainer.export_weights(Path(tempfile.mkdtemp()) / "v0")
    samples = make_samples(trainer.config, routed=trainer.config.model.is_moe)
    first = trainer.train(samples)
    second = trainer.train(samples, dump)
    found = {"metrics": json.dumps([step.metrics for step in first + second])}
    for i, step in enumerate(second):
        found[f"step {i}"] = {k: torch.from_numpy(v.copy()) for k, v in (step.tokens or {}).items()}
    return found


@pytest.fixture(scope="module")
def single(initial) -> dict[bool, dict]:
    """What one rank finds, R3 off and on."""
    return {
        r3: in_trainer(two_batches, make_config(method={"base": "grpo", "r3": r3}, **PAIR), initial["moe"], True)
        for r3 in (False, True)
    }


@pytest.mark.parametrize("r3", [False, True], ids=["free routing", "r3"])
def test_columns_are_those_of_the_method(r3, single):
    diagnosed, plain = single[r3]["step 0"], single[r3]["step 1"]
    assert diagnosed.keys() == ALWAYS | RESCORED and plain.keys() == ALWAYS
    kind = "replayed" if r3 else "own_routing"
    # the training forward, the split and the re-scoring are the same pass, to the bit
    assert torch.equal(diagnosed["log_probs"], diagnosed[f"log_probs_{kind}"])
    assert torch.equal(diagnosed["checkpoint_log_probs"], diagnosed[f"checkpoint_log_probs_{kind}"])
    assert not torch.equal(diagnosed["log_probs"], diagnosed["checkpoint_log_probs"])
    config = make_config()
    samples = make_samples(config)[:12]
    targets = torch.tensor([t for s in samples for t in s.output_ids])
    for prefix in ("", "checkpoint_"):
        whole = diagnosed[f"{prefix}log_distribution"]
        torch.testing.assert_close(whole.exp().sum(1), torch.ones(len(targets)))
        picked = whole.gather(1, targets[:, None])[:, 0]
        torch.testing.assert_close(picked, diagnosed[f"{prefix}log_probs"], rtol=0, atol=1e-5)
        flips = diagnosed[f"{prefix}expert_flips"]
        assert flips.shape == (len(targets), 2) and 0 < flips.float().mean() < 1  # made-up routes seldom agree
        moved = diagnosed[f"{prefix}log_probs_own_routing"] != diagnosed[f"{prefix}log_probs_replayed"]
        assert moved[flips.bool().any(1)].all()
    # bf16 beside fp32 along the same routes: close, and not equal
    off = (diagnosed["checkpoint_log_probs_engine_dtype"] - diagnosed["checkpoint_log_probs_replayed"]).abs()
    assert 1e-4 < off.mean() < 0.1


@pytest.mark.parametrize("r3", [False, True], ids=["free routing", "r3"])
@pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS.keys())
def test_columns_are_the_same_however_tokens_are_cut(split, r3, single, initial):
    config = make_config(method={"base": "grpo", "r3": r3}, train=split, **PAIR)
    steps = in_trainer(two_batches, config, initial["moe"], True)
    for step in ("step 0", "step 1"):
        assert steps[step].keys() == single[r3][step].keys()
        for name, expected in single[r3][step].items():
            found = steps[step][name]
            if name.endswith("expert_flips"):
                assert (found != expected).float().mean() < 0.01, name
            else:
                atol = 0.1 if name.endswith("engine_dtype") else 5e-3  # after training steps, and a near tie may flip
                assert (found - expected).abs().quantile(0.99) < atol, name


def test_a_dump_and_a_diagnosis_change_nothing(initial, single):
    plain = make_config(
        method={"base": "grpo"},
        pipeline={"optimizer_steps_per_rollout": 2},
        diagnose={"every_n_steps": 0, "split_every_n_steps": 0},
    )
    without = json.loads(in_trainer(two_batches, plain, initial["moe"], False)["metrics"])
    with_both = json.loads(single[False]["metrics"])
    for ours, theirs in zip(with_both, without, strict=True):
        assert {name: ours[name] for name in theirs} == theirs
    assert {name for name in with_both[2] if name not in without[2]} == {
        "mismatch/policy",
        "mismatch/implementation",
        *(f"mismatch/policy_of_{name}" for name in ("mean", "q90", "q99")),
    }


def test_a_dense_model_has_no_routes_to_score(initial):
    config = make_config(model={"experts": 0}, method={"base": "grpo"}, rollout={"dtype": "float32"}, **PAIR)
    found = in_trainer(two_batches, config, initial["dense"], False)["step 0"]
    assert found.keys() == {name for name in ALWAYS | RESCORED if not name.endswith(("routing", "replayed", "flips"))}
    # one arithmetic for both: precision has no part
    assert torch.equal(found["checkpoint_log_probs_engine_dtype"], found["checkpoint_log_probs"])
