"""A rollout batch: the requests of an iteration, the verdicts on their responses, and what a run folder keeps of them.

This module imports no engine: the driver needs it as well as the trainer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import numpy as np

from sat_slime.config.schema import EvalConfig, LabConfig
from sat_slime.evaluation.scores import summary
from sat_slime.lab.responses import GenerationRequest, Response
from sat_slime.reward import Verdict
from sat_slime.tasks.running_sums import Problem, RunningSums

# Streams of random numbers: under one seed they never overlap.
_TRAINING, _EVALUATION_PROBLEMS, _EVALUATION = 1, 2, 3


@dataclass(frozen=True)
class RolloutBatch:
    """Responses of one iteration, grouped by problem: samples_per_prompt responses in a row for each. Also those to one
    problem alone, as a stream delivers them."""

    task: RunningSums
    iteration: int
    """Counted from 0; of a stream's group the number of its problem, counted through the run."""
    problems: list[Problem]
    responses: list[Response]
    seconds: float = 0.0
    """Seconds from the first request sent to the last response received."""
    verdicts: list[Verdict] = field(default_factory=list)
    """The verdicts on the responses, in their order; empty until they are graded."""

    def judged(self) -> RolloutBatch:
        """Return the batch with the task's verdicts on its responses."""
        group = len(self.responses) // len(self.problems)
        labels = [problem.label for problem in self.problems for _ in range(group)]
        pairs = zip(labels, self.responses, strict=True)
        return replace(self, verdicts=[self.task.verdict(label, response.output_ids) for label, response in pairs])

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
        """Return reward/*, response/* and tokens/* of the run folder."""
        rewards, lengths = self.rewards, self.lengths
        return {
            "reward/mean": float(rewards.mean()),
            "reward/flat_groups": float((rewards.min(1) == rewards.max(1)).mean()),
            "response/length_mean": float(lengths.mean()),
            "response/length_max": int(lengths.max()),
            "response/truncated": float(self.truncated.mean()),
            "tokens/response_total": int(lengths.sum()),
        }


def lag_metrics(responses: Sequence[Response], updates: int) -> dict[str, float]:
    """Return lag/* over the tokens of the responses, at an optimizer step on weights of `updates` updates.

    A token's lag is the sum of two parts (Eq. fully-async-lag): the updates while the rest of its response was
    generated, and the updates since then.
    """
    versions = np.concatenate([r.versions for r in responses])
    last = np.repeat([r.weight_version for r in responses], [len(r.output_ids) for r in responses])
    lags = updates - versions
    return {
        "lag/mean": float(lags.mean()),
        "lag/min": int(lags.min()),
        "lag/max": int(lags.max()),
        "lag/generation_mean": float((last - versions).mean()),
        "lag/queue_mean": float((updates - last).mean()),
    }


def group_advantages(rewards: np.ndarray) -> np.ndarray:
    """Return GRPO's (groups, samples) advantages: (R - mean) / (std + 1e-6) in each group, std over n - 1 as in slime;
    0 throughout a group whose rewards are all the same. rewards: (groups, samples), samples >= 2."""
    centered = rewards - rewards.mean(1, keepdims=True)
    return centered / (rewards.std(1, ddof=1, keepdims=True) + 1e-6)


def training_requests(config: LabConfig, iteration: int) -> tuple[list[Problem], list[GenerationRequest]]:
    """Return the problems and requests of an iteration. They follow from the run's seed and the iteration alone, so
    that a resumed run goes on with the same stream."""
    rng = np.random.default_rng([config.seed, _TRAINING, iteration])
    rollout = config.rollout
    problems = config.task.training_problems(rollout.prompts_per_iteration, rng)
    samples, temperature = rollout.samples_per_prompt, rollout.temperature
    return problems, _requests(config, f"train-{iteration}", problems, samples, temperature, rng)


def is_due(number: int, every: int) -> bool:
    """Return whether `number`, of an iteration or of a step, is a multiple of `every`; 0: never."""
    return every > 0 and number % every == 0


def training_group(config: LabConfig, number: int) -> tuple[list[Problem], list[GenerationRequest]]:
    """Return the one problem of a group, numbered through all iterations, and the requests for its responses."""
    iteration, index = divmod(number, config.rollout.prompts_per_iteration)
    problems, requests = training_requests(config, iteration)
    samples = config.rollout.samples_per_prompt
    return [problems[index]], requests[index * samples : (index + 1) * samples]


def evaluation_requests(
    config: LabConfig, step: int, repeats: int | None = None
) -> tuple[list[Problem], list[GenerationRequest]]:
    """Return the same held-out problems at every evaluation, with fresh sampling. repeats: unset, `eval.repeats`."""
    problems_rng = np.random.default_rng([config.seed, _EVALUATION_PROBLEMS])
    problems = config.task.evaluation_problems(config.eval.problems, problems_rng)
    rng = np.random.default_rng([config.seed, _EVALUATION, step])
    samples = config.eval.samples_per_problem * (repeats or config.eval.repeats)
    return problems, _requests(config, f"eval-{step}", problems, samples, config.eval.temperature, rng)


def _requests(config, prefix, problems, samples, temperature, rng) -> list[GenerationRequest]:
    return [
        GenerationRequest(
            request_id=f"{prefix}-{p}-{s}",
            prompt_ids=config.task.encode(problem.prompt),
            max_new_tokens=config.rollout.max_response_tokens,
            temperature=temperature,
            seed=int(rng.integers(2**31)),
            stop_token_ids=(config.task.eos_id,),
        )
        for p, problem in enumerate(problems)
        for s in range(samples)
    ]


# --------------------------------------------------------------------------------------------- rows of the run folder


def sample_rows(batch: RolloutBatch) -> list[dict[str, Any]]:
    """Return the lines of samples/ITERATION.jsonl, one per response; its `weight_versions` are [version, tokens]."""
    group = len(batch.responses) // len(batch.problems)
    return [
        {
            "prompt": batch.problems[i // group].prompt,
            "response": batch.task.decode(response.output_ids),
            "reward": response.reward,
            "advantage": response.advantage,
            "finish_reason": response.finish_reason,
            "weight_version": response.weight_version,
            "weight_versions": [[version, len([*tokens])] for version, tokens in groupby(response.versions.tolist())],
            "log_prob": float(response.log_probs.sum()),
        }
        for i, response in enumerate(batch.graded())
    ]


def evaluation_row(batch: RolloutBatch, scores: EvalConfig, step: int, iteration: int) -> dict[str, Any]:
    """Return one line of eval.jsonl. `weights_step` is of the weights that answered, which may lag `step`."""
    graded = batch.rewards, batch.lengths, batch.truncated, [verdict.reason for verdict in batch.verdicts]
    return {
        "step": step,
        "iteration": iteration,
        "weights_step": batch.oldest,  # of all responses: nothing is broadcast meanwhile
        **summary(*graded, repeats=scores.repeats),
        "time/eval": batch.seconds,
    }
