import re
from pathlib import Path

import pytest

from sat_slime.config import ConfigError, LabConfig, SlimeConfig, dump_config, load_config
from sat_slime.config.loader import key_paths
from sat_slime.config.slime_schema import SlimeModelConfig
from sat_slime.config.source import read_layers

CONFIGS = Path(__file__).parents[2] / "configs"
FILES = ["slime/base", "models/qwen3-30b-a3b", "models/qwen3-4b", "paper/qwen3-30b-a3b"]


def load(tmp_path, text, *overrides):
    (tmp_path / "x.yaml").write_text("runtime: slime\n" + text)
    return load_config(tmp_path / "x.yaml", overrides)


def errors(tmp_path, text, *overrides):
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text, *overrides)
    return [error.removeprefix(f"{tmp_path}/") for error in caught.value.errors]


def test_the_runtime_decides_what_a_file_is(tmp_path):
    assert type(load(tmp_path, "")) is SlimeConfig
    (tmp_path / "y.yaml").write_text("name: y\n")
    assert type(load_config(tmp_path / "y.yaml")) is LabConfig
    assert errors(tmp_path, "", "runtime=slimy") == [
        "--set runtime=slimy: runtime is 'slimy': it must be one of lab, slime; did you mean 'slime'?"
    ]


def test_base_documents_every_setting_with_its_default():
    assert load_config(CONFIGS / "slime" / "base.yaml") == SlimeConfig()
    (layer,) = read_layers(CONFIGS / "slime" / "base.yaml")
    assert [path for path in key_paths(SlimeConfig) if path not in layer.origins] == []


@pytest.mark.parametrize("name", FILES)
def test_resolved_file_loads_back_equal(tmp_path, name):
    config = load_config(CONFIGS / f"{name}.yaml")
    (tmp_path / "resolved.yaml").write_text(dump_config(config))
    assert load_config(tmp_path / "resolved.yaml") == config


def test_what_means_the_same_has_the_name_that_it_has_in_an_lab_run():
    shared = {
        "name",
        "output_dir",
        "seed",
        "method.base",
        "method.sat.enabled",
        "loss.kl_coef",
        "pipeline.lag",
        "pipeline.optimizer_steps_per_rollout",
        "rollout.prompts_per_iteration",
        "rollout.samples_per_prompt",
        "rollout.max_response_tokens",
        "rollout.temperature",
        "train.lr",
        "eval.every_n_iterations",
        "checkpoint.every_n_iterations",
        "logging.wandb_project",
    }
    ours, theirs = ({".".join(path) for path in key_paths(model)} for model in (SlimeConfig, LabConfig))
    assert shared <= ours & theirs


def test_unknown_key_names_line_and_nearest(tmp_path):
    assert errors(tmp_path, "train:\n  tensor_paralel: 4\nrollout: {gpus_per_engin: 2}\n") == [
        "x.yaml:3: unknown key 'train.tensor_paralel'; did you mean 'train.tensor_parallel'?",
        "x.yaml:4: unknown key 'rollout.gpus_per_engin'; did you mean 'rollout.gpus_per_engine'?",
    ]


@pytest.mark.parametrize(
    "text, error",
    [
        ("slime: {--lr: 1}", "x.yaml:2: slime: '--lr' must be a flag's name without the leading dashes"),
        ("slime:\n  lr: {a: 1}", "x.yaml:2: slime: lr is {'a': 1}: it must be true, false, a number, text"),
        ("slime: {lr: null}", "x.yaml:2: slime: lr is None: it must be true, false, a number"),
        ("slime: {stop: []}", "x.yaml:2: slime: stop is []"),
        ("slime: [lr]", "x.yaml:2: slime is ['lr']: it must be a valid dictionary"),
        (
            "model: {architecture: {num-layers=4: true}}",
            "x.yaml:2: model.architecture: 'num-layers=4' must be a flag's",
        ),
        ("seed: 0", "x.yaml:2: seed is 0: it must be greater than 0"),  # Megatron takes none
        ("rollout: {memory_fraction: 1.0}", "x.yaml:2: rollout.memory_fraction is 1.0"),
        ("rollout: {samples_per_prompt: 1}", "x.yaml:2: rollout.samples_per_prompt is 1"),
        ("train: {recompute: all}", "x.yaml:2: train.recompute is 'all': it must be one of none, selective, full"),
        ("cluster: {env: {A: [1]}}", "x.yaml:2: cluster.env.A is [1]: it must be text; put it in quotes"),
        ("pipeline: {lag: yes}", "x.yaml:2: pipeline.lag is true: it is not a yes-or-no setting"),
    ],
)
def test_a_fault_is_one_line_with_its_place(tmp_path, text, error):
    (found,) = errors(tmp_path, text)
    assert found.startswith(error)


def test_a_flag_of_the_architecture_can_be_changed_and_left_out(tmp_path):
    parent = CONFIGS / "models" / "qwen3-4b.yaml"
    config = load(
        tmp_path,
        f"extends: {parent}\nmodel: {{architecture: {{qk-layernorm: false}}}}",
        "model.architecture.num-layers=4",
    )
    assert config.model.layers == 4
    assert config.model.architecture["qk-layernorm"] is False
    assert config.model.hidden_size == 2560


def test_sizes_are_read_from_the_architecture():
    moe = load_config(CONFIGS / "models" / "qwen3-30b-a3b.yaml").model
    assert (moe.layers, moe.hidden_size, moe.attention_heads, moe.kv_heads, moe.head_dim) == (48, 2048, 32, 4, 128)
    assert (moe.is_moe, moe.experts, moe.experts_per_token, moe.expert_ffn_size) == (True, 128, 8, 768)
    assert moe.max_positions == 32768
    assert moe.parameters == pytest.approx(30.5e9, rel=0.01)  # the model card says so
    dense = load_config(CONFIGS / "models" / "qwen3-4b.yaml").model
    assert (dense.is_moe, dense.layers, dense.ffn_size, dense.kv_heads) == (False, 36, 9728, 8)
    assert dense.parameters == pytest.approx(4.0e9, rel=0.02)
    assert SlimeModelConfig().parameters == 0


PAPER = CONFIGS / "paper" / "qwen3-30b-a3b.yaml"


def test_the_papers_numbers():
    """The numbers are typed from the paper's sections "Setup" and "Experimental Details"."""
    config = load_config(PAPER)
    method, rollout, train, evaluation = config.method, config.rollout, config.train, config.eval
    assert (config.pipeline.iterations, config.pipeline.optimizer_steps_per_rollout) == (544, 1)
    assert (rollout.prompts_per_iteration, rollout.samples_per_prompt, rollout.responses_per_iteration) == (
        256,
        16,
        4096,
    )
    assert (rollout.temperature, rollout.top_p, rollout.top_k, rollout.max_response_tokens) == (1.0, 1.0, -1, 32768)
    assert (train.lr, config.flag("adam-beta1"), config.flag("adam-beta2")) == (1e-6, 0.9, 0.98)
    assert (method.clip.eps_low, method.clip.eps_high, method.dppo.delta) == (0.2, 0.2, 1e-3)
    assert (method.sat.alpha, method.sat.exponent, method.sat.scope) == (0.9, 2.0, "microbatch")
    assert (config.loss.kl_coef, config.loss.entropy_coef) == (1e-3, 0.0)
    assert (train.world_size, rollout.gpus, config.cluster.gpus_per_node) == (4, 4, 8)
    assert (train.tensor_parallel, train.pipeline_parallel, train.context_parallel) == (4, 1, 1)
    assert (train.expert_parallel, train.expert_tensor_parallel, train.max_tokens_per_gpu) == (4, 1, 32768)
    assert (rollout.memory_fraction, config.flag("attention-backend")) == (0.85, "flash")
    assert (evaluation.every_n_iterations, evaluation.samples_per_problem, list(evaluation.prompts)) == (
        5,
        16,
        ["aime24"],
    )
    model = config.model
    assert (model.layers, model.hidden_size, model.experts, model.experts_per_token) == (48, 2048, 128, 8)
    assert (model.expert_ffn_size, model.architecture["rotary-base"]) == (768, 1_000_000)
    assert (model.architecture["moe-router-score-function"], model.architecture["moe-aux-loss-coeff"]) == ("softmax", 0)


def test_every_line_of_the_papers_file_says_where_it_is_from():
    lines = [line for line in PAPER.read_text().splitlines() if line.strip() and not line.lstrip().startswith("#")]
    without = [line for line in lines if "#" not in line and not line.endswith(":")]
    assert without == ["name: paper", "output_dir: /root/runs"]


def test_every_number_of_the_papers_file_is_in_the_reproduction_note():
    note = (CONFIGS.parent / "docs" / "reproduction.md").read_text()
    listed = {int(number) for number in re.findall(r"^(\d+)\. ", note, re.MULTILINE)}
    cited = {int(number) for number in re.findall(r"#.*?\((\d+)\)", PAPER.read_text())}
    assert cited and cited <= listed
    assert listed == set(range(1, len(listed) + 1))
