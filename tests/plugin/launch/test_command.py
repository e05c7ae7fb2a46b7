import argparse
import ast
import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from sat_slime.config import load_config, slime_config_errors
from sat_slime.config.method_reading import build_method
from sat_slime.config.on_slime import not_on_slime
from sat_slime.config.plugin_schema import DriverConfig, PluginConfig
from sat_slime.config.schema import ScoresConfig
from sat_slime.objective.method import PAPER_METHODS, method_names, named_method
from sat_slime.plugin.inside.settings import DRIVEN, plugin_method
from sat_slime.plugin.launch.command import PLUGIN_FLAGS, as_json, flag_errors, slime_arguments, slime_command
from sat_slime.plugin.launch.flags import recorded_flags, unknown_flags

ROOT = Path(__file__).parents[3]
PAPER = ROOT / "configs" / "paper" / "qwen3-30b-a3b.yaml"
METHODS = [method.name for method in PAPER_METHODS]
GRID = [(method, lag) for method in METHODS for lag in (1, 8)]
assert len(GRID) == 26


def paper(tmp_path, *overrides, method="gspo", lag=8):
    settings = {"method": method, "pipeline.lag": lag, "output_dir": str(tmp_path)}
    return load_config(PAPER, overrides, settings)


def values(config, tmp_path):
    """The values of a command's flags, by flag; no flag comes twice in it."""
    arguments = slime_arguments(config, tmp_path)
    names = [argument.name for argument in arguments]
    assert len(names) == len(set(names))
    return {argument.name: argument.value for argument in arguments}


@pytest.mark.parametrize("version", ["v0.3.1", "main", "newest"])
@pytest.mark.parametrize("method, lag", GRID)
def test_the_papers_commands_have_only_flags_of_slime(tmp_path, method, lag, version):
    command = slime_command(paper(tmp_path, method=method, lag=lag)).command
    assert command[:3] == ["python3", "-m", "sat_slime.plugin.driver"]
    assert unknown_flags(command[3:], recorded_flags(version)) == []


def test_a_flag_that_slime_no_longer_needs_leaves_the_command_where_slime_lacks_it(tmp_path):
    config = paper(tmp_path, "rollout.fault_tolerance=true")
    known = recorded_flags("newest")
    later = dataclasses.replace(
        known, by_name={name: flag for name, flag in known.by_name.items() if name != "--use-fault-tolerance"}
    )
    assert "--use-fault-tolerance" in slime_command(config, known=known).command
    assert "--use-fault-tolerance" not in slime_command(config, known=later).command
    assert flag_errors(config, known) == flag_errors(config, later) == []
    assert len(flag_errors(paper(tmp_path, "extra_args.keep-old-actor=true"), known)) == 1


def test_no_two_of_the_papers_commands_are_the_same(tmp_path):
    sent = {json.dumps(as_json(slime_command(paper(tmp_path, method=method, lag=lag)))) for method, lag in GRID}
    assert len(sent) == 26


@pytest.mark.parametrize(
    "method, overrides, flags",
    [
        ("gspo", [], {"use-rollout-logprobs"}),
        ("sat-gspo-r3", [], {"use-rollout-logprobs", "use-rollout-routing-replay"}),
        # the step's quantile is taken from slime's own recompute
        ("sat-gspo", ["method.sat.scope=step"], set()),
        ("gspo", ["method.sat.scope=step"], {"use-rollout-logprobs"}),
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
    ],
)
def test_the_denominator_says_which_log_probs_slime_makes(tmp_path, method, overrides, flags):
    sent = values(paper(tmp_path, *overrides, method=method), tmp_path)
    assert {name for name in sent if name.startswith(("use-rollout-", "keep-old"))} == flags
    assert "use-tis" not in sent


@pytest.mark.parametrize("method", [name for name in method_names() if not not_on_slime(named_method(name))])
def test_every_method_that_slime_runs_has_a_sound_command(tmp_path, method):
    """Its settings are without fault, the driver reads its method back from the plugin's file, and every flag is one of
    slime's."""
    top_p = ["rollout.top_p=0.95"] if "topp" in method else []
    config = paper(tmp_path, *top_p, method=method)
    assert [line for line in slime_config_errors(config) if line.startswith(("method", "hooks", "rollout"))] == []
    sent = slime_command(config)
    assert unknown_flags(sent.command[3:], recorded_flags()) == []
    settings = PluginConfig.model_validate(yaml.safe_load(next(iter(sent.files.values())))["sat_slime"])
    assert build_method(settings.method) == build_method(config.method)
    assert build_method(settings.method).stabilizers == named_method(method).stabilizers


@pytest.mark.parametrize("method", ["trpo", "score-centering", "grpo-vcpo"])
def test_what_slime_cannot_run_is_refused_before_anything_is_sent(tmp_path, method):
    (fault,) = [line for line in slime_config_errors(paper(tmp_path, method=method)) if line.startswith("method")]
    assert fault.startswith(f"method: {method}: ") and "embedded runtime" in fault


@pytest.mark.parametrize("method, needed", [("grpo-decoupled-a3po", "the lag of every token"), ("topr", "the reward")])
@pytest.mark.parametrize("cause", ["hooks.version_by_step=false", "extra_args.update-weight-transport=disk"])
def test_what_needs_versions_is_refused_where_they_are_unknown(tmp_path, method, needed, cause):
    key = cause.partition("=")[0]
    (fault,) = [line for line in slime_config_errors(paper(tmp_path, cause, method=method)) if line.startswith(key)]
    assert needed in fault
    assert not [line for line in slime_config_errors(paper(tmp_path, cause)) if line.startswith(key)]


def test_the_ratio_is_the_advantage_estimators(tmp_path):
    estimators = {name: values(paper(tmp_path, method=name), tmp_path)["advantage-estimator"] for name in METHODS}
    assert estimators == {name: "gspo" if "gspo" in name else "grpo" for name in METHODS}


def test_every_command_calls_the_plugin(tmp_path):
    sent = values(paper(tmp_path, method="grpo"), tmp_path)
    assert sent["loss-type"] == "custom_loss"
    assert sent["custom-loss-function-path"] == "sat_slime.plugin.loss.policy_loss"
    assert not {"custom-megatron-init-path", "rollout-data-postprocess-path"} & sent.keys(), "its trainer is ours"
    assert sent["rollout-sample-hook-path"] == "sat_slime.plugin.rollout_hooks.on_sample"
    assert sent["custom-rollout-log-function-path"] == "sat_slime.plugin.rollout_hooks.log_rollout"
    assert sent["custom-eval-rollout-log-function-path"] == "sat_slime.plugin.rollout_hooks.log_eval"
    assert sent["custom-config-path"] == str(tmp_path / "sat_slime.yaml")


@pytest.mark.parametrize("path", [value for value in PLUGIN_FLAGS.values() if value.startswith("sat_slime.")])
def test_what_slime_is_to_call_is_there(path):
    module, _, function = path.rpartition(".")
    file = ROOT / f"{module.replace('.', '/')}.py"  # it is read and not imported: some import slime
    assert function in {node.name for node in ast.parse(file.read_text()).body if isinstance(node, ast.FunctionDef)}


def test_the_plugins_file_reads_back_as_numbers(tmp_path):
    config = paper(tmp_path, "method.dppo.delta=1e-6", "method.clip.eps_high=3e-4", method="sat-gspo-r3")
    ((path, text),) = slime_command(config).files.items()
    assert path == str(tmp_path / "paper" / "sat_slime.yaml")
    settings = PluginConfig.model_validate(yaml.safe_load(text)["sat_slime"])
    assert yaml.safe_load(text)["sat_slime"]["method"]["dppo"]["delta"] == 1e-6
    expected = PluginConfig(
        method=config.method, hooks=config.hooks, driver=DriverConfig(lag=8), run_dir=str(tmp_path / "paper")
    )
    assert settings == expected.model_copy(update={"eval": ScoresConfig(k=config.eval.k)})


def plugin_file(config):
    (text,) = slime_command(config).files.values()
    return yaml.safe_load(text)


def test_repeats_are_asked_for_as_samples_and_told_to_the_plugin(tmp_path):
    config = paper(tmp_path, "eval.repeats=4", "eval.k=[1, 8, 64]")
    assert values(config, tmp_path)["n-samples-per-eval-prompt"] == 64
    assert plugin_file(config)["sat_slime"]["eval"] == {"repeats": 4, "k": [1, 8, 64]}


@pytest.mark.parametrize("mode, lag", [("batch", 0), ("batch", 8), ("streaming", 2)])
def test_the_order_is_told_to_the_driver_and_not_by_a_flag(tmp_path, mode, lag):
    config = paper(tmp_path, f"pipeline.mode={mode}", lag=lag)
    driver = plugin_file(config)["sat_slime"]["driver"]
    assert (driver["mode"], driver["lag"]) == (mode, lag)
    assert not {"--update-weights-interval", "--keep-old-actor", "--colocate"} & set(slime_command(config).command)


def test_evaluations_at_both_ends_can_be_left_out(tmp_path):
    off = plugin_file(paper(tmp_path, "hooks.evaluate_first=false"))["sat_slime"]["hooks"]
    assert off["evaluate_first"] is False and off["evaluate_last"] is True


def test_limits_of_the_verifier_are_sent_where_it_is_the_reward(tmp_path):
    limits = plugin_file(paper(tmp_path, "verifier.workers=16", "verifier.cpu_s=1.5"))["sat_slime_verifier"]
    assert limits == {"workers": 16, "cpu_s": 1.5, "wall_s": 30.0, "memory_mb": 1024}
    assert "workers" not in plugin_file(paper(tmp_path))["sat_slime_verifier"], "the pool's own choice"
    assert "sat_slime_verifier" not in plugin_file(paper(tmp_path, "data.reward=math"))


def test_zeros_are_sent_and_what_is_off_is_not(tmp_path):
    words = slime_command(paper(tmp_path, "loss.kl_coef=0", "train.optimizer_offload=false")).command
    assert words[words.index("--attention-dropout") + 1] == "0.0"  # Megatron's default is 0.1
    assert words[words.index("--entropy-coef") + 1] == "0.0"
    assert words[words.index("--moe-aux-loss-coeff") + 1] == "0"
    assert not {"--use-kl-loss", "--kl-loss-coef", "--optimizer-cpu-offload", "--no-save-optim"} & set(words)
    assert "None" not in words and "False" not in words and "True" not in words


def test_streaming_is_a_rollout_function_and_a_data_source_of_the_plugin(tmp_path):
    sent = values(paper(tmp_path, "pipeline.mode=streaming", lag=1), tmp_path)
    assert sent["rollout-function-path"] == "sat_slime.plugin.streaming.generate_rollout"
    assert sent["data-source-path"] == "sat_slime.plugin.streaming.StreamingDataSource"
    assert "eval-function-path" not in sent  # slime then evaluates by the first
    assert "rollout-function-path" not in values(paper(tmp_path, lag=1), tmp_path)


def test_an_optimizer_step_takes_its_share_of_the_batch(tmp_path):
    assert values(paper(tmp_path), tmp_path)["global-batch-size"] == 4096
    four = paper(tmp_path, "pipeline.optimizer_steps_per_rollout=4")
    assert values(four, tmp_path)["global-batch-size"] == 1024


def test_more_nodes(tmp_path):
    config = paper(
        tmp_path,
        "train.nodes=2",
        "train.gpus_per_node=8",
        "rollout.nodes=3",
        "rollout.gpus_per_node=8",
        "train.lr=2e-6",
    )
    sent = values(config, tmp_path)
    assert (sent["actor-num-nodes"], sent["actor-num-gpus-per-node"], sent["rollout-num-gpus"]) == (2, 8, 24)
    assert sent["num-gpus-per-node"] == 8


def test_environment(tmp_path):
    env = slime_command(paper(tmp_path, "cluster.python_path=[/opt/sat_slime]", "cluster.env={NCCL_DEBUG: INFO}")).env
    assert env == {
        "PYTHONPATH": "/opt/sat_slime:/root/Megatron-LM:/root/slime",
        "PYTHONUNBUFFERED": "1",
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
        "NCCL_NVLS_ENABLE": "1",
        "TENSORBOARD_DIR": str(tmp_path / "paper" / "tensorboard"),
        "NCCL_DEBUG": "INFO",
    }
    longer = slime_command(paper(tmp_path, "rollout.context_tokens=34816", "cluster.nvlink=false")).env
    assert longer["SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"] == "1"
    assert longer["NCCL_NVLS_ENABLE"] == "0"


def test_checkpoints_are_where_the_run_goes_on_from(tmp_path):
    sent = values(paper(tmp_path, "checkpoint.folder=/shared/x", "checkpoint.optimizer=false"), tmp_path)
    assert (sent["load"], sent["save"], sent["no-save-optim"]) == ("/shared/x", "/shared/x", True)
    assert values(paper(tmp_path), tmp_path)["save"] == str(tmp_path / "checkpoints")
    assert (
        not {"load", "save", "save-interval"}
        & values(paper(tmp_path, "checkpoint.every_n_iterations=0"), tmp_path).keys()
    )


def test_evaluation_names_its_sets_and_can_be_off(tmp_path):
    config = paper(tmp_path, "eval.prompts.math=/m.jsonl", "eval.temperature=0")
    sent = values(config, tmp_path)
    assert sent["eval-prompt-data"] == ["aime24", "/root/data/paper/aime24.jsonl", "math", "/m.jsonl"]
    assert sent["eval-temperature"] == 0
    off = values(paper(tmp_path, "eval.every_n_iterations=0"), tmp_path)
    assert not [name for name in off if name.startswith("eval-")]


def test_a_reward_is_a_rule_of_slime_or_a_function(tmp_path):
    assert values(paper(tmp_path, "data.reward=math"), tmp_path)["rm-type"] == "math"
    sent = values(paper(tmp_path), tmp_path)
    assert sent["custom-rm-path"] == "sat_slime.plugin.reward.prime_math" and "rm-type" not in sent


def test_wandb_groups_by_the_runs_name(tmp_path):
    sent = values(paper(tmp_path, "logging.wandb_project=p"), tmp_path)
    # slime puts a random suffix behind a group, and fails where there is none
    assert (sent["wandb-project"], sent["wandb-group"], sent["disable-wandb-random-suffix"]) == ("p", "paper", True)


def test_the_example_of_the_documentation_can_start(tmp_path):
    text = (ROOT / "docs" / "configuration.md").read_text()
    (example,) = re.findall(r"```yaml\n(extends: \.\./models/.*?)```", text, re.DOTALL)
    (tmp_path / "x.yaml").write_text(example.replace("../models", str(ROOT / "configs" / "models")))
    config = load_config(tmp_path / "x.yaml")
    assert slime_config_errors(config) == flag_errors(config) == []


def test_other_flags_of_slime_pass_through_in_their_form(tmp_path):
    config = paper(
        tmp_path,
        "extra_args.sglang-cuda-graph-bs=[1, 2, 4]",
        "extra_args.log-passrate=true",
        "extra_args.partial-rollout=false",
        "extra_args.sglang-max-running-requests=256",
        "extra_args.rollout-sample-hook-path=my.hook",  # this flag may be given several times
    )
    words = " ".join(slime_command(config).command)
    assert words.endswith(
        "--sglang-cuda-graph-bs 1 2 4 --log-passrate --sglang-max-running-requests 256 "
        "--rollout-sample-hook-path my.hook"
    )
    assert flag_errors(config) == []


@pytest.mark.parametrize(
    "override, says",
    [
        ("extra_args.use-tiss=true", ["extra_args.use-tiss: there is no flag --use-tiss", "did you mean --use-tis?"]),
        (
            "extra_args.sglang-mem-fraction=0.5",
            ["extra_args.sglang-mem-fraction:", "did you mean --sglang-mem-fraction-static? Flags are written in full"],
        ),
        ("extra_args.use-tis=true", ["extra_args.use-tis: --use-tis follows from method.tis.enabled"]),
        ("extra_args.lr=1e-5", ["extra_args.lr: --lr follows from train.lr"]),
        ("extra_args.colocate=true", ["extra_args.colocate: --colocate follows from rollout.nodes"]),
        ("extra_args.loss-type=policy_loss", ["extra_args.loss-type: the command always has --loss-type custom_loss"]),
        ("extra_args.seq-length=4k", ["extra_args.seq-length: --seq-length is '4k': it must be a whole number"]),
        ("extra_args.log-passrate=1", ["extra_args.log-passrate: --log-passrate takes no value: true sets it"]),
        ("extra_args.tb-project-name=true", ["extra_args.tb-project-name:", "logging.tensorboard"]),
        ("model.architecture.num-layer=48", ["model.architecture.num-layer:", "did you mean --num-layers?"]),
        ("model.architecture.num-layers=4.5", ["model.architecture.num-layers: --num-layers is '4.5'"]),
        ("model.architecture.lr=1", ["train.lr: --lr is given twice"]),
        ("extra_args.persistent-save-interval=5", ["extra_args.persistent-save-interval:", "is --save-interval"]),
    ],
)
def test_flags_that_slime_would_not_take_as_meant(tmp_path, override, says):
    (error,) = flag_errors(paper(tmp_path, override))
    assert all(part in error for part in says), error


# ---------------------------------------------------------------------------------------- slime's own parser

CONFIG_JSON = {
    "qwen3-30b-a3b": {
        "model_type": "qwen3_moe",
        "hidden_size": 2048,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "num_hidden_layers": 48,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "tie_word_embeddings": False,
    },
    "qwen3-4b": {
        "model_type": "qwen3",
        "hidden_size": 2560,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "num_hidden_layers": 36,
        "intermediate_size": 9728,
        "tie_word_embeddings": True,
    },
}
"""Values that slime compares with the architecture's flags; the rest of a checkpoint is not read."""
EVERY_KIND = {
    "lag 0": ["pipeline.lag=0"],
    "streaming": ["pipeline.mode=streaming", "pipeline.lag=1"],
    "nodes": ["train.nodes=2", "train.gpus_per_node=8", "rollout.nodes=2", "rollout.gpus_per_node=8"],
    "parallel": ["train.gpus_per_node=8", "train.context_parallel=2", "train.max_tokens_per_gpu=16384"],
    "scope step": ["method.sat=true", "method.sat.scope=step"],
    "checkpoint": ["method.denominator=checkpoint", "pipeline.lag=1"],
    "steps": ["pipeline.optimizer_steps_per_rollout=4", "method.denominator=trainer"],
    "dual clip": ["method.clip.dual=3.0", "loss.reduction=token_mean"],
    "off": ["loss.kl_coef=0", "eval.every_n_iterations=0", "checkpoint.every_n_iterations=0", "train.recompute=none"],
    "wandb": ["logging.wandb_project=p", "logging.tensorboard=false"],
    "extra": ["extra_args.rollout-stop=[a, b]", "data.chat_template_args={enable_thinking: false}"],
    "context": ["rollout.context_tokens=34816", "rollout.stop_token_ids=[151643, 151645]", "data.reward=my.rewards.f"],
    "unknown": ["extra_args.use-tiss=true", "extra_args.sglang-mem-fraction=0.5"],
}
DENSE = "qwen3-4b"


def checkpoint(folder, model):
    """Makes a folder that slime takes for a converted checkpoint and for the Hugging Face one."""
    folder.mkdir()
    (folder / "latest_checkpointed_iteration.txt").write_text("release")
    config = {"rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "head_dim": 128, "vocab_size": 151936}
    (folder / "config.json").write_text(json.dumps(config | CONFIG_JSON[model]))
    return [f"model.hf_checkpoint={folder}", f"model.megatron_checkpoint={folder}"]


@pytest.fixture(scope="module")
def parsed(tmp_path_factory):
    """What slime's parser makes of every command; one process parses all."""
    root = tmp_path_factory.mktemp("parsed")
    moe = checkpoint(root / "moe", "qwen3-30b-a3b")
    configs = {(method, lag): paper(root, *moe, method=method, lag=lag) for method, lag in GRID}
    configs |= {kind: paper(root, *moe, *overrides) for kind, overrides in EVERY_KIND.items()}
    (root / "dense.yaml").write_text(f"extends: {ROOT / 'configs' / 'models' / 'qwen3-4b.yaml'}\n")
    dense = [*checkpoint(root / "dense", DENSE), "eval.every_n_iterations=0", f"output_dir={root}"]
    configs[DENSE] = load_config(root / "dense.yaml", dense)
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
    assert args["sat_slime"]["method"] == config.method.model_dump(mode="json")
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
@pytest.mark.parametrize("kind", [*(kind for kind in EVERY_KIND if kind != "unknown"), DENSE])
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
@pytest.mark.parametrize("script, file", [("qwen3-30B-A3B", "qwen3-30b-a3b"), ("qwen3-4B", "qwen3-4b")])
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
