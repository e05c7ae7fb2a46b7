from pathlib import Path

import pytest

from sat_slime.config import ConfigError, LabConfig, SlimeConfig, dump_config, load_config, load_grid
from sat_slime.config.loader import key_paths, marked_settings, vary
from sat_slime.config.section import COMPUTES_NOTHING, OWN_TO_A_CELL, among, changed_since, kept_settings
from sat_slime.config.source import read_layers
from sat_slime.objective.gates import DPPO, TIS

CONFIGS = Path(__file__).parents[2] / "configs"
SLIME = "runtime: slime\n"


def errors(tmp_path, text, *overrides):
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    return [error.removeprefix(f"{tmp_path}/") for error in caught.value.errors]


def load(tmp_path, text, *overrides, **settings):
    path = tmp_path / "x.yaml"
    path.write_text(text)
    return load_config(path, overrides, settings)


@pytest.mark.parametrize("file, kind", [("lab/base", LabConfig), ("slime/base", SlimeConfig)])
def test_base_documents_every_setting_with_its_default(file, kind):
    assert load_config(CONFIGS / f"{file}.yaml") == kind()
    (layer,) = read_layers(CONFIGS / f"{file}.yaml")
    assert [path for path in key_paths(kind) if path not in layer.origins and path[0] != "method"] == []


@pytest.mark.parametrize("folder", ["lab", "slime", "models", "paper", "recipes"])
def test_every_file_resolves_to_one_that_loads_back_equal(tmp_path, folder):
    for file in CONFIGS.glob(f"{folder}/*.yaml"):
        config = load_config(file, [], {"name": "1e4"})
        again = load(tmp_path, dump_config(config))
        assert again == config and dump_config(again) == dump_config(config), file


def test_the_runtime_decides_what_a_file_is(tmp_path):
    assert type(load(tmp_path, SLIME)) is SlimeConfig and type(load(tmp_path, "name: y")) is LabConfig
    assert "add `runtime: slime`" in errors(tmp_path, "slime: {a: 1}")[0]
    assert errors(tmp_path, "runtime: slimy") == [
        "x.yaml:1: runtime is 'slimy': it must be one of lab, slime; did you mean 'slime'?"
    ]


FAULTS = [
    # what is near an unknown key is sought everywhere, among a run's flags too
    ("lag: 1", "unknown key 'lag'; did you mean 'pipeline.lag'?"),
    ("train: {lag: 1}", "unknown key 'train.lag'; did you mean 'pipeline.lag'?"),
    ("train: {weight_decy: 0}", "unknown key 'train.weight_decy'; did you mean 'train.weight_decay'?"),
    ("method: {sat: {alfa: 1}}", "unknown key 'method.sat.alfa'; did you mean 'method.sat.alpha'?"),
    ("method: {sta: true}", "unknown key 'method.sta'; did you mean 'method.sat'?"),
    ("rollouts: {dtype: float32}", "unknown key 'rollouts.dtype'; did you mean 'rollout.dtype'?"),
    (SLIME + "train: {lr: 1}", "unknown key 'train.lr'; did you mean 'slime.lr'?"),
    (SLIME + "train: {tensor_paralel: 4}", "unknown key 'train.tensor_paralel'; did you mean 'slime.tensor-model-para"),
    (SLIME + "model: {hf_checkpoint: x}", "unknown key 'model.hf_checkpoint'; did you mean 'slime.hf-checkpoint'?"),
    (SLIME + "eval: {problems: 8}", "unknown key 'eval.problems'; it is a setting of lab runs alone"),
    # where nothing is, the section tells what it has
    ("zzyzx: 1", "unknown key 'zzyzx'; a file has runtime, name, "),
    ("pipeline: {foo: 1}", "unknown key 'pipeline.foo'; pipeline has mode, lag, "),
    ("zzyzx: {a: 1}", "unknown key 'zzyzx.a'; a file has runtime, name, "),
    ("rollout: {dtype: fp32}", "rollout.dtype is 'fp32': it must be one of float32, bfloat16"),
    ("method: {denominator: rolout}", "method.denominator is 'rolout': it must be one of rollout, checkpoint, trainer"),
    ("pipeline: 8", "pipeline is 8: it is a section with the keys mode, lag, iterations"),
    ("method: 8", "method is 8: it is a section, or the name of a method, such as sat-gspo"),
    ("train: {lr: .nan}", "train.lr is nan"),
    ("train: {lr: .inf}", "train.lr is inf"),
    ("name: ../up", "name is '../up': it takes letters"),
    ("output_dir: ~nobody-here/x", "output_dir: '~nobody-here/x' is in the home of no user of this machine"),
    ("task: {min_digits: 9}", "task: min_digits is 9, above max_digits 8"),
    ("task: {max_digits: yes}", "task.max_digits is true: it must be a valid integer"),
    (SLIME + "slime: {--lr: 1}", "slime.--lr: '--lr' must be a flag's name without the leading dashes"),
    (SLIME + "slime: {lr: {a: 1}}", "slime.lr: it is {'a': 1}, and must be true, false, a number, text"),
    (SLIME + "slime: {num-layers=4: true}", "slime.num-layers=4: 'num-layers=4' must be a flag's"),
    (SLIME + "slime: [lr]", "slime is ['lr']: it must be a valid dictionary"),
    (SLIME + "slime: {rollout-batch-size: true}", "slime.rollout-batch-size is true: it must be a valid integer"),
    (SLIME + "pipeline: {lag: 1000000000000000000}", "pipeline.lag is 1000000000000000000: it must be 10^15 at most"),
    (SLIME + "slime: {num-layers: 10001}", "slime.num-layers is 10001: it must be less than or equal to 10000"),
    (SLIME + "slime: {no-save-optim: 1}", "slime.no-save-optim is 1: it must be a valid boolean"),
    (SLIME + "slime: {recompute-granularity: all}", "slime.recompute-granularity is 'all': it must be one of selecti"),
    (SLIME + "slime: {eval-prompt-data: [aime24]}", "slime.eval-prompt-data: it takes a name and a file"),
    (SLIME + "seed: 0", "seed is 0: it must be greater than 0"),  # Megatron takes none
    (SLIME + "cluster: {env: {A: [1]}}", "cluster.env.A is [1]: it must be text; put it in quotes"),
]


@pytest.mark.parametrize("text, told", FAULTS)
def test_a_fault_is_one_line_with_its_place(tmp_path, text, told):
    (line,) = errors(tmp_path, text)
    assert line.startswith(f"x.yaml:{text.count(chr(10)) + 1}: {told}")


def test_overrides_win_over_settings_over_the_file_and_their_values_are_yaml(tmp_path):
    config = load(tmp_path, "pipeline: {lag: 1}\nseed: 1", "pipeline.lag=3", **{"pipeline.lag": 2, "seed": 2})
    assert (config.pipeline.lag, config.seed) == (3, 2)
    config = load(tmp_path, "seed: 0", "train.lr=1e-4", "method.sat=true", "eval={problems: 8}")
    assert config.train.lr == 1e-4 and config.method.sat and config.eval.problems == 8


@pytest.mark.parametrize("text, key", [("train:\n  # lr: 1\n", "train"), ("pipeline: null", "pipeline")])
def test_an_empty_section_does_not_undo_what_it_extends(tmp_path, text, key):
    (tmp_path / "base.yaml").write_text("train: {lr: 1.0}\npipeline: {lag: 3}\nmethod: {sat: {alpha: 0.8}}\n")
    told = f"x.yaml:2: {key} is empty: write settings below it, or leave it out"
    assert errors(tmp_path, f"extends: base.yaml\n{text}") == [told]
    assert errors(tmp_path, "extends: base.yaml", f"{key}=null") == [told.replace("x.yaml:2", f"--set {key}=null")]


@pytest.mark.parametrize(
    "text, overrides, told",
    [
        ("train: {lr: 1.0e+400}\npipeline:", [], ["train.lr is inf", "pipeline is empty"]),
        ("model: {kv_heads: x}", ["train.lr=1" + "0" * 400], ["train.lr is 1000", "model.kv_heads is 'x'"]),
        ("model: {kv_heads: x}", ["train.lr", "=1"], ["--set train.lr:", "--set =1:", "model.kv_heads is 'x'"]),
        ("model: {kv_head: 3}", ["method=gspoo"], ["unknown method 'gspoo'", "unknown key 'model.kv_head'"]),
        ("eval: {problems: [a]}\ntask: {max_digits: x}", [], ["eval.problems is ['a']", "task.max_digits is 'x'"]),
    ],
)
def test_a_fault_hides_no_other(tmp_path, text, overrides, told):
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    found = caught.value.errors
    assert len(found) == len(told), found
    for part in told:
        assert any(part in line for line in found), (part, found)
    assert all(len(line) < 600 for line in found)


def test_a_run_and_a_grid_are_told_apart(tmp_path):
    grid, run = tmp_path / "a grid.yaml", tmp_path / "run.yaml"
    grid.write_text("name: g\nmethods: [gspo]\nlags: [1]\n")
    run.write_text(f"extends: {CONFIGS / 'lab' / 'base.yaml'}\nname: r\n")
    with pytest.raises(ConfigError, match=rf"^{grid}: this is a grid, not a run: sat-slime grid '{grid}', with --dry"):
        load_config(grid)
    with pytest.raises(ConfigError, match=rf"^{run}: this is a run, not a grid: sat-slime launch {run}$"):
        load_grid(run)
    grid.write_text("lag: [1]\nmethods: [gspo]")  # a grid with a typing error
    with pytest.raises(ConfigError, match="unknown key 'lag'; did you mean 'lags'"):
        load_grid(grid)


def test_a_flag_of_a_file_below_can_be_changed_and_left_out(tmp_path):
    parent = CONFIGS / "models" / "qwen3-4b.yaml"
    config = load(
        tmp_path, SLIME + f"extends: {parent}\nslime: {{qk-layernorm: false, lr: null}}", "slime.num-layers=4"
    )
    assert (config.model.layers, config.model.hidden_size) == (4, 2560)
    assert config.slime["qk-layernorm"] is False and config.slime["lr"] is None and config.train.lr == 1e-6


def test_paths_are_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = load(tmp_path, SLIME + "slime: {save: a, prompt-data: ~/p, eval-prompt-data: [s, b, t, c]}")
    assert config.checkpoint.folder == str(tmp_path / "a") and config.data.prompts == str(Path.home() / "p")
    assert config.eval.prompts == {"s": str(tmp_path / "b"), "t": str(tmp_path / "c")}


def test_the_papers_numbers():
    """The numbers are typed from the paper's sections "Setup" and "Experimental Details"."""
    config = load_config(CONFIGS / "paper" / "qwen3-30b-a3b.yaml")
    method, rollout, train, evaluation, model = config.method, config.rollout, config.train, config.eval, config.model
    assert (config.pipeline.iterations, config.pipeline.optimizer_steps_per_rollout) == (544, 1)
    assert (rollout.prompts_per_iteration, rollout.samples_per_prompt) == (256, 16)
    assert (rollout.temperature, rollout.top_p, rollout.top_k, rollout.max_response_tokens) == (1.0, 1.0, -1, 32768)
    assert (train.lr, config.slime["adam-beta1"], config.slime["adam-beta2"]) == (1e-6, 0.9, 0.98)
    assert (method.clip.eps_low, method.clip.eps_high, DPPO().delta, TIS().cap) == (0.2, 0.2, 1e-3, 2.0)
    assert (method.sat.alpha, method.sat.exponent, method.sat.scope) == (0.9, 2.0, "microbatch")
    assert (config.loss.kl_coef, config.loss.entropy_coef) == (1e-3, 0.0)
    assert (train.world_size, rollout.gpus, config.cluster.gpus_per_node) == (4, 4, 8)
    assert (train.tensor_parallel, train.pipeline_parallel, train.context_parallel) == (4, 1, 1)
    assert (train.expert_parallel, train.expert_tensor_parallel, train.max_tokens_per_gpu) == (4, 1, 32768)
    assert (rollout.memory_fraction, config.slime["attention-backend"]) == (0.85, "flash")
    assert (evaluation.every_n_iterations, evaluation.samples, list(evaluation.prompts)) == (5, 16, ["aime24"])
    assert (model.layers, model.hidden_size, model.experts, model.experts_per_token) == (48, 2048, 128, 8)
    assert (model.expert_ffn_size, model.rope_base) == (768, 1_000_000)
    assert (model.flags["moe-router-score-function"], model.flags["moe-aux-loss-coeff"]) == ("softmax", 0)


@pytest.mark.parametrize(
    "model, free, kept",
    [
        (LabConfig, "pipeline.iterations=9", "pipeline.lag=3"),
        (LabConfig, "checkpoint.keep=9", "eval.problems=9"),
        (LabConfig, "rollout.request_timeout_s=9.0", "rollout.temperature=0.9"),
        (SlimeConfig, "pipeline.iterations=9", "pipeline.lag=3"),
        (SlimeConfig, "cluster.gpus_per_node=4", "slime.actor-num-gpus-per-node=2"),
        (SlimeConfig, "slime.rollout-num-gpus-per-engine=1", "slime.rollout-top-k=5"),
        (SlimeConfig, "slime.save-interval=5", "slime.no-save-optim=true"),
    ],
)
def test_settings_that_may_change_on_resume_and_that_may_not(model, free, kept):
    assert changed_since(kept_settings(model()), vary(model(), [], [free])) == ""
    assert changed_since(kept_settings(model()), vary(model(), [], [free, kept])).startswith(
        f"{kept.partition('=')[0]} ("
    )


def test_what_may_not_change_here_is_kept_too():
    changed = vary(LabConfig(), [], ["checkpoint.keep=9", "pipeline.iterations=9"])
    assert (
        changed_since(kept_settings(LabConfig(), ["checkpoint"]), changed, ["checkpoint"]) == "checkpoint.keep (2 -> 9)"
    )


def test_what_a_comparison_does_not_tell():
    assert {"seed", "warmup.seed", "pipeline.lag", "name", "output_dir"} <= marked_settings(OWN_TO_A_CELL)
    told_nowhere = {"logging", "checkpoint", "cluster", "estimate", "pipeline.canary", "slime.save-interval"}
    assert told_nowhere <= marked_settings(COMPUTES_NOTHING)
    assert among("logging.samples_every_n_iterations", {"logging"}) and not among("loggings", {"logging"})
