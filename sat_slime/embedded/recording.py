"""What the loop records of a batch and of an evaluation: the rows of the run folder."""

from __future__ import annotations

from typing import Any

from sat_slime.config.schema import EvalConfig
from sat_slime.embedded import task
from sat_slime.embedded.batch import RolloutBatch, StepResult
from sat_slime.rollout.evaluation import Graded, measured_weights, summary


def step_row(batch: RolloutBatch, result: StepResult, iteration: int, seconds: dict[str, float]) -> dict[str, Any]:
    """One line of metrics.jsonl; `seconds` are the parts of the iteration's time."""
    return {
        **result.metrics,
        "rollout_id": batch.iteration,
        "iteration": iteration,
        **batch.metrics(),
        "time/rollout": batch.seconds,
        **{f"time/{part}": value for part, value in seconds.items()},
    }


def histogram_row(result: StepResult) -> dict[str, Any]:
    """One line of histograms.jsonl."""
    metrics = result.metrics
    return {"step": metrics["step"], "lag": metrics["lag/mean"], "q": metrics.get("sat/q"), **result.histogram}


def sample_rows(batch: RolloutBatch) -> list[dict[str, Any]]:
    """Lines of samples/ITERATION.jsonl, one per response."""
    rewards = batch.rewards.reshape(-1)
    group = len(batch.responses) // len(batch.problems)
    return [
        {
            "prompt": batch.problems[i // group].prompt,
            "response": task.decode(response.output_ids),
            "reward": float(rewards[i]),
            "advantage": sample.advantage,
            "finish_reason": response.finish_reason,
            "weight_version": response.weight_version,
            "log_prob": float(response.log_probs.sum()),
        }
        for i, (response, sample) in enumerate(zip(batch.responses, batch.samples(), strict=True))
    ]


def evaluation_row(batch: RolloutBatch, scores: EvalConfig, step: int, iteration: int) -> dict[str, Any]:
    """One line of eval.jsonl. `weights_step` is of the weights that answered, which may lag `step`."""
    graded = Graded(batch.rewards, batch.lengths, batch.truncated, [verdict.reason for verdict in batch.verdicts])
    return {
        "step": step,
        "iteration": iteration,
        "weights_step": measured_weights(response.weight_version for response in batch.responses),
        **summary(graded, scores.sizes(scores.samples_per_problem), scores.repeats),
        **{f"verifier/{name}": count for name, count in batch.verifier.items()},
        "time/eval": batch.seconds,
    }
