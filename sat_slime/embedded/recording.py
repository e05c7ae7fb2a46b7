"""What the loop records of a batch and of an evaluation: the rows of the run folder."""

from __future__ import annotations

from typing import Any

from sat_slime.embedded import task
from sat_slime.embedded.batch import RolloutBatch, StepResult


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


def evaluation_row(batch: RolloutBatch, step: int, iteration: int) -> dict[str, Any]:
    """One line of eval.jsonl. `weights_step` is of the weights that answered, which may lag `step`."""
    rewards = batch.rewards
    return {
        "step": step,
        "iteration": iteration,
        "weights_step": min(response.weight_version for response in batch.responses),
        "accuracy": float(rewards.mean()),
        "accuracy_by_problem": rewards.mean(1).tolist(),
        "n_problems": len(batch.problems),
        "n_samples": rewards.size,
        "length_mean": sum(len(response.output_ids) for response in batch.responses) / rewards.size,
        "time/eval": batch.seconds,
    }
