import numpy as np
import pytest
from rich.console import Console
from synthetic import step_metrics

from sat_slime.config.jsonl import read_rows
from sat_slime.runs.collapse import (
    MISMATCH_CEILING,
    MISMATCH_RISE,
    CollapseWatch,
    first_departure,
    judge,
)
from sat_slime.runs.folder import RunFolder
from sat_slime.runs.live_view import RunView
from sat_slime.runs.log import RunLog
from sat_slime.runs.rows import read_metrics


def columns(d_pi, scores, every=10, samples=256.0):
    """d_pi by step and an evaluation every ten."""
    steps = np.arange(1.0, len(d_pi) + 1)
    at = every * np.arange(len(scores), dtype=float)
    return {"step": steps, "mismatch/d_pi": np.array(d_pi)}, {
        "step": at,
        "accuracy": np.array(scores),
        "n_samples": np.full(len(scores), samples),
    }


CALM, STORMY = [0.01] * 100, [0.01] * 60 + [0.05] * 40
RISING, FALLING = [0.2, 0.5, 0.6, 0.7, 0.7, 0.8, 0.8, 0.8, 0.8, 0.8], [0.2, 0.5, 0.6, 0.7, 0.7, 0.7, 0.5, 0.3, 0.2, 0.1]
FEW = [0.1, 0.12, 0.12, 0.12, 0.12, 0.07, 0.07, 0.07, 0.07, 0.07]
"""A loss within the error of few samples."""


@pytest.mark.parametrize(
    ("d_pi", "scores", "samples", "met"),
    [
        (STORMY, FALLING, 256, True),
        (CALM, FALLING, 256, False),
        (STORMY, RISING, 256, False),
        (CALM, RISING, 256, False),
        ([MISMATCH_CEILING + 0.01] * 100, FALLING, 256, True),  # it was never low
        ([MISMATCH_CEILING - 0.01] * 100, FALLING, 256, False),
        (STORMY, [0.6] * 5 + [0.39] * 5, 256, True),
        (STORMY, [0.6] * 5 + [0.41] * 5, 256, False),
        (STORMY, FEW, 64, False),
        (STORMY, FEW, 6400, True),
    ],
)
def test_both_score_and_mismatch_have_to_go(d_pi, scores, samples, met):
    watch = judge(*columns(d_pi, scores, samples=samples), 1)
    assert watch.met is met is bool(watch.sentence())
    assert watch.score_fell is (met or scores is FALLING)


def test_one_bad_evaluation_is_no_collapse_and_recovery_is_seen():
    once = [0.2, 0.6, 0.7, 0.7, 0.7, 0.7, 0.7, 0.3, 0.7, 0.7]
    assert judge(*columns(STORMY, once), 1).ever is None
    recovered = judge(*columns([0.01] * 40 + [0.05] * 60, [0.2, 0.7, 0.7, 0.7, 0.1, 0.1, 0.1, 0.7, 0.7, 0.7]), 1)
    assert recovered.ever == 50 and not recovered.met


def test_what_is_unknown_is_not_marked():
    metrics, evals = columns(STORMY, FALLING)
    assert not judge({"step": metrics["step"]}, evals, 1).met
    assert not judge(metrics, {}, 1).met
    assert not judge({}, {}, 1).met
    assert judge(metrics, {key: values[:2] for key, values in evals.items()}, 1).newest is None


def test_without_evaluations_the_reward_is_the_score():
    metrics, _ = columns([0.01] * 100 + [0.1] * 100, [])
    metrics["reward/mean"] = np.array([0.8] * 100 + [0.2] * 100)
    watch = judge(metrics, {}, 1)
    assert watch.met and "training reward" in watch.sentence()


def test_band_is_over_whole_lag_cycles():
    """A sawtooth that no cycle leaves stays in its band, however steep; the first cycle, from lag 0, does not count."""
    sawtooth = np.concatenate([np.zeros(8), np.tile(np.arange(1.0, 9.0), 20)])
    steps = np.arange(1, len(sawtooth) + 1)
    assert first_departure(steps, sawtooth, 8, MISMATCH_RISE) is None
    risen = np.concatenate([sawtooth, MISMATCH_RISE * np.tile(np.arange(1.0, 9.0), 4)])
    assert first_departure(np.arange(1, len(risen) + 1), risen, 8, MISMATCH_RISE) == len(sawtooth) + 16


# -------------------------------------------------------------------------------------------------------- live


def row(step, collapsed):
    changes = {"mismatch/d_pi": 0.3 if collapsed else 0.02, "reward/mean": 0.1 if collapsed else 0.8}
    return step_metrics(step, 1, **changes)


def live(folder, stop=False, steps=range(1, 121), fall=60):
    log = RunLog(folder, RunView("run", 120, Console(quiet=True)), watch=CollapseWatch(1), stop_on_collapse=stop)
    told = None
    for step in steps:
        log.step(row(step, step > fall))
        if step % 10 == 0:
            log.eval({"step": step, "weights_step": step, "accuracy": 0.1 if step > fall else 0.8, "n_samples": 256})
        told = told or (step if log.stop_reason() else None)
    return log, told


@pytest.fixture
def folder(tmp_path):
    return RunFolder.create(tmp_path / "run", "name: run\n")


def test_a_run_says_that_it_collapses_and_goes_on(folder):
    log, told = live(folder)
    log.close()
    assert told is None
    rows = read_rows(folder.metrics)
    assert [row["collapse/met"] for row in rows].index(1.0) == 80  # the step after the second bad evaluation
    assert rows[0].keys() & {"collapse/mismatch_rise", "collapse/score_loss"} == set()
    assert rows[-1]["collapse/score_loss"] == pytest.approx(0.875)
    assert folder.log.read_text().count("meets the collapse rule since step 80") == 1


def test_it_is_asked_to_stop_only_where_the_config_says_so(folder):
    log, told = live(folder, stop=True)
    log.close()
    assert told == 80 and "collapse.stop" in str(log.stop_reason())


def test_live_and_afterwards_agree(folder):
    log, _ = live(folder)
    log.close()
    after = judge(read_metrics(folder.metrics), read_metrics(folder.eval), 1)
    assert after.since == 80
    assert log._watch is not None and log._watch.sentence() == after.sentence()


def test_a_resumed_run_knows_what_came_before(folder):
    log, _ = live(folder, steps=range(1, 101))
    log.rewind(70)
    for step in range(71, 121):
        log.step(row(step, True))
        if step % 10 == 0:
            log.eval({"step": step, "weights_step": step, "accuracy": 0.1, "n_samples": 256})
    log.close()
    resumed = [(row["step"], row["collapse/met"]) for row in read_rows(folder.metrics)]
    other, _ = live(RunFolder.create(folder.path.parent / "whole", "name: whole\n"))
    other.close()
    whole = read_rows(folder.path.parent / "whole" / "metrics.jsonl")
    assert resumed == [(row["step"], row["collapse/met"]) for row in whole]
