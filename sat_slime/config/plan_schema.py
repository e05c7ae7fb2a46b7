"""The file of `sat-slime plan`: a workload, its speeds, and the ways to run it that are compared."""

from __future__ import annotations

from typing import Literal

from sat_slime.config.section import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, Section


class ResponseLengths(Section):
    """A log-normal distribution of response lengths, in tokens; responses to one prompt are independent."""

    mean: PositiveFloat = 4096.0
    """Mean before the cut at `longest`."""
    deviation: NonNegativeFloat = 4096.0
    """Standard deviation before the cut."""
    longest: PositiveInt = 16384
    """Longest response; longer ones are cut."""


class PlanConfig(Section):
    """A plan of `sat-slime plan`. Where `run` is given, a setting that is unset is that of the run."""

    run: str | None = None
    """Run folder whose lengths, speeds and settings are taken."""
    streaming_run: str | None = None
    """Folder of a run of mode streaming, of which that mode takes the seconds of a push and of what an iteration does
    beside waiting, training and pushing: a run of mode batch does not show them. Unset: as in mode batch."""
    lengths: ResponseLengths | None = None
    """Lengths of responses; unset: those of the run's samples, without a run the defaults."""
    prompts_per_iteration: PositiveInt | None = None
    """Prompts of a batch; without a run 64."""
    samples_per_prompt: PositiveInt | None = None
    """Responses per prompt; without a run 8."""
    optimizer_steps_per_rollout: PositiveInt | None = None
    """Optimizer steps per batch; without a run 1."""
    concurrent_requests: PositiveInt | None = None
    """Requests that an engine decodes at once; without a run 64."""
    engine_tokens_per_second: PositiveFloat | None = None
    """Tokens that an engine makes a second with that many requests; needed without a run."""
    request_tokens_per_second: PositiveFloat | None = None
    """Tokens of a request that an engine decodes alone. Unset: half of a decoding step does not depend on requests."""
    trainer_tokens_per_second: PositiveFloat | None = None
    """Response tokens that one GPU of the trainer trains a second; needed without a run."""
    push_seconds: NonNegativeFloat | None = None
    """Of sending the weights; without a run 10."""
    bytes_per_token: PositiveFloat = 12.0
    """Of a token in the queue: id, log-prob and version; with R3 add layers x experts per token."""
    gpus: PositiveInt | None = None
    """GPUs of engines and trainer together; unset: those of the run, without a run 16."""
    gpus_per_engine: PositiveInt = 1
    """GPUs of an engine."""
    engine_gpus: tuple[PositiveInt, ...] | None = None
    """GPUs of the engines, each a split to compare; unset: quarters of all, or the run's own split of fewer than 4."""
    lags: tuple[NonNegativeInt, ...] = (0, 1, 4, 8)
    """Lags of mode batch to compare."""
    bounds: tuple[NonNegativeInt, ...] = (1, 2, 4)
    """Values of max_staleness of mode streaming to compare, with a push after every iteration."""
    over_age: Literal["drop", "wait", "mask"] = "drop"
    """What mode streaming does with groups beyond the bound."""
    queue_prompts: PositiveInt | None = None
    """Bound on the prompts that wait or are in generation; unset: that of the bound on staleness alone."""
    iterations: PositiveInt = 24
    """Iterations that are simulated, of which the first quarter is not measured."""
    seed: NonNegativeInt = 0
    """Seed of the simulated lengths."""
