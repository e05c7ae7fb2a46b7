"""The commands of the launcher through slime's own argument parser, and its model scripts against our files."""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from paper_commands import CONFIG_JSON, EVERY_KIND, GRID, RECIPES, ROOT, checkpoint, paper

from sat_slime.config import load_config
from sat_slime.config.method_section import build_method
from sat_slime.launch.command import flag_errors, slime_arguments, slime_command
from sat_slime.plugin.settings import DRIVEN, plugin_method

DENSE = "qwen3-4b"


@pytest.fixture(scope="module")
def parsed(tmp_path_factory):
    """What slime's parser makes of every command; one process parses all."""
    root = tmp_path_factory.mktemp("parsed")
    checkpoints = {model: checkpoint(root / model, model) for model in CONFIG_JSON}
    moe = checkpoints["qwen3-30b-a3b"]
    configs = {(method, lag): paper(root, *moe, method=method, lag=lag) for method, lag in GRID}
    configs |= {kind: paper(root, *moe, *overrides) for kind, overrides in EVERY_KIND.items()}
    (root / "dense.yaml").write_text(f"extends: {ROOT / 'configs' / 'models' / f'{DENSE}.yaml'}\n")
    dense = [*checkpoints[DENSE], "slime.eval-interval=0", f"output_dir={root}"]
    configs[DENSE] = load_config(root / "dense.yaml", dense)
    for recipe in RECIPES:
        model = next(name for name in CONFIG_JSON if recipe.name.startswith(name))
        configs[recipe.stem] = load_config(recipe, [*checkpoints[model], f"output_dir={root}"])
    sent = {key: slime_command(config, root / f"run-{number}") for number, (key, config) in enumerate(configs.items())}
    for command in sent.values():
        for path, text in command.files.items():
            Path(path).parent.mkdir(parents=True)
            Path(path).write_text(text)
    # Megatron refuses to start without one of these variables; the test sets the Python path itself.
    env = {**os.environ, **sent[DENSE].env, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ["PYTHONPATH"]])}
    result = subprocess.run(
        [sys.executable, str(Path(__file__).parents[1] / "slime_parse.py")],
        input=json.dumps([command.command[2:] for command in sent.values()]),
        env=env,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    answers = json.loads(result.stdout.splitlines()[-1])
    return dict(zip(configs, answers, strict=True)), configs


@pytest.mark.needs_slime_arguments
@pytest.mark.parametrize("method, lag", GRID)
def test_slime_parses_and_validates_the_papers_commands(parsed, method, lag):
    answers, configs = parsed
    answer, config = answers[method, lag], configs[method, lag]
    assert "error" not in answer
    assert (answer["left_over"], answer["not_in_full"]) == ([], [])
    args = answer["args"]
    assert args["loss_type"] == "custom_loss"
    assert args["sat_slime"]["method"] == config.method.model_dump(mode="json", exclude={"clip"})
    assert (args["eps_clip"], args["eps_clip_high"], args["eps_clip_c"]) == (0.2, 0.2, None)
    assert (args["use_kl_loss"], args["kl_loss_coef"], args["kl_loss_type"]) == (True, 1e-3, "low_var_kl")
    assert (args["lr"], args["adam_beta2"], args["weight_decay"], args["entropy_coef"]) == (1e-6, 0.98, 0.1, 0.0)
    assert (args["attention_dropout"], args["hidden_dropout"]) == (0.0, 0.0)
    assert (args["num_rollout"], args["rollout_batch_size"], args["n_samples_per_prompt"]) == (544, 256, 16)
    assert args["global_batch_size"] == 4096
    assert (args["rollout_max_response_len"], args["max_tokens_per_gpu"]) == (32768, 32768)
    assert (args["rollout_temperature"], args["rollout_top_p"], args["rollout_top_k"]) == (1.0, 1.0, -1)
    assert (args["eval_interval"], args["n_samples_per_eval_prompt"]) == (5, 16)
    parallel = ("tensor", "pipeline", "expert")
    assert [args[f"{kind}_model_parallel_size"] for kind in parallel] == [4, 1, 4]
    assert (args["context_parallel_size"], args["expert_tensor_parallel_size"], args["sequence_parallel"]) == (
        1,
        1,
        True,
    )
    assert (args["rollout_num_gpus"], args["sglang_tp_size"], args["sglang_mem_fraction_static"]) == (4, 2, 0.85)
    assert args["moe_layer_freq"] == [1] * 48
    assert (args["bf16"], args["accumulate_allreduce_grads_in_fp32"], args["attention_softmax_in_fp32"]) == (True,) * 3
    assert args["use_rollout_routing_replay"] == method.endswith("-r3")
    assert args["advantage_estimator"] == ("gspo" if "gspo" in method else "grpo")
    assert args["use_rollout_logprobs"] is True and not args.get("keep_old_actor") and args["use_tis"] is False
    assert args["sat_slime"]["driver"]["lag"] == lag
    assert driven_method(args) == build_method(config.method)


def driven_method(args):
    """The method as the driver takes it from slime's arguments."""
    args = argparse.Namespace(**args)
    setattr(args, DRIVEN, True)
    return plugin_method(args)


@pytest.mark.needs_slime_arguments
@pytest.mark.parametrize(
    "kind", [*(kind for kind in EVERY_KIND if kind != "unknown"), DENSE, *(recipe.stem for recipe in RECIPES)]
)
def test_slime_parses_every_other_kind_of_command(parsed, kind):
    answer = parsed[0][kind]
    assert "error" not in answer
    assert (answer["left_over"], answer["not_in_full"]) == ([], [])
    # ... and so does the plugin, which looks at slime's flags beside its own settings
    assert driven_method(answer["args"]) == build_method(parsed[1][kind].method)


@pytest.mark.needs_slime_arguments
def test_values_arrive_as_intended(parsed):
    args = {kind: parsed[0][kind]["args"] for kind in EVERY_KIND}
    assert (args["nodes"]["world_size"], args["nodes"]["rollout_num_gpus"]) == (16, 16)
    assert (args["parallel"]["context_parallel_size"], args["parallel"]["data_parallel_size"]) == (2, 1)
    assert not any(args[name]["use_rollout_logprobs"] for name in ("scope step", "checkpoint"))
    assert (args["steps"]["global_batch_size"], args["steps"]["use_rollout_logprobs"]) == (1024, False)
    assert args["streaming"]["rollout_function_path"] == "sat_slime.plugin.streaming.generate_rollout"
    assert args["streaming"]["eval_function_path"] == args["streaming"]["rollout_function_path"]
    assert args["streaming"]["data_source_path"] == "sat_slime.plugin.streaming.StreamingDataSource"
    assert (args["dual clip"]["eps_clip_c"], args["dual clip"]["calculate_per_token_loss"]) == (3.0, True)
    assert (args["off"]["use_kl_loss"], args["off"]["eval_interval"], args["off"]["save"]) == (False, None, None)
    assert args["extra"]["apply_chat_template_kwargs"] == {"enable_thinking": False}
    assert args["extra"]["rollout_stop"] == ["a", "b"]
    assert (args["context"]["sglang_context_length"], args["context"]["rollout_stop_token_ids"]) == (
        34816,
        [151643, 151645],
    )
    assert parsed[0][DENSE]["args"]["num_experts"] is None


@pytest.mark.needs_slime_arguments
def test_slime_itself_says_nothing_of_a_misspelt_flag(parsed):
    """This is why the launcher checks flags: the run would start, with one flag lost and one taken for another."""
    answer = parsed[0]["unknown"]
    assert "error" not in answer
    assert answer["left_over"] == ["--use-tiss"]
    assert answer["not_in_full"] == ["--sglang-mem-fraction", "--use-tiss"]
    assert len(flag_errors(parsed[1]["unknown"])) == 2


@pytest.mark.needs_slime
@pytest.mark.parametrize(
    "script, file",
    [
        ("qwen3-30B-A3B", "qwen3-30b-a3b"),
        ("qwen3-4B", "qwen3-4b"),
        ("qwen3-0.6B", "qwen3-0.6b"),
        ("qwen2.5-7B", "qwen2.5-7b"),
    ],
)
def test_model_files_say_what_slimes_scripts_say(script, file):
    import slime

    source = Path(slime.__file__).parents[1] / "scripts" / "models" / f"{script}.sh"
    printed = subprocess.run(
        ["bash", "-c", f'source "{source}" && printf "%s\\n" "${{MODEL_ARGS[@]}}"'],
        capture_output=True,
        text=True,
        check=True,
    )
    theirs = printed.stdout.replace("[" + ",".join("1" * 48) + "]", "[1]*48").split()
    config = load_config(ROOT / "configs" / "models" / f"{file}.yaml")
    ours = [argument for argument in slime_arguments(config, Path("/r")) if "architecture" in argument.key]
    assert [_number(word) for argument in ours for word in argument.words()] == [_number(word) for word in theirs]


def _number(word):
    try:
        return float(word)
    except ValueError:
        return word
