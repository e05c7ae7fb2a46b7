"""Checks tell a run that did what its settings ask for from one that did not."""

from dataclasses import replace
from pathlib import Path

import pytest

from sat_slime.config import load_config
from sat_slime.rehearsal.rehearsal_checks import Records, all_checks, expected_order
from sat_slime.rehearsal.thin import thin_settings

PAPER = Path(__file__).parents[2] / "configs" / "paper" / "qwen3-30b-a3b.yaml"


def settings(*overrides, lag=8):
    run = load_config(PAPER, overrides, {"method": "sat-gspo-r3", "pipeline.lag": lag})
    return thin_settings(run, Path("/nowhere")).config


@pytest.mark.parametrize(
    ("lag", "iterations", "first", "lags"),
    [
        (0, 3, 3, [0, 0, 0]), (1, 4, 4, [0, 1, 1, 1]), (2, 8, 8, [0, 1, 2, 1, 2, 1, 2, 1]),
        (8, 10, 10, [0, 1, 2, 3, 4, 5, 6, 7, 8, 1]), (8, 10, 8, [0, 1, 2, 3, 4, 5, 6, 7, 0, 1]),
    ],
)  # fmt: skip
def test_lags_are_those_that_whole_runs_had(lag, iterations, first, lags):
    """The first four are of runs of the whole slime (docs/rehearse.md); a resumed run begins anew at lag 0."""
    thin = settings(lag=lag)
    thin = thin.model_copy(update={"pipeline": thin.pipeline.model_copy(update={"iterations": iterations})})
    assert expected_order(thin, first)[0] == lags


def test_evaluations_measure_the_newest_push():
    assert expected_order(settings(), first=10)[1] == [0, 0, 10]
    assert expected_order(settings(), first=8)[1] == [0, 0, 8, 10]


def rows(lags):
    return [
        {"step": n + 1, "lag/max": lag, "mismatch/d_pi": 1e-3 * lag, "grad_norm": 1.0} for n, lag in enumerate(lags)
    ]


def marks(records, thin=None):
    return {check.what: check.mark for check in all_checks(thin or settings(), records, 10)}


def test_a_batch_of_another_lag_is_found():
    right = Records(metrics=rows([0, 1, 2, 3, 4, 5, 6, 7, 8, 1]))
    assert marks(right)["lag of each batch"] == "OK"
    assert marks(replace(right, metrics=rows([0, 1, 2, 3, 4, 5, 6, 7, 8, 9])))["lag of each batch"] == "FAIL"
    stream = settings("pipeline.mode=streaming", "pipeline.optimizer_steps_per_rollout=2", lag=1)
    for lags, mark in (([0, 8], "OK"), ([0, 9], "FAIL")):  # of the two steps of a batch
        assert marks(Records(metrics=rows(lags)), stream)["largest lag of each step"] == mark


def test_weights_that_did_not_arrive_are_found():
    arrived, *lost = ([{**rows([0])[0], "mismatch/d_pi": d_pi, "grad_norm": d_pi}] for d_pi in (0.0, 0.3, None))
    name = "|log pi - log mu| at lag 0, nats a token"
    assert [marks(Records(metrics=metrics))[name] for metrics in (arrived, *lost)] == ["OK", "FAIL", "FAIL"]
    assert marks(Records(metrics=lost[1]))["gradient norms"] == "FAIL", "a null is what was no finite number"


def sample(reward, status="completed", length=6):
    return {"reward": reward, "status": status, "response_length": length, "weight_versions": ["0"]}


def test_responses_that_no_token_ends_are_found():
    name = "why responses ended"
    at_limit = sample(0.0, "truncated", 24)
    assert marks(Records(rollouts={0: [at_limit, sample(1.0)]}))[name] == "OK"
    assert marks(Records(rollouts={0: [at_limit]}))[name] == "FAIL"
    tied = thin_settings(load_config(PAPER.parents[1] / "recipes" / "qwen3-0.6b-2gpus.yaml"), Path("/nowhere")).config
    assert marks(Records(rollouts={0: [at_limit]}), tied)[name] == "NOTE"


def test_a_gate_that_never_opened_at_a_lag_is_a_warning():
    name = "SAT's gate, share of tokens (scope microbatch)"
    fresh, stale = rows([0, 1])
    for share, mark in ((0.06, "OK"), (0.0, "WARN")):
        records = Records(metrics=[{**fresh, "sat/gate_rate": 0.1}, {**stale, "sat/gate_rate": share}])
        assert marks(records)[name] == mark
