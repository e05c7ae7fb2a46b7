"""The recipes: settings without a fault or a warning, and a header that says what is true."""

import re

import pytest

from sat_slime.config import load_config
from sat_slime.config.method_reading import build_method
from sat_slime.config.slime_checks import slime_config_errors, slime_config_warnings
from sat_slime.config.starters import CONFIGS
from sat_slime.plugin.launch.gpu_memory import training_memory, training_memory_text
from sat_slime.plugin.launch.machine import GIB

RECIPES = sorted(CONFIGS.glob("recipes/*.yaml"))
GPUS = {"2gpus": 2, "8gpus": 8, "16gpus": 16}


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_is_sound_and_its_header_true(path):
    config = load_config(path)
    assert slime_config_errors(config) == [] and list(slime_config_warnings(config)) == []
    assert build_method(config.method).has("sat") and config.method.sat.scope == "step"
    header = " ".join(line.lstrip("# ") for line in path.read_text().split("extends:")[0].splitlines())
    assert training_memory_text(config) in header
    assert f"--local-dir {config.model.hf_checkpoint}" in header
    used = config.train.world_size + config.rollout.nodes * config.rollout.gpus_per_node
    assert used == GPUS[path.stem.rsplit("-", 1)[1]] and config.name == path.stem


def test_training_memory_by_hand():
    """Qwen3-30B-A3B of the paper: tensor and expert parallel 4 on four GPUs, so that nothing is divided by data."""
    config = load_config(CONFIGS / "paper/qwen3-30b-a3b.yaml", ["train.optimizer_offload=false"])
    parts = training_memory(config)
    parameters = config.model.parameters
    assert parts["weights"] == pytest.approx(2 * parameters / 4)
    assert parts["gradients"] == pytest.approx(4 * parameters / 4)
    assert parts["optimizer"] == pytest.approx(12 * parameters / 4)
    assert parts["activations"] == 2 * 48 * 32768 * 2048 / 4
    assert parts["logits"] == 10 * 32768 * 151936 / 4


def test_data_parallel_ranks_share_the_optimizer():
    config = load_config(CONFIGS / "recipes/qwen3-4b-8gpus.yaml")
    parts = training_memory(config)
    assert config.train.data_parallel == 2
    assert parts["optimizer"] == pytest.approx(12 * config.model.parameters / 4)
    assert re.match(r"at least \d+ GiB on a training GPU at 16,384 tokens: ", training_memory_text(config))
    assert sum(parts.values()) < 80 * GIB
