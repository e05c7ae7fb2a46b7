from pathlib import Path

import pytest

from sat_slime.config import load_config, slime_config_errors, slime_config_warnings
from sat_slime.objective.method import PAPER_METHODS

CONFIGS = Path(__file__).parents[2] / "configs"
NO_EVAL = "eval.every_n_iterations=0"
DENSE = ["data.prompts=/p.jsonl", "data.reward=math", NO_EVAL]


def paper(*overrides, method="gspo"):
    return load_config(CONFIGS / "paper" / "qwen3-30b-a3b.yaml", overrides, {"method": method})


def dense(*overrides):
    return load_config(CONFIGS / "models" / "qwen3-4b.yaml", [*DENSE, *overrides])


@pytest.mark.parametrize("lag", [1, 8])
@pytest.mark.parametrize("method", [method.name for method in PAPER_METHODS])
def test_the_papers_runs_can_start(method, lag):
    assert slime_config_errors(paper(f"pipeline.lag={lag}", method=method)) == []


def test_a_dense_run_can_start():
    assert slime_config_errors(dense("train.tensor_parallel=2")) == []


@pytest.mark.parametrize(
    "overrides",
    [
        ["train.gpus_per_node=8", "rollout.gpus_per_node=8", "train.nodes=2", "rollout.nodes=4"],
        ["train.gpus_per_node=8", "rollout.gpus_per_node=8", "rollout.nodes=2", "rollout.gpus_per_engine=16"],
        ["rollout.gpus_per_engine=1"],
        ["rollout.gpus_per_engine=4"],
        ["train.expert_parallel=1", "train.expert_tensor_parallel=4"],
        ["train.tensor_parallel=8", "train.gpus_per_node=8"],  # 8 is a multiple of the four key-value heads
        ["train.pipeline_parallel=2", "train.tensor_parallel=2", "train.expert_parallel=2"],
        ["rollout.end_at_context=false", "rollout.max_response_tokens=30720", "eval.max_response_tokens=30720"],
        ["rollout.end_at_context=false", "rollout.context_tokens=34816"],
        ["pipeline.lag=0"],
        ["pipeline.mode=streaming", "pipeline.lag=1"],
        ["pipeline.canary=stop", "slime.update-weight-transport=nccl"],
        ["method=gspo-topp", "rollout.top_p=0.9"],
        ["method=dppo-kl"],
        ["method=icepop-weight", "method.icepop.high=2"],
        ["pipeline.optimizer_steps_per_rollout=4", "method.denominator=trainer"],
    ],
)
def test_other_layouts_that_can_start(overrides):
    assert slime_config_errors(paper(*overrides)) == []


@pytest.mark.parametrize(
    "overrides, named",
    [
        # the method
        (["method=sat-gspo", "method.denominator=trainer"], ["sat-gspo: with denominator trainer", "identically 1"]),
        (["method=gspo-tis", "method.denominator=rollout"], ["gspo-tis: with denominator rollout", "count it twice"]),
        (
            ["method=sat-gspo", "method.sat.scope=step", "pipeline.optimizer_steps_per_rollout=2"],
            ["method.sat.scope is step", "optimizer_steps_per_rollout 2", "optimizer_steps_per_rollout to 1"],
        ),
        (
            ["method.denominator=checkpoint", "pipeline.lag=0"],
            ["pipeline.lag is 0", "pipeline.lag to 1", "or method.denominator to trainer"],
        ),
        (["rollout.prompts_per_iteration=1000000000"], ["rollout.prompts_per_iteration x", "16,000,000,000 responses"]),
        (["pipeline.mode=streaming", "pipeline.lag=0"], ["pipeline.lag is 0", "pipeline.mode to batch"]),
        (
            ["pipeline.mode=streaming", "method.denominator=checkpoint"],
            ["pipeline.mode is streaming", "one copy", "set method.denominator to rollout"],
        ),
        (
            ["pipeline.mode=streaming", "pipeline.lag=6", "pipeline.max_staleness=4"],
            ["pipeline.max_staleness is 4", "raise it to 5"],
        ),
        (
            ["pipeline.mode=streaming", "slime.dynamic-sampling-filter-path=a.b"],
            ["slime.dynamic-sampling-filter-path cannot be with pipeline.mode streaming"],
        ),
        (
            ["pipeline.canary=warn", "slime.update-weight-transport=disk"],
            ["pipeline.canary is warn with slime.update-weight-transport", "set pipeline.canary to none"],
        ),
        (["pipeline.canary=stop", "slime.offload-train=true"], ["slime.offload-train: the trainer has no"]),
        (["method=trpo"], ["trpo: TRPO's constraint", "its step cannot be taken back", "choose base dppo"]),
        (["method=gspo-topp"], ["method.top_p_replay is true", "rollout.top_p is 1"]),
        (["rollout.top_p=0.9"], ["rollout.top_p is 0.9", "set method.top_p_replay to true"]),
        # what must be set
        (["model.hf_checkpoint=null"], ["model.hf_checkpoint is not set"]),
        (["model.megatron_checkpoint=null"], ["model.megatron_checkpoint is not set", "sat-slime prepare model"]),
        (["data.prompts=null"], ["data.prompts is not set"]),
        (["data.reward=null"], ["data.reward is not set", "math"]),
        # GPUs
        (
            ["train.gpus_per_node=6", "rollout.gpus_per_node=2", "train.expert_parallel=2"],
            [
                "train.nodes x train.gpus_per_node is 6 GPUs",
                "train.tensor_parallel 4",
                "the divisors of 6 are 1, 2, 3, 6",
            ],
        ),
        (["model.architecture.num-experts=126"], ["train.expert_parallel is 4", "126 experts"]),
        (["train.expert_parallel=8"], ["train.expert_parallel 8", "the 4 GPUs"]),
        (["train.expert_tensor_parallel=2"], ["expert_tensor_parallel 2", "is 8"]),
        (
            ["train.expert_parallel=1"],
            ["train.expert_tensor_parallel is 1", "drift", "set it to 4"],
        ),
        (["train.nodes=2"], ["train.nodes is 2 with 4 of 8", "set train.gpus_per_node to 8"]),
        (["train.gpus_per_node=16"], ["train.gpus_per_node is 16", "cluster.gpus_per_node 8"]),
        (["rollout.gpus_per_node=16"], ["rollout.gpus_per_node is 16", "cluster.gpus_per_node 8"]),
        (["rollout.gpus_per_engine=8"], ["rollout.gpus_per_engine is 8, more than the 4 GPUs", "1, 2, 4"]),
        (["rollout.gpus_per_node=3"], ["rollout.gpus_per_engine is 2", "3 GPUs", "divisors of 3 are 1, 3"]),
        (
            ["rollout.nodes=2", "rollout.gpus_per_node=8", "rollout.gpus_per_engine=8"],
            ["rollout.gpus_per_engine is 8", "the first 4 GPUs", "end on another"],
        ),
        (["pipeline.optimizer_steps_per_rollout=3"], ["is 4096 responses", "make it a multiple of 3"]),
        # lengths
        (
            ["rollout.end_at_context=false", "eval.max_response_tokens=null"],
            ["rollout.max_response_tokens 32768 + rollout.max_prompt_tokens 2048 = 34816", "context of 32768 tokens"],
        ),
        (
            ["rollout.end_at_context=false", "rollout.max_response_tokens=8192"],
            ["eval.max_response_tokens 32768", "(model.max_positions)"],
        ),
        (
            [
                "rollout.context_tokens=16384",
                "rollout.end_at_context=false",
                "rollout.max_response_tokens=16000",
                NO_EVAL,
            ],
            ["= 18048", "16384 tokens (rollout.context_tokens)"],
        ),
        (["rollout.max_prompt_tokens=null"], ["rollout.end_at_context is true", "rollout.max_prompt_tokens unset"]),
        (
            ["rollout.max_response_tokens=40000"],
            ["is 40000", "the context of 32768", "set it to 32768"],
        ),
        (["rollout.max_prompt_tokens=32768"], ["rollout.max_prompt_tokens 32768", "cut"]),
    ],
)
def test_each_fault_is_one_line_that_names_key_and_remedy(overrides, named):
    (error,) = slime_config_errors(paper(*overrides))
    assert "\n" not in error
    assert all(part in error for part in named), error


@pytest.mark.parametrize(
    "overrides, named",
    [
        (["method=gspo-r3"], ["method.r3 is true", "num-experts", "set method.r3 to false"]),
        (["train.expert_parallel=2"], ["train.expert_parallel is 2", "dense"]),
        (["train.tensor_parallel=3", "train.gpus_per_node=3"], ["train.tensor_parallel is 3", "32 attention heads"]),
        (
            ["train.pipeline_parallel=4", "model.architecture.num-layers=37"],
            ["train.pipeline_parallel is 4", "37 layers"],
        ),
        (
            ["model.architecture.num-query-groups=6", "train.tensor_parallel=4"],
            ["6 key-value heads", "divisors of 6 are 1, 2, 3, 6"],
        ),
        (["model.architecture.num-attention-heads=9", "rollout.gpus_per_engine=2"], ["gpus_per_engine is 2", "9 att"]),
        (["train.gpus_per_node=3", "rollout.prompts_per_iteration=2"], ["32 responses", "3 data-parallel ranks"]),
        (["eval.every_n_iterations=5"], ["eval.every_n_iterations is 5", "eval.prompts is empty"]),
        (["rollout.max_response_tokens=32768"], ["rollout.max_response_tokens 32768 and a prompt", "end_at_context"]),
    ],
)
def test_faults_of_a_dense_run(overrides, named):
    errors = slime_config_errors(dense(*overrides))
    assert any(all(part in error for part in named) for error in errors), errors


def test_a_model_without_an_architecture_says_so():
    config = load_config(CONFIGS / "slime" / "base.yaml")
    assert any(
        "model.architecture lacks num-layers, hidden-size, num-attention-heads" in error
        for error in slime_config_errors(config)
    )


def test_layers_may_be_cut_unevenly_on_purpose():
    overrides = ["train.pipeline_parallel=4", "model.architecture.num-layers=37"]
    overrides.append("slime.decoder-last-pipeline-num-layers=7")
    assert slime_config_errors(dense(*overrides)) == []


def test_a_run_without_oddities_has_no_warning():
    assert slime_config_warnings(paper(NO_EVAL, method="sat-grpo-r3")) == []


@pytest.mark.parametrize(
    "overrides, named",
    [
        (["method=sat-gspo"], ["method.sat.scope is microbatch", "holds 1 response(s)", "below about 10"]),
        (
            ["method=sat-gspo", "rollout.max_response_tokens=8192", "train.context_parallel=2", "train.nodes=1"],
            ["holds 6 response(s)"],
        ),
        (["train.max_tokens_per_gpu=16384"], ["train.max_tokens_per_gpu is 16384", "32768 tokens"]),
        (["rollout.context_tokens=34816", "train.max_tokens_per_gpu=34816"], ["context_tokens is 34816", "never seen"]),
        (
            ["rollout.end_at_context=false", "rollout.max_prompt_tokens=null", "rollout.max_response_tokens=30000"],
            ["rollout.max_prompt_tokens is not set", "more than 2768 tokens"],
        ),
        (["rollout.top_k=50"], ["rollout.top_k is 50"]),
        (["data.reward=deepscaler"], ["data.reward is deepscaler", "</think>"]),
        (["method.base=ppo"], ["method.base is ppo", "grpo"]),
        (["pipeline.iterations=8"], ["pipeline.iterations is 8", "pipeline.lag 8"]),
        (["eval.every_n_iterations=34"], ["eval.every_n_iterations is 34, no multiple of pipeline.lag 8"]),
        (["data.reward=math", "verifier.workers=4"], ["verifier.workers has no effect with data.reward math"]),
        (["checkpoint.every_n_iterations=20"], ["checkpoint.every_n_iterations is 20, no multiple of pipeline.lag 8"]),
        (["checkpoint.every_n_iterations=0"], ["checkpoint.every_n_iterations is 0"]),
        (["checkpoint.optimizer=false"], ["checkpoint.optimizer is false"]),
    ],
)
def test_each_warning(overrides, named):
    (warning,) = slime_config_warnings(paper(NO_EVAL, *overrides))
    assert "\n" not in warning
    assert all(part in warning for part in named), warning


def test_no_scope_warning_where_the_quantile_has_tokens_enough():
    few_long = paper(NO_EVAL, method="sat-gspo")
    for overrides in (
        ["method.sat.scope=step"],
        ["rollout.max_response_tokens=1000", "rollout.max_prompt_tokens=1000"],
    ):
        assert slime_config_warnings(paper(NO_EVAL, *overrides, method="sat-gspo")) == []
    assert len(slime_config_warnings(few_long)) == 1
