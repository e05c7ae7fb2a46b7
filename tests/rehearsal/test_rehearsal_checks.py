"""Checks tell a run that did what its settings ask for from one that did not."""

from dataclasses import replace
from pathlib import Path

import pytest

from sat_slime.config import load_config
from sat_slime.rehearsal.records import Records
from sat_slime.rehearsal.rehearsal_checks import all_checks, expected_evaluations, expected_lags
from sat_slime.rehearsal.thin import Sizes, thin_settings

PAPER = Path(__file__).parents[2] / "configs" / "paper" / "qwen3-30b-a3b.yaml"


def settings(*overrides, lag=8):
    run = load_config(PAPER, overrides, {"method": "sat-gspo-r3", "pipeline.lag": lag})
    return thin_settings(run, Path("/nowhere"), Sizes()).config


@pytest.mark.parametrize(
    ("lag", "iterations", "first", "lags"),
    [
        (0, 3, 3, [0, 0, 0]),
        (1, 4, 4, [0, 1, 1, 1]),
        (2, 8, 8, [0, 1, 2, 1, 2, 1, 2, 1]),
        (8, 10, 10, [0, 1, 2, 3, 4, 5, 6, 7, 8, 1]),
        (8, 10, 8, [0, 1, 2, 3, 4, 5, 6, 7, 0, 1]),
    ],
)
def test_lags_are_those_that_whole_runs_had(lag, iterations, first, lags):
    """The first four are of runs of the whole slime (docs/rehearse.md); a resumed run begins anew at lag 0."""
    thin = settings(lag=lag)
    thin = thin.model_copy(update={"pipeline": thin.pipeline.model_copy(update={"iterations": iterations})})
    assert expected_lags(thin, first) == lags


def test_evaluations_measure_the_newest_push():
    assert expected_evaluations(settings(), first=10) == [0, 0, 10]
    assert expected_evaluations(settings(), first=8) == [0, 0, 8, 10]


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


def test_weights_that_did_not_arrive_are_found():
    arrived, lost = rows([0]), [{**rows([0])[0], "mismatch/d_pi": 0.3}]
    name = "|log pi - log mu| at lag 0, nats a token"
    assert [marks(Records(metrics=metrics))[name] for metrics in (arrived, lost)] == ["OK", "FAIL"]


def test_an_engine_on_another_node_is_found():
    thin = settings()

    def engines(*hosts):
        rows = [{"host": host, "port": port, "weights": 1} for port, host in enumerate(hosts) for _ in range(2)]
        return Records(engines=rows)

    right, wrong = engines("127.0.0.1", "127.0.0.1"), engines("127.0.0.1", "127.0.0.3")
    assert [marks(records, thin)["engines' ranks by node"] for records in (right, wrong)] == ["OK", "FAIL"]
    assert marks(wrong, thin)["engines x ranks"] == "OK"


def sample(response, reward, status="completed", length=6):
    return {
        "response": response,
        "label": "7",
        "reward": reward,
        "status": status,
        "response_length": length,
        "tokens": [0] * 10,
        "weight_versions": ["0"],
    }


def test_a_reward_that_is_not_the_answers_is_found():
    name = "rewards by hand: is what stands in \\boxed{} the label"
    right = [sample("\\boxed{7}", 1.0), sample("\\boxed{8}", 0.0)]
    assert marks(Records(rollouts={0: right}))[name] == "OK"
    assert marks(Records(rollouts={0: [*right, sample("\\boxed{5}", 1.0)]}))[name] == "FAIL"
    # PRIME's verdicts on these: what stands after the word answer, and no answer in a box that was not closed
    unclear = [sample("\\boxed{7} answer: so", 0.0), sample("so \\boxed{7}\\boxed", 0.0)]
    assert marks(Records(rollouts={0: [*right, *unclear]}))[name] == "OK"


def test_responses_that_no_token_ends_are_found():
    name = "why responses ended"
    at_limit = sample("so so", 0.0, "truncated", 24)
    assert marks(Records(rollouts={0: [at_limit, sample("\\boxed{7}", 1.0)]}))[name] == "OK"
    assert marks(Records(rollouts={0: [at_limit]}))[name] == "FAIL"
    tied = thin_settings(
        load_config(PAPER.parents[1] / "recipes" / "qwen3-0.6b-2gpus.yaml"), Path("/nowhere"), Sizes()
    ).config
    assert marks(Records(rollouts={0: [at_limit]}), tied)[name] == "NOTE"


def rank(state_at_load, steps=8):
    begun = {"event": "initialized", "node": "127.0.0.1", "copies": {}}
    begun |= dict.fromkeys(("tensor", "pipeline", "context", "data", "expert"), 0)
    return [
        {**begun, "state": "new", "steps": 0},
        {"event": "saved", "rollout": 7, "state": "saved"},
        {**begun, "state": state_at_load, "steps": steps},
    ]


def test_a_rank_that_holds_other_weights_is_found():
    """The number is that of a rank of a whole run: 48 layers of 128 experts, TP 4 x EP 4."""

    def weights(count):
        held = {"weights": count, "exp_avg": 0, "exp_avg_sq": 0}
        row = {"event": "trained", "elements": held, "tokens": 47, "route_bytes": 47 * 384}
        return marks(Records(ranks={0: [row]}))["weights, elements a rank"]

    assert (weights(10_870_336), weights(10_870_335)) == ("OK", "FAIL")


def test_a_checkpoint_that_comes_back_otherwise_is_found():
    def bits(state):
        found = all_checks(settings(), Records(ranks={0: rank(state)}), first=8)
        return next(check.mark for check in found if check.what.endswith("to the bit"))

    assert (bits("saved"), bits("other")) == ("OK", "FAIL")


GATE = "SAT's gate, share of tokens (scope {})"


def gate_of(responses, open_share, *, scope="step", method="sat-gspo-r3", lag=1.0, **row):
    """The check on SAT's gate, of one batch of responses whose lengths, or tokens, are given."""
    run = load_config(PAPER, [f"method.sat.scope={scope}"], {"method": method})
    thin = thin_settings(run, Path("/nowhere"), Sizes()).config
    samples = [
        sample("so", 0.0, length=len(tokens)) | {"tokens": tokens}
        for tokens in ([n] * length if isinstance(length, int) else length for n, length in enumerate(responses))
    ]
    metrics = [{"step": 1, "lag/max": lag, "sat/gate_rate": open_share, "sat/q": 0.1, "grad_norm": 1.0, **row}]
    trained = {"event": "trained", "elements": dict.fromkeys(("weights", "exp_avg", "exp_avg_sq"), 0)}
    ranks = {0: [trained | {"rollout": 0, "micro_batches": [2], "tokens": 0, "route_bytes": 0}]}
    found = all_checks(thin, Records(metrics=metrics, rollouts={0: samples}, ranks=ranks), first=10)
    return next(check for check in found if check.what == GATE.format(scope))


def test_a_gate_that_had_to_open_and_did_not_is_a_fault():
    """Of 16 responses, or of 32 in two micro-batches, the stalest is less than the tenth beyond the quantile."""
    assert gate_of([50] * 16, 0.06).mark == "OK"
    assert gate_of([50] * 16, 0.0).mark == "FAIL"
    assert gate_of([50] * 32, 0.0, scope="microbatch", **{"sat/scope_too_small": 0.0}).mark == "FAIL"
    assert gate_of([50] * 4, 0.0, method="sat-grpo").mark == "FAIL"  # a token is a unit


@pytest.mark.parametrize(
    ("gate", "reason"),
    [
        (([2000] * 4, 0.0), "a step of 4 responses is too small"),
        (([50] * 15 + [500], 0.0), "a step of 16 responses is too small"),
        (([[99] * 50] * 2 + [50] * 14, 0.0), "a step of 16 responses is too small"),  # two that say the same tie
    ],
)
def test_a_gate_that_a_batch_cannot_open_is_only_told(gate, reason):
    check = gate_of(*gate)
    assert check.mark == "NOTE"
    assert reason in check.remark


def test_other_reasons_for_a_shut_gate():
    assert gate_of([50] * 16, 0.06, lag=0.0).remark.endswith("no batch had a lag")
    assert "did not move" in gate_of([50] * 16, 0.0, **{"sat/q": 0.0}).remark
    assert gate_of([50] * 16, 0.0, scope="microbatch").mark == "NOTE"  # 8 in each of two micro-batches
    assert gate_of([50] * 32, 0.0, scope="microbatch", **{"sat/scope_too_small": 1.0}).mark == "NOTE"
    assert gate_of([2] * 4, 0.0, method="sat-grpo").mark == "NOTE"
