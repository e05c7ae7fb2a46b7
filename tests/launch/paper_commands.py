"""The paper's runs and others that slime takes, from their configuration files."""

import json

from sat_slime.config import load_config
from sat_slime.config.starters import CONFIGS
from sat_slime.launch.hf_checkpoint import CONFIG_KEYS
from sat_slime.objective.method import PAPER_METHODS

ROOT = CONFIGS.parents[1]
PAPER = CONFIGS / "paper" / "qwen3-30b-a3b.yaml"
RECIPES = sorted((CONFIGS / "recipes").glob("*.yaml"))
GRID = [(method.name, lag) for method in PAPER_METHODS for lag in (1, 8)]
assert len(GRID) == 26
EVERY_KIND = {
    "lag 0": ["pipeline.lag=0"],
    "streaming": ["pipeline.mode=streaming", "pipeline.lag=1"],
    "nodes": ["slime.actor-num-nodes=2", "slime.actor-num-gpus-per-node=8", "slime.rollout-num-gpus=16"],
    "parallel": ["slime.actor-num-gpus-per-node=8", "slime.context-parallel-size=2", "slime.max-tokens-per-gpu=16384"],
    "scope step": ["method.sat=true", "method.sat.scope=step"],
    "checkpoint": ["method.denominator=checkpoint", "pipeline.lag=1"],
    "steps": ["pipeline.optimizer_steps_per_rollout=4", "method.denominator=trainer"],
    "small numbers": ["method.dppo.delta=1e-6", "method.clip.eps_high=3e-4"],
    "dual clip": ["method.clip.dual=3.0", "loss.reduction=token_mean"],
    "nothing beside": ["loss.kl_coef=0", "slime.eval-interval=0", "slime.save-interval=0"],
    "no recompute": ["slime.recompute-granularity=false", "slime.optimizer-cpu-offload=false"],
    "shared checkpoints": ["slime.save=/shared/x", "slime.no-save-optim=true"],
    "evaluation": ["slime.eval-prompt-data=[math, /m.jsonl]", "slime.eval-temperature=0"],
    "slime's reward": ["slime.rm-type=math", "slime.custom-rm-path=false"],
    "wandb": ["slime.use-wandb=true", "slime.wandb-project=p", "slime.use-tensorboard=false"],
    "extra": ["slime.rollout-stop=[a, b]", "slime.apply-chat-template-kwargs='{\"enable_thinking\": false}'"],
    "context": [
        "slime.sglang-context-length=34816",
        "slime.rollout-stop-token-ids=[151643, 151645]",
        "slime.custom-rm-path=my.rewards.f",
    ],
    "others of slime": [
        "slime.sglang-cuda-graph-bs=[1, 2, 4]",
        "slime.log-passrate=true",
        "slime.partial-rollout=false",
        "slime.rollout-sample-hook-path=my.hook",  # this flag may be given several times
    ],
}
"""Changes of the paper's run, each with what it is for."""


def checkpoint(folder, model):
    """Makes a folder that slime takes for a converted checkpoint and for the Hugging Face one of a file of models."""
    folder.mkdir()
    (folder / "latest_checkpointed_iteration.txt").write_text("release")
    described = load_config(CONFIGS / "models" / f"{model}.yaml").model
    flags = described.flags
    config = {names[0]: flags[flag] for flag, names in CONFIG_KEYS.items() if flag in flags}
    config |= {"model_type": described.resolved_family.name, "rms_norm_eps": 1e-6}
    config["tie_word_embeddings"] = described.tied_embeddings
    (folder / "config.json").write_text(json.dumps(config))
    return [f"slime.hf-checkpoint={folder}", f"slime.ref-load={folder}"]


def paper(tmp_path, *overrides, method="gspo", lag=8):
    settings = {"method": method, "pipeline.lag": lag, "output_dir": str(tmp_path)}
    return load_config(PAPER, overrides, settings)
