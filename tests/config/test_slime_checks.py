"""What slime's parser takes and what fails or misleads later. Where a case has a name, it is the place in the source
where it would fail: of slime 624b824a8, of its Megatron-LM, or of SGLang 0.5.15.post1."""

from pathlib import Path

import pytest

from sat_slime.config import load_config, slime_config_errors, slime_config_warnings
from sat_slime.objective.method import PAPER_METHODS

CONFIGS = Path(__file__).parents[2] / "configs"
NO_EVAL = "slime.eval-interval=0"
STREAMING = ["pipeline.mode=streaming", "pipeline.lag=1"]
R3 = ["method.r3=true"]
DENSE = ["slime.prompt-data=/p.jsonl", "slime.rm-type=math", "slime.custom-rm-path=false", NO_EVAL]


def paper(*overrides, method="gspo"):
    named = any(override.startswith("method=") for override in overrides)
    return load_config(CONFIGS / "paper" / "qwen3-30b-a3b.yaml", overrides, {} if named else {"method": method})


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
                "the 6 GPUs of slime.actor-num-nodes x slime.actor-num-gpus-per-node",
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
            ["slime.rollout-num-gpus-per-engine is 8, which does not divide the 4 GPUs", "1, 2, 4"],
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


REFUSED = {
    # at the first batch: the replay is never popped
    "megatron/core/transformer/moe/moe_utils.py:655": (
        [*R3, "slime.moe-router-fusion=true"],
        ["slime.moe-router-fusion is true with method.r3 true", "no route is replayed"],
    ),
    # the first batch: rows of the prompt are zeros, since nothing in disaggregation/ carries them over
    "sglang/srt/state_capturer/base.py:167": (
        [*R3, "slime.prefill-num-servers=1"],
        ["slime.prefill-num-servers is 1 with method.r3 true", "no routes"],
    ),
    # the first batch: rows are kept by the slot of the cache, and a prefix is loaded back into others
    "sglang/srt/state_capturer/base.py:103": (
        [*R3, "slime.sglang-enable-hierarchical-cache=true"],
        ["slime.sglang-enable-hierarchical-cache", "lost its routes"],
    ),
    # the first batch: the layers of the other stage are zeros
    "sglang/srt/state_capturer/base.py:34": (
        [*R3, "slime.sglang-pp-size=2"],
        ["slime.sglang-pp-size is 2 with method.r3 true"],
    ),
    # RolloutManager's start: streaming_errors
    "sat_slime/plugin/versions.py:are_steps": (
        [*STREAMING, "slime.update-weight-transport=disk"],
        ["slime.update-weight-transport is disk with pipeline.mode streaming"],
    ),
    # in the numbers (slime after 2391)
    "slime newest, --flush-cache-interval": (
        [*STREAMING, "slime.flush-cache-interval=2"],
        ["slime.flush-cache-interval is 2 with pipeline.mode streaming"],
    ),
    # never: the stream draws one prompt at a time
    "sat_slime/plugin/streaming.py:_draw": (
        [*STREAMING, "slime.over-sampling-batch-size=512"],
        ["slime.over-sampling-batch-size is 512 with pipeline.mode streaming", "does nothing"],
    ),
    # the job's start, after it was sent
    "sat_slime/plugin/driver.py:NOT_HERE": (
        ["slime.release-train=true"],
        ["slime.release-train is true", "end the job"],
    ),
    # in the numbers: a part of the response was generated by weights that are gone
    "slime/rollout/sglang_rollout.py:359": (
        ["method.denominator=checkpoint", "slime.partial-rollout=true"],
        ["slime.partial-rollout is true with denominator checkpoint"],
    ),
    # never: --eval-config overrides --eval-prompt-data
    "slime/utils/arguments.py:1661": (
        ["slime.eval-config=/e.yaml"],
        ["slime.eval-config is /e.yaml with slime.eval-prompt-data"],
    ),
    # at the second checkpoint: n - 1 is no multiple of what n is
    "megatron/training/checkpointing.py:752": (
        ["slime.save-retain-interval=80"],
        ["slime.save-retain-interval is 80", "pipeline.keep_checkpoints"],
    ),
    # at the first resume: the checkpoint's number is not asked for
    "slime/ray/placement_group.py:217": (
        ["slime.start-rollout-id=5"],
        ["slime.start-rollout-id is 5", "--resume-from"],
    ),
    "slime/backends/megatron_utils/model.py:116": (
        ["slime.ckpt-step=7"],
        ["slime.ckpt-step is 7", "--resume-from"],
    ),
    "megatron/training/checkpointing.py:1731": (
        ["slime.finetune=true"],
        ["slime.finetune is true", "count iterations from 0"],
    ),
    "megatron/training/checkpointing.py:1785": (
        ["slime.no-load-optim=true"],
        ["slime.no-load-optim is true", "new optimizer"],
    ),
    # parse time, where slime is
    "slime/backends/sglang_utils/arguments.py:175": (
        ["slime.sglang-dp-size=2"],
        ["slime.sglang-dp-size is 2", "data-parallel attention"],
    ),
    # never: max_new_tokens is cut
    "sglang/srt/managers/scheduler.py:1913": (
        ["slime.sglang-max-total-tokens=8192"],
        ["slime.sglang-max-total-tokens is 8192", "cut"],
    ),
    # the first request: every one is refused, and asked again for a minute
    "sglang/srt/sampling/sampling_params.py:186": (
        ["slime.rollout-top-k=0"],
        ["slime.rollout-top-k is 0", "set it to -1"],
    ),
    "sampling_params.py:186, evaluations": (["slime.eval-top-k=-2"], ["slime.eval-top-k is -2", "set it to -1"]),
    # never: the token is not sampled
    "sglang/srt/managers/schedule_batch.py:1315": (
        ["slime.rollout-stop-token-ids=[151643, 999999]"],
        ["slime.rollout-stop-token-ids has 999999", "151936", "set it to [151643]"],
    ),
    # the first reward: POST to None, ten times
    "slime/rollout/rm_hub/__init__.py:41": (
        ["slime.rm-type=remote_rm", "slime.custom-rm-path=false"],
        ["slime.rm-type is remote_rm", "slime.rm-url"],
    ),
    # the end of the first batch: a mapping is no number
    "slime/rollout/rm_hub/math_dapo_utils.py:compute_score": (
        ["slime.rm-type=dapo", "slime.custom-rm-path=false"],
        ["slime.rm-type is dapo", "slime.reward-key to score"],
    ),
    # the first save: the tracker of the model that the run begins with is written over
    "megatron/training/checkpointing.py:726": (
        ["slime.save=/m", "slime.ref-load=/m"],
        ["slime.save is /m, which slime.ref-load is too", "set it to null"],
    ),
    # never: --load is not sent, or slime trains no iteration
    "slime/utils/arguments.py:load": (
        ["pipeline.from_iteration=300"],
        ["pipeline.from_iteration is 300", "slime.save is not set"],
    ),
    "slime/utils/arguments.py:num_rollout": (
        ["pipeline.from_iteration=544", "slime.save=/m"],
        ["pipeline.from_iteration is 544, and pipeline.iterations 544", "more than 544"],
    ),
}

WARNED = {
    # the first batch: samples without routes are left out, and above 1 % the run ends
    "sat_slime/plugin/rollout_hooks.py:on_sample": (
        [*R3, "slime.custom-generate-function-path=a.b"],
        ["slime.custom-generate-function-path is a.b with method.r3 true", "routes"],
    ),
    # from the first group on: a group without a version is dropped, and another begun
    "sat_slime/plugin/generation.py:_oldest": (
        [*STREAMING, "pipeline.iterations=8", "slime.custom-generate-function-path=a.b"],
        ["slime.custom-generate-function-path is a.b with pipeline.mode streaming", "version"],
    ),
    "megatron/core/transformer/moe/router.py:592": (
        ["slime.moe-expert-capacity-factor=1.0"],
        ["slime.moe-expert-capacity-factor is 1.0", "drops tokens"],
    ),
    "sglang/srt/server_args.py, kv_cache_dtype": (
        ["slime.sglang-kv-cache-dtype=fp8_e4m3"],
        ["slime.sglang-kv-cache-dtype is fp8_e4m3", "not the trainer's"],
    ),
    "slime/backends/megatron_utils/actor.py:save_hf": (
        ["slime.save-hf=/hf"],
        ["slime.save-hf is /hf", "set it to /hf/{rollout_id}"],
    ),
    "slime/observability/rollout_data_utils.py:save_debug_rollout_data": (
        ["slime.save-debug-rollout-data=/d/x.pt"],
        ["slime.save-debug-rollout-data is /d/x.pt", "set it to /d/x/{rollout_id}.pt"],
    ),
    "sglang/srt/server_args.py:3676": (
        ["slime.sglang-mem-fraction-static=0.99"],
        ["slime.sglang-mem-fraction-static is 0.99", "10 GiB", "set it to 0.85"],
    ),
    "sglang/srt/model_executor/model_runner_kv_cache_mixin.py:1230": (
        ["slime.sglang-server-concurrency=100000"],
        ["slime.sglang-server-concurrency is 100000", "at most 4096"],
    ),
    # never: without a template nothing takes them
    "slime/utils/data.py:apply_chat_template": (
        ["slime.apply-chat-template=false", 'slime.apply-chat-template-kwargs="{\\"enable_thinking\\": false}"'],
        ["slime.apply-chat-template-kwargs has no effect", "leave it out, or set slime.apply-chat-template to true"],
    ),
    "slime/rollout/rm_hub/__init__.py:random": (
        ["slime.rm-type=random", "slime.custom-rm-path=false"],
        ["slime.rm-type is random"],
    ),
}
EVALUATED = {
    "sglang/srt/sampling/sampling_params.py:169": (
        ["slime.eval-temperature=0"],
        ["slime.eval-temperature is 0 with 16 samples", "the same", "set slime.eval-temperature to null"],
    ),
    "the same file twice": (
        ["slime.prompt-data=/x/a.jsonl", "slime.eval-prompt-data=[a, /x/a.jsonl]"],
        ["slime.eval-prompt-data has /x/a.jsonl", "trained on"],
    ),
}


@pytest.mark.parametrize("overrides, named", REFUSED.values(), ids=REFUSED)
def test_what_fails_later_is_refused(overrides, named):
    (error,) = slime_config_errors(paper(*overrides))
    assert "\n" not in error and all(part in error for part in named), error


@pytest.mark.parametrize("overrides, named", WARNED.values(), ids=WARNED)
def test_what_misleads_later_is_told(overrides, named):
    assert slime_config_errors(paper(*overrides)) == []
    warnings = slime_config_warnings(paper(NO_EVAL, *overrides))
    (warning,) = [line for line in warnings if not line.startswith(("checkpoint.every", "pipeline.iterations"))]
    assert "\n" not in warning and all(part in warning for part in named), warning


@pytest.mark.parametrize("overrides, named", EVALUATED.values(), ids=EVALUATED)
def test_what_misleads_in_an_evaluation_is_told(overrides, named):
    (warning,) = slime_config_warnings(paper("slime.eval-interval=8", *overrides))
    assert all(part in warning for part in named), warning


@pytest.mark.parametrize(
    "overrides",
    [
        ["slime.moe-router-fusion=true"],  # without R3
        ["slime.prefill-num-servers=1"],
        ["slime.flush-cache-interval=4"],  # in mode batch
        [*STREAMING, "slime.flush-cache-interval=1"],
        [*R3, "slime.sglang-pp-size=1"],
        ["slime.rm-type=dapo", "slime.custom-rm-path=false", "slime.reward-key=score"],
        ["slime.rm-type=remote_rm", "slime.custom-rm-path=false", "slime.rm-url=http://10.0.0.1:80"],
        ["slime.partial-rollout=true"],
        ["slime.sglang-dp-size=2", "slime.sglang-enable-dp-attention=true"],
        ["slime.sglang-max-total-tokens=40000"],
        ["slime.eval-config=/e.yaml", "slime.eval-prompt-data=null"],
        ["slime.eval-prompt-data=null", NO_EVAL],
        ["slime.save=/m/checkpoints", "slime.ref-load=/m"],
        ["slime.rollout-top-k=-1", "slime.eval-top-k=-1"],
        ["slime.rollout-stop-token-ids=[151645]"],
    ],
)
def test_the_same_without_what_makes_it_fail_is_taken(overrides):
    assert slime_config_errors(paper(*overrides)) == []


@pytest.mark.parametrize("value", [0, 0.0, "", False])
def test_a_flag_of_0_or_of_nothing_is_one_that_is_sent_and_false_is_not(value):
    lines = slime_config_errors(
        paper().with_flags({"finetune": value, "ckpt-step": value, "flush-cache-interval": value})
    )
    assert len(lines) == (0 if value is False else 2), lines
