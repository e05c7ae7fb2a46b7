from pathlib import Path

import pytest

from sat_slime.config import ConfigError, LabConfig, SlimeConfig, dump_config, load_config
from sat_slime.config.loader import key_paths
from sat_slime.config.source import read_layers
from sat_slime.objective.gates import DPPO
from sat_slime.objective.weights import TIS

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
    assert [path for path in key_paths(SlimeConfig) if path not in layer.origins and path[0] != "method"] == []


@pytest.mark.parametrize("name", FILES)
def test_resolved_file_loads_back_equal(tmp_path, name):
    config = load_config(CONFIGS / f"{name}.yaml")
    (tmp_path / "resolved.yaml").write_text(dump_config(config))
    assert load_config(tmp_path / "resolved.yaml") == config


@pytest.mark.parametrize(
    "text, error",
    [
        ("slime: {--lr: 1}", "x.yaml:2: slime.--lr: '--lr' must be a flag's name without the leading dashes"),
        ("slime:\n  lr: {a: 1}", "x.yaml:3: slime.lr: it is {'a': 1}, and must be true, false, a number, text"),
        ("slime: {num-layers=4: true}", "x.yaml:2: slime.num-layers=4: 'num-layers=4' must be a flag's"),
        ("slime: [lr]", "x.yaml:2: slime is ['lr']: it must be a valid dictionary"),
        ("slime: {rollout-batch-size: true}", "x.yaml:2: slime.rollout-batch-size is true: it must be a valid integer"),
        ("slime: {no-save-optim: 1}", "x.yaml:2: slime.no-save-optim is 1: it must be a valid boolean"),
        (
            "slime: {recompute-granularity: all}",
            "x.yaml:2: slime.recompute-granularity is 'all': it must be one of selective, full",
        ),
        ("slime: {eval-prompt-data: [aime24]}", "x.yaml:2: slime.eval-prompt-data: it takes a name and a file"),
        (
            "train:\n  tensor_paralel: 4",
            "x.yaml:3: unknown key 'train.tensor_paralel'; did you mean 'slime.tensor-model-parallel-size'?",
        ),
        ("seed: 0", "x.yaml:2: seed is 0: it must be greater than 0"),  # Megatron takes none
        ("cluster: {env: {A: [1]}}", "x.yaml:2: cluster.env.A is [1]: it must be text; put it in quotes"),
    ],
)
def test_a_fault_is_one_line_with_its_place(tmp_path, text, error):
    (found,) = errors(tmp_path, text)
    assert found.startswith(error)


def test_a_flag_of_a_file_below_can_be_changed_and_left_out(tmp_path):
    parent = CONFIGS / "models" / "qwen3-4b.yaml"
    config = load(tmp_path, f"extends: {parent}\nslime: {{qk-layernorm: false, lr: null}}", "slime.num-layers=4")
    assert (config.model.layers, config.model.hidden_size) == (4, 2560)
    assert config.slime["qk-layernorm"] is False and config.slime["lr"] is None and config.train.lr == 1e-6


def test_paths_are_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = load(tmp_path, "slime: {save: a, prompt-data: ~/p, eval-prompt-data: [s, b]}")
    assert config.checkpoint.folder == str(tmp_path / "a") and config.data.prompts == str(Path.home() / "p")
    assert config.eval.prompts == {"s": str(tmp_path / "b")}


def test_sizes_are_read_from_the_architecture():
    moe = load_config(CONFIGS / "models" / "qwen3-30b-a3b.yaml").model
    assert (moe.layers, moe.hidden_size, moe.attention_heads, moe.kv_heads, moe.head_dim) == (48, 2048, 32, 4, 128)
    assert (moe.is_moe, moe.experts, moe.experts_per_token, moe.expert_ffn_size) == (True, 128, 8, 768)
    assert moe.max_positions == 32768
    dense = load_config(CONFIGS / "models" / "qwen3-4b.yaml").model
    assert (dense.is_moe, dense.layers, dense.ffn_size, dense.kv_heads) == (False, 36, 9728, 8)


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
    assert (train.lr, config.slime["adam-beta1"], config.slime["adam-beta2"]) == (1e-6, 0.9, 0.98)
    assert (method.clip.eps_low, method.clip.eps_high, DPPO().delta, TIS().cap) == (0.2, 0.2, 1e-3, 2.0)
    assert (method.sat.alpha, method.sat.exponent, method.sat.scope) == (0.9, 2.0, "microbatch")
    assert (config.loss.kl_coef, config.loss.entropy_coef) == (1e-3, 0.0)
    assert (train.world_size, rollout.gpus, config.cluster.gpus_per_node) == (4, 4, 8)
    assert (train.tensor_parallel, train.pipeline_parallel, train.context_parallel) == (4, 1, 1)
    assert (train.expert_parallel, train.expert_tensor_parallel, train.max_tokens_per_gpu) == (4, 1, 32768)
    assert (rollout.memory_fraction, config.slime["attention-backend"]) == (0.85, "flash")
    assert (evaluation.every_n_iterations, evaluation.samples, list(evaluation.prompts)) == (
        5,
        16,
        ["aime24"],
    )
    model = config.model
    assert (model.layers, model.hidden_size, model.experts, model.experts_per_token) == (48, 2048, 128, 8)
    assert (model.expert_ffn_size, model.architecture["rotary-base"]) == (768, 1_000_000)
    assert (model.architecture["moe-router-score-function"], model.architecture["moe-aux-loss-coeff"]) == ("softmax", 0)
