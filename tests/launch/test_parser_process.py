"""What slime refuses is told in a line that names the setting: of sources like slime's, and of the real slime."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from paper_commands import EVERY_KIND, GRID, RECIPES, ROOT, checkpoint, paper

from sat_slime.config import load_config
from sat_slime.launch import flags
from sat_slime.launch.checks import settings_errors
from sat_slime.launch.command import run_folder, slime_arguments
from sat_slime.launch.flags import ask_slime, asked_words, flag_errors, parser_findings, recorded, refusal_lines

# --------------------------------------------------------------------------------------- a small slime, in a process

PARSER = """
import argparse, os
def parse_args():
    sglang = argparse.ArgumentParser()
    sglang.add_argument('--sglang-mem-fraction-static', type=float)
    sglang.add_argument('--sglang-port', type=int)
    sglang.parse_known_args()
    parser = argparse.ArgumentParser()
    parser.add_argument('--num-layers', type=int)
    parser.add_argument('--colocate', action='store_true')
    parser.add_argument('--rollout-batch-size', type=int)
    parser.add_argument('--offload', action=argparse.BooleanOptionalAction)
    parser.add_argument('--kind', choices=['a', 'b'], nargs='*')
    parser.add_argument('--hook', action='append')
    parser.add_argument('--custom-config-path')
    parser.add_argument('--hf-checkpoint')
    args, _ = parser.parse_known_args()
    print('a line of slime')
    assert args.custom_config_path is None or 'sat_slime:' in open(args.custom_config_path).read()
    assert args.hf_checkpoint is None or os.path.exists(args.hf_checkpoint)
    assert args.num_layers is None or args.colocate or args.num_layers % 7 == 0
    raise SystemExit('this far')
"""


def small_slime(folder, text):
    (folder / "slime" / "utils").mkdir(parents=True)
    (folder / "slime" / "__init__.py").touch()
    (folder / "slime" / "utils" / "arguments.py").write_text(text)
    return f"cluster.slime_dir={folder}"


def test_the_slime_that_is_there_is_asked(tmp_path):
    run = tmp_path / "runs" / "x"
    config = paper(tmp_path / "runs", small_slime(tmp_path, PARSER))
    answer = ask_slime(config, run)
    (line,) = answer.refusals
    said = "slime refuses the command: assert args.num_layers is None or args.colocate or args.num_layers % 7 == 0"
    assert line.startswith(f"slime.num-layers is 48, slime.rollout-num-gpus is 4: {said}")
    assert not run.parent.exists()
    assert answer.source == f"slime {tmp_path}"
    told = {name: (flag["name"], flag["values"], flag.get("type")) for name, flag in answer.flags.items()}
    assert told == {
        "--sglang-mem-fraction-static": ("--sglang-mem-fraction-static", 1, "float"),
        "--sglang-port": ("--sglang-port", 1, "int"),
        "--num-layers": ("--num-layers", 1, "int"),
        "--colocate": ("--colocate", 0, None),
        "--rollout-batch-size": ("--rollout-batch-size", 1, "int"),
        "--offload": ("--offload", 0, None),
        "--no-offload": ("--offload", 0, None),
        "--kind": ("--kind", "*", None),
        "--hook": ("--hook", 1, None),
        "--custom-config-path": ("--custom-config-path", 1, None),
        "--hf-checkpoint": ("--hf-checkpoint", 1, None),
    }
    assert answer.flags["--hook"]["repeatable"]
    (finding,) = answer.findings()
    assert (finding.mark, finding.detail) == ("OK", f"taken by the parser of slime {tmp_path}")


def test_a_command_that_the_first_parser_refuses_yields_all_flags(tmp_path):
    answer = ask_slime(paper(tmp_path, small_slime(tmp_path, PARSER), "slime.sglang-port=much"), tmp_path / "x")
    assert "--num-layers" in answer.flags
    assert answer.refusals[0].startswith("slime.sglang-port is much")
    assert "argument --sglang-port: invalid int value: 'much'" in answer.refusals[0]


def test_where_slime_is_not_installed_the_recorded_list_serves(tmp_path, monkeypatch):
    monkeypatch.setattr(flags, "slime_is_installed", lambda: False)
    answer = ask_slime(paper(tmp_path, f"cluster.slime_dir={tmp_path / ('x' * 300)}"), tmp_path)  # no name of a file
    assert answer is recorded()
    (finding,) = answer.findings()
    assert finding.mark == "OK" and "slime, whose parser would be asked, is not here" in finding.detail


@pytest.mark.parametrize(
    "text, reason",
    [
        ("import omegaconf_\n", "ModuleNotFoundError: No module named 'omegaconf_'"),
        ("import time\ntime.sleep(600)\n", "no answer within 0.5 seconds"),
        ("import os\nos.write(2, b'\\n')\nos.kill(os.getpid(), 9)\n", "died with <Signals.SIGKILL: 9>."),
    ],
)
def test_a_slime_that_cannot_be_asked_is_told_of(tmp_path, monkeypatch, text, reason):
    monkeypatch.setattr(flags, "TIMEOUT_S", 0.5 if "time" in text else 200)
    config = paper(tmp_path, small_slime(tmp_path, text))
    answer = ask_slime(config, tmp_path / "x")
    assert answer == replace(recorded(), failure=answer.failure) and answer.failure.endswith(reason)
    ((here,), (there,)) = answer.findings(), answer.findings(on_head_node=True)
    assert (here.mark, there.mark) == ("WARN", "FAIL") and reason in here.detail and reason in there.detail
    assert ("scripts/get-slime.sh" in there.detail) == ("module" in reason)
    assert [finding.mark for finding in parser_findings(config, tmp_path / "x")] == ["FAIL"]


def test_what_our_checks_find_is_not_told_again_in_slimes_words(tmp_path):
    answer = replace(recorded(), refusals=("slime refuses",), failure="")
    assert settings_errors(paper(tmp_path, "slime.use-tiss=true"), answer) != ["slime refuses"]
    assert settings_errors(paper(tmp_path), answer) == ["slime refuses"]


REFUSED = {
    "slime.sglang-pp-size=3": "slime.sglang-pp-size is 3",
    "slime.get-mismatch-metrics=true": "slime.get-mismatch-metrics is true",
    "slime.only-train-params-name-list=[a] slime.freeze-params-name-list=[b]": "freeze-params-name-list is ['b']",
    "slime.use-opd=true": "slime.opd-type is not set",
    "slime.heterogeneous-layers-config-path=/x.json": "No such file",
    "slime.enable-mtp-training=true": "mtp-num-layers",
    "slime.min-lr=1.0": "slime.min-lr is 1.0",
    "slime.overlap-param-gather=true": "overlap-grad-reduce",
    "slime.recompute-method=block slime.recompute-granularity=selective": "slime.recompute-method is block",
    "slime.debug-rollout-only=true slime.debug-train-only=true": "slime.debug-train-only is true",
    "slime.norm-epsilon=1.0e-5": "slime.norm-epsilon is 1e-05",
}
"""Settings that we accept and slime or Megatron does not, with a part of the line that is told."""
MODELS = ("qwen3-30b-a3b", "qwen3-4b", "qwen3-0.6b", "qwen2.5-7b")
PROGRAM = """
import contextlib, json, sys
from sat_slime.cpu.slimes_parser import answer
with contextlib.redirect_stdout(sys.stderr):
    answers = [answer(words) for words in json.load(sys.stdin)]
print(json.dumps(answers))
"""


def accepted(root, checkpoints):
    """Files and settings that slime takes, by a name."""
    moe = checkpoints["qwen3-30b-a3b"]
    yield from (((method, lag), paper(root, *moe, method=method, lag=lag)) for method, lag in GRID)
    yield from ((kind, paper(root, *moe, *changes)) for kind, changes in EVERY_KIND.items())
    for recipe in RECIPES:
        model = next(name for name in checkpoints if recipe.name.startswith(name))
        yield recipe.stem, load_config(recipe, [*checkpoints[model], f"output_dir={root}"])
    # Without the checkpoint: this machine's check says so, and slime is asked without it.
    yield "no checkpoint", paper(root, f"slime.hf-checkpoint={root / 'no'}", f"slime.ref-load={root / 'no'}")


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """Slime's lines on every command; one process parses all."""
    root = tmp_path_factory.mktemp("asked")
    checkpoints = {model: checkpoint(root / model, model) for model in MODELS}
    configs = dict(accepted(root, checkpoints))
    configs |= {text: paper(root, *checkpoints["qwen3-30b-a3b"], *text.split()) for text in REFUSED}
    arguments = {name: slime_arguments(config, run_folder(config)) for name, config in configs.items()}
    words = []
    for number, (name, config) in enumerate(configs.items()):
        scratch = root / f"scratch-{number}"
        scratch.mkdir()
        words.append(list(asked_words(config, run_folder(config), arguments[name], scratch)))
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps(words),
        env={**os.environ, "CUDA_DEVICE_MAX_CONNECTIONS": "1", "PYTHONPATH": f"{ROOT}:{os.environ['PYTHONPATH']}"},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    answers = json.loads(result.stdout.splitlines()[-1])
    return configs, {
        name: list(refusal_lines(configs[name], arguments[name], answer))
        for name, answer in zip(configs, answers, strict=True)
    }


@pytest.mark.needs_slime_arguments
@pytest.mark.parametrize("changes", REFUSED)
def test_what_slime_refuses_is_one_line_that_names_the_setting(told, changes):
    configs, lines = told
    assert settings_errors(configs[changes]) == []
    (text,) = lines[changes]
    assert REFUSED[changes] in text
    assert "slime refuses the command: " in text and "\n" not in text


@pytest.mark.needs_slime_arguments
def test_slime_and_our_driver_take_every_good_file(told):
    configs, lines = told
    refused = {name: text for name, text in lines.items() if text and name not in REFUSED}
    assert len(configs) - len(REFUSED) == len(GRID) + len(EVERY_KIND) + len(RECIPES) + 1
    assert refused == {}


@pytest.mark.needs_slime_arguments
@pytest.mark.parametrize("device", ["gpu", "cpu"])
def test_slime_is_asked_with_the_runs_own_environment(tmp_path, device):
    """A run on a CPU has patches in its environment, without which slime would not parse here."""
    import slime

    folder = Path(next(iter(slime.__path__))).parent
    file = ROOT / "configs" / ("slime/laptop.yaml" if device == "cpu" else "models/qwen3-4b.yaml")
    files = [f"slime.{flag}={tmp_path / 'no'}" for flag in ("hf-checkpoint", "ref-load")]
    if device == "gpu":  # the file of a model names no evaluation sets; Megatron asks for a GPU with tensor parallelism
        files += ["slime.eval-interval=0", "slime.tensor-model-parallel-size=4"]
    config = load_config(file, [*files, f"cluster.slime_dir={folder}", f"output_dir={tmp_path}"])
    answer = ask_slime(config, tmp_path / "x")
    assert (answer.refusals, answer.failure) == ((), "")
    assert flag_errors(config, answer) == []
    with contextlib.suppress(FileNotFoundError):
        assert list((tmp_path / "x").iterdir()) == []
