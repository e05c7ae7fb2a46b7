"""A run of slime as typed data. What means the same as in a run of the lab runtime has the same section and key.

Where slime's flag has another name it stands in the docstring as `--flag`. Any other flag of slime, Megatron or SGLang
stands under `slime`, by its own name.
"""

from __future__ import annotations

import os
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from sat_slime import outside
from sat_slime.config.schema import (
    LossConfig,
    MethodConfig,
    NonNegativeFloat,
    NonNegativeInt,
    PipelineConfig,
    PositiveFloat,
    PositiveInt,
    ScoresConfig,
    Section,
    VerifierLimits,
)
from sat_slime.config.section import COMPUTES_NOTHING, MAY_CHANGE_ON_RESUME, OWN_TO_A_CELL
from sat_slime.models import ModelFamily, family_by_flags, find_family

FlagValue = bool | int | float | str | list[int | float | str]
"""true: the flag alone; false: left out; a list: several values after the flag."""


def _check_flags(flags: dict[str, Any]) -> dict[str, Any]:
    for name, value in flags.items():
        if name.startswith("-") or "=" in name or " " in name:
            raise ValueError(f"{name!r} must be a flag's name without the leading dashes, with its value beside it")
        values = value if isinstance(value, list) else [value]
        if not all(isinstance(single, (bool, int, float, str)) for single in values) or value == []:
            raise ValueError(f"{name} is {value!r}: it must be true, false, a number, text, or a list of these")
    return flags


# Any: pydantic would report each alternative of a FlagValue as a fault of its own.
Flags = Annotated[dict[str, Any], AfterValidator(_check_flags)]
"""FlagValues of slime's, Megatron's or SGLang's flags, by their full names without the leading dashes."""

DEFAULTS: dict[str, FlagValue] = {
    "rollout-shuffle": True,
    "balance-data": True,
    "accumulate-allreduce-grads-in-fp32": True,
    "attention-softmax-in-fp32": True,
    "attention-backend": "flash",
    "weight-decay": 0.1,
    "adam-beta1": 0.9,
    "adam-beta2": 0.98,
    "adam-eps": 1e-8,
    "clip-grad": 1.0,
}
"""Flags that a run has where its file gives them no other value, as in slime's own scripts. false leaves one out."""


def _none_as_empty(value: Any) -> Any:
    return {} if value is None else value


def _as_text(value: Any) -> Any:
    return str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value


EnvironmentValue = Annotated[str, BeforeValidator(_as_text)]
"""Text; a number stands for its digits."""


def _as_absolute(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path))  # the processes of a job have other working directories


LocalPath = Annotated[str, AfterValidator(_as_absolute)]
"""An absolute path; `~` is the home, and a relative one is in the working directory, of who reads the settings."""


class SlimeModelConfig(Section):
    """The model: where its weights are, and its architecture as Megatron's flags."""

    hf_checkpoint: LocalPath | None = None
    """Folder with the Hugging Face weights, configuration and tokenizer; SGLang starts from it (--hf-checkpoint)."""
    megatron_checkpoint: LocalPath | None = None
    """The same weights in Megatron's format, as `sat-slime prepare model` converts them: what training starts from, and
    the reference model of the KL (--ref-load)."""
    max_positions: PositiveInt | None = None
    """Longest prompt plus response, in tokens: `max_position_embeddings` of the checkpoint's config.json."""
    architecture: Flags = Field(default_factory=dict)
    """Megatron's flags of the architecture, as in slime's scripts/models."""
    family: str | None = None
    """qwen3_moe, qwen3, qwen2, or the dotted path of a module with another family: its layers on a CPU, and its counts
    for memory (docs/tasks.md). Unset: the one that `architecture` describes, if any does."""

    @property
    def layers(self) -> int:
        return self._number("num-layers")

    @property
    def hidden_size(self) -> int:
        return self._number("hidden-size")

    @property
    def ffn_size(self) -> int:
        """Width of a dense layer."""
        return self._number("ffn-hidden-size")

    @property
    def attention_heads(self) -> int:
        return self._number("num-attention-heads")

    @property
    def kv_heads(self) -> int:
        return self._number("num-query-groups", self.attention_heads)

    @property
    def head_dim(self) -> int:
        return self._number("kv-channels", self.hidden_size // max(self.attention_heads, 1))

    @property
    def vocab_size(self) -> int:
        return self._number("vocab-size")

    @property
    def experts(self) -> int:
        """Experts of each MoE layer; 0 for a dense model."""
        return self._number("num-experts")

    @property
    def experts_per_token(self) -> int:
        return self._number("moe-router-topk", 2)

    @property
    def expert_ffn_size(self) -> int:
        return self._number("moe-ffn-hidden-size", self.ffn_size)

    @property
    def is_moe(self) -> bool:
        return self.experts > 0

    @property
    def parameters(self) -> int:
        """Estimate of the parameters: attention, gated feed-forward layers, router, embeddings; norms and what other
        architectures add left out, and every layer of an MoE model taken for one with experts. 0 where sizes lack."""
        attention = 2 * self.hidden_size * self.head_dim * (self.attention_heads + self.kv_heads)
        if self.is_moe:
            ffn = 3 * self.hidden_size * self.expert_ffn_size * self.experts + self.hidden_size * self.experts
        else:
            ffn = 3 * self.hidden_size * self.ffn_size
        embeddings = 2 if self.architecture.get("untie-embeddings-and-output-weights") else 1
        return self.layers * (attention + ffn) + embeddings * self.vocab_size * self.hidden_size

    @property
    def resolved_family(self) -> ModelFamily | None:
        """The family, also where it is unset; None where nothing tells it."""
        return find_family(self.family) if self.family else family_by_flags(self.architecture)

    @field_validator("family")
    @classmethod
    def _known(cls, value: str | None) -> str | None:
        if value is not None and not ("." in value and outside.are_refused()):
            find_family(value)
        return value

    def _number(self, flag: str, default: int = 0) -> int:
        value = self.architecture.get(flag, default)
        return value if isinstance(value, int) else default


class DataConfig(Section):
    """The prompts and what rewards a response."""

    prompts: LocalPath | None = None
    """File of training prompts, one JSON object per line (--prompt-data)."""
    input_key: str = "prompt"
    """Key of the prompt: text, or a list of chat messages."""
    label_key: str = "label"
    """Key of the right answer."""
    chat_template: bool = True
    """Wrap prompts in the tokenizer's chat template."""
    chat_template_args: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the chat template, such as `enable_thinking: false`."""
    reward: str | None = None
    """One of slime's rules by name (math, dapo, deepscaler, ...: --rm-type), or the dotted path of a function
    `async f(args, sample, **kwargs) -> float` (--custom-rm-path)."""


class SlimeRolloutConfig(Section):
    """Generation on SGLang, on GPUs of its own."""

    nodes: Annotated[PositiveInt, MAY_CHANGE_ON_RESUME] = 1
    """Nodes that hold engines."""
    gpus_per_node: Annotated[PositiveInt, MAY_CHANGE_ON_RESUME] = 4
    """GPUs for engines on each of these nodes."""
    gpus_per_engine: Annotated[PositiveInt, MAY_CHANGE_ON_RESUME] = 2
    """GPUs of one engine: its tensor parallelism."""
    prompts_per_iteration: PositiveInt = 256
    """Prompts of a batch."""
    samples_per_prompt: Annotated[int, Field(ge=2)] = 16
    """Responses per prompt: the group over which advantages are normalized."""
    max_prompt_tokens: PositiveInt | None = None
    """Prompts longer than this many tokens are left out. Unset: none is, and requests that do not fit the context
    fail."""
    max_response_tokens: PositiveInt = 8192
    """Longest response, in tokens."""
    context_tokens: PositiveInt | None = None
    """Context length of the engines; unset: model.max_positions. SGLang is told to accept a longer one than the
    model's."""
    end_at_context: bool = False
    """End a response where the context ends. Otherwise SGLang refuses a request whose prompt and response limit
    together exceed the context (--sglang-allow-auto-truncate)."""
    temperature: PositiveFloat = 1.0
    """Sampling temperature; the trainer divides its logits by it too."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Nucleus of sampling; below 1 slime has the trainer leave out the tokens that the engine left out, which is
    method.top_p_replay."""
    top_k: int = -1
    """Most likely tokens that are sampled from; -1: all."""
    stop_token_ids: list[int] = Field(default_factory=list)
    """Tokens that end a response besides those of the checkpoint, in training and evaluation. The one with which the
    chat template ends a turn has to be among both."""
    memory_fraction: Annotated[float, Field(gt=0, lt=1), MAY_CHANGE_ON_RESUME] = 0.8
    """Share of GPU memory for the engine's weights and KV cache (--sglang-mem-fraction-static)."""
    concurrent_requests: Annotated[PositiveInt, MAY_CHANGE_ON_RESUME] = 512
    """Requests in flight to one engine (--sglang-server-concurrency)."""
    fault_tolerance: Annotated[bool, MAY_CHANGE_ON_RESUME] = False
    """Replace engines that die at the next push (--use-fault-tolerance; docs/launch.md). What
    else dies ends the job in any case: cluster.restarts."""

    @property
    def responses_per_iteration(self) -> int:
        return self.prompts_per_iteration * self.samples_per_prompt

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node

    @property
    def engines(self) -> int:
        return self.gpus // self.gpus_per_engine


class SlimeTrainConfig(Section):
    """Training on Megatron: one rank per GPU, in bfloat16 with fp32 master weights."""

    nodes: PositiveInt = 1
    """Nodes that train."""
    gpus_per_node: PositiveInt = 4
    """GPUs for training on each of these nodes."""
    tensor_parallel: PositiveInt = 1
    """Tensor-parallel ranks (sequence parallelism is on when > 1)."""
    pipeline_parallel: PositiveInt = 1
    """Pipeline stages."""
    context_parallel: PositiveInt = 1
    """Ranks that share each sequence."""
    expert_parallel: PositiveInt = 1
    """Ranks that share the experts (MoE)."""
    expert_tensor_parallel: PositiveInt = 1
    """Tensor-parallel ranks of each expert (MoE)."""
    max_tokens_per_gpu: PositiveInt = 8192
    """Bound on the tokens (prompt + response) of one micro-batch, per context-parallel rank. A longer response makes a
    micro-batch of its own."""
    lr: PositiveFloat = 1e-6
    """Learning rate, constant."""
    optimizer_offload: bool = False
    """Keep Adam's state and the fp32 master weights in host memory (--optimizer-cpu-offload)."""
    recompute: Literal["none", "selective", "full"] = "full"
    """Activations recomputed in the backward pass; full: every layer from its input."""

    @property
    def world_size(self) -> int:
        return self.nodes * self.gpus_per_node

    @property
    def data_parallel(self) -> int:
        """Data-parallel ranks: what tensor, pipeline and context parallelism leave over."""
        return self.world_size // (self.tensor_parallel * self.pipeline_parallel * self.context_parallel)


class SlimeEvalConfig(ScoresConfig):
    """Evaluation, with the weights that the engines hold."""

    every_n_iterations: NonNegativeInt = 20
    """Iterations between evaluations, besides one before the first iteration and one after the last; 0: none at all."""
    prompts: Annotated[dict[str, LocalPath], BeforeValidator(_none_as_empty)] = Field(default_factory=dict)
    """Name and file of each set, in the training prompts' format."""
    samples_per_problem: PositiveInt = 1
    """Samples per problem and repeat."""
    max_response_tokens: PositiveInt | None = None
    """Longest response, in tokens; unset: the rollout's."""
    temperature: NonNegativeFloat | None = None
    """Sampling temperature; unset: the rollout's, 0: greedy."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    """Nucleus; unset: the rollout's."""
    top_k: int | None = None
    """Most likely tokens that are sampled from; unset: the rollout's."""

    @model_validator(mode="after")
    def _enough_samples(self) -> SlimeEvalConfig:
        self.check(self.samples_per_problem)
        return self


class SlimeCheckpointConfig(Section):
    """Checkpoints, from which a resumed run goes on."""

    every_n_iterations: Annotated[NonNegativeInt, MAY_CHANGE_ON_RESUME] = 20
    """Iterations between checkpoints, besides one at the end; 0: none at all."""
    keep: Annotated[PositiveInt | None, MAY_CHANGE_ON_RESUME] = None
    """Newest checkpoints to keep: older ones are deleted once a newer one is whole, and there is one more while it is
    saved. Unset: all."""
    folder: LocalPath | None = None
    """Folder of the checkpoints, on a disk that all training nodes share. Unset: `checkpoints` in the run's folder."""
    from_iteration: PositiveInt | None = None
    """Go on from another run's checkpoint in `folder`, with its optimizer and its count of iterations: that of this
    iteration, which has to be the newest there. Unset: a new run in a folder with checkpoints is refused. For its
    weights alone, name the folder in `model.megatron_checkpoint`."""
    optimizer: bool = True
    """Save the optimizer's state too. Without it a run cannot go on."""


class SlimeLoggingConfig(Section):
    """Trackers that get metrics besides the run folder and slime's log."""

    tensorboard: bool = True
    """Write TensorBoard events into the run folder."""
    wandb_project: str | None = None
    """Weights & Biases project; unset: off. The key is taken from WANDB_API_KEY of the cluster's own environment."""
    health: bool = True
    """Say in the report what looks unhealthy, with its threshold and what to try (docs/runs.md)."""


class ClusterConfig(Section):
    """The machines on which the run is started, and what is installed there."""

    device: Literal["gpu", "cpu"] = "gpu"
    """cpu: the same run on this machine without a GPU (docs/rehearse.md), on a Ray that is started for it unless an
    address is given; the GPUs that settings count are then processes."""
    cpu_dtype: Literal["float32", "bfloat16"] = "float32"
    """Device cpu: arithmetic of trainer and engines. On GPUs slime's is bfloat16."""
    address: str | None = None
    """Ray's job server, such as http://10.0.0.1:8265; unset: the one of this machine."""
    gpus_per_node: PositiveInt = 8
    """GPUs that a node has, in use or not (--num-gpus-per-node)."""
    gpu_memory_gib: PositiveFloat | None = None
    """Memory of each GPU in GiB, which needs are held against. Unset: the smallest that the nodes tell; without a
    cluster 79.1, an 80 GB card as CUDA shows it."""
    host_memory_gib: PositiveFloat | None = None
    """Memory of each node in GiB. Unset: the smallest that the nodes tell."""
    shm_gib: PositiveFloat | None = None
    """Size of each node's /dev/shm in GiB. Unset: the smallest that the nodes tell."""
    object_store_gib: PositiveFloat | None = None
    """Size of each node's part of Ray's object store in GiB. Unset: the smallest that Ray tells."""
    slime_dir: LocalPath = "/root/slime"
    """slime's checkout, as in its image."""
    megatron_dir: LocalPath = "/root/Megatron-LM"
    """Megatron-LM's checkout, as in slime's image."""
    python_path: list[LocalPath] = Field(default_factory=list)
    """Further folders that Python looks into, for instance that of this package where it is not installed."""
    restarts: NonNegativeInt = 0
    """Times that `launch`, while it follows the run, resumes a job that died, from the newest whole checkpoint
    (docs/launch.md#restarts)."""
    nvlink: bool = True
    """GPUs of a node are linked by NVLink (NCCL_NVLS_ENABLE)."""
    env: dict[str, EnvironmentValue] = Field(default_factory=dict)
    """Further environment variables of the job. No secrets: they are shown and saved."""
    runtime_env: dict[str, Any] = Field(default_factory=dict)
    """Further settings of Ray's runtime environment, such as `working_dir`."""


class EstimateConfig(Section):
    """Speeds that the estimate of a run's time takes until the run has measured its own (docs/launch.md). They
    change nothing of a run. The defaults are for Qwen3-30B-A3B on H100 GPUs of one node."""

    engine_tokens_per_second: PositiveFloat = 4000.0
    """Tokens that one engine generates a second: two GPUs with responses of 8k tokens in the mean. It would be 12,500
    with 2k and 1,100 with 32k tokens, for which fewer requests fit the KV cache, where a GPU reads weights and KV at
    half of its 3.35 TB/s, and a step takes 4 ms besides: 219 tokens/s were measured of one request alone on four
    (Tencent/AngelSlim issue 163), of which reading explains 0.9 ms a token."""
    trainer_tflops: PositiveFloat = 125.0
    """FLOP/s of a GPU that trains, in 1e12, recomputation counted. Pretraining Qwen3-30B-A3B on H100 reaches 277
    (performance summary of NVIDIA NeMo AutoModel); packed responses of all lengths are taken to reach less than half of
    it."""
    push_gib_per_second: PositiveFloat = 8.0
    """Weights that are sent to the engines, GiB/s: slime's update of Qwen3-30B-A3B in 7 s, on shared GPUs
    (hebiao064.github.io/rl-weight-sync)."""


class SlimeConfig(Section):
    """A run of slime: Megatron trains, SGLang generates, each on GPUs of its own, with this package's objective."""

    runtime: Literal["slime"] = "slime"
    """The runtime that this file is for."""
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$"), MAY_CHANGE_ON_RESUME, OWN_TO_A_CELL] = "run"
    """Name of the run and of its folder."""
    output_dir: Annotated[str, MAY_CHANGE_ON_RESUME, OWN_TO_A_CELL] = "runs"
    """Folder that holds the run folders, on a disk that all nodes share."""
    seed: Annotated[PositiveInt, OWN_TO_A_CELL] = 1234
    """Seed of prompts, sampling and initialization."""
    method: MethodConfig = MethodConfig()
    """The method that is optimized."""
    loss: LossConfig = LossConfig()
    """KL, entropy, averaging."""
    pipeline: PipelineConfig = PipelineConfig()
    """Order of generation, training, broadcast."""
    model: SlimeModelConfig = SlimeModelConfig()
    """The model."""
    data: DataConfig = DataConfig()
    """Prompts and reward."""
    verifier: VerifierLimits = VerifierLimits()
    """Limits of this package's verifier, for a data.reward of sat_slime.plugin.reward."""
    rollout: SlimeRolloutConfig = SlimeRolloutConfig()
    """Generation on SGLang."""
    train: SlimeTrainConfig = SlimeTrainConfig()
    """Training on Megatron."""
    eval: SlimeEvalConfig = SlimeEvalConfig()
    """Evaluation."""
    checkpoint: Annotated[SlimeCheckpointConfig, COMPUTES_NOTHING] = SlimeCheckpointConfig()
    """Checkpoints."""
    logging: Annotated[SlimeLoggingConfig, MAY_CHANGE_ON_RESUME, COMPUTES_NOTHING] = SlimeLoggingConfig()
    """Trackers."""
    cluster: Annotated[ClusterConfig, MAY_CHANGE_ON_RESUME, COMPUTES_NOTHING] = ClusterConfig()
    """The machines on which the run is started."""
    estimate: Annotated[EstimateConfig, MAY_CHANGE_ON_RESUME, COMPUTES_NOTHING] = EstimateConfig()
    """The speeds that the estimate of a run's time assumes."""
    slime: Flags = Field(default_factory=dict)
    """Flags of slime, Megatron or SGLang by their own names, such as `sglang-max-running-requests: 256`; true: the flag
    alone, false: left out. Where they are not given, a run has `rollout-shuffle`, `balance-data`,
    `accumulate-allreduce-grads-in-fp32` and `attention-softmax-in-fp32`, `attention-backend: flash` on GPUs,
    `weight-decay: 0.1`, `adam-beta1: 0.9`, `adam-beta2: 0.98`, `adam-eps: 1e-8` and `clip-grad: 1.0`."""

    def flag(self, name: str) -> Any:
        """The value of one of DEFAULTS, as the file gives it or by default."""
        return self.slime.get(name, DEFAULTS[name])
