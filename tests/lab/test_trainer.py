"""The trainer on real megatron-core: packing, loss, routes, diagnosis, optimizer, checkpoints, and its process."""

from __future__ import annotations

import dataclasses
import math
import os
import signal
import tempfile
from contextlib import closing
from pathlib import Path

import equations as paper
import numpy as np
import pytest

pytest.importorskip("megatron.core", reason="the trainer needs megatron-core")

import hypothesis
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from made_up_batch import make_batch
from megatron.core.transformer.moe.router_replay import RouterReplay, RouterReplayAction
from safetensors.torch import load_file, save_file
from trainer_process import in_trainer, make_config, make_initial, make_samples, scored

from sat_slime.config.method_section import method_switches
from sat_slime.config.schema import LabConfig, LossConfig
from sat_slime.lab import model
from sat_slime.lab.initial_model import is_model
from sat_slime.lab.process import PartFailure, TrainerProcess
from sat_slime.lab.responses import Response
from sat_slime.lab.trainer import forwarded_tokens, pack, plan_microbatches, policy_loss
from sat_slime.objective import method_names, named_method, policy_surrogate
from sat_slime.objective.metrics import metric_named
from sat_slime.objective.tokens import response_mean_weights
from sat_slime.report.dumps import read_rollout

pytestmark = pytest.mark.engine
DENSE = {"family": "qwen2", "experts": 0, "tied_embeddings": True}


@pytest.fixture(scope="module")
def initial(tmp_path_factory) -> dict[str, str]:
    """Random weights of the tiny MoE model and of a dense one."""
    folders = {}
    for name, sizes in (("moe", {}), ("dense", DENSE)):
        folders[name] = str(tmp_path_factory.mktemp("initial") / name)
        in_trainer(make_initial, make_config(model=sizes), folders[name])
    return folders


# -------------------------------------------------------------------------------------------------------------- packing


@hypothesis.settings(max_examples=200)
@given(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=60), bound=st.integers(40, 200))
@example(sizes=[22, 40, 1], bound=40)  # equal cuts never part the last two
def test_plans_place_every_sample_once_within_the_bound(sizes, bound):
    plan = plan_microbatches(sizes, bound)
    assert [i for part in plan for i in part] == list(range(len(sizes)))
    assert all(part and sum(sizes[i] for i in part) <= bound for part in plan)


def test_rows_predict_the_response_tokens():
    samples = make_batch(["14$", "08,10,14$", "1$"] * 4).graded()
    part = [1, 0, 5]
    used = sum(forwarded_tokens(samples[i]) for i in part)
    micro = pack([samples[i] for i in part])
    assert len(micro.token_ids) == used and sum(micro.tokens.lengths) == len(micro.output_ids) == len(micro.rows)
    start = response_start = 0
    for i, length in zip(part, micro.tokens.lengths, strict=True):
        response = samples[i]
        whole = (*response.prompt_ids, *response.output_ids)
        span = slice(start, start + len(whole) - 1)
        assert micro.token_ids[span].tolist() == list(whole[:-1])
        assert micro.layout.position_ids[0, 0, span].tolist() == list(range(len(whole) - 1))
        np.testing.assert_array_equal(micro.routed_experts[span].numpy(), response.routed_experts)
        mine = slice(response_start, response_start + length)
        # The row of a response token is that of the token before it.
        for row, target in zip(micro.rows[mine].tolist(), micro.output_ids[mine].tolist(), strict=True):
            assert whole[row - start + 1] == target
        np.testing.assert_array_equal(micro.tokens.rollout_log_probs[mine].numpy(), response.log_probs)
        assert micro.tokens.advantages[mine].tolist() == [np.float32(samples[i].advantage)] * length
        start, response_start = start + len(whole) - 1, response_start + length


# ----------------------------------------------------------------------------------------------------------------- loss


def test_loss_is_the_weighted_sum_of_its_terms():
    method = named_method("sat-grpo")
    tokens = paper.random_tokens(seed=2, lengths=[4, 7, 1])
    n = len(tokens.log_pi)
    generator = torch.Generator().manual_seed(0)
    ref, entropy = -torch.rand(2, n, generator=generator, dtype=torch.float64)
    weights = response_mean_weights(torch.tensor(tokens.mask), tokens.lengths, 3)
    batch = tokens.batch()

    loss, metrics, found = policy_loss(
        method, batch, weights, LossConfig(kl_coef=0.1, entropy_coef=0.01), ref_log_probs=ref, entropy=-entropy
    )

    surrogate = paper.surrogate(method, tokens, paper.decide(method, tokens))
    terms = {"policy": 0.0, "kl": 0.0, "entropy": 0.0}
    for span in tokens.responses:
        for t in span:
            w = 1 / (3 * len(span))
            x = ref[t].item() - tokens.log_pi[t]
            terms["policy"] -= w * surrogate[t]
            terms["kl"] += w * (math.exp(x) - 1 - x)
            terms["entropy"] += w * -entropy[t].item()
    total = terms["policy"] + 0.1 * terms["kl"] - 0.01 * terms["entropy"]
    assert loss.item() == pytest.approx(total, rel=1e-12)
    assert {k: metrics[f"loss/{k}"].item() for k in terms} == pytest.approx(terms, rel=1e-12)
    assert metrics["loss/total"].item() == loss.item() and not metrics["loss/total"].requires_grad
    assert torch.equal(found.values, policy_surrogate(method, batch).values)


# ---------------------------------------------------------------------------------------------------- routes and nuclei


def replay_checks(trainer, initial: str) -> dict:
    trainer.load_initial(Path(initial))
    micro = trainer._microbatches(make_samples(trainer.config))[0]
    with torch.no_grad():
        RouterReplay.set_global_router_replay_action(RouterReplayAction.RECORD)
        free = trainer.log_probs(trainer.model, micro, replay=False)
        recorded = RouterReplay.get_recorded_data()
        RouterReplay.clear_global_router_replay_action()
        own = micro.routed_experts.clone()
        for layer, choice in enumerate(recorded):
            own[:, layer] = choice
        result = {}
        for name, routes in {
            "own": own,
            "own, order of experts swapped": own.flip(-1),
            "shifted by one token": own.roll(1, 0),
            "given": micro.routed_experts,
        }.items():
            with model.replay(routes):
                replayed = trainer.log_probs(trainer.model, micro, replay=False)
            result[name] = (replayed - free).abs().max()
        after = trainer.log_probs(trainer.model, micro, replay=False)
        result["after"] = (after - free).abs().max()
    return result


def test_replaying_own_routes_changes_nothing_and_shifted_ones_do(initial):
    found = in_trainer(replay_checks, make_config(), initial["moe"])
    assert found["own"] == 0 and found["after"] == 0
    assert found["own, order of experts swapped"] < 1e-5
    assert found["shifted by one token"] > 1e-3 and found["given"] > 1e-3


# ---------------------------------------------------------------------------------------------------------------- steps


def assert_same_weights(ours: Path, theirs: Path, atol: float) -> None:
    a, b = load_file(ours / "model.safetensors"), load_file(theirs / "model.safetensors")
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=0, atol=atol, msg=lambda text, name=name: f"{name}: {text}")


def two_batches(trainer, initial: str, out: str, dump: bool) -> dict:
    """Metrics of the steps of two batches, columns of those of the second, whose responses version 0 generated, and the
    folder of the final weights."""
    trainer.load_initial(Path(initial))
    trainer.export_weights(Path(tempfile.mkdtemp()) / "v0")
    samples = make_samples(trainer.config, routed=trainer.config.model.is_moe)
    file = Path(tempfile.mkdtemp()) / "2.pt"
    steps = [*trainer.train(samples), *trainer.train(samples, file, dump)]
    trainer.export_weights(Path(out))
    columns = [{"log_probs": step.log_probs, **step.more} for step in read_rollout([file])]
    return {"metrics": steps, "columns": columns, "weights": Path(out)}


PAIR = {
    "pipeline": {"optimizer_steps_per_rollout": 2},
    "diagnose": {"every_n_steps": 2, "split_every_n_steps": 1},
    "method": {"base": "gspo", "sat": {"scope": "step"}},
}
"""A batch has two steps, of which the first is diagnosed."""
ALWAYS = {"log_probs", "lags", "checkpoint_log_probs"}
RESCORED = {
    "log_probs_own_routing",
    "log_probs_replayed",
    "checkpoint_log_probs_own_routing",
    "checkpoint_log_probs_replayed",
    "checkpoint_log_probs_engine_dtype",
}
FREE_AND_R3 = pytest.mark.parametrize("r3", [False, True], ids=["free routing", "r3"])


def trained(initial: dict[str, str], out: Path, r3: bool, tokens_per_microbatch: int) -> dict:
    config = make_config(
        **PAIR | {"method": PAIR["method"] | {"r3": r3}, "train": {"tokens_per_microbatch": tokens_per_microbatch}}
    )
    return in_trainer(two_batches, config, initial["moe"], str(out), True)


@pytest.fixture(scope="module")
def in_one_piece(initial, tmp_path_factory) -> dict[bool, dict]:
    """What `two_batches` finds of steps that are one micro-batch, R3 off and on."""
    return {r3: trained(initial, tmp_path_factory.mktemp("final"), r3, 4096) for r3 in (False, True)}


@FREE_AND_R3
def test_a_step_is_the_same_however_its_tokens_are_cut(r3, in_one_piece, initial, tmp_path):
    found, expected = trained(initial, tmp_path, r3, 90), in_one_piece[r3]
    for ours, theirs in zip(found["metrics"], expected["metrics"], strict=True):
        assert ours.keys() == theirs.keys()
        for name in theirs:
            assert ours[name] == pytest.approx(theirs[name], rel=2e-3, abs=2e-5), name
    assert_same_weights(found["weights"], expected["weights"], atol=2e-4)
    for ours, theirs in zip(found["columns"], expected["columns"], strict=True):
        assert ours.keys() == theirs.keys()
        for name in theirs:
            atol = 0.1 if name.endswith("engine_dtype") else 5e-3  # after training steps, and a near tie may flip
            assert (ours[name] - theirs[name]).abs().quantile(0.99) < atol, name


@FREE_AND_R3
def test_columns_are_those_of_the_method(r3, in_one_piece):
    diagnosed, plain = in_one_piece[r3]["columns"]
    assert diagnosed.keys() == ALWAYS | RESCORED and plain.keys() == ALWAYS
    kind = "replayed" if r3 else "own_routing"
    # the training forward, the split and the re-scoring are the same pass, to the bit
    assert torch.equal(diagnosed["log_probs"], diagnosed[f"log_probs_{kind}"])
    assert torch.equal(diagnosed["checkpoint_log_probs"], diagnosed[f"checkpoint_log_probs_{kind}"])
    assert not torch.equal(diagnosed["log_probs"], diagnosed["checkpoint_log_probs"])
    for prefix in ("", "checkpoint_"):
        moved = diagnosed[f"{prefix}log_probs_own_routing"] != diagnosed[f"{prefix}log_probs_replayed"]
        assert moved.float().mean() > 0.5, "made-up routes seldom agree"
    # bf16 beside fp32 along the same routes: close, and not equal
    off = (diagnosed["checkpoint_log_probs_engine_dtype"] - diagnosed["checkpoint_log_probs_replayed"]).abs()
    assert 1e-4 < off.mean() < 0.1


def test_a_dense_model_with_tied_embeddings_trains_and_has_no_routes_to_score(initial, tmp_path):
    config = make_config(**PAIR, model=DENSE, rollout={"dtype": "float32"})
    (diagnosed,) = in_trainer(two_batches, config, initial["dense"], str(tmp_path), False)["columns"]
    before, after = (load_file(Path(folder) / "model.safetensors") for folder in (initial["dense"], tmp_path))
    assert "lm_head.weight" not in after
    assert all((after[name] - before[name]).abs().max() > 1e-3 for name in after)
    routed = {name for name in RESCORED if name.endswith(("routing", "replayed"))}
    assert diagnosed.keys() == (ALWAYS | RESCORED) - routed
    # one arithmetic for both: precision has no part
    assert torch.equal(diagnosed["checkpoint_log_probs_engine_dtype"], diagnosed["checkpoint_log_probs"])


def step_on_a_broken_number(trainer, initial: str, value: float, folder: str) -> dict:
    trainer.load_initial(Path(initial))
    samples = make_samples(trainer.config)
    samples[1].log_probs[2] = value
    with pytest.raises(FloatingPointError) as error:
        trainer.train(samples)
    trainer.export_weights(Path(folder))
    return {"said": str(error.value)}


def test_a_number_that_is_not_finite_ends_the_step_and_leaves_the_weights(initial, tmp_path):
    config = make_config(
        method={"base": "spo"}, train={"tokens_per_microbatch": 4096}, diagnose={"split_every_n_steps": 0}
    )
    found = in_trainer(step_on_a_broken_number, config, initial["moe"], float("nan"), str(tmp_path / "after"))
    assert "1 of" in found["said"] and "rollout_log_probs is nan" in found["said"]
    assert_same_weights(tmp_path / "after", Path(initial["moe"]), atol=0)


def loading_another(trainer, initial: str, folder: Path) -> list[str]:
    """What is said of a file without a weight, of one with a number where there are 32, and of one cut short."""
    path, said = folder / "model.safetensors", []
    weights = load_file(Path(initial) / path.name)
    final = {"model.norm.weight": weights.pop("model.norm.weight")[:1].clone()}
    save_file(weights, path)
    for save in (lambda: None, lambda: save_file(weights | final, path), lambda: os.truncate(path, 99)):
        save()
        with pytest.raises(ValueError) as error:
            trainer.load_initial(folder)
        said.append(str(error.value))
    return said


def test_weights_that_are_not_the_models_are_told_with_their_file_and_what_to_do(initial, tmp_path):
    config = make_config().model_copy(update={"cache_dir": str(tmp_path / "cache")})
    said = in_trainer(loading_another, config, initial["moe"], tmp_path)
    faults = "tensor model.norm.weight", "model.norm.weight has shape (1,), the model wants (32,)", "header"
    for line, fault in zip(said, faults, strict=True):
        assert line.startswith(f"{tmp_path}/model.safetensors is damaged or of another model (") and fault in line
        assert f"delete {tmp_path}/cache/models/" in line


def save_and_go_on(trainer, initial: str, folder: Path, loads: bool) -> list:
    samples = make_samples(trainer.config)
    if loads:
        trainer.load(folder, 1, Path(initial), {0: folder / "v0"})
    else:
        trainer.load_initial(Path(initial))
        trainer.export_weights(folder / "v0")
        trainer.train(samples)
        trainer.save(folder)
    return [trainer.train(samples)[0] for _ in range(2)]


def test_a_loaded_trainer_goes_on_bit_for_bit(initial, tmp_path):
    """That of a fp32 trainer: test_loop.py."""
    config = make_config(train={"dtype": "bfloat16"}, method={"base": "gspo", "r3": True})
    undisturbed, resumed = (
        in_trainer(save_and_go_on, config, initial["moe"], tmp_path, loads) for loads in (False, True)
    )
    assert undisturbed == resumed


# -------------------------------------------------------------------------------------------------------------- methods


START = 3
"""Updates of the weights that a test begins with."""


def near(config: LabConfig) -> list[Response]:
    """Responses with log-probs near to those of weights at the start, with tokens of lags 0 to 3."""
    rng = np.random.default_rng(5)
    found = []
    for sample in make_samples(config, routed=False):
        logits = 0.4 * rng.standard_normal((len(sample.output_ids), 16))
        mu = (logits - np.log(np.exp(logits).sum(1, keepdims=True))).astype(np.float32)
        sampled = mu[np.arange(len(mu)), list(sample.output_ids)]
        versions = np.sort(rng.integers(0, START + 1, size=len(mu)))
        found.append(dataclasses.replace(sample, log_probs=sampled, versions=versions))
    return found


def one_batch(trainer, initial: str) -> tuple:
    """log pi of each token, and the metrics of the steps that follow."""
    trainer.load_initial(Path(initial))
    trainer.updates = START
    samples = near(trainer.config)
    return scored(trainer, samples, False), trainer.train(samples)


def test_a_method_gets_the_lags_of_the_tokens_at_each_step_of_a_rollout(initial):
    config = make_config(
        method=method_switches("grpo-lag-power"),
        model=DENSE,
        train={"tokens_per_microbatch": 90},
        pipeline={"optimizer_steps_per_rollout": 2},
        diagnose={"split_every_n_steps": 0},
    )
    log_pi, rows = in_trainer(one_batch, config, initial["dense"])
    samples = near(config)
    for step, part in enumerate((samples[:12], samples[12:])):
        lags = START + step - np.concatenate([sample.versions for sample in part])
        radius = 0.2 * np.sqrt(np.maximum(lags, 1))
        expected = {"radius/high": radius.mean(), "radius/low": radius.mean(), "lag/mean": lags.mean()}
        waited = np.concatenate([np.full(len(s.versions), START + step - s.versions[-1]) for s in part])
        expected |= {"lag/min": lags.min(), "lag/max": lags.max(), "lag/queue_mean": waited.mean()}
        if step == 0:  # the weights of the second step are others
            ratio = np.exp(log_pi[: len(lags)] - np.concatenate([sample.log_probs for sample in part]))
            advantages = np.repeat([s.advantage for s in part], [len(s.output_ids) for s in part])
            clipped = np.where(advantages > 0, ratio > 1 + radius, ratio < 1 - radius)
            expected["clip/fraction"] = clipped.mean()
        assert {name: rows[step][name] for name in expected} == pytest.approx(expected, rel=1e-4), step


def every_method(trainer, initial: str) -> dict:
    """Metrics of a step of each method on one batch."""
    found, samples = {}, make_samples(trainer.config)
    for name in method_names():
        trainer.method = named_method(name)
        trainer.updates, trainer.generating = 0, {}
        trainer.load_initial(Path(initial))
        trainer.export_weights(Path(tempfile.mkdtemp()) / "v0")
        found[name] = trainer.train(samples)[0]
    return found


def test_every_method_makes_a_step(initial):
    for name, row in in_trainer(every_method, make_config(), initial["moe"]).items():
        assert all(math.isfinite(value) for value in row.values()), (name, row)
        assert not [key for key in row if metric_named(key) is None], "keys outside the table of metrics"
        method = named_method(name)
        assert all(0 <= row[f"{gate.prefix()}/masked"] <= 1 for gate in method.gates), name
        assert all(row[f"{weight.prefix()}/weight"] >= 0 for weight in method.weights), name


# ---------------------------------------------------------------------------------------------------------- the process


def test_answers_come_in_order_an_error_ends_nothing_and_a_death_is_told_of_every_call(tmp_path):
    trainer = TrainerProcess(make_config(), tmp_path / "logs" / "trainer.log")
    try:
        exports = [trainer.start("export_weights", tmp_path / name) for name in "ab"]
        missing = trainer.start("load_initial", tmp_path / "nowhere")
        with pytest.raises(PartFailure, match=r"^trainer: [A-Za-z]*Error: .*nowhere"):
            missing.result()
        assert [future.result() for future in exports] == [0, 0]
        assert (tmp_path / "b" / "model.safetensors").is_file()
        assert "Traceback" in (tmp_path / "logs" / "trainer.log").read_text()
        pid = trainer._process.pid
        os.kill(pid, signal.SIGSTOP)
        waiting = [trainer.start("export_weights", tmp_path / "c") for _ in range(2)]
        os.kill(pid, signal.SIGKILL)
        for future in [*waiting, trainer.start("save", Path("/nowhere"))]:
            with pytest.raises(PartFailure, match=rf"^trainer \(process {pid}\) was killed by SIGKILL$"):
                future.result()
    finally:
        trainer.close()


def test_a_warm_up_takes_the_place_of_half_a_model(tmp_path):
    folder = tmp_path / "models" / "a"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    save_file({"a": torch.ones(9)}, folder / "model.safetensors")
    assert is_model(folder)
    os.truncate(folder / "model.safetensors", 99)  # as after a power cut
    config, place = make_config(warmup={"steps": 10, "batch_size": 2}), folder.stat().st_ino
    with closing(TrainerProcess(config, tmp_path / "warm-up.log", "warm-up")) as process:
        assert [process.call("warm_up", folder) for _ in range(2)] == [10, None]
    assert is_model(folder) and [*folder.parent.iterdir()] == [folder] and folder.stat().st_ino == place  # never gone
