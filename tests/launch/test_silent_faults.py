"""Faults that slime, Megatron or SGLang takes in silence, or tells of hours later, are told before a start."""

import json
from pathlib import Path

import pytest

from sat_slime.config import ConfigError, load_config
from sat_slime.config.slime_checks import slime_config_warnings
from sat_slime.launch.checks import settings_errors
from sat_slime.launch.hf_checkpoint import stop_findings
from sat_slime.launch.machine import data_findings
from sat_slime.launch.memory import memory_findings, sizes

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
    findings = [
        *memory_findings(config, sizes(config)),
        *data_findings(config),
        *stop_findings(config),
    ]
    return [*errors, *slime_config_warnings(config), *(one.detail for one in findings if one.mark != "OK")]


@pytest.mark.parametrize(
    "settings, said",
    [
        (["slime.rm-type=mathh", "slime.custom-rm-path=false"], "slime.rm-type is mathh, and slime's rules are"),
        (["slime.rm-type=prime_math", "slime.custom-rm-path=false"], "set it to sat_slime.plugin.reward.prime_math"),
        ([*STREAMING, "slime.sglang-flush-cache-interval=2"], "flush-cache-interval"),
        ([*STREAMING, "slime.partial-rollout=true"], "partial-rollout"),
        (["slime.sglang-tp-size=2"], "follows from slime.rollout-num-gpus-per-engine"),
        (["cluster.env.HF_TOKEN=a"], "cluster.env.HF_TOKEN is a secret"),
        (["slime.sglang-mem-fraction=0.5"], "there is no flag --sglang-mem-fraction"),
    ],
)
def test_settings(settings, said):
    lines = told(*settings)
    assert any(said in line for line in lines), lines
    assert all("\n" not in line for line in lines)


@pytest.mark.parametrize(
    "rows, settings, said",
    [
        (
            [{"prompt": CHAT, "label": "2"}],
            ["slime.apply-chat-template=false"],
            "set slime.apply-chat-template to true",
        ),
        ([{"prompt": "1+1", "label": "2"}], ["slime.prompt-data={}@[3:]"], "slime would wait for prompts for ever"),
        ([{"prompt": "1+1", "label": "2"}], ["slime.rollout-batch-size=3"], "a batch has some prompts twice"),
        ([{"question": "1+1", "label": "2"}], [], "row 1 has no key 'prompt'"),
    ],
)
def test_prompts(tmp_path, rows, settings, said):
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = told(f"slime.prompt-data={file}", *(setting.format(file) for setting in settings))
    assert any(said in line for line in lines), lines
