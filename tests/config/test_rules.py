"""What slime's parser takes and what fails or misleads later: a line each, the settings, then words that its finding
must have. A line with # names the place in the source where the next one would fail: of slime 624b824a8, of its
Megatron-LM, or of SGLang 0.5.15.post1. A key without a dot is a flag of slime."""

import pytest

from sat_slime.config import config_errors, config_warnings, load_config, slime_config_errors, slime_config_warnings
from sat_slime.config.loader import vary
from sat_slime.config.starters import CONFIGS

NO_EVAL = "eval-interval=0"
DENSE = ["prompt-data=/p.jsonl", "rm-type=math", "custom-rm-path=false", NO_EVAL]

REFUSED = """
# megatron/core/transformer/moe/moe_utils.py:655
method.r3=true moe-router-fusion=true | slime.moe-router-fusion is true with method.r3 true | no route is replayed
# sglang/srt/state_capturer/base.py:167
method.r3=true prefill-num-servers=1 | slime.prefill-num-servers is 1 with method.r3 true | no routes
# sglang/srt/state_capturer/base.py:103
method.r3=true sglang-enable-hierarchical-cache=true | slime.sglang-enable-hierarchical-cache | lost its routes
# sglang/srt/state_capturer/base.py:34
method.r3=true sglang-pp-size=2 | slime.sglang-pp-size is 2 with method.r3 true
# sat_slime/plugin/driver.py:take_over
update-weight-transport=disk | slime.update-weight-transport is disk | lags count optimizer steps: leave it out
pipeline.mode=streaming pipeline.lag=1 flush-cache-interval=2 \
    | slime.flush-cache-interval is 2 with pipeline.mode streaming
# sat_slime/plugin/streaming.py:_draw
pipeline.mode=streaming pipeline.lag=1 over-sampling-batch-size=512 \
    | slime.over-sampling-batch-size is 512 with pipeline.mode streaming | does nothing
# slime/rollout/sglang_rollout.py:359
method.denominator=checkpoint partial-rollout=true | slime.partial-rollout is true with denominator checkpoint
# slime/utils/arguments.py:1661
eval-config=/e.yaml | slime.eval-config is /e.yaml with slime.eval-prompt-data
# megatron/training/checkpointing.py:752
save-retain-interval=80 | slime.save-retain-interval is 80 | pipeline.keep_checkpoints
# sat_slime/launch/command.py:environment
cluster.env.PYTHONPATH=/x | cluster.env.PYTHONPATH is /x | name the folders in cluster.python_path
# slime/ray/placement_group.py:217
start-rollout-id=5 | slime.start-rollout-id is 5 | --resume-from
# slime/backends/megatron_utils/model.py:116
ckpt-step=7 | slime.ckpt-step is 7 | --resume-from
# megatron/training/checkpointing.py:1731
finetune=true | slime.finetune is true | count iterations from 0
# megatron/training/checkpointing.py:1785
no-load-optim=true | slime.no-load-optim is true | new optimizer
# sglang/srt/managers/scheduler.py:1913
sglang-max-total-tokens=8192 | slime.sglang-max-total-tokens is 8192 | cut
# sglang/srt/sampling/sampling_params.py:186
rollout-top-k=0 | slime.rollout-top-k is 0 | set it to -1
eval-top-k=-2 | slime.eval-top-k is -2 | set it to -1
num-layers=null hidden-size=null num-attention-heads=null | slime lacks num-layers, hidden-size, num-attention-heads:
# sglang/srt/managers/schedule_batch.py:1315
rollout-stop-token-ids=[151643,999999] | slime.rollout-stop-token-ids has 999999 | 151936 | set it to [151643]
# slime/rollout/rm_hub/math_dapo_utils.py:compute_score
rm-type=dapo custom-rm-path=false | slime.rm-type is dapo | slime.reward-key to score
reward-key=score custom-rm-path=sat_slime.plugin.reward.default | slime.reward-key is score | set it to null
eval-reward-key=score custom-rm-path=sat_slime.plugin.reward.default | slime.eval-reward-key is score | set it to null
group-rm=true | slime.group-rm is true with slime.eval-prompt-data
eval-prompt-data=null | slime.eval-interval is 5 with no slime.eval-prompt-data | set it to 0
rollout-max-context-len=9000 | slime.rollout-max-context-len is 9000 | slime.sglang-context-length
# megatron/training/checkpointing.py:726
save=/m ref-load=/m | slime.save is /m, which slime.ref-load is too | set it to null
method=sat-gspo method.denominator=trainer | sat-gspo: with denominator trainer | identically 1
method=gspo-tis method.denominator=rollout | gspo-tis: with denominator rollout | count it twice
method.denominator=checkpoint pipeline.lag=0 | pipeline.lag is 0 | lag to 1, or set method.denominator to rollout
method=sat-gspo-tis pipeline.lag=0 | pipeline.lag is 0 | pipeline.lag to 1, or leave TIS out
pipeline.mode=streaming pipeline.lag=0 | pipeline.lag is 0 | pipeline.mode to batch
pipeline.mode=streaming method.denominator=checkpoint | pipeline.mode is streaming | one copy \
    | set method.denominator to rollout
method=seq-tis method.denominator=checkpoint pipeline.mode=streaming | one copy | set method.denominator to trainer
method=sat-gspo-seq-tis pipeline.mode=streaming | one copy | leave Seq-TIS out, or set pipeline.mode to batch
pipeline.mode=streaming pipeline.lag=6 pipeline.max_staleness=4 | pipeline.max_staleness is 4 | raise it to 5
pipeline.mode=streaming dynamic-sampling-filter-path=a.b \
    | slime.dynamic-sampling-filter-path is a.b with pipeline.mode streaming
rollout-top-p=0.9 | slime.rollout-top-p is 0.9 | set method.top_p_replay to true
hf-checkpoint=null | slime.hf-checkpoint is not set
ref-load=null | slime.ref-load is not set | tools/convert_hf_to_torch_dist.py
prompt-data=null | slime.prompt-data is not set
rm-type=null custom-rm-path=false | slime.rm-type is not set | math
expert-model-parallel-size=1 | slime.expert-tensor-parallel-size is 1 | drift | set it to 4
# megatron/core/models/gpt/gpt_layer_specs.py:593
moe-layer-freq='[1]*9999999999999' | is [1]*9999999999999, of 10001 layers, and slime.num-layers 48 | for each layer
actor-num-nodes=2 | slime.actor-num-nodes is 2 with 4 of 8 | set slime.actor-num-gpus-per-node to 8
actor-num-gpus-per-node=16 | slime.actor-num-gpus-per-node is 16 | cluster.gpus_per_node 8
rollout-num-gpus-per-engine=8 | slime.rollout-num-gpus-per-engine is 8, which does not divide slime.rollout-num-gpus 4
rollout-num-gpus=16 rollout-num-gpus-per-engine=8 | slime.rollout-num-gpus-per-engine is 8 | the first 4 GPUs \
    | end on another
pipeline.optimizer_steps_per_rollout=3 | is 4096 responses | make it a multiple of 3
sglang-allow-auto-truncate=false eval-max-response-len=null \
    | slime.rollout-max-response-len is 32768 beside slime.rollout-max-prompt-len 2048 | context of 32768 tokens \
    | set it to 30720, or slime.sglang-allow-auto-truncate to true
sglang-allow-auto-truncate=false rollout-max-response-len=8192 eval-max-prompt-len=512 \
    | slime.eval-max-response-len is 32768 beside slime.eval-max-prompt-len 512 | (max_positions) | set it to 32256
sglang-context-length=16384 sglang-allow-auto-truncate=false rollout-max-response-len=16000 eval-interval=0 \
    | 16000 beside slime.rollout-max-prompt-len 2048 | 16384 tokens (slime.sglang-context-length)
rollout-max-prompt-len=null | slime.sglang-allow-auto-truncate is true | slime.rollout-max-prompt-len unset
rollout-max-response-len=40000 | is 40000 | the context of 32768 | set it to 32768
rollout-max-prompt-len=32768 | slime.rollout-max-prompt-len 32768 | cut
""".strip().splitlines()

REFUSED_DENSE = """
tensor-model-parallel-size=3 actor-num-gpus-per-node=3 rollout-batch-size=3 | parallel-size, 3, | 32 attention heads
num-query-groups=6 tensor-model-parallel-size=4 | slime.tensor-model-parallel-size is 4 | 6 key-value heads
num-attention-heads=9 rollout-num-gpus-per-engine=2 | gpus-per-engine / sglang-pp-size / -dp-size, 2, \
    | 9 attention heads | divisor of 9
actor-num-gpus-per-node=3 rollout-batch-size=2 | 32 responses | data-parallel ranks 3
method=sat-gspo-r3 | method is sat-gspo-r3, and the model has no experts | leave r3 out, as sat-gspo
rollout-max-response-len=32768 | len is 32768 beside slime.rollout-max-prompt-len unset | sglang-allow-auto-truncate
""".strip().splitlines()

WARNED = """
# sat_slime/plugin/rollout_hooks.py:on_sample
method.r3=true custom-generate-function-path=a.b | slime.custom-generate-function-path is a.b with method.r3 true \
    | routes
# sat_slime/plugin/generation.py:_oldest
pipeline.mode=streaming pipeline.lag=1 pipeline.iterations=8 custom-generate-function-path=a.b \
    | slime.custom-generate-function-path is a.b with pipeline.mode streaming | version
# slime/ray/rollout.py:_convert_samples_to_train_data
custom-convert-samples-to-train-data-path=a.b | slime.custom-convert-samples-to-train-data-path is a.b | round_number
# megatron/core/transformer/moe/router.py:592
moe-expert-capacity-factor=1.0 | slime.moe-expert-capacity-factor is 1.0 | drops tokens
sglang-kv-cache-dtype=fp8_e4m3 | slime.sglang-kv-cache-dtype is fp8_e4m3 | not the trainer's
# slime/backends/megatron_utils/loss.py: without use-rollout-logprobs the old log-probs are the trainer's own
method=grpo method.denominator=trainer pipeline.lag=8 \
    | method.denominator is trainer | pipeline.lag is 8 | set method.denominator to rollout
# slime/backends/megatron_utils/actor.py:save_hf
save-hf=/hf | slime.save-hf is /hf | set it to /hf/{rollout_id}
save-hf=. | slime.save-hf is . | set it to {rollout_id}
# slime/observability/rollout_data_utils.py:save_debug_rollout_data
save-debug-rollout-data=/d/x.pt | slime.save-debug-rollout-data is /d/x.pt | set it to /d/x/{rollout_id}.pt
save-debug-train-data=/d/{rollout_id}.pt method.denominator=checkpoint | with denominator checkpoint: replay would take
method=sat-gspo | method.sat.scope is microbatch | holds 1 response(s) | below about 10
method=sat-gspo rollout-max-response-len=8192 context-parallel-size=2 actor-num-nodes=1 | holds 6 response(s)
method=sat-gspo use-dynamic-batch-size=false max-tokens-per-gpu=999999 | slime.micro-batch-size 1 holds 1 response(s)
max-tokens-per-gpu=16384 | slime.max-tokens-per-gpu is 16384 | 32768 tokens
sglang-context-length=34816 max-tokens-per-gpu=34816 | sglang-context-length is 34816 | never seen
sglang-allow-auto-truncate=false rollout-max-prompt-len=null rollout-max-response-len=30000 eval-interval=8 \
    | slime.rollout-max-prompt-len is not set | more than 2768 tokens
rollout-top-k=50 | slime.rollout-top-k is 50
rm-type=boxed_deepscaler custom-rm-path=false | slime.rm-type is boxed_deepscaler | </think>
pipeline.iterations=8 | pipeline.iterations is 8 | pipeline.lag 8
eval-interval=34 | slime.eval-interval is 34, no multiple of pipeline.lag 8
save-interval=20 | slime.save-interval is 20, no multiple of pipeline.lag 8
save-interval=0 | slime.save-interval is 0
no-save-optim=true | slime.no-save-optim is true
micro-batch-size=2 | slime.micro-batch-size is 2 with slime.use-dynamic-batch-size: slime ignores it
eval-interval=8 prompt-data=/x/a.jsonl eval-prompt-data=[a,/x/a.jsonl] | slime.eval-prompt-data has /x/a.jsonl \
    | trained on
""".strip().splitlines()

UNWARNED = """
method=sat-gspo-r3 use-dynamic-batch-size=false micro-batch-size=16 max-tokens-per-gpu=8192
method=sat-gspo method.sat.scope=step no-save-optim=true use-stateless-adam=true
method=sat-gspo rollout-max-response-len=1000 rollout-max-prompt-len=1000
""".strip().splitlines()

TAKEN = """
actor-num-gpus-per-node=8 actor-num-nodes=2 rollout-num-gpus=32
actor-num-gpus-per-node=8 rollout-num-gpus=16 rollout-num-gpus-per-engine=16
rollout-num-gpus-per-engine=4
cluster.gpus_per_node=28 rollout-num-gpus=24 rollout-num-gpus-per-engine=24 sglang-dp-size=3
expert-model-parallel-size=1 expert-tensor-parallel-size=4
tensor-model-parallel-size=8 actor-num-gpus-per-node=8
pipeline-model-parallel-size=2 tensor-model-parallel-size=2 expert-model-parallel-size=2
sglang-allow-auto-truncate=false rollout-max-response-len=30720 eval-max-response-len=32767
sglang-allow-auto-truncate=false sglang-context-length=34816
pipeline.lag=0
pipeline.mode=streaming pipeline.lag=1
method=gspo-topp rollout-top-p=0.9
method=dppo method.dppo.divergence=kl
method=icepop method.icepop.form=weight method.icepop.high=2
pipeline.optimizer_steps_per_rollout=4 method.denominator=trainer
moe-router-fusion=true rollout-top-k=false
prefill-num-servers=1
flush-cache-interval=4
pipeline.mode=streaming pipeline.lag=1 flush-cache-interval=1
method.r3=true sglang-pp-size=1
rm-type=dapo custom-rm-path=false reward-key=score
partial-rollout=true
sglang-max-total-tokens=40000
eval-config=/e.yaml eval-prompt-data=null rollout-max-context-len=9000 custom-generate-function-path=a.b \
    rm-type=null custom-rm-path=null
group-rm=true eval-interval=0
save=/m/checkpoints ref-load=/m
rollout-stop-token-ids=[151645]
""".strip().splitlines()


def settings(texts):
    """Texts of `--set`."""
    return [
        text if "." in text.split("=")[0] or text.startswith(("method", "seed")) else f"slime.{text}" for text in texts
    ]


def paper(*texts):
    named = any(text.startswith("method=") for text in texts)
    return load_config(CONFIGS / "paper/qwen3-30b-a3b.yaml", settings(texts), {} if named else {"method": "gspo"})


def dense(*texts):
    return load_config(CONFIGS / "models" / "qwen3-4b.yaml", settings([*DENSE, *texts]))


def cases(judge, table):
    rows = [line.split(" | ") for line in table if not line.startswith("#")]
    return [pytest.param(judge, row[0].split(), row[1:], id=f"{judge}: {row[0]}") for row in rows]


@pytest.mark.parametrize("value", [0, 0.0, "", False])
def test_a_flag_of_0_or_of_nothing_is_one_that_is_sent_and_false_is_not(value):
    flags = dict.fromkeys(("finetune", "ckpt-step", "flush-cache-interval"), value)
    assert len(slime_config_errors(vary(paper(), [("flags", {"slime": flags})]))) == (0 if value is False else 2)


LAB_REFUSED = """
method=gspo-r3 model.experts=0 | method.r3 | model.experts is 0
model.experts_per_token=9 | model.experts_per_token is 9 | model.experts 8
model.kv_heads=3 | model.kv_heads is 3 | model.attention_heads 4
model.head_dim=15 | model.head_dim is 15
model.max_positions=32 | model.max_positions is 32 | set it to 33
rollout.max_response_tokens=20 | rollout.max_response_tokens is 20 | raise it to 21
train.tokens_per_microbatch=32 | train.tokens_per_microbatch is 32 | 33 or more
task.max_digits=5 task.max_digit=1 eval.every_n_iterations=0 \
    | task.min_digits 3 | task.max_digits 5 | task.max_digit 1 | 56 problems | 500
task.max_digits=4 eval.problems=48 | 1512 problems | 1536 | lower eval.problems
pipeline.optimizer_steps_per_rollout=3 | 256 responses | optimizer_steps_per_rollout 3 | multiple of 3
method=sat-gspo method.tis=true method.denominator=trainer | identically 1 | set method.denominator to checkpoint
method=sat-gspo method.denominator=checkpoint pipeline.lag=0 \
    | pipeline.lag is 0 | identically 1 | SAT would do nothing | set method.denominator to rollout
method=sat-gspo method.tis=true pipeline.lag=0 | pipeline.lag is 0 | leave TIS out
method=sat-gspo-seq-tis pipeline.lag=0 | pipeline.lag is 0 | raise pipeline.lag, or leave Seq-TIS out
method=spo method.denominator=checkpoint pipeline.lag=0 | pipeline.lag is 0 | SPO would do nothing
method.base=spo method.sat=true | turn sat off
method=gspo-topp | method.top_p_replay is true | no mask to replay | set it to false
method=icepop method.icepop.form=weight method.tis=true | IcePop and TIS | leave one of them out
method=icepop method.icepop.form=weight method.denominator=rollout | count it twice | denominator to trainer
pipeline.mode=streaming pipeline.lag=2 pipeline.max_staleness=4 pipeline.optimizer_steps_per_rollout=4 \
    | pipeline.max_staleness is 4 | raise it to 7
pipeline.mode=streaming pipeline.lag=1 pipeline.queue_prompts=15 \
    | pipeline.queue_prompts is 15 | rollout.prompts_per_iteration 16
pipeline.mode=streaming pipeline.lag=1 rollout.deterministic=true | rollout.deterministic is true | the clock decides
method=grpo method.dppo.delta=0.1 | method.dppo has settings, which base grpo does not read
""".strip().splitlines()

LAB_WARNED = """
method=sat-gspo train.tokens_per_microbatch=128 method.sat.scope=microbatch \
    | method.sat.scope | train.tokens_per_microbatch
method=grpo method.denominator=trainer | pipeline.lag is 8 | set method.denominator to rollout
method=sat-grpo pipeline.lag=0 | pipeline.lag is 0 with method.sat
rollout.deterministic=true rollout.dtype=bfloat16 | bitwise equal runs are only promised in float32
""".strip().splitlines()

LAB_TAKEN = """
method=sat-gspo method.tis=true
method=sat-grpo method.tis=true method.denominator=trainer pipeline.optimizer_steps_per_rollout=2
method=gspo method.denominator=checkpoint pipeline.lag=0
method=icepop method.icepop.form=weight method.sat=true
method=sat-gspo method.denominator=checkpoint pipeline.lag=0 pipeline.optimizer_steps_per_rollout=2
rollout.max_response_tokens=21 model.max_positions=30 train.tokens_per_microbatch=30
task.max_digits=4 eval.problems=47
task.max_digits=4 eval.problems=48 eval.every_n_iterations=0
pipeline.mode=streaming pipeline.lag=4 pipeline.max_staleness=3 pipeline.queue_prompts=16
method.dppo.delta=0.1 method=grpo
""".strip().splitlines()

LAB_UNWARNED = """
method=sat-gspo train.tokens_per_microbatch=128
method=sat-grpo train.tokens_per_microbatch=128 method.sat.scope=microbatch
method=gspo train.tokens_per_microbatch=128
method=grpo-tis method.denominator=trainer
method=grpo method.denominator=trainer method.base=icepop
method=grpo method.denominator=trainer pipeline.lag=0
method=grpo method.denominator=trainer pipeline.optimizer_steps_per_rollout=2
pipeline.mode=streaming pipeline.lag=4 pipeline.max_staleness=3 pipeline.queue_prompts=16
""".strip().splitlines()


def lab(*overrides, name="base"):
    return load_config(CONFIGS / "lab" / f"{name}.yaml", overrides)


@pytest.mark.parametrize("name", ["base", "quickstart", "tiny", "streaming"])
def test_shipped_files_of_the_lab_pass(name):
    assert config_errors(lab(name=name)) == config_warnings(lab(name=name)) == []


JUDGES = {
    "paper": lambda texts: slime_config_errors(paper(*texts)),
    "dense": lambda texts: slime_config_errors(dense(*texts)),
    "lab": lambda texts: config_errors(lab(*texts)),
    "paper, warned": lambda texts: slime_config_warnings(paper(NO_EVAL, *texts)),
    "lab, warned": lambda texts: config_warnings(lab(*texts)),
}
"""What is told of settings of a run of the paper's model, of a dense one and of the lab's."""


@pytest.mark.parametrize(
    "judge, texts, words",
    [
        *cases("paper", REFUSED),
        *cases("dense", REFUSED_DENSE),
        *cases("lab", LAB_REFUSED),
        *cases("paper, warned", WARNED),
        *cases("lab, warned", LAB_WARNED),
    ],
)
def test_each_fault_is_one_line_that_names_key_and_remedy(judge, texts, words):
    lines = JUDGES[judge](texts)
    assert any("\n" not in line and all(word.strip() in line for word in words) for line in lines), lines
    assert len(lines) == 1 or judge in ("dense", "lab")  # where one fault may bring another


@pytest.mark.parametrize(
    "judge, texts, _",
    [
        *cases("paper", TAKEN),
        *cases("lab", LAB_TAKEN),
        *cases("paper, warned", UNWARNED),
        *cases("lab, warned", LAB_UNWARNED),
    ],
)
def test_what_can_start_and_what_has_no_warning(judge, texts, _):
    assert JUDGES[judge](texts) == []


def test_weights_are_kept_as_long_as_a_token_of_theirs_can_be_trained():
    stream = ["pipeline.mode=streaming", "pipeline.lag=1", "pipeline.max_staleness=4"]
    assert lab().pipeline.weights_in_use == 2
    assert lab(*stream).pipeline.weights_in_use == 6  # versions u - 4 to u, and one more
    assert lab(*stream, "pipeline.lag=2").pipeline.weights_in_use == 4
