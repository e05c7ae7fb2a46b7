import pytest

from sat_slime.runs.trackers import split_log


def test_several_optimizer_steps_per_rollout():
    rows = [{"rollout/step": r, "rollout/raw_reward": 0.1 * r} for r in range(3)]
    rows += [{"train/step": s, "train/grad_norm": float(s)} for s in range(6)] + [{"eval/step": 1, "eval/m": 0.5}]
    metrics, evals = split_log(rows)
    assert [(row["step"], row["reward/mean"], row["grad_norm"]) for row in metrics] == [
        (s + 1, pytest.approx(0.1 * (s // 2)), s) for s in range(6)
    ]
    assert evals[0]["step"] == 4


def test_an_evaluation_before_training_is_of_step_0():
    rows = [{"eval/step": 0, "eval/m": 0.1}, {"train/step": 0, "train/loss": 1.0}, {"eval/step": 0, "eval/m": 0.2}]
    assert [row["step"] for row in split_log(rows)[1]] == [0, 1]


def test_evaluations_that_are_told_before_the_training_have_their_steps():
    """As from exports by file, eval.csv before train.csv."""
    rows = [{"eval/step": step, "eval/m": 0.1} for step in (0, 2, 4)]
    rows += [{"train/step": step, "train/loss": 1.0} for step in range(5)]
    assert [row["step"] for row in split_log(rows)[1]] == [0, 3, 5]
