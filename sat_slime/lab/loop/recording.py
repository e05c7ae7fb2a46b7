"""The rows of the run folder: what the loop records of a batch and of an evaluation."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import numpy as np

from sat_slime.config.method_section import build_method
from sat_slime.config.schema import EvalConfig, LabConfig
from sat_slime.evaluation.scores import Graded, measured_weights, summary
from sat_slime.lab.rollout_batch import RolloutBatch, StepResult
from sat_slime.rollout.token_dump import TokenDump
from sat_slime.rollout.types import TOOL


def step_row(batch: RolloutBatch, result: StepResult, iteration: int, seconds: dict[str, float]) -> dict[str, Any]:
    """Return one line of metrics.jsonl; `seconds` are the parts of the iteration's time."""
    return {
        **result.metrics,
        "rollout_id": batch.iteration,
        "iteration": iteration,
        **batch.metrics(),
        "time/rollout": batch.seconds,
        **{f"time/{part}": value for part, value in seconds.items()},
    }


def histogram_row(config: LabConfig, result: StepResult) -> dict[str, Any]:
    """Return one line of histograms.jsonl. SAT's quantile stands beside the histogram of |d| where it is one of |d|."""
    metrics, of_log_ratios = result.metrics, config.method.sat.score == "log_ratio"
    q = metrics.get("sat/q") if of_log_ratios else None
    return {"step": metrics["step"], "lag": metrics["lag/mean"], "q": q, **result.histogram}


def token_dump(config: LabConfig, batch: RolloutBatch, result: StepResult, iteration: int, part: int) -> TokenDump:
    """Return the dump of one optimizer step, the `part`-th of its batch, whose result brought the tokens' columns."""
    assert result.tokens is not None, "the trainer was asked for them"
    size = len(batch.responses) // config.pipeline.optimizer_steps_per_rollout
    mine = slice(part * size, (part + 1) * size)
    responses = batch.graded()[mine]
    lengths = [len(response.output_ids) for response in responses]
    columns, method = dict(result.tokens), build_method(config.method)
    distributions = [response.distribution for response in responses if response.distribution is not None]
    mu = np.concatenate(distributions) if len(distributions) == len(responses) else None
    columns |= _total_variation(mu, columns.pop("log_distribution", None), columns.pop(_PI_L, None))
    step = int(result.metrics["step"])
    versions = np.concatenate([response.versions for response in responses]).astype(np.int32)
    return TokenDump(
        iteration=iteration,
        step=step,
        updates=step - 1,
        method=method.name,
        temperature=config.rollout.temperature,
        lengths=np.array(lengths, np.int64),
        prompt_index=np.arange(mine.start, mine.stop) // config.rollout.samples_per_prompt,
        rewards=batch.rewards.reshape(-1)[mine],
        tokens=np.concatenate([np.asarray(response.output_ids, np.int32) for response in responses]),
        mask=versions != TOOL,
        log_probs=columns.pop("log_probs"),
        rollout_log_probs=np.concatenate([response.log_probs for response in responses]),
        advantages=np.repeat(np.array([response.advantage for response in responses], np.float32), lengths),
        versions=versions,
        entropy=columns.pop("entropy"),
        more=columns,
        metadata={
            "routing_replay": str(method.routing_replay).lower(),
            "trainer_dtype": config.train.dtype,
            "engine_dtype": config.rollout.dtype,
            "lag": str(config.pipeline.lag),
        },
    )


_PI_L = "checkpoint_log_distribution"


def _total_variation(mu: np.ndarray | None, pi: np.ndarray | None, pi_l: np.ndarray | None) -> dict[str, np.ndarray]:
    """Return (N,) total variation at each token's state over the whole vocabulary, of those (N, vocabulary) log-probs
    that are known: of mu and pi, and of its parts, pi_l and pi, mu and pi_l."""
    pairs = {"tv": (mu, pi), "tv_policy": (pi_l, pi), "tv_implementation": (mu, pi_l)}
    return {
        name: (np.abs(np.exp(a.astype(np.float64)) - np.exp(b.astype(np.float64))).sum(1) / 2).astype(np.float32)
        for name, (a, b) in pairs.items()
        if a is not None and b is not None
    }


def sample_rows(batch: RolloutBatch) -> list[dict[str, Any]]:
    """Return the lines of samples/ITERATION.jsonl, one per response."""
    group = len(batch.responses) // len(batch.problems)
    return [
        {
            "prompt": batch.problems[i // group].prompt,
            "response": batch.task.decode(response.output_ids),
            "reward": response.reward,
            "advantage": response.advantage,
            "finish_reason": response.finish_reason,
            "weight_version": response.weight_version,
            **_versions_of(response.versions),
            "log_prob": float(response.log_probs.sum()),
        }
        for i, response in enumerate(batch.graded())
    ]


def _versions_of(versions: np.ndarray) -> dict[str, list[list[int]]]:
    """Return `weight_versions`, [version, tokens] in the order of the tokens, of a response whose weights changed while
    it was decoded."""
    parts = [[int(version), len(list(tokens))] for version, tokens in groupby(np.asarray(versions).tolist())]
    return {"weight_versions": parts} if len(parts) > 1 else {}


def evaluation_row(batch: RolloutBatch, scores: EvalConfig, step: int, iteration: int) -> dict[str, Any]:
    """Return one line of eval.jsonl. `weights_step` is of the weights that answered, which may lag `step`."""
    graded = Graded(batch.rewards, batch.lengths, batch.truncated, [verdict.reason for verdict in batch.verdicts])
    return {
        "step": step,
        "iteration": iteration,
        "weights_step": measured_weights(response.weight_version for response in batch.responses),
        **summary(graded, scores.sizes(scores.samples_per_problem), scores.repeats),
        **{f"rollout/{name}": count for name, count in batch.faults.items()},
        **{f"verifier/{name}": count for name, count in batch.verifier.items()},
        "time/eval": batch.seconds,
    }
