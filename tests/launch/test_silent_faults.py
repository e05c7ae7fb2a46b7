"""Faults that slime, Megatron or SGLang takes in silence, or tells of hours later, are told before a start."""

import json
from pathlib import Path

import pytest
import yaml
from hf_folder import write_hf

from sat_slime.config import ConfigError, load_config
from sat_slime.config.slime_checks import slime_config_warnings
from sat_slime.launch.checks import settings_errors
from sat_slime.launch.hf_checkpoint import stop_findings
from sat_slime.launch.memory import memory_findings, sizes
from sat_slime.launch.named_files import named_findings

PAPER = Path(__file__).parents[2] / "configs" / "paper" / "qwen3-30b-a3b.yaml"
STREAMING = ("pipeline.mode=streaming", "method.denominator=rollout")
CHAT = [{"role": "user", "content": "1+1"}]


def told(*settings):
    """Everything that is said of the paper's run with these settings, without slime or a GPU."""
    try:
        config = load_config(PAPER, settings)
    except ConfigError as error:
        return error.errors
    errors = settings_errors(config)
    findings = [*memory_findings(config, sizes(config)), *named_findings(config), *stop_findings(config)]
    return [*errors, *slime_config_warnings(config), *(one.detail for one in findings if one.mark != "OK")]


@pytest.mark.parametrize(
    "settings, said",
    [
        (["data.reward=mathh"], "data.reward is mathh, and slime's rules are"),
        (["data.reward=prime_math"], "set it to sat_slime.plugin.reward.prime_math"),
        (["data.reward=remote_rm"], "rm-url"),
        (["data.reward=no.where"], "data.reward is no.where: there is no module no"),
        (["data.reward=sat_slime.plugin.reward.prime_mat"], "did you mean sat_slime.plugin.reward.prime_math?"),
        (["slime.custom-generate-function-path=no.where"], "there is no module no"),
        (["method.r3=true", "model.architecture.moe-router-fusion=true"], "moe-router-fusion"),
        (["method.r3=true", "slime.prefill-num-servers=1"], "prefill"),
        ([*STREAMING, "slime.sglang-flush-cache-interval=2"], "flush-cache-interval"),
        ([*STREAMING, "slime.flush-cache-interval=2"], "flush-cache-interval"),
        ([*STREAMING, "slime.update-weight-transport=disk"], "update-weight-transport"),
        ([*STREAMING, "slime.partial-rollout=true"], "partial-rollout"),
        (["slime.save-retain-interval=30"], "checkpoint.keep"),
        (["slime.sglang-tp-size=2"], "follows from rollout.gpus_per_engine"),
        (["slime.sglang-config=/none.yaml"], "slime.sglang-config is /none.yaml: there is no such file"),
        (["slime.eval-config=none.yaml"], "slime.eval-config is none.yaml, and slime's processes have other folders"),
        (["rollout.memory_fraction=0.99"], "rollout.memory_fraction is 0.99"),
        (["rollout.concurrent_requests=100000"], "rollout.concurrent_requests is 100000"),
        (["train.optimizer_offload=false"], "needs 142 of 79 GiB"),
        (["train.max_tokens_per_gpu=131072"], "needs 89 of 79 GiB"),
        (["cluster.host_memory_gib=640"], "of 608 GiB"),
        (["cluster.env.HF_TOKEN=a"], "cluster.env.HF_TOKEN is a secret"),
        (["slime.sglang-mem-fraction=0.5"], "there is no flag --sglang-mem-fraction"),
        (["train.gpus_per_node=6"], "train.nodes x train.gpus_per_node is 6 GPUs"),
        (["rollout.max_response_tokens=40000"], "rollout.max_response_tokens is 40000, more than the context"),
        (["method.denominator=trainer", "method.sat=true"], "method"),
    ],
)
def test_settings(settings, said):
    lines = told(*settings)
    assert any(said in line for line in lines), lines
    assert all("\n" not in line for line in lines)


@pytest.mark.parametrize(
    "rows, settings, said",
    [
        ([{"prompt": CHAT, "label": "2"}], ["data.chat_template=false"], "set data.chat_template to true"),
        ([{"prompt": "1+1", "label": "x+1"}], ["data.reward=dapo"], "dapo takes only numbers"),
        ([{"prompt": "1+1", "label": 2}], ["data.reward=f1"], "f1 takes only text"),
        ([{"prompt": "1+1", "label": "2"}], ["data.prompts={}@[3:]"], "slime would wait for prompts for ever"),
        ([{"prompt": "1+1", "label": "2"}], ["rollout.prompts_per_iteration=3"], "a batch has some prompts twice"),
        ([{"question": "1+1", "label": "2"}], [], "row 1 has no key 'prompt'"),
    ],
)
def test_prompts(tmp_path, rows, settings, said):
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = told(f"data.prompts={file}", *(setting.format(file) for setting in settings))
    assert any(said in line for line in lines), lines


@pytest.mark.parametrize(
    "groups, settings, said",
    [
        ([("regular", 2)], [], "its groups have 2 GPUs"),
        ([("prefill", 2), ("decode", 2)], ["method.r3=true"], "an engine that only decodes has not seen the prompt"),
    ],
)
def test_groups_of_engines(tmp_path, groups, settings, said):
    listed = [{"worker_type": kind, "num_gpus": gpus} for kind, gpus in groups]
    file = tmp_path / "groups.yaml"
    file.write_text(yaml.safe_dump({"sglang": [{"name": "a", "server_groups": listed}]}))
    assert any(said in line for line in told(f"slime.sglang-config={file}", *settings))


def test_a_base_model_under_a_chat_template(tmp_path):
    pytest.importorskip("transformers")
    lines = told(f"model.hf_checkpoint={write_hf(tmp_path)}", "rollout.stop_token_ids=[]")
    assert any("ends a turn with <|im_end|> (151645), on which SGLang does not stop" in line for line in lines)
