from pathlib import Path

import pytest

from sat_slime.config import load_config, slime_config_errors, slime_config_warnings
from sat_slime.objective.method import PAPER_METHODS

CONFIGS = Path(__file__).parents[2] / "configs"
NO_EVAL = "slime.eval-interval=0"
DENSE = ["slime.prompt-data=/p.jsonl", "slime.rm-type=math", "slime.custom-rm-path=false", NO_EVAL]


def paper(*overrides, method="gspo"):
    return load_config(CONFIGS / "paper" / "qwen3-30b-a3b.yaml", overrides, {"method": method})


def dense(*overrides):
    return load_config(CONFIGS / "models" / "qwen3-4b.yaml", [*DENSE, *overrides])


@pytest.mark.parametrize("lag", [1, 8])
@pytest.mark.parametrize("method", [method.name for method in PAPER_METHODS])
def test_the_papers_runs_can_start(method, lag):
    assert slime_config_errors(paper(f"pipeline.lag={lag}", method=method)) == []


def test_a_dense_run_can_start():
    assert slime_config_errors(dense("slime.tensor-model-parallel-size=2")) == []


@pytest.mark.parametrize(
    "overrides",
    [
        ["slime.actor-num-gpus-per-node=8", "slime.actor-num-nodes=2", "slime.rollout-num-gpus=32"],
        ["slime.actor-num-gpus-per-node=8", "slime.rollout-num-gpus=16", "slime.rollout-num-gpus-per-engine=16"],
        ["slime.rollout-num-gpus-per-engine=1"],
        ["slime.rollout-num-gpus-per-engine=4"],
        ["slime.expert-model-parallel-size=1", "slime.expert-tensor-parallel-size=4"],
        [
            "slime.tensor-model-parallel-size=8",
            "slime.actor-num-gpus-per-node=8",
        ],  # 8 is a multiple of the four key-value heads
        [
            "slime.pipeline-model-parallel-size=2",
            "slime.tensor-model-parallel-size=2",
            "slime.expert-model-parallel-size=2",
        ],
        [
            "slime.sglang-allow-auto-truncate=false",
            "slime.rollout-max-response-len=30720",
            "slime.eval-max-response-len=30720",
        ],
        ["slime.sglang-allow-auto-truncate=false", "slime.sglang-context-length=34816"],
        ["pipeline.lag=0"],
        ["pipeline.mode=streaming", "pipeline.lag=1"],
        ["pipeline.canary=stop", "slime.update-weight-transport=nccl"],
        ["method=gspo-topp", "slime.rollout-top-p=0.9"],
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
        (["slime.rollout-batch-size=1000000000"], ["slime.rollout-batch-size x", "16,000,000,000 responses"]),
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
        (["method=gspo-topp"], ["method.top_p_replay is true", "slime.rollout-top-p is 1"]),
        (["slime.rollout-top-p=0.9"], ["slime.rollout-top-p is 0.9", "set method.top_p_replay to true"]),
        # what must be set
        (["slime.hf-checkpoint=null"], ["slime.hf-checkpoint is not set"]),
        (["slime.ref-load=null"], ["slime.ref-load is not set", "sat-slime prepare model"]),
        (["slime.prompt-data=null"], ["slime.prompt-data is not set"]),
        (["slime.rm-type=null", "slime.custom-rm-path=false"], ["slime.rm-type is not set", "math"]),
        # GPUs
        (
            ["slime.actor-num-gpus-per-node=6", "slime.rollout-num-gpus=2", "slime.expert-model-parallel-size=2"],
            [
                "slime.actor-num-nodes x slime.actor-num-gpus-per-node is 6 GPUs",
                "slime.tensor-model-parallel-size 4",
                "the divisors of 6 are 1, 2, 3, 6",
            ],
        ),
        (["slime.num-experts=126"], ["slime.expert-model-parallel-size is 4", "126 experts"]),
        (["slime.expert-model-parallel-size=8"], ["slime.expert-model-parallel-size 8", "the 4 GPUs"]),
        (["slime.expert-tensor-parallel-size=2"], ["slime.expert-tensor-parallel-size 2", "is 8"]),
        (
            ["slime.expert-model-parallel-size=1"],
            ["slime.expert-tensor-parallel-size is 1", "drift", "set it to 4"],
        ),
        (
            ["slime.actor-num-nodes=2"],
            ["slime.actor-num-nodes is 2 with 4 of 8", "set slime.actor-num-gpus-per-node to 8"],
        ),
        (["slime.actor-num-gpus-per-node=16"], ["slime.actor-num-gpus-per-node is 16", "cluster.gpus_per_node 8"]),
        (
            ["slime.rollout-num-gpus-per-engine=8"],
            ["slime.rollout-num-gpus-per-engine is 8, more than the 4 GPUs", "1, 2, 4"],
        ),
        (["slime.rollout-num-gpus=3"], ["slime.rollout-num-gpus-per-engine is 2", "3 GPUs", "divisors of 3 are 1, 3"]),
        (
            ["slime.rollout-num-gpus=16", "slime.rollout-num-gpus-per-engine=8"],
            ["slime.rollout-num-gpus-per-engine is 8", "the first 4 GPUs", "end on another"],
        ),
        (["pipeline.optimizer_steps_per_rollout=3"], ["is 4096 responses", "make it a multiple of 3"]),
        # lengths
        (
            ["slime.sglang-allow-auto-truncate=false", "slime.eval-max-response-len=null"],
            [
                "slime.rollout-max-response-len 32768 + slime.rollout-max-prompt-len 2048 = 34816",
                "context of 32768 tokens",
            ],
        ),
        (
            ["slime.sglang-allow-auto-truncate=false", "slime.rollout-max-response-len=8192"],
            ["slime.eval-max-response-len 32768", "(max_positions)"],
        ),
        (
            [
                "slime.sglang-context-length=16384",
                "slime.sglang-allow-auto-truncate=false",
                "slime.rollout-max-response-len=16000",
                NO_EVAL,
            ],
            ["= 18048", "16384 tokens (slime.sglang-context-length)"],
        ),
        (
            ["slime.rollout-max-prompt-len=null"],
            ["slime.sglang-allow-auto-truncate is true", "slime.rollout-max-prompt-len unset"],
        ),
        (
            ["slime.rollout-max-response-len=40000"],
            ["is 40000", "the context of 32768", "set it to 32768"],
        ),
        (["slime.rollout-max-prompt-len=32768"], ["slime.rollout-max-prompt-len 32768", "cut"]),
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
        (["slime.expert-model-parallel-size=2"], ["slime.expert-model-parallel-size is 2", "dense"]),
        (
            ["slime.tensor-model-parallel-size=3", "slime.actor-num-gpus-per-node=3"],
            ["slime.tensor-model-parallel-size is 3", "32 attention heads"],
        ),
        (
            ["slime.pipeline-model-parallel-size=4", "slime.num-layers=37"],
            ["slime.pipeline-model-parallel-size is 4", "37 layers"],
        ),
        (
            ["slime.num-query-groups=6", "slime.tensor-model-parallel-size=4"],
            ["6 key-value heads", "divisors of 6 are 1, 2, 3, 6"],
        ),
        (["slime.num-attention-heads=9", "slime.rollout-num-gpus-per-engine=2"], ["gpus-per-engine is 2", "9 att"]),
        (["slime.actor-num-gpus-per-node=3", "slime.rollout-batch-size=2"], ["32 responses", "3 data-parallel ranks"]),
        (["slime.eval-interval=5"], ["slime.eval-interval is 5", "slime.eval-prompt-data is empty"]),
        (
            ["slime.rollout-max-response-len=32768"],
            ["slime.rollout-max-response-len 32768 and a prompt", "sglang-allow-auto-truncate"],
        ),
    ],
)
def test_faults_of_a_dense_run(overrides, named):
    errors = slime_config_errors(dense(*overrides))
    assert any(all(part in error for part in named) for error in errors), errors


def test_a_model_without_an_architecture_says_so():
    config = load_config(CONFIGS / "slime" / "base.yaml")
    assert any(
        "slime lacks num-layers, hidden-size, num-attention-heads" in error for error in slime_config_errors(config)
    )


def test_layers_may_be_cut_unevenly_on_purpose():
    overrides = ["slime.pipeline-model-parallel-size=4", "slime.num-layers=37"]
    overrides.append("slime.decoder-last-pipeline-num-layers=7")
    assert slime_config_errors(dense(*overrides)) == []


def test_a_run_without_oddities_has_no_warning():
    assert slime_config_warnings(paper(NO_EVAL, method="sat-grpo-r3")) == []


@pytest.mark.parametrize(
    "overrides, named",
    [
        (["method=sat-gspo"], ["method.sat.scope is microbatch", "holds 1 response(s)", "below about 10"]),
        (
            [
                "method=sat-gspo",
                "slime.rollout-max-response-len=8192",
                "slime.context-parallel-size=2",
                "slime.actor-num-nodes=1",
            ],
            ["holds 6 response(s)"],
        ),
        (["slime.max-tokens-per-gpu=16384"], ["slime.max-tokens-per-gpu is 16384", "32768 tokens"]),
        (
            ["slime.sglang-context-length=34816", "slime.max-tokens-per-gpu=34816"],
            ["sglang-context-length is 34816", "never seen"],
        ),
        (
            [
                "slime.sglang-allow-auto-truncate=false",
                "slime.rollout-max-prompt-len=null",
                "slime.rollout-max-response-len=30000",
            ],
            ["slime.rollout-max-prompt-len is not set", "more than 2768 tokens"],
        ),
        (["slime.rollout-top-k=50"], ["slime.rollout-top-k is 50"]),
        (["slime.rm-type=deepscaler", "slime.custom-rm-path=false"], ["slime.rm-type is deepscaler", "</think>"]),
        (["method.base=ppo"], ["method.base is ppo", "grpo"]),
        (["pipeline.iterations=8"], ["pipeline.iterations is 8", "pipeline.lag 8"]),
        (["slime.eval-interval=34"], ["slime.eval-interval is 34, no multiple of pipeline.lag 8"]),
        (
            ["slime.rm-type=math", "slime.custom-rm-path=false", "verifier.workers=4"],
            ["verifier.workers has no effect with slime.rm-type math"],
        ),
        (["slime.save-interval=20"], ["slime.save-interval is 20, no multiple of pipeline.lag 8"]),
        (["slime.save-interval=0"], ["slime.save-interval is 0"]),
        (["slime.no-save-optim=true"], ["slime.no-save-optim is true"]),
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
        ["slime.rollout-max-response-len=1000", "slime.rollout-max-prompt-len=1000"],
    ):
        assert slime_config_warnings(paper(NO_EVAL, *overrides, method="sat-gspo")) == []
    assert len(slime_config_warnings(few_long)) == 1
