"""Flag for flag the command line, the environment and the plugin's file of every file that starts a run of slime, of
the 26 cells of the paper's grid and of settings that change a command, as they are kept in command_lines.json.

`python tests/launch/test_command.py` writes that file anew: for a change that is meant, and named.
"""

import ast
import json
import os
import re
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import yaml
from paper_commands import EVERY_KIND, GRID, PAPER, ROOT, paper

from sat_slime.config import load_config, slime_config_errors
from sat_slime.config.method_section import build_method
from sat_slime.config.rules import slime_config_warnings
from sat_slime.config.slime_schema import PluginConfig
from sat_slime.config.starters import CONFIGS
from sat_slime.cpu import INSTEAD
from sat_slime.launch import small_run
from sat_slime.launch.command import FIXED, PLUGIN_FLAGS, Argument, slime_arguments, slime_command
from sat_slime.launch.flags import flag_errors, recorded, unknown_flags
from sat_slime.objective.method import method_names

KEPT = Path(__file__).with_name("command_lines.json")
PACKAGE = CONFIGS.parents[1]
CELLS = {f"{method} {lag}": (PAPER, [f"method={method}", f"pipeline.lag={lag}"]) for method, lag in GRID}
KINDS = {kind: (PAPER, ["method=gspo", "pipeline.lag=8", *changes]) for kind, changes in EVERY_KIND.items()}
FILES = {
    str(path.relative_to(CONFIGS).with_suffix("")): (path, [])
    for folder in ("models", "paper", "recipes", "slime")
    for path in sorted((CONFIGS / folder).glob("*.yaml"))
}
RUNS = FILES | CELLS | KINDS


def sent(name: str) -> dict[str, Any]:
    """The flags with their values, the environment, and the parts of the plugin's file, without this machine's folders.
    A flag may stand there twice if slime keeps both values."""
    file, overrides = RUNS[name]
    bare = {"CUDA_VISIBLE_DEVICES": ""}  # for runs that share a GPU, what makes up for slime's image
    with patch.object(small_run, "missing", lambda: list(INSTEAD)), patch.dict(os.environ, bare):
        command = slime_command(load_config(file, overrides), Path("/run"))
    start, words = command.command[:3], command.command[3:]
    assert start == ["python3", "-m", "sat_slime.plugin.driver"]
    found: dict[str, Any] = {}
    for word in words:
        if word.startswith("--"):
            assert word not in found or recorded().flags[word].get("repeatable"), f"{word} is there twice"
            found[f"{word} again" if word in found else word] = values = []
        else:
            values.append(_anywhere(word))
    ((path, text),) = command.files.items()
    assert path == "/run/sat_slime.yaml"
    parts = {f"{top}.{key}": value for top, inner in yaml.safe_load(text).items() for key, value in inner.items()}
    for part, usual in PluginConfig().model_dump(mode="json").items():  # of which only what is not usual is kept
        if isinstance(usual, dict):
            parts[f"sat_slime.{part}"] = {k: v for k, v in parts[f"sat_slime.{part}"].items() if v != usual.get(k)}
    return found | {key: _anywhere(value) for key, value in command.env.items()} | parts


def _anywhere(text: str) -> str:
    return text.replace(f"{Path.home()}/.cache", "~/.cache").replace(str(PACKAGE), "HERE")


def kept(name: str) -> dict[str, Any]:
    rows = [shared for shared, runs in json.loads(KEPT.read_text()) if name in runs]
    return {key: value for shared in rows for key, value in shared.items()}


@pytest.mark.parametrize("name", RUNS)
def test_the_command_is_the_kept_one_and_has_only_flags_of_slime(monkeypatch, name):
    monkeypatch.chdir(PACKAGE)  # relative paths of files are of the checkout
    found = sent(name)
    assert found == kept(name)
    versions = ("v0.3.1", "main", "newest") if name in CELLS else ("v0.3.1", "main")
    given = [Argument(flag.split()[0][2:], v or True, FIXED) for flag, v in found.items() if flag.startswith("--")]
    assert [[*unknown_flags(given, recorded(version), {})] for version in versions] == [[]] * len(versions)


def write() -> None:
    """One line for all that the same runs have, so that a difference of one flag is a difference of one line."""
    runs_of = defaultdict(list)
    for name in RUNS:
        for key, value in sent(name).items():
            runs_of[key, json.dumps(value)].append(name)
    lines = defaultdict(dict)
    for (key, value), runs in runs_of.items():
        lines[tuple(runs)][key] = json.loads(value)
    KEPT.write_text("[\n" + ",\n".join(json.dumps([shared, list(runs)]) for runs, shared in lines.items()) + "\n]\n")


@pytest.mark.needs_slime
@pytest.mark.parametrize("script", ["qwen3-30B-A3B", "qwen3-4B", "qwen3-0.6B", "qwen2.5-7B"])
def test_model_files_say_what_slimes_scripts_say(script):
    import slime

    source = Path(slime.__file__).parents[1] / "scripts" / "models" / f"{script}.sh"
    printed = subprocess.run(
        ["bash", "-c", f'source "{source}" && printf "%s\\n" "${{MODEL_ARGS[@]}}"'],
        capture_output=True,
        text=True,
        check=True,
    )
    theirs = printed.stdout.replace("[" + ",".join("1" * 48) + "]", "[1]*48").split()
    file = CONFIGS / "models" / f"{script.lower()}.yaml"
    flags = yaml.safe_load(file.read_text())["slime"].keys() - {"hf-checkpoint", "ref-load", "rollout-stop-token-ids"}
    ours = [argument for argument in slime_arguments(load_config(file), Path("/r")) if argument.name in flags]
    assert [_number(word) for argument in ours for word in argument.words()] == [_number(word) for word in theirs]


def _number(word):
    try:
        return float(word)
    except ValueError:
        return word


@pytest.mark.parametrize(
    "method, overrides, flags",
    [
        ("gspo", [], {"use-rollout-logprobs"}),
        ("sat-grpo-r3", [], {"use-rollout-logprobs", "use-rollout-routing-replay"}),
        # the step's quantile is taken from slime's own recompute
        ("sat-gspo", ["method.sat.scope=step"], set()),
        # the training forward is its own denominator
        ("grpo-tis", [], {"use-rollout-logprobs"}),
        ("grpo-tis", ["pipeline.optimizer_steps_per_rollout=2"], set()),
        ("grpo", ["method.denominator=checkpoint"], set()),
        ("sat-grpo", ["method.tis=true"], set()),
        # A-3PO's denominator is made up from the training forward
        ("grpo-decoupled-a3po", [], {"use-rollout-logprobs"}),
        ("sat-grpo-decoupled-a3po", ["method.sat.scope=step"], set()),
        ("m2po", [], set()),
        ("m2po", ["method.m2po.scope=microbatch"], {"use-rollout-logprobs"}),
        ("cispo", ["method.denominator=trainer"], {"use-rollout-logprobs"}),
        ("sat-grpo-seq-tis", [], set()),
        ("grpo", ["slime.use-opd=true"], set()),
        ("grpo", ["slime.log-correct-samples=true"], set()),
    ],
)
def test_the_denominator_says_which_log_probs_slime_makes(tmp_path, method, overrides, flags):
    names = {argument.name for argument in slime_arguments(paper(tmp_path, *overrides, method=method), tmp_path)}
    assert {name for name in names if name.startswith(("use-rollout-", "keep-old"))} == flags
    assert "use-tis" not in names


@pytest.mark.parametrize("method", method_names())
def test_every_method_that_slime_runs_has_a_sound_command(tmp_path, method):
    """Its settings are without fault, the driver reads its method back from the plugin's file, and every flag is one of
    slime's."""
    top_p = ["slime.rollout-top-p=0.95"] if "topp" in method else []
    config = paper(tmp_path, *top_p, method=method)
    assert [line for line in slime_config_errors(config) if line.startswith(("method", "hooks", "rollout"))] == []
    sent = slime_command(config, tmp_path)
    assert flag_errors(config) == []
    settings = PluginConfig.model_validate(yaml.safe_load(next(iter(sent.files.values())))["sat_slime"])
    assert build_method(settings.method) == build_method(config.method)
    assert build_method(settings.method).name == method


@pytest.mark.parametrize("path", [value for value in PLUGIN_FLAGS.values() if value.startswith("sat_slime.")])
def test_what_slime_is_to_call_is_there(path):
    module, _, function = path.rpartition(".")
    file = ROOT / f"{module.replace('.', '/')}.py"  # it is read and not imported: some import slime
    assert function in {node.name for node in ast.parse(file.read_text()).body if isinstance(node, ast.FunctionDef)}


def test_the_example_of_the_documentation_can_start(tmp_path):
    text = (ROOT / "docs" / "launch.md").read_text()
    (example,) = re.findall(r"```yaml\n(extends: configs/models/.*?)```", text, re.DOTALL)
    (tmp_path / "x.yaml").write_text(example.replace("configs/", f"{ROOT}/configs/"))
    config = load_config(tmp_path / "x.yaml")
    assert slime_config_errors(config) == slime_config_warnings(config) == flag_errors(config) == []


@pytest.mark.parametrize(
    "override, says",
    [
        ("slime.use-tiss=true", ["slime.use-tiss: there is no flag --use-tiss", "did you mean --use-tis?"]),
        ("slime.tis-clip-low=0.5", ["slime.tis-clip-low: --tis-clip-low follows from method.tis"]),
        ("slime.eps-clip=3e-4", ["--eps-clip follows from method.clip.eps_low (and eps_high: without --eps-clip-high"]),
        ("slime.advantage-estimator=ppo", ["follows from method.base", "with the advantages of GRPO"]),
        ("slime.kl-loss-coef=1", ["slime.kl-loss-coef: --kl-loss-coef follows from loss.kl_coef"]),
        ("slime.custom-config-path=x.yaml", ["slime.custom-config-path: ", "by cluster.env: leave this out"]),
        ("slime.load=/x", ["slime.load: --load follows from slime.save"]),
        ("slime.colocate=true", ["slime.colocate: --colocate follows from slime.rollout-num-gpus"]),
        ("slime.loss-type=policy_loss", ["slime.loss-type: the command always has --loss-type"]),
        ("slime.persistent-save-interval=5", ["slime.persistent-save-interval:", "is --save-interval"]),
    ],
)
def test_flags_that_slime_would_not_take_as_meant(tmp_path, override, says):
    (error,) = flag_errors(paper(tmp_path, override))
    assert all(part in error for part in says), error


if __name__ == "__main__":
    os.chdir(PACKAGE)
    write()
