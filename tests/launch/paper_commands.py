"""The paper's runs and others that slime takes, from their configuration files."""

import json
from pathlib import Path

from sat_slime.config import load_config
from sat_slime.launch.hf_checkpoint import CONFIG_KEYS
from sat_slime.objective.method import PAPER_METHODS

ROOT = Path(__file__).parents[2]
PAPER = ROOT / "configs" / "paper" / "qwen3-30b-a3b.yaml"
METHODS = [method.name for method in PAPER_METHODS]
GRID = [(method, lag) for method in METHODS for lag in (1, 8)]
assert len(GRID) == 26
MODELS = {"qwen3-30b-a3b": "qwen3_moe", "qwen3-4b": "qwen3", "qwen3-0.6b": "qwen3", "qwen2.5-7b": "qwen2"}
"""The files of models, each with the model_type of its checkpoint."""
EVERY_KIND = {
    "lag 0": ["pipeline.lag=0"],
    "streaming": ["pipeline.mode=streaming", "pipeline.lag=1"],
    "nodes": ["slime.actor-num-nodes=2", "slime.actor-num-gpus-per-node=8", "slime.rollout-num-gpus=16"],
    "parallel": ["slime.actor-num-gpus-per-node=8", "slime.context-parallel-size=2", "slime.max-tokens-per-gpu=16384"],
    "scope step": ["method.sat=true", "method.sat.scope=step"],
    "checkpoint": ["method.denominator=checkpoint", "pipeline.lag=1"],
    "steps": ["pipeline.optimizer_steps_per_rollout=4", "method.denominator=trainer"],
    "dual clip": ["method.clip.dual=3.0", "loss.reduction=token_mean"],
    "off": ["loss.kl_coef=0", "slime.eval-interval=0", "slime.save-interval=0", "slime.recompute-granularity=false"],
    "wandb": ["slime.use-wandb=true", "slime.use-wandb=true", "slime.wandb-project=p", "slime.use-tensorboard=false"],
    "extra": ["slime.rollout-stop=[a, b]", "slime.apply-chat-template-kwargs='{\"enable_thinking\": false}'"],
    "context": [
        "slime.sglang-context-length=34816",
        "slime.rollout-stop-token-ids=[151643, 151645]",
        "slime.custom-rm-path=my.rewards.f",
    ],
    "unknown": ["slime.use-tiss=true", "slime.sglang-mem-fraction=0.5"],
}
RECIPES = sorted((ROOT / "configs" / "recipes").glob("*.yaml"))


def checkpoint(folder, model):
    """Makes a folder that slime takes for a converted checkpoint and for the Hugging Face one."""
    folder.mkdir()
    (folder / "latest_checkpointed_iteration.txt").write_text("release")
    flags = load_config(ROOT / "configs" / "models" / f"{model}.yaml").model.architecture
    config = {names[0]: flags[flag] for flag, names in CONFIG_KEYS.items() if flags.get(flag)}
    tied = not flags.get("untie-embeddings-and-output-weights")
    config |= {"model_type": MODELS[model], "rms_norm_eps": 1e-6, "tie_word_embeddings": tied}
    (folder / "config.json").write_text(json.dumps(config))
    return [f"slime.hf-checkpoint={folder}", f"slime.ref-load={folder}"]


def paper(tmp_path, *overrides, method="gspo", lag=8):
    settings = {"method": method, "pipeline.lag": lag, "output_dir": str(tmp_path)}
    return load_config(PAPER, overrides, settings)
