"""What is said of a run's memory, and the settings that are named where it does not fit."""

from pathlib import Path

import pytest

from sat_slime.config import load_config
from sat_slime.config.slime_checks import slime_config_errors
from sat_slime.launch.memory.memory_fit import ENGINE, HOST, SHM, STORE, TRAINING, memory_findings, rows, table
from sat_slime.launch.memory.memory_needs import GIB
from sat_slime.launch.memory.memory_sizes import sizes

CONFIGS = Path(__file__).parents[4] / "configs"
PAPER = CONFIGS / "paper" / "qwen3-30b-a3b.yaml"
GLM_AIR = {
    "add-qkv-bias": True,
    "num-attention-heads": 96,
    "num-query-groups": 8,
    "num-layers": 46,
    "hidden-size": 4096,
    "ffn-hidden-size": 10944,
    "vocab-size": 151552,
    "moe-ffn-hidden-size": 1408,
    "moe-shared-expert-intermediate-size": 1408,
    "moe-layer-freq": "'[0]*1+[1]*45'",
    "qk-layernorm": False,
}


def cluster(gpu=79.1, host=2048, shm=1024, store=186):
    keys = {"gpu_memory_gib": gpu, "host_memory_gib": host, "shm_gib": shm, "object_store_gib": store}
    return [f"cluster.{key}={value}" for key, value in keys.items()]


def paper(*overrides, **there):
    return load_config(PAPER, ["method=sat-gspo-r3", "pipeline.lag=8", *cluster(**there), *overrides])


def judged(config):
    return {row.what: row for row in rows(config, sizes(config))}


def findings(config, what):
    return [one for one in memory_findings(config, sizes(config)) if one.what == what]


def test_the_papers_run_fits_eight_gpus_of_80_gb():
    found = judged(paper())
    assert {what: row.mark for what, row in found.items()} == {TRAINING: "OK", ENGINE: "OK", HOST: "OK", STORE: "OK"}
    assert found[TRAINING].need.total / GIB == pytest.approx(57, abs=0.5)
    assert findings(paper(), TRAINING)[0].detail == (
        "57 of 79 GiB, 72 % (cluster.gpu_memory_gib): weights 14.2, gradients 28.5, batch 3.5, layer inputs 1.5, "
        "logits 9.3"
    )


@pytest.mark.parametrize(
    "overrides, needs, largest",
    [
        (["train.optimizer_offload=false"], 142, "optimizer by train.optimizer_offload true"),
        (["train.tensor_parallel=1"], 93, "gradients by more train.tensor_parallel"),
        (["train.max_tokens_per_gpu=131072"], 89, "logits by train.max_tokens_per_gpu down to"),
        (["train.recompute=none"], 134, "activations by train.recompute full"),
    ],
)
def test_what_does_not_fit_is_refused_and_the_largest_parts_named(overrides, needs, largest):
    (finding,) = findings(paper(*overrides), TRAINING)
    assert finding.mark == "FAIL" and finding.detail.startswith(f"needs {needs} GiB of a GPU's 79")
    assert largest in finding.detail.rpartition("largest parts: ")[2]


def test_a_model_that_is_too_large_for_its_gpus():
    flags = [f"model.architecture.{flag}={value}" for flag, value in GLM_AIR.items()]
    place = ["train.gpus_per_node=8", "rollout.gpus_per_node=8", "train.tensor_parallel=8", "train.expert_parallel=8"]
    config = paper(*flags, *place, "rollout.gpus_per_engine=8", "rollout.stop_token_ids=[]", host=8192)
    assert config.model.parameters / 1e9 == pytest.approx(108, abs=3) and slime_config_errors(config) == []
    (finding,) = findings(config, TRAINING)
    assert finding.mark == "FAIL" and "train.expert_parallel" in finding.detail


def test_1_tib_has_room_for_one_copy_of_the_routes_and_not_for_seven():
    (finding,) = findings(paper(host=1024), HOST)
    assert finding.mark == "OK"  # with the routes of two batches, once each
    (finding,) = findings(paper("slime.custom-convert-samples-to-train-data-path=mine.convert", host=1024), HOST)
    assert finding.mark == "WARN"  # with responses of full length; those of half of it fit
    assert finding.detail.startswith("needs up to 1,005 GiB of the 973 of a node's 1,024 at which Ray kills, 103 %")
    (too_small,) = findings(paper(host=640), HOST)
    assert too_small.mark == "FAIL"  # not with the optimizer on these four GPUs, which would need 142 GiB
    assert "optimizer by train.optimizer_offload false where the GPUs have room" in too_small.detail


def test_fewer_tokens_are_not_advised_below_the_longest_sample():
    config = paper("train.max_tokens_per_gpu=16384", "train.optimizer_offload=false")
    (finding,) = findings(config, TRAINING)
    assert "max_tokens_per_gpu" not in finding.detail


@pytest.mark.parametrize("share, mark", [(0.85, "OK"), (0.93, "WARN"), (0.99, "FAIL")])
def test_room_that_an_engine_leaves(share, mark):
    config = paper(f"rollout.memory_fraction={share}", "rollout.concurrent_requests=8")
    of_engine = findings(config, ENGINE)
    assert max(of_engine, key=lambda one: ["OK", "WARN", "FAIL"].index(one.mark)).mark == mark
    if mark != "OK":
        most = of_engine[-1].detail.rpartition("at most ")[2]
        change = ("rollout.concurrent_requests=8", f"rollout.memory_fraction={most}")
        assert {one.mark for one in findings(paper(*change), ENGINE)} == {"OK"}


def test_weights_that_an_engine_cannot_hold():
    (finding,) = findings(paper("rollout.gpus_per_engine=1", "rollout.concurrent_requests=8", gpu=39.4), ENGINE)
    assert finding.mark == "FAIL" and "weights by more rollout.gpus_per_engine" in finding.detail


def test_more_requests_than_an_engine_holds():
    engine = findings(paper(), ENGINE)
    assert engine[-1].mark == "WARN"
    assert "holds 413 of 2,048, 103 of 8,192, 25 of 32,768 tokens" in engine[-1].detail
    assert engine[-1].detail.endswith("set it to 103")
    assert len(findings(paper("rollout.concurrent_requests=103"), ENGINE)) == 1


def test_a_store_and_a_shared_memory_that_are_too_small():
    (store,) = findings(paper(store=64), STORE)
    assert store.mark == "WARN" and "100 GiB of 64" in store.detail
    (on_disk,) = findings(paper(shm=128), SHM)
    assert on_disk.mark == "WARN" and "less than Ray's object store of 186" in on_disk.detail
    assert findings(paper(), SHM) == []


def test_what_is_given_wins_over_what_is_told():
    told = {"node a": {"gpu": 90 * GIB, "host": 2000 * GIB}, "node b": {"gpu": 40 * GIB, "host": None}}
    config = load_config(PAPER)
    assert sizes(config, told).gpu.source == "node b" and sizes(config, told).host.source == "node a"
    assert sizes(paper(gpu=24), told).gpu.bytes == 24 * GIB
    assert sizes(config).gpu.source == "assumed: an 80 GB card" and sizes(config).host is None


def test_a_model_without_sizes_is_not_judged():
    config = load_config(CONFIGS / "slime" / "base.yaml")
    (finding,) = memory_findings(config, sizes(config))
    assert finding.mark == "WARN" and "does not give the model's size" in finding.detail


def test_a_run_on_a_cpu_is_judged_by_the_hosts_memory_alone():
    config = load_config(CONFIGS / "slime" / "laptop.yaml", ["cluster.host_memory_gib=16"])
    (finding,) = memory_findings(config, sizes(config))
    assert (finding.mark, finding.what) == ("OK", HOST)
    config = load_config(CONFIGS / "slime" / "laptop.yaml", ["cluster.host_memory_gib=2"])
    (finding,) = memory_findings(config, sizes(config))
    assert finding.mark == "FAIL" and "GPU" not in finding.detail


def test_the_table():
    lines = table(rows(paper(), sizes(paper())))
    assert lines[0].split() == ["GiB", "needs", "has", "%"]
    assert [line[:12].strip() for line in lines[1:]] == [TRAINING, ENGINE, HOST, STORE]
    assert lines[1].split()[2:5] == ["57", "79", "72"]
    unknown = table(rows(load_config(PAPER), sizes(load_config(PAPER))))
    assert unknown[3].split()[3] == "?"
