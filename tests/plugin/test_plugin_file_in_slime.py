"""The plugin's file on the arguments of slime's own scripts, through slime's own parser: the block of docs/slime.md,
and what `sat-slime init plugin` writes."""

import json
import os
import re
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest
import yaml
from fake_slime import import_slime
from paper_commands import ROOT

from sat_slime.config.plugin_file import plugin_file
from sat_slime.plugin import train_hooks
from sat_slime.plugin.settings import plugin_method

sys.path.insert(0, str(ROOT / "tests"))
from slime_scripts import EXAMPLES, arguments_of

pytestmark = pytest.mark.needs_slime_arguments

PUBLISHED = "the page's"
METHODS = {PUBLISHED: EXAMPLES, "sat-gspo": EXAMPLES, "grpo-tis": EXAMPLES, "sat-gspo-r3": EXAMPLES[2:]}
CONFIG = {
    "hidden-size": "hidden_size",
    "num-attention-heads": "num_attention_heads",
    "num-query-groups": "num_key_value_heads",
    "num-layers": "num_hidden_layers",
    "ffn-hidden-size": "intermediate_size",
    "moe-ffn-hidden-size": "moe_intermediate_size",
    "num-experts": "num_experts",
    "moe-router-topk": "num_experts_per_tok",
    "norm-epsilon": "rms_norm_eps",
    "rotary-base": "rope_theta",
    "kv-channels": "head_dim",
    "vocab-size": "vocab_size",
}
"""Flags of a model, and what config.json calls them; slime compares the two."""


def published() -> str:
    (block,) = re.findall(
        r"^```yaml\n(sat_slime:\n.*?loss_type.*?)```", (ROOT / "docs/slime.md").read_text(), re.S | re.M
    )
    return block


def words_of(checkout: Path, script: str, folder: Path, file: Path) -> list[str]:
    """The script's arguments with checkpoints and data of this machine, and the one flag."""
    words = arguments_of(checkout, script)
    flags = {word[2:]: following for word, following in zip(words, [*words[1:], ""], strict=True) if word[:2] == "--"}
    config = {ours: json.loads(flags[name]) for name, ours in CONFIG.items() if flags.get(name, "--")[:2] != "--"}
    config["tie_word_embeddings"] = "--untie-embeddings-and-output-weights" not in words
    model = folder / Path(script).stem
    model.mkdir(exist_ok=True)
    (model / "latest_checkpointed_iteration.txt").write_text("release")
    (model / "config.json").write_text(json.dumps(config | {"model_type": "qwen3"}))
    here = [word if not word.startswith(("/root", "/tmp")) else str(model) for word in words]
    actors = ["--actor-num-nodes", "1", "--actor-num-gpus-per-node", "8", "--rollout-num-gpus", "8"]
    return [*here, *actors, "--custom-config-path", str(file)]


PARSE = """
import contextlib, json, sys
from sat_slime.cpu import slimes_parser, without_gpu

def is_plain(value):
    try:
        return bool(json.dumps(value))
    except (TypeError, ValueError):
        return False

def parse(words):
    try:
        args = vars(slimes_parser._slimes_arguments(words))
        return {"args": {key: value for key, value in args.items() if is_plain(value)}}
    except (Exception, SystemExit) as error:
        return {"error": repr(error)}

with contextlib.redirect_stdout(sys.stderr):
    without_gpu.prepare()
    results = [parse(words) for words in json.load(sys.stdin)]
print(json.dumps(results))
"""
"""What slime's own parse_args reads from each list of words, as far as JSON can say it."""


@pytest.fixture(scope="module")
def parsed(tmp_path_factory):
    """slime's arguments, by method and script; one process parses all."""
    import slime

    checkout, folder = Path(slime.__file__).parents[1], tmp_path_factory.mktemp("scripts")
    cases, words = [], []
    for number, (method, scripts) in enumerate(METHODS.items()):
        file = folder / f"{number}.yaml"
        file.write_text(published() if method == PUBLISHED else plugin_file(method))
        for script in scripts:
            cases.append((method, script))
            words.append(words_of(checkout, script, folder, file))
    path = os.pathsep.join([str(ROOT), str(checkout), os.environ["PYTHONPATH"]])
    env = {**os.environ, "PYTHONPATH": path, "CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", PARSE],
        input=json.dumps(words),
        env=env,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(zip(cases, json.loads(done.stdout.splitlines()[-1]), strict=True))


@pytest.mark.parametrize(("method", "script"), [(method, script) for method in METHODS for script in METHODS[method]])
def test_slime_and_the_plugin_take_it_with_the_arguments_of_slimes_scripts(parsed, monkeypatch, method, script):
    answer = parsed[method, script]
    assert "error" not in answer, answer
    args = Namespace(**{"rank": 0, "num_experts": None} | answer["args"])
    actor, replay = import_slime("slime.backends.megatron_utils.actor", "slime.utils.routing_replay")
    wrapped = {actor: "prepare_routed_experts_for_routing_replay", replay: "get_routing_replay_compute_topk"}
    for owner, name in (wrapped | {replay.RoutingReplay: "record"}).items():
        monkeypatch.setattr(owner, name, getattr(owner, name))  # other tests find it as it was
    train_hooks.install(args)
    name = "sat-gspo" if method == PUBLISHED else method
    assert plugin_method(args).name == name
    assert (args.loss_type, args.use_rollout_logprobs) == ("custom_loss", name == "grpo-tis")
    assert args.use_routing_replay == args.use_rollout_routing_replay == ("r3" in name)


def test_the_page_shows_what_init_writes():
    assert yaml.safe_load(published()) == yaml.safe_load(plugin_file("sat-gspo"))
