import ast
import re

import pytest
import yaml
from paper_commands import ROOT, paper

from sat_slime.config import load_config, slime_config_errors
from sat_slime.config.method_section import build_method
from sat_slime.config.slime_schema import PluginConfig
from sat_slime.launch.command import PLUGIN_FLAGS, flag_errors, slime_arguments, slime_command
from sat_slime.objective.method import method_names


def values(config, tmp_path):
    """The values of a command's flags, by flag; no flag comes twice in it."""
    arguments = slime_arguments(config, tmp_path)
    names = [argument.name for argument in arguments]
    assert len(names) == len(set(names))
    return {argument.name: argument.value for argument in arguments}


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
    ],
)
def test_the_denominator_says_which_log_probs_slime_makes(tmp_path, method, overrides, flags):
    sent = values(paper(tmp_path, *overrides, method=method), tmp_path)
    assert {name for name in sent if name.startswith(("use-rollout-", "keep-old"))} == flags
    assert "use-tis" not in sent


@pytest.mark.parametrize("method", method_names())
def test_every_method_that_slime_runs_has_a_sound_command(tmp_path, method):
    """Its settings are without fault, the driver reads its method back from the plugin's file, and every flag is one of
    slime's."""
    top_p = ["slime.rollout-top-p=0.95"] if "topp" in method else []
    config = paper(tmp_path, *top_p, method=method)
    assert [line for line in slime_config_errors(config) if line.startswith(("method", "hooks", "rollout"))] == []
    sent = slime_command(config)
    assert flag_errors(config) == []
    settings = PluginConfig.model_validate(yaml.safe_load(next(iter(sent.files.values())))["sat_slime"])
    assert build_method(settings.method) == build_method(config.method)
    assert build_method(settings.method).name == method


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
    flags = values(config, tmp_path)
    assert (flags["eps-clip"], flags["eps-clip-high"]) == (config.method.clip.eps_low, 3e-4)
    assert "clip" not in settings.method.model_fields_set, "the radii travel once, as slime's flags"
    assert yaml.safe_load(text)["sat_slime"]["method"]["dppo"]["delta"] == 1e-6
    expected = PluginConfig(
        method=config.method.model_copy(update={"clip": PluginConfig().method.clip}),
        driver=config.pipeline,
        run_dir=str(tmp_path / "paper"),
    )
    assert settings == expected.model_copy(update={"eval": config.scores})


def plugin_file(config):
    (text,) = slime_command(config).files.values()
    return yaml.safe_load(text)


def test_repeats_are_asked_for_as_samples_and_told_to_the_plugin(tmp_path):
    config = paper(tmp_path, "slime.n-samples-per-eval-prompt=64", "scores.repeats=4")
    assert values(config, tmp_path)["n-samples-per-eval-prompt"] == 64
    assert plugin_file(config)["sat_slime"]["eval"] == {"repeats": 4}


@pytest.mark.parametrize("mode, lag", [("batch", 0), ("batch", 8), ("streaming", 2)])
def test_the_order_is_told_to_the_driver_and_not_by_a_flag(tmp_path, mode, lag):
    config = paper(tmp_path, f"pipeline.mode={mode}", lag=lag)
    driver = plugin_file(config)["sat_slime"]["driver"]
    assert (driver["mode"], driver["lag"]) == (mode, lag)
    assert not {"--update-weights-interval", "--keep-old-actor", "--colocate"} & set(slime_command(config).command)


def test_limits_of_the_verifier_are_sent_where_it_is_the_reward(tmp_path):
    limits = plugin_file(paper(tmp_path, "verifier.workers=16", "verifier.cpu_s=1.5"))["sat_slime_verifier"]
    assert limits == {"workers": 16, "cpu_s": 1.5, "memory_mb": 1024}
    assert "workers" not in plugin_file(paper(tmp_path))["sat_slime_verifier"], "the pool's own choice"
    assert "sat_slime_verifier" not in plugin_file(paper(tmp_path, "slime.rm-type=math", "slime.custom-rm-path=false"))


def test_zeros_are_sent_and_what_is_off_is_not(tmp_path):
    words = slime_command(paper(tmp_path, "loss.kl_coef=0", "slime.optimizer-cpu-offload=false")).command
    assert words[words.index("--attention-dropout") + 1] == "0.0"  # Megatron's default is 0.1
    assert words[words.index("--entropy-coef") + 1] == "0.0"
    assert words[words.index("--moe-aux-loss-coeff") + 1] == "0"
    assert not {"--use-kl-loss", "--kl-loss-coef", "--optimizer-cpu-offload", "--no-save-optim"} & set(words)
    assert "None" not in words and "False" not in words and "True" not in words


def test_checkpoints_are_where_the_run_goes_on_from(tmp_path):
    sent = values(paper(tmp_path, "slime.save=/shared/x", "slime.no-save-optim=true"), tmp_path)
    assert (sent["load"], sent["save"], sent["no-save-optim"]) == ("/shared/x", "/shared/x", True)
    assert values(paper(tmp_path), tmp_path)["save"] == str(tmp_path / "checkpoints")
    assert not {"load", "save", "save-interval"} & values(paper(tmp_path, "slime.save-interval=0"), tmp_path).keys()


def test_evaluation_names_its_sets_and_can_be_off(tmp_path):
    config = paper(tmp_path, "slime.eval-prompt-data=[math, /m.jsonl]", "slime.eval-temperature=0")
    sent = values(config, tmp_path)
    assert sent["eval-prompt-data"] == ["math", "/m.jsonl"]
    assert sent["eval-temperature"] == 0
    off = values(paper(tmp_path, "slime.eval-interval=0"), tmp_path)
    assert not [name for name in off if name.startswith("eval-")]


def test_the_example_of_the_documentation_can_start(tmp_path):
    text = (ROOT / "docs" / "launch.md").read_text()
    (example,) = re.findall(r"```yaml\n(extends: \.\./models/.*?)```", text, re.DOTALL)
    (tmp_path / "x.yaml").write_text(example.replace("../models", str(ROOT / "configs" / "models")))
    config = load_config(tmp_path / "x.yaml")
    assert slime_config_errors(config) == flag_errors(config) == []


def test_other_flags_of_slime_pass_through_in_their_form(tmp_path):
    config = paper(
        tmp_path,
        "slime.sglang-cuda-graph-bs=[1, 2, 4]",
        "slime.log-passrate=true",
        "slime.partial-rollout=false",
        "slime.sglang-max-running-requests=256",
        "slime.rollout-sample-hook-path=my.hook",  # this flag may be given several times
    )
    words = " ".join(slime_command(config).command)
    assert "--sglang-cuda-graph-bs 1 2 4 --log-passrate --sglang-max-running-requests 256 " in words
    assert words.endswith("--rollout-sample-hook-path my.hook") and "partial-rollout" not in words
    assert flag_errors(config) == []


@pytest.mark.parametrize(
    "override, says",
    [
        ("slime.use-tiss=true", ["slime.use-tiss: there is no flag --use-tiss", "did you mean --use-tis?"]),
        (
            "slime.sglang-mem-fraction=0.5",
            ["slime.sglang-mem-fraction:", "did you mean --sglang-mem-fraction-static? Flags are written in full"],
        ),
        ("slime.use-tis=true", ["slime.use-tis: --use-tis follows from method.tis"]),
        ("slime.kl-loss-coef=1", ["slime.kl-loss-coef: --kl-loss-coef follows from loss.kl_coef"]),
        ("slime.num-rollout=1", ["slime.num-rollout: --num-rollout follows from pipeline.iterations"]),
        ("slime.load=/x", ["slime.load: --load follows from slime.save"]),
        ("slime.colocate=true", ["slime.colocate: --colocate follows from slime.rollout-num-gpus"]),
        ("slime.loss-type=policy_loss", ["slime.loss-type: the command always has --loss-type"]),
        ("slime.num-layer=48", ["slime.num-layer:", "did you mean --num-layers?"]),
        ("slime.persistent-save-interval=5", ["slime.persistent-save-interval:", "is --save-interval"]),
    ],
)
def test_flags_that_slime_would_not_take_as_meant(tmp_path, override, says):
    (error,) = flag_errors(paper(tmp_path, override))
    assert all(part in error for part in says), error
