"""The paper's runs and others that slime takes, from their configuration files."""

import json
from pathlib import Path

from sat_slime.config import load_config
from sat_slime.objective.method import PAPER_METHODS

ROOT = Path(__file__).parents[2]
PAPER = ROOT / "configs" / "paper" / "qwen3-30b-a3b.yaml"
METHODS = [method.name for method in PAPER_METHODS]
GRID = [(method, lag) for method in METHODS for lag in (1, 8)]
assert len(GRID) == 26
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
    "qwen3-0.6b": {
        "model_type": "qwen3",
        "hidden_size": 1024,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "num_hidden_layers": 28,
        "intermediate_size": 3072,
        "tie_word_embeddings": True,
    },
    "qwen2.5-7b": {
        "model_type": "qwen2",
        "hidden_size": 3584,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "num_hidden_layers": 28,
        "intermediate_size": 18944,
        "tie_word_embeddings": False,
        "vocab_size": 152064,
    },
}
"""Values that slime compares with the architecture's flags; the rest of a checkpoint is not read."""
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
    config = {"rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "head_dim": 128, "vocab_size": 151936}
    (folder / "config.json").write_text(json.dumps(config | CONFIG_JSON[model]))
    return [f"slime.hf-checkpoint={folder}", f"slime.ref-load={folder}"]


def paper(tmp_path, *overrides, method="gspo", lag=8):
    settings = {"method": method, "pipeline.lag": lag, "output_dir": str(tmp_path)}
    return load_config(PAPER, overrides, settings)
