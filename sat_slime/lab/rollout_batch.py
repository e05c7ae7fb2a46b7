"""A rollout batch: the requests of an iteration, and what becomes of their responses.

This module imports no engine: the driver needs it as well as the trainer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from sat_slime.config.method_section import build_method
from sat_slime.config.schema import LabConfig
from sat_slime.reward import Verdict
from sat_slime.rollout.canary import prefix_length
from sat_slime.rollout.types import TOOL, GenerationRequest, Response
from sat_slime.tasks import Problem, Task

# Streams of random numbers: under one seed they never overlap.
_TRAINING, _EVALUATION_PROBLEMS, _EVALUATION = 1, 2, 3


@dataclass(frozen=True)
class StepResult:
    """The report of one optimizer step."""

    metrics: dict[str, float]
    histogram: dict
    """Histogram of |d| over the step's tokens (see objective.mismatch_histogram)."""
    tokens: dict[str, np.ndarray] | None = None
    """(N, ...) columns of the step's tokens in batch order, by the names of token dumps; None where they were
    not asked for."""


@dataclass(frozen=True)
class RolloutBatch:
    """Responses of one iteration, grouped by problem: samples_per_prompt responses in a row for each. Also those to one
    problem alone, as a stream delivers them."""

    task: Task
    iteration: int
    """Counted from 0; of a stream's group the number of its problem, counted through the run."""
    problems: list[Problem]
    responses: list[Response]
    seconds: float = 0.0
    """Seconds from the first request sent to the last response received."""
    faults: dict[str, int] = field(default_factory=dict)
    """Counts of rejected, lost and resent responses."""
    verdicts: list[Verdict] = field(default_factory=list)
    """The verdicts on the responses, in their order; empty until they are graded."""
    verifier: dict[str, float] = field(default_factory=dict)
    """What the verifier counted while it graded; empty where the task's own check graded."""

    @property
    def rewards(self) -> np.ndarray:
        """(problems, samples) rewards."""
        return np.array([verdict.reward for verdict in self.verdicts], np.float32).reshape(len(self.problems), -1)

    @property
    def lengths(self) -> np.ndarray:
        """(problems, samples) response tokens."""
        return np.array([len(r.output_ids) for r in self.responses]).reshape(len(self.problems), -1)

    @property
    def oldest(self) -> int:
        """Version of the oldest weights that generated a token."""
        return min(int(response.versions[0]) for response in self.responses)

    @property
    def truncated(self) -> np.ndarray:
        """(problems, samples) bool: cut at the longest length."""
        return np.array([r.output_ids[-1] != self.task.eos_id for r in self.responses]).reshape(len(self.problems), -1)

    def graded(self) -> list[Response]:
        """Return the responses with their rewards and their group-normalized advantages."""
        advantages = group_advantages(self.rewards).reshape(-1).tolist()
        rewards = self.rewards.reshape(-1).tolist()
        graded = zip(self.responses, rewards, advantages, strict=True)
        return [replace(response, reward=reward, advantage=advantage) for response, reward, advantage in graded]

    def metrics(self) -> dict[str, float]:
        """Return reward/*, response/*, tokens/*, rollout/* and verifier/* of the run folder."""
        rewards, lengths = self.rewards, self.lengths
        return {
            "reward/mean": float(rewards.mean()),
            "reward/flat_groups": float((rewards.min(1) == rewards.max(1)).mean()),
            "response/length_mean": float(lengths.mean()),
            "response/length_max": int(lengths.max()),
            "response/truncated": float(self.truncated.mean()),
            "tokens/response_total": int(lengths.sum()),
            **{f"rollout/{name}": count for name, count in self.faults.items()},
            **{f"verifier/{name}": count for name, count in self.verifier.items()},
        }


def lag_metrics(responses: Sequence[Response], updates: int) -> dict[str, float]:
    """Return lag/* over the generated tokens of the responses, at an optimizer step on weights of `updates` updates.

    A token's lag is the sum of two parts (Eq. fully-async-lag): the updates while the rest of its response was
    generated, and the updates since then.
    """
    versions = np.concatenate([r.versions for r in responses])
    last = np.repeat([r.weight_version for r in responses], [len(r.output_ids) for r in responses])
    versions, last = versions[versions != TOOL], last[versions != TOOL]
    lags = updates - versions
    return {
        "lag/mean": float(lags.mean()),
        "lag/min": int(lags.min()),
        "lag/max": int(lags.max()),
        "lag/generation_mean": float((last - versions).mean()),
        "lag/queue_mean": float((updates - last).mean()),
    }


def group_advantages(rewards: np.ndarray) -> np.ndarray:
    """Return GRPO's advantages: (R - mean) / (std + 1e-6) in each group, std over n - 1 as in slime.

    Args:
        rewards: (groups, samples), samples >= 2: the rewards of the responses to each prompt.

    Returns:
        (groups, samples); 0 throughout a group whose rewards are all the same.
    """
    centered = rewards - rewards.mean(1, keepdims=True)
    return centered / (rewards.std(1, ddof=1, keepdims=True) + 1e-6)


def training_requests(config: LabConfig, iteration: int) -> tuple[list[Problem], list[GenerationRequest]]:
    """Return the problems and requests of an iteration. They follow from the run's seed and the iteration alone, so
    that a resumed run goes on with the same stream."""
    rng = np.random.default_rng([config.seed, _TRAINING, iteration])
    problems = config.task.training_problems(config.rollout.prompts_per_iteration, rng)
    whole = batch_is_diagnosed(config, iteration) or method_takes_distributions(config)
    return problems, _requests(
        config,
        f"train-{iteration}",
        problems,
        config.rollout.samples_per_prompt,
        config.rollout.temperature,
        rng,
        distribution_size=config.task.vocab_size if whole else 0,
        top_p=config.rollout.top_p,
    )


def method_takes_distributions(config: LabConfig) -> bool:
    """Return whether every response must carry its engine's whole distributions: TRPO compares them with the trainer's,
    and mu within a nucleus is normalized over what was kept."""
    method = build_method(config.method)
    return method.step_constraint is not None or config.rollout.top_p < 1


def step_is_diagnosed(config: LabConfig, updates: int) -> bool:
    """Return whether the optimizer step that follows `updates` of them is diagnosed (`diagnose.every_n_steps`)."""
    every = config.diagnose.every_n_steps
    return every > 0 and updates % every == 0


def batch_is_diagnosed(config: LabConfig, iteration: int) -> bool:
    """Return whether a step on the batch of `iteration`, from 0, is diagnosed: the engine then returns its whole
    distributions."""
    steps = config.pipeline.optimizer_steps_per_rollout
    return any(step_is_diagnosed(config, iteration * steps + i) for i in range(steps))


def training_group(config: LabConfig, number: int) -> tuple[Problem, list[GenerationRequest]]:
    """Return the problem of a group's number, and the requests for its responses.

    Groups are the problems of `training_requests`, counted through all iterations. Nobody knows yet in which step a
    group will be trained, so its requests ask for whole distributions only where the method takes them.
    """
    iteration, index = divmod(number, config.rollout.prompts_per_iteration)
    problems, requests = training_requests(config, iteration)
    samples = config.rollout.samples_per_prompt
    mine = requests[index * samples : (index + 1) * samples]
    size = config.task.vocab_size if method_takes_distributions(config) else 0
    return problems[index], [replace(request, distribution_size=size) for request in mine]


def canary_responses(config: LabConfig, sequences: Sequence[tuple[int, ...]]) -> list[Response]:
    """Return the canary's sequences as responses that the trainer can score: their prefixes as prompts. Their routes
    only fill the place of an engine's; the trainer routes freely."""
    start, model = prefix_length(sequences), config.model
    shape = (len(sequences[0]) - 1, model.layers, model.experts_per_token)
    routes = np.broadcast_to(np.arange(model.experts_per_token, dtype=np.uint16), shape) if model.is_moe else None
    length = len(sequences[0]) - start
    nothing = np.zeros(length, np.float32)
    versions = np.zeros(length, np.int64)
    return [
        Response(f"canary-{i}", tokens[:start], tokens[start:], nothing, routes, "length", versions)
        for i, tokens in enumerate(sequences)
    ]


def evaluation_requests(
    config: LabConfig, step: int, repeats: int | None = None
) -> tuple[list[Problem], list[GenerationRequest]]:
    """Return the same held-out problems at every evaluation, with fresh sampling. repeats: unset, `eval.repeats`."""
    problems_rng = np.random.default_rng([config.seed, _EVALUATION_PROBLEMS])
    problems = config.task.evaluation_problems(config.eval.problems, problems_rng)
    rng = np.random.default_rng([config.seed, _EVALUATION, step])
    samples = config.eval.samples_per_problem * (repeats or config.eval.repeats)
    return problems, _requests(config, f"eval-{step}", problems, samples, config.eval.temperature, rng)


def _requests(config, prefix, problems, samples, temperature, rng, **sampling) -> list[GenerationRequest]:
    return [
        GenerationRequest(
            request_id=f"{prefix}-{p}-{s}",
            prompt_ids=config.task.encode(problem.prompt),
            max_new_tokens=config.rollout.max_response_tokens,
            temperature=temperature,
            seed=int(rng.integers(2**31)),
            stop_token_ids=config.task.stop_ids,
            **sampling,
        )
        for p, problem in enumerate(problems)
        for s in range(samples)
    ]
