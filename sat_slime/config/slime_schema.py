"""A run of slime as typed data: our own settings, and slime's flags by slime's names under `slime`.

What our method and our order of a run govern has a setting here, and is refused under `slime`
(launch/command.GOVERNED). Every other flag of slime, Megatron or SGLang stands there under its own name. Those that
this package itself reads are attributes of `config.train`, `config.rollout` and so on, with the words of the field.
"""

from __future__ import annotations

import ast
import contextlib
import itertools
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar, cast

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    TypeAdapter,
    with_config,
)
from typing_extensions import Self, TypedDict

from sat_slime.config.jsonl import parse_object
from sat_slime.config.schema import Folder, MethodConfig, PipelineConfig, Run, Section
from sat_slime.config.section import COMPUTES_NOTHING, MAY_CHANGE_ON_RESUME, OWN_TO_A_CELL, refused
from sat_slime.config.source import read_file
from sat_slime.models.families import ModelFamily, family_by_flags

T = TypeVar("T")
FlagValue = bool | int | float | str | list[int | float | str]
"""true: the flag alone; false: left out; a list: several values after the flag."""


def _as_absolute(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path))  # the processes of a job have other working directories


LocalPath = Annotated[Folder, AfterValidator(_as_absolute)]
"""An absolute path; `~` is the home, and a relative one is in the working directory, of who reads the settings."""

Nucleus = Annotated[float, Field(gt=0, le=1)]
MOST_LAYERS = 10_000
Layers = Annotated[int, Field(gt=0, le=MOST_LAYERS)]
"""A number of layers, or of stages, each of which a plan counts by itself."""

DEFAULTS: dict[str, FlagValue] = read_file(Path(__file__).parents[1] / "configs/slime/base.yaml").values["slime"]
"""Flags that a run has where its file gives no other value, as in slime's own scripts; false leaves one out. Without
override-opt_param-scheduler Megatron refuses to go on with another number of iterations, on which a constant rate does
not depend."""

FREE_ON_RESUME = (
    *("rollout-num-gpus", "rollout-num-gpus-per-engine", "sglang-mem-fraction-static", "sglang-server-concurrency"),
    *("use-fault-tolerance", "save-interval", "use-tensorboard", "use-wandb", "wandb-project"),
)
"""Flags that a resumed run may change."""
WITHOUT_NUMBERS = ("save", "save-interval", "no-save-optim", "use-tensorboard", "use-wandb", "wandb-project")
"""Flags that change nothing of what a run computes."""


def is_sent(value: Any) -> bool:
    """Return whether a flag of this value is in the command: unset, empty lists and false are left out, 0 is not."""
    return not (value in (None, []) or value is False)


def _check_flags(flags: dict[str, Any]) -> dict[str, Any]:
    """Return the flags over DEFAULTS. Raises ValidationError with every one whose name or value is none."""
    faults: dict[tuple[str, ...], str] = {}
    for name, value in flags.items():
        values = value if isinstance(value, list) else [value]
        if name.startswith("-") or "=" in name or " " in name:
            faults[name,] = f"{name!r} must be a flag's name without the leading dashes, with its value beside it"
        elif value is not None and not all(isinstance(single, (bool, int, float, str)) for single in values):
            faults[name,] = f"it is {value!r}, and must be true, false, a number, text, or a list of these"
    refused(faults)
    given = DEFAULTS | flags
    return given | cast(dict[str, Any], _FLAGS.validate_python({k: v for k, v in given.items() if is_sent(v)}))


# Any: pydantic would report each alternative of a FlagValue as a fault of its own.
Flags = Annotated[dict[str, Any], AfterValidator(_check_flags)]
"""FlagValues of slime's, Megatron's or SGLang's flags, by their full names without the leading dashes."""


class Flag(Generic[T]):
    """A flag as an attribute of a view: its value, or `other` where it is not sent. kind: the type that it must have;
    any other flag is sent as it stands, once it was held against slime's own list (launch/flags.py)."""

    def __init__(self, name: str, kind: Any, other: T):
        self.name, self.kind, self.other = name, kind, other

    def __get__(self, view: View, owner: type[View]) -> T:
        value = view.flags.get(self.name)
        return cast(T, value) if is_sent(value) else self.other


@dataclass(frozen=True)
class View:
    """Some of a run's flags under the words of the field: an attribute of the run."""

    flags: Mapping[str, Any] = field(default_factory=dict)

    def __get__(self, run: SlimeConfig, owner: type[SlimeConfig]) -> Self:
        return replace(self, flags=run.slime)


@dataclass(frozen=True)
class SlimeModelConfig(View):
    """The model: where its weights are, and its architecture."""

    max_positions: int | None = None

    def __get__(self, run: SlimeConfig, owner: type[SlimeConfig]) -> Self:
        return replace(self, flags=run.slime, max_positions=run.max_positions)

    hf_checkpoint = Flag[str | None]("hf-checkpoint", LocalPath, None)
    megatron_checkpoint = Flag[str | None]("ref-load", LocalPath, None)
    layers = Flag("num-layers", Layers, 0)
    hidden_size = Flag("hidden-size", PositiveInt, 0)
    ffn_size = Flag("ffn-hidden-size", PositiveInt, 0)  # of a dense layer
    attention_heads = Flag("num-attention-heads", PositiveInt, 0)
    query_groups = Flag("num-query-groups", PositiveInt, 0)
    kv_channels = Flag("kv-channels", PositiveInt, 0)
    vocab_size = Flag("vocab-size", PositiveInt, 0)
    vocab_multiple = Flag("make-vocab-size-divisible-by", PositiveInt, 128)
    experts = Flag("num-experts", NonNegativeInt, 0)  # 0: a dense model
    experts_per_token = Flag("moe-router-topk", PositiveInt, 2)
    moe_ffn_size = Flag("moe-ffn-hidden-size", PositiveInt, 0)
    shared_experts_size = Flag("moe-shared-expert-intermediate-size", NonNegativeInt, 0)  # to which all tokens go
    rope_base = Flag("rotary-base", PositiveInt, 10000)
    norm_eps = Flag("norm-epsilon", PositiveFloat, 1e-5)

    @property
    def tied_embeddings(self) -> bool:
        return not self.flags.get("untie-embeddings-and-output-weights")

    @property
    def kv_heads(self) -> int:
        return self.query_groups or self.attention_heads

    @property
    def head_dim(self) -> int:
        return self.kv_channels or self.hidden_size // max(self.attention_heads, 1)

    @property
    def expert_ffn_size(self) -> int:
        return self.moe_ffn_size or self.ffn_size

    @property
    def is_moe(self) -> bool:
        return self.experts > 0

    @property
    def moe_layers(self) -> list[bool]:
        """For each layer whether it has experts: Megatron's --moe-layer-freq, a number n (every n-th layer, from the
        first), or lists that are added and repeated, such as `[0]*1+[1]*45` or `([1]*3+[0]*2)*9`."""
        if not self.is_moe:
            return [False] * self.layers
        frequency = str(self.flags.get("moe-layer-freq", 1)).strip()
        if frequency.isdecimal():
            return [index % max(int(frequency), 1) == 0 for index in range(self.layers)]
        with contextlib.suppress(SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
            return [bool(one) for one in _pattern(ast.parse(frequency, mode="eval").body)]
        return [True] * self.layers  # slime's parser says what is wrong with it

    @property
    def resolved_family(self) -> ModelFamily | None:
        """The family that the flags describe; None where they describe none."""
        return family_by_flags(self.flags)


def _pattern(node: ast.expr) -> Any:
    """Return the number or list that an expression of numbers, lists, + and * makes, of a list MOST_LAYERS + 1 at most.
    Raises ValueError or TypeError for any other."""
    match node:
        case ast.Constant(int(number)):
            return number
        case ast.List(items):
            return [_pattern(item) for item in items]
        case ast.BinOp(left, ast.Add(), right):
            return _pattern(left) + _pattern(right)
        case ast.BinOp(left, ast.Mult(), right):
            times, whole = sorted((_pattern(left), _pattern(right)), key=lambda side: isinstance(side, list))
            if isinstance(whole, int):
                return times * whole
            return [*itertools.islice(itertools.cycle(whole), min(len(whole) * times, MOST_LAYERS + 1))]
    raise ValueError(f"{ast.unparse(node)} is no list of layers")


class DataView(View):
    """The prompts and what rewards a response."""

    prompts = Flag[str | None]("prompt-data", LocalPath, None)
    input_key = Flag("input-key", str, "input")
    label_key = Flag[str | None]("label-key", str, None)
    chat_template = Flag("apply-chat-template", bool, False)
    chat_template_kwargs = Flag("apply-chat-template-kwargs", str, "{}")
    rule = Flag[str | None]("rm-type", str, None)
    function = Flag[str | None]("custom-rm-path", str, None)

    @property
    def chat_template_args(self) -> dict[str, Any]:
        """Arguments of the chat template; empty where they are no JSON mapping, which slime refuses."""
        return parse_object(self.chat_template_kwargs) or {}

    @property
    def reward(self) -> str | None:
        """The dotted path of a function, or else one of slime's rules by name."""
        return self.function or self.rule or None


class RolloutView(View):
    """Generation on SGLang, on GPUs of its own."""

    gpus = Flag("rollout-num-gpus", Annotated[int, Field(gt=0, le=1_000_000)], 0)  # each engine has its place in a plan
    gpus_per_engine = Flag("rollout-num-gpus-per-engine", PositiveInt, 1)
    stages = Flag("sglang-pp-size", PositiveInt, 1)
    attention_groups = Flag("sglang-dp-size", PositiveInt, 1)  # in each of which the attention is whole
    prompts_per_iteration = Flag("rollout-batch-size", PositiveInt, 0)
    samples_per_prompt = Flag("n-samples-per-prompt", Annotated[int, Field(ge=2)], 1)
    max_prompt_tokens = Flag[int | None]("rollout-max-prompt-len", PositiveInt, None)
    max_response_tokens = Flag("rollout-max-response-len", PositiveInt, 0)
    context_tokens = Flag[int | None]("sglang-context-length", PositiveInt, None)
    end_at_context = Flag("sglang-allow-auto-truncate", bool, False)
    temperature = Flag("rollout-temperature", PositiveFloat, 1.0)
    top_p = Flag("rollout-top-p", Nucleus, 1.0)
    top_k = Flag("rollout-top-k", int, -1)
    stop_token_ids = Flag[list[int]]("rollout-stop-token-ids", list[int], [])
    memory_fraction = Flag("sglang-mem-fraction-static", Annotated[float, Field(gt=0, lt=1)], 0.8)
    concurrent_requests = Flag("sglang-server-concurrency", PositiveInt, 512)

    @property
    def responses_per_iteration(self) -> int:
        return self.prompts_per_iteration * self.samples_per_prompt

    @property
    def engines(self) -> int:
        return self.gpus // self.gpus_per_engine

    @property
    def gpus_per_head(self) -> int:
        """GPUs among which an engine divides a layer's heads."""
        return max(1, self.gpus_per_engine // (self.stages * self.attention_groups))


class TrainView(View):
    """Training on Megatron: one rank per GPU, in bfloat16 with fp32 master weights."""

    nodes = Flag("actor-num-nodes", PositiveInt, 1)
    gpus_per_node = Flag("actor-num-gpus-per-node", PositiveInt, 8)
    tensor_parallel = Flag("tensor-model-parallel-size", PositiveInt, 1)
    pipeline_parallel = Flag("pipeline-model-parallel-size", Layers, 1)
    context_parallel = Flag("context-parallel-size", PositiveInt, 1)
    expert_parallel = Flag("expert-model-parallel-size", PositiveInt, 1)
    of_experts = Flag("expert-tensor-parallel-size", PositiveInt, 0)
    max_tokens_per_gpu = Flag("max-tokens-per-gpu", PositiveInt, 0)
    micro_batch_size = Flag("micro-batch-size", PositiveInt, 1)  # without use-dynamic-batch-size
    recompute = Flag("recompute-granularity", Literal["selective", "full"], "none")
    lr = Flag("lr", PositiveFloat, 1e-6)
    optimizer_offload = Flag("optimizer-cpu-offload", bool, False)
    offload_fraction = Flag("optimizer-offload-fraction", Annotated[float, Field(ge=0, le=1)], 1.0)

    @property
    def expert_tensor_parallel(self) -> int:
        """Ranks that share an expert; Megatron takes as many as share a layer where it is not said."""
        return self.of_experts or self.tensor_parallel

    @property
    def world_size(self) -> int:
        return self.nodes * self.gpus_per_node

    @property
    def data_parallel(self) -> int:
        """Data-parallel ranks: what tensor, pipeline and context parallelism leave over."""
        return self.world_size // (self.tensor_parallel * self.pipeline_parallel * self.context_parallel)


def _sets_of(pairs: list[str]) -> list[str]:
    if len(pairs) % 2:
        raise ValueError("it takes a name and a file for each set, one after another: [aime24, /data/aime24.jsonl]")
    return [_as_absolute(word) if number % 2 else word for number, word in enumerate(pairs)]


class EvalView(View):
    """Evaluation, with the weights that the engines hold."""

    every_n_iterations = Flag("eval-interval", NonNegativeInt, 0)  # 0: none at all
    sets = Flag[list[str]]("eval-prompt-data", Annotated[list[str], AfterValidator(_sets_of)], [])
    samples = Flag("n-samples-per-eval-prompt", PositiveInt, 1)  # of a problem
    max_prompt_tokens = Flag[int | None]("eval-max-prompt-len", PositiveInt, None)
    max_response_tokens = Flag[int | None]("eval-max-response-len", PositiveInt, None)  # None: the rollout's
    temperature = Flag[float | None]("eval-temperature", NonNegativeFloat, None)
    top_p = Flag[float | None]("eval-top-p", Nucleus, None)
    top_k = Flag[int | None]("eval-top-k", int, None)

    @property
    def prompts(self) -> dict[str, str]:
        """Name and file of each set."""
        return dict(zip(self.sets[::2], self.sets[1::2], strict=True))


class CheckpointView(View):
    """Checkpoints, from which a resumed run goes on."""

    folder = Flag[str | None]("save", LocalPath, None)
    every_n_iterations = Flag("save-interval", NonNegativeInt, 0)  # 0: none at all
    without_optimizer = Flag("no-save-optim", bool, False)


def _as_text(value: Any) -> Any:
    return str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value


EnvironmentValue = Annotated[str, BeforeValidator(_as_text)]
"""Text; a number stands for its digits."""


class SlimePipelineConfig(PipelineConfig):
    """The order of generation, training and weight broadcast, and the checkpoints of it."""

    keep_checkpoints: Annotated[PositiveInt | None, MAY_CHANGE_ON_RESUME, COMPUTES_NOTHING] = None
    """Newest checkpoints to keep: older ones are deleted once a newer one is whole, and there is one more while it is
    saved. Unset: all."""


class ClusterConfig(Section):
    """The machines on which the run is started, and what is installed there."""

    device: Literal["gpu", "cpu"] = "gpu"
    """cpu: the same run on this machine without a GPU (docs/rehearse.md), in float32, on a Ray that is started for it
    unless an address is given; the GPUs that settings count are then processes."""
    address: str | None = None
    """Ray's job server, such as http://10.0.0.1:8265; unset: docs/launch.md, "Where it runs"."""
    gpus_per_node: PositiveInt = 8
    """GPUs that a node has, in use or not (--num-gpus-per-node)."""
    gpu_memory_gib: PositiveFloat | None = None
    """Memory of each GPU in GiB, which needs are held against. Unset: the smallest that the nodes tell; without a
    cluster 79.1, an 80 GB card as CUDA shows it."""
    host_memory_gib: PositiveFloat | None = None
    """Memory of each node in GiB. Unset: the smallest that the nodes tell."""
    slime_dir: LocalPath = "/root/slime"
    """slime's checkout, as in its image."""
    megatron_dir: LocalPath = "/root/Megatron-LM"
    """Megatron-LM's checkout, as in slime's image."""
    python_path: list[LocalPath] = Field(default_factory=list)
    """Further folders that Python looks into, for instance that of this package where it is not installed."""
    restarts: NonNegativeInt = 0
    """Times that `launch`, while it follows the run, resumes a job that died, from the newest whole checkpoint
    (docs/launch.md#restarts)."""
    share_gpu: bool = False
    """Trainer and engine share the one GPU of this machine (docs/launch.md#one-gpu); `gpus_per_node` is then 2."""
    env: dict[str, EnvironmentValue] = Field(default_factory=dict)
    """Further environment variables of the job. No secrets: they are shown and saved."""


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


class SlimeConfig(Run):
    """A run of slime: Megatron trains, SGLang generates, each on GPUs of its own, with this package's objective."""

    runtime: Literal["slime"] = "slime"
    seed: Annotated[PositiveInt, OWN_TO_A_CELL] = 1234
    """Seed of prompts, sampling and initialization."""
    pipeline: SlimePipelineConfig = SlimePipelineConfig()
    max_positions: PositiveInt | None = None
    """Longest prompt plus response, in tokens: `max_position_embeddings` of the checkpoint's config.json."""
    cluster: Annotated[ClusterConfig, MAY_CHANGE_ON_RESUME, COMPUTES_NOTHING] = ClusterConfig()
    estimate: Annotated[EstimateConfig, MAY_CHANGE_ON_RESUME, COMPUTES_NOTHING] = EstimateConfig()
    slime: Annotated[Flags, {MAY_CHANGE_ON_RESUME: FREE_ON_RESUME, COMPUTES_NOTHING: WITHOUT_NUMBERS}] = Field(
        default_factory=dict
    )
    """Flags of slime, Megatron or SGLang by their own names, such as `rollout-batch-size: 256`; true: the flag alone,
    false: left out."""

    model_config = ConfigDict(ignored_types=(View,))
    model = SlimeModelConfig()
    data = DataView()
    rollout = RolloutView()
    train = TrainView()
    eval = EvalView()
    checkpoint = CheckpointView()

    @property
    def gpus(self) -> int:
        """GPUs that the run occupies; none on a CPU. slime asks Ray for one more where trainer and engine share it."""
        if self.cluster.device == "cpu":
            return 0
        return 1 if self.cluster.share_gpu else self.train.world_size + self.rollout.gpus


WORDS = {
    (section, word): flag
    for section, view in vars(SlimeConfig).items()
    if isinstance(view, View)
    for word, flag in vars(type(view)).items()
    if isinstance(flag, Flag)
}
"""The flags that this package reads, by the words of the field: `rollout.top_p` is rollout-top-p."""
_Read = TypedDict("_Read", {flag.name: flag.kind for flag in WORDS.values()}, total=False)  # type: ignore[misc]
_FLAGS = TypeAdapter(with_config(ConfigDict(extra="allow", strict=True, allow_inf_nan=False))(_Read))


class PluginConfig(Section):
    """The plugin's own settings inside a slime run, which slime hands over as the key `sat_slime` of its
    `--custom-config-path` file."""

    method: MethodConfig = MethodConfig()
    """The method that is optimized: a section as in every configuration here, or a name such as `sat-gspo-r3`."""
    driver: SlimePipelineConfig = SlimePipelineConfig()
    """The order that `sat_slime.plugin.driver` keeps. slime's own training scripts read none of it."""
    run_dir: LocalPath | None = None
    """Run folder for metrics.jsonl and eval.jsonl; unset: slime's own trackers alone."""
