"""A run, and a grid of runs, as typed data. The docstring of a field, or of a section's class, becomes its help.

The classes hold what one section alone can know (types, ranges, a section's own consistency). What needs several
sections is in rules.py; reading YAML is in loader.py.
"""

from __future__ import annotations

import fnmatch
import os
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    field_validator,
)

from sat_slime.config.method_section import MethodConfig
from sat_slime.config.section import COMPUTES_NOTHING, MAY_CHANGE_ON_RESUME, OWN_TO_A_CELL, Section
from sat_slime.models.families import FAMILIES, ModelFamily
from sat_slime.objective import PAPER_METHODS, named_method
from sat_slime.tasks.running_sums import RunningSums

Family = Literal["qwen3_moe", "qwen3", "qwen2"]
"""The name of a family of models."""


def _with_a_home(path: str) -> str:
    if path.startswith("~") and os.path.expanduser(path) == path:
        raise ValueError(f"{path!r} is in the home of no user of this machine: write the folder in full")
    return path


Folder = Annotated[str, AfterValidator(_with_a_home)]
"""The path of a folder; `~` is the home."""


class LossConfig(Section):
    """The terms beside the surrogate, and how tokens are averaged."""

    kl_coef: NonNegativeFloat = 1e-3
    """Coefficient of the low-variance KL to the reference model (the weights that the run starts from); 0 = no
    reference model is held."""
    entropy_coef: float = 0.0
    """Coefficient of the entropy bonus."""
    reduction: Literal["response_mean", "token_mean"] = "response_mean"
    """response_mean: mean over responses of their mean over tokens (slime's default); token_mean: mean over tokens."""


class Run(Section):
    """What a run of either runtime has."""

    runtime: str
    """The runtime that this file is for."""
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$"), MAY_CHANGE_ON_RESUME, OWN_TO_A_CELL] = "run"
    """Name of the run and of its folder."""
    output_dir: Annotated[Folder, MAY_CHANGE_ON_RESUME, OWN_TO_A_CELL] = "runs"
    """Folder that holds the run folders, relative to where the command is given; of slime on a disk that all nodes
    share."""
    seed: Annotated[NonNegativeInt, OWN_TO_A_CELL] = 0
    """Seed of prompts and sampling."""
    method: MethodConfig = MethodConfig()
    loss: LossConfig = LossConfig()


class PipelineConfig(Section):
    """The order of generation, training and weight broadcast."""

    mode: Literal["batch", "streaming"] = "batch"
    """batch: one batch is generated ahead, and weights wait for it. streaming: fully asynchronous, rollouts stream into
    a queue and weights change while responses are decoded (docs/asynchrony.md)."""
    lag: Annotated[NonNegativeInt, OWN_TO_A_CELL] = 8
    """Trainer iterations per weight broadcast. 0: synchronous. n > 0: in mode batch one batch is generated ahead and
    weights are broadcast every n iterations, so the realized lag cycles 1..n. The paper's are 1 and 8."""
    iterations: Annotated[PositiveInt, MAY_CHANGE_ON_RESUME] = 200
    """Rollout batches to train on."""
    optimizer_steps_per_rollout: PositiveInt = 1
    """Optimizer steps (mini-batches) per rollout batch; the paper's is 1."""
    max_staleness: NonNegativeInt = 8
    """Mode streaming: bound on the lag of every token, in optimizer updates. A prompt starts only when it can still be
    trained within it; over_age says what happens to one that is overtaken and breaks it all the same."""
    over_age: Literal["drop", "wait"] = "drop"
    """Mode streaming: what becomes of a prompt that breaks max_staleness. drop: its responses are dropped, on slime
    already in generation; others take their place. wait: the trainer waits for what would break it after
    another batch, so that nothing does and nothing is lost (docs/asynchrony.md)."""
    canary: Annotated[Literal["none", "warn", "stop"], MAY_CHANGE_ON_RESUME, COMPUTES_NOTHING] = "none"
    """After each push every engine scores a few fixed sequences that the trainer scores too, which finds engines
    without the pushed weights (docs/asynchrony.md). warn: the log and the report tell of them. stop: the run ends too,
    and can be resumed. none: nothing is scored."""


class LabPipelineConfig(PipelineConfig):
    """The order of generation, training and weight broadcast, with the queue of mode streaming."""

    queue_prompts: PositiveInt = 32
    """Mode streaming: bound on the prompts that are generated, or in generation, ahead of the trainer."""

    @property
    def weights_in_use(self) -> int:
        """Broadcast weights that tokens may still be trained with: in mode batch those of the batch in training and of
        the one in flight, in mode streaming as many as max_staleness lets in, and the newest."""
        if self.mode == "batch":
            return 2
        return self.max_staleness // max(1, self.lag * self.optimizer_steps_per_rollout) + 2


class ModelConfig(Section):
    """A tiny decoder of a family."""

    family: Family | None = None
    """Unset: qwen3_moe, and without experts qwen3."""
    layers: PositiveInt = 2
    """Decoder layers."""
    hidden_size: PositiveInt = 64
    """Width of the residual stream."""
    attention_heads: PositiveInt = 4
    """Query heads."""
    kv_heads: PositiveInt = 2
    """Key and value heads (grouped-query attention); divides attention_heads."""
    head_dim: PositiveInt = 16
    """Width of a head."""
    experts: NonNegativeInt = 8
    """Experts of each MoE layer; 0 makes the model dense."""
    experts_per_token: PositiveInt = 2
    """Experts chosen per token (top-k). Each is weighted by its share of the softmax over the chosen; a single one by
    that over all experts, since of itself it would have 1, and the router no gradient."""
    ffn_size: PositiveInt = 64
    """Width of an expert, or of the feed-forward layer of a dense model."""
    tied_embeddings: bool = False
    """Use the embedding as output layer; only a dense model may."""
    rope_base: PositiveFloat = 100.0
    """Base of the rotary position embedding; small, since sequences are short."""
    norm_eps: PositiveFloat = 1e-6
    """Epsilon of RMSNorm."""
    max_positions: PositiveInt = 128
    """Longest prompt plus response, in tokens."""

    @property
    def is_moe(self) -> bool:
        return self.experts > 0

    @property
    def expert_ffn_size(self) -> int:
        return self.ffn_size

    @property
    def resolved_family(self) -> ModelFamily:
        """The family, also where it is unset."""
        return FAMILIES[self.family or ("qwen3_moe" if self.is_moe else "qwen3")]


class WarmupConfig(Section):
    """Supervised warm-up that makes the initial model from scratch, cached by a hash of model, task and warm-up."""

    steps: NonNegativeInt = 500
    """Optimizer steps; 0 leaves the model random."""
    batch_size: PositiveInt = 64
    """Demonstrations per step."""
    lr: PositiveFloat = 7e-3
    """Peak learning rate."""
    clean_fraction: Annotated[float, Field(ge=0, le=1)] = 0.85
    """Share of the steps on correct demonstrations; the rest are careless, which leaves RL something to learn."""
    error_rate: Annotated[float, Field(ge=0, le=1)] = 0.2
    """Probability that a step of a careless demonstration errs."""
    direct_rate: Annotated[float, Field(ge=0, le=1)] = 0.3
    """Share of the careless demonstrations that answer at once, without the steps before."""
    seed: Annotated[NonNegativeInt, OWN_TO_A_CELL] = 1234
    """Seed of the initial weights and the demonstrations."""


class RolloutConfig(Section):
    """Generation on SGLang."""

    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Arithmetic of the server."""
    prompts_per_iteration: PositiveInt = 16
    """Prompts of a batch. The paper's is 256."""
    samples_per_prompt: Annotated[int, Field(ge=2)] = 16
    """Responses per prompt: the group over which advantages are normalized."""
    temperature: PositiveFloat = 1.0
    """Sampling temperature; the trainer divides its logits by it too."""
    max_response_tokens: PositiveInt = 24
    """Longest response, in tokens."""
    max_running_requests: PositiveInt = 256
    """Requests that the server decodes side by side; in mode batch no more are in flight to it."""
    deterministic: bool = False
    """Requests reach the scheduler in one piece and the sampling seed of each decides its tokens, so that a batch
    depends on nothing but weights, prompts and seeds: a resumed run then repeats bit for bit (with float32)."""
    startup_timeout_s: Annotated[PositiveFloat, MAY_CHANGE_ON_RESUME] = 180.0
    """Seconds for the server to become healthy before it counts as failed."""
    request_timeout_s: Annotated[PositiveFloat, MAY_CHANGE_ON_RESUME] = 120.0
    """Seconds for the answer to a request before the server counts as hung, which ends the run."""

    @property
    def responses_per_iteration(self) -> int:
        return self.prompts_per_iteration * self.samples_per_prompt


class TrainConfig(Section):
    """The trainer on megatron-core, one process."""

    dtype: Literal["float32", "bfloat16"] = "float32"
    """Arithmetic of the trainer; with bfloat16 the optimizer holds fp32 master weights."""
    tokens_per_microbatch: PositiveInt = 8192
    """Bound on the tokens (prompt + response) packed into one micro-batch."""
    lr: PositiveFloat = 5e-4
    """Learning rate, constant. The paper's 30B model takes 1e-6; a tiny one needs more."""
    adam_beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """AdamW's beta 1."""
    adam_beta2: Annotated[float, Field(ge=0, lt=1)] = 0.98
    """AdamW's beta 2."""
    adam_eps: PositiveFloat = 1e-8
    """AdamW's epsilon."""
    weight_decay: NonNegativeFloat = 0.1
    """AdamW's weight decay, on matrices only."""
    grad_clip: PositiveFloat = 1.0
    """Bound on the gradient's global norm."""


class EvalConfig(Section):
    """Evaluation on held-out problems, with the weights that the server holds."""

    every_n_iterations: NonNegativeInt = 16
    """Iterations between evaluations, besides one before the first step and one after the last; 0: none at all."""
    problems: PositiveInt = 64
    """Held-out problems, no two of them the same."""
    samples_per_problem: PositiveInt = 4
    """Samples per problem and repeat."""
    temperature: NonNegativeFloat = 1.0
    """Sampling temperature; 0 is greedy."""
    repeats: PositiveInt = 1
    """Whole evaluations made of the same weights; accuracy is over all of them, accuracy_by_run has each."""
    final_repeats: PositiveInt | None = None
    """Repeats of the evaluation after the last iteration, which measures the final weights. Unset: `repeats`."""

    @property
    def final(self) -> EvalConfig:
        """The evaluation after the last iteration."""
        return self.model_copy(update={"repeats": self.final_repeats or self.repeats, "final_repeats": None})


class CheckpointConfig(Section):
    """Checkpoints, from which `--resume` goes on."""

    every_n_iterations: NonNegativeInt = 32
    """Iterations between checkpoints, besides one at the end; 0: only at the end or on Ctrl-C."""
    keep: PositiveInt = 2
    """Newest checkpoints to keep."""


class DiagnoseConfig(Section):
    """Measurements that cost extra forward passes."""

    split_every_n_steps: NonNegativeInt = 5
    """Optimizer steps between splits of the mismatch into policy and implementation (Eq. split): one forward pass
    under the generating weights. A number without a common factor with pipeline.lag meets every lag in turn. 0: never.
    Every step when the method's denominator is `checkpoint`."""
    every_n_steps: NonNegativeInt = 0
    """Optimizer steps between whole diagnoses for `sat-slime diagnose`: the tokens scored again under other weights,
    routes and arithmetic; a token dump holds it all. A number without a common factor with pipeline.lag meets every
    lag in turn. Each takes two to three training steps. 0: never."""


class DumpConfig(Section):
    """Token dumps in the run folder (docs/runs.md). They change nothing of what the run computes."""

    every_n_iterations: NonNegativeInt = 0
    """Iterations between dumps of the tokens that were trained on, about 50 bytes each; 0: only diagnosed steps."""


class LoggingConfig(Section):
    """What a run writes besides its metrics."""

    samples_every_n_iterations: NonNegativeInt = 16
    """Iterations between batches whose responses are written to samples/; 0: never."""


class LabConfig(Run):
    """A run of the lab runtime: real Megatron and SGLang with a tiny model, on a laptop."""

    runtime: Literal["lab"] = "lab"
    cache_dir: Annotated[Folder, MAY_CHANGE_ON_RESUME, COMPUTES_NOTHING] = "~/.cache/sat_slime"
    """Folder for warmed-up models."""
    pipeline: LabPipelineConfig = LabPipelineConfig()
    model: ModelConfig = ModelConfig()
    task: RunningSums = RunningSums()
    warmup: WarmupConfig = WarmupConfig()
    rollout: RolloutConfig = RolloutConfig()
    train: TrainConfig = TrainConfig()
    eval: EvalConfig = EvalConfig()
    checkpoint: Annotated[CheckpointConfig, MAY_CHANGE_ON_RESUME, COMPUTES_NOTHING] = CheckpointConfig()
    diagnose: DiagnoseConfig = DiagnoseConfig()
    dump: Annotated[DumpConfig, MAY_CHANGE_ON_RESUME] = DumpConfig()
    logging: Annotated[LoggingConfig, MAY_CHANGE_ON_RESUME, COMPUTES_NOTHING] = LoggingConfig()


def matches(selector: str, method: str, lag: int) -> bool:
    """Return whether `METHOD`, `METHOD@LAG` or `@LAG` means cells of this method and lag; METHOD may hold `*` and `?`.
    Raises ValueError when what follows the `@` is not a number."""
    pattern, at, number = selector.partition("@")
    if at and not number.isdecimal():
        raise ValueError(f"{selector!r} is not METHOD, METHOD@LAG or @LAG, such as sat-gspo-r3@8")
    return fnmatch.fnmatchcase(method, pattern or "*") and (not at or int(number) == lag)


class GridConfig(Section):
    """One run over methods x lags x seeds. A cell is one of each."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] = "grid"
    """Name of the grid and of its folder."""
    output_dir: Folder = "grids"
    """Folder that holds the grid folders, relative to where the command is given."""
    run: str = "run.yaml"
    """YAML file of the run that every cell is a variant of, relative to this file."""
    methods: Annotated[list[str], Field(min_length=1, default_factory=lambda: [one.name for one in PAPER_METHODS])]
    """Named methods; unset: the paper's thirteen."""
    lags: Annotated[list[NonNegativeInt], Field(min_length=1, default_factory=lambda: [1, 8])]
    """Values of pipeline.lag."""
    seeds: Annotated[list[NonNegativeInt], Field(min_length=1, default_factory=lambda: [0, 1, 2])]
    """Seeds. The grid runs one after the other: all cells of the first, then all of the second."""
    seed_keys: Annotated[list[str], Field(min_length=1, default_factory=lambda: ["seed"])]
    """Settings of the run that take the cell's seed. With warmup.seed among them each seed has an initial model of its
    own, which all methods and lags of that seed share."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Settings of every cell, laid over the run's."""
    overrides: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Settings of some cells by METHOD, METHOD@LAG or "@LAG" (`sat-*@8` works too), later ones over earlier."""
    parallel: PositiveInt | None = None
    """Cells that run at the same time. Unset: as many as the machine has cores and memory for; of slime one."""
    retries: NonNegativeInt = 2
    """Times that a cell which failed is started again, from its newest checkpoint, before the grid leaves it."""

    @field_validator("methods")
    @classmethod
    def _known(cls, methods: list[str]) -> list[str]:
        """Return the full names: `mis-geo` is `grpo-mis-geo`."""
        return [named_method(name).name for name in methods]

    @field_validator("methods", "lags", "seeds")
    @classmethod
    def _once(cls, values: list[Any]) -> list[Any]:
        if repeated := sorted({str(value) for value in values if values.count(value) > 1}):
            raise ValueError(f"{', '.join(repeated)} more than once: remove it")
        return values

    @field_validator("overrides")
    @classmethod
    def _meant(cls, overrides: dict[str, dict[str, Any]], info: Any) -> dict[str, dict[str, Any]]:
        methods, lags = info.data.get("methods", []), info.data.get("lags", [])
        for selector in overrides:
            if not any(matches(selector, method, lag) for method in methods for lag in lags) and methods and lags:
                raise ValueError(f"{selector} is no cell of the grid: name one of its methods, with @LAG if need be")
        return overrides
