"""The settings of a rehearsal are the run's, but for what a CPU cannot and widths and counts."""

from pathlib import Path

import pytest

from sat_slime.config import load_config
from sat_slime.launch.checks import settings_errors
from sat_slime.rehearsal.thin import thin_settings

CONFIGS = Path(__file__).parents[2] / "configs"
PAPER = CONFIGS / "paper" / "qwen3-30b-a3b.yaml"
RECIPES = sorted((CONFIGS / "recipes").glob("*.yaml"))


def paper(*overrides, lag=8):
    return load_config(PAPER, overrides, {"method": "sat-gspo-r3", "pipeline.lag": lag})


def test_what_the_run_is_stays(tmp_path):
    run = paper()
    thin = thin_settings(run, tmp_path).config
    assert thin.method == run.method
    assert thin.pipeline.lag == 8
    assert thin.pipeline.iterations == 10
    for size in ("layers", "experts", "experts_per_token", "attention_heads", "kv_heads", "vocab_size"):
        assert getattr(thin.model, size) == getattr(run.model, size)
    parallel = ("tensor_parallel", "expert_parallel", "pipeline_parallel", "context_parallel", "world_size")
    assert all(getattr(thin.train, size) == getattr(run.train, size) for size in parallel)
    assert (thin.rollout.engines, thin.rollout.gpus_per_engine) == (2, 2)
    assert thin.data.reward == run.data.reward
    assert thin.rollout.stop_token_ids == run.rollout.stop_token_ids


def test_every_change_is_listed_with_both_values(tmp_path):
    run = paper()
    made = thin_settings(run, tmp_path)
    before, after = run.model_dump(), made.config.model_dump()

    def differing(a, b, at=""):
        if isinstance(a, dict) and isinstance(b, dict):
            for key in {*a, *b}:
                yield from differing(a.get(key), b.get(key), f"{at}.{key}" if at else key)
        elif a != b:
            yield at

    keys = {change.key for change in made.changes}
    unlisted = {key for key in differing(before, after) if not any(key == k or key.startswith(f"{k}.") for k in keys)}
    assert unlisted == set()


@pytest.mark.parametrize(
    ("overrides", "prompts"),
    [((), 4), (("slime.tensor-model-parallel-size=2",), 6), (("slime.tensor-model-parallel-size=1",), 12)],
)
def test_each_rank_has_enough_responses_for_sats_quantile(overrides, prompts, tmp_path):
    """0.9 of ten is the largest but one; without it no gate could open on a data-parallel rank."""
    thin = thin_settings(paper(*overrides), tmp_path).config
    assert thin.rollout.prompts_per_iteration == prompts
    assert thin.rollout.responses_per_iteration / thin.train.data_parallel > 1 / (1 - thin.method.sat.alpha)


def test_nothing_is_read_or_written_outside_its_folder(tmp_path):
    run = paper("slime.save=/root/mine", "slime.eval-config=/root/sets.yaml", "slime.eval-prompt-data=null")
    thin = thin_settings(run, tmp_path).config
    assert len(thin.eval.prompts) == 1 and "eval-config" not in thin.slime
    paths = (thin.model.hf_checkpoint, thin.model.megatron_checkpoint, thin.data.prompts)
    assert all(path.startswith(str(tmp_path)) for path in (*paths, *thin.eval.prompts.values()))
    assert thin.checkpoint.folder is None and thin.output_dir == str(Path.cwd() / "rehearsals")


@pytest.mark.parametrize("file", [PAPER, *RECIPES], ids=lambda file: file.stem)
def test_a_recipe_made_thin_is_a_run_that_slime_takes_here(file, tmp_path):
    thin = thin_settings(load_config(file), tmp_path).config
    assert settings_errors(thin) == []


def test_flags_of_cuda_are_left_out_and_others_stay(tmp_path):
    unset = [f"slime.{flag}=null" for flag in ("max-tokens-per-gpu", "kv-channels", "norm-epsilon", "rotary-base")]
    run = paper("slime.sglang-dp-size=2", "slime.sglang-attention-backend=fa3", "slime.lr-warmup-iters=1", *unset)
    made = thin_settings(run, tmp_path)
    flags = made.config.slime
    assert "sglang-dp-size" not in flags and flags["max-tokens-per-gpu"] is flags["kv-channels"] is None
    sizes = made.config.model
    assert (sizes.hidden_size, sizes.head_dim, sizes.norm_eps, sizes.rope_base) == (128, 4, 1e-5, 10000)
    assert flags["sglang-attention-backend"] == "torch_native" and flags["lr-warmup-iters"] == 1
    assert {"slime.sglang-dp-size", "slime.sglang-attention-backend"} <= {c.key for c in made.changes}
