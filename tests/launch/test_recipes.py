"""The recipes: settings without a fault or a warning, and a header that says what is true."""

import re

import pytest

from sat_slime.config import load_config
from sat_slime.config.method_section import build_method
from sat_slime.config.rules import slime_config_errors, slime_config_warnings
from sat_slime.config.starters import CONFIGS
from sat_slime.launch.memory import GIB, memory_findings, micro_batch_tokens, sizes, text_of, training_need

RECIPES = sorted(CONFIGS.glob("recipes/*.yaml"))
GPUS = {"1gpu": 2, "2gpus": 2, "8gpus": 8, "16gpus": 16}


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_is_sound_its_header_true_and_it_fits_the_gpus_that_it_names(path):
    """On hosts of 1 TiB."""
    config, text = load_config(path), path.read_text()
    assert slime_config_errors(config) == [] and list(slime_config_warnings(config)) == []
    method = build_method(config.method)
    assert method.sat and method.scope == "step", "SAT would do next to nothing"
    header = " ".join(line.lstrip("# ") for line in text.split("extends:")[0].splitlines())
    need = training_need(config)
    at = f"on a training GPU at {micro_batch_tokens(config):,} tokens"
    assert f"at least {sum(need.values()) / GIB:.0f} GiB {at}: {text_of(need)}" in header
    assert f"--local-dir {config.model.hf_checkpoint}" in header
    used = config.train.world_size + config.rollout.gpus
    assert used == GPUS[path.stem.rsplit("-", 1)[1]] and config.name == path.stem
    gpu = next((gib for words, gib in {"of 40 GiB or more": 39.4, "of 24 GB": 23.6}.items() if words in text), 79.1)
    there = {"gpu_memory": gpu, "host_memory": 1024}
    config = load_config(path, [f"cluster.{kind}_gib={size}" for kind, size in there.items()])
    assert {finding.mark for finding in memory_findings(config, sizes(config))} == {"OK"}
    if more := re.search(r"Adam in host memory: (\d+) GiB more on each GPU otherwise", text):
        on_gpu = load_config(path, ["slime.optimizer-cpu-offload=false"])
        optimizer = training_need(on_gpu)["optimizer"]
        assert round(optimizer / GIB) == int(more[1])
