"""What looks unhealthy: a healthy run has no finding, each illness has its own from its step on, said once and with
what to try; and the collapse rule."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from synthetic import step_metrics

import sat_slime
from sat_slime.cli.any_run import report_line
from sat_slime.config import LabConfig, dump_config
from sat_slime.config.method_section import method_switches
from sat_slime.report.run import findings
from sat_slime.runs.folder import RunFolder
from sat_slime.runs.health import MISMATCH_CEILING, MISMATCH_RISE, RULES, advisories, judge, measures, symptoms, verdict
from sat_slime.runs.reading import RunData, columns, load_run, not_finite, run_data
from sat_slime.runs.trackers import read_tracked

# ------------------------------------------------------------------------------------------------- runs of slime's loss

STEPS = 200
ILL = 121
"""The first step of an illness."""
FLAGS = json.loads((Path(sat_slime.__file__).parent / "launch" / "slime_flags.json").read_text())["flags"]


def run(**illness):
    """The columns of a run that is ill from ILL on. illness: a factor of a metric's healthy value, `/` written `__`."""
    rng = np.random.default_rng(0)
    steps = np.arange(1.0, STEPS + 1)
    healthy = {
        **{"mismatch/d_pi": 0.01, "clip/fraction": 0.02, "ppo_kl": 0.001, "grad_norm": 0.3, "reward/mean": 0.6},
        **{"loss/kl": 0.02, "loss/entropy": 0.6, "loss/policy": 0.1, "loss/total": 0.1, "tis_clipfrac": 0.001},
        **{"truncated_ratio": 0.05, "repetition_frac": 0.002, "response/length_mean": 900.0},
    }
    made = {name: value * rng.uniform(0.95, 1.05, STEPS) for name, value in healthy.items()}
    for name, factor in illness.items():
        made[name.replace("__", "/")][steps >= ILL] *= factor
    return {"step": steps, **made}


def found_in(metrics, evals=None):
    """The symptoms of columns, in which every NaN was written."""
    broken = {key: metrics["step"][~np.isfinite(values)].astype(int).tolist() for key, values in metrics.items()}
    broken = {key: steps for key, steps in broken.items() if steps}
    return symptoms(RunData(metrics, evals or {}, not_finite=broken))


ILLNESSES = {
    "mismatch": {"mismatch__d_pi": 6},
    "clip": {"clip__fraction": 6},
    "kl": {"loss__kl": 20},
    "entropy": {"loss__entropy": 0.02},
    "noise": {"loss__entropy": 5},
    "gradient": {"grad_norm": 10},
    "overflow": {"grad_norm": np.nan},
    "capped": {"tis_clipfrac": 100},
    "truncated": {"truncated_ratio": 10},
    "repetition": {"repetition_frac": 100},
    "length": {"response__length_mean": 0.1},
    "reward": {"reward__mean": 0.3},
}


@pytest.mark.parametrize("name", ILLNESSES)
def test_each_illness_has_its_symptom_from_its_step_on(name):
    assert {rule.name for rule in RULES if rule.runs == "slime"} - {"loss"} < set(ILLNESSES)
    (found,) = found_in(run(**ILLNESSES[name]))
    assert found.name == name and found.lasts
    assert ILL <= found.since <= ILL + 16


def steps_of(count, **series):
    """The columns of so many steps. series: a number or an array, by a metric's name, `/` written `__`."""
    return {"step": np.arange(1.0, count + 1)} | {
        name.replace("__", "/"): np.broadcast_to(values, count).astype(float) for name, values in series.items()
    }


def sawtooth(lag):
    steps = np.arange(200)
    return np.where(steps < lag, steps, (steps - lag) % lag + 1)


RNG, HALF = np.random.default_rng(1), np.arange(96) < 48
QUIET = {
    "a healthy run": (run(), None),
    "too few steps for a level": ({name: values[ILL : ILL + 15] for name, values in run(grad_norm=10).items()}, None),
    "a score below 0 has no third": (
        steps_of(96, reward__mean=np.where(HALF, -0.2, -0.21)),
        steps_of(96, accuracy=np.where(HALF, -0.2, -0.5)),
    ),
    "noise of a reward": (steps_of(96, reward__mean=0.05 + 0.15 * (RNG.random(96) < 0.2)), None),
} | {
    f"ups and downs with a lag of {lag}": (
        steps_of(200, mismatch__d_pi=0.003 + 0.001 * sawtooth(lag), lag__max=sawtooth(lag)),
        None,
    )
    for lag in (1, 2, 8, 32)
}


@pytest.mark.parametrize("name", QUIET)
def test_what_is_none(name):
    assert found_in(*QUIET[name]) == []


@pytest.mark.parametrize(
    ("ill", "factor", "first"), [(slice(9, 10), 1e5, {10}), (slice(100, 120), 20, set(range(101, 121)))]
)
def test_what_passes_is_no_longer_there_at_the_end(ill, factor, first):
    metrics = run()
    metrics["grad_norm"][ill] *= factor
    found = [one for one in found_in(metrics) if one.since in first]
    assert [(one.name, one.lasts) for one in found] == [("gradient", False)]


def test_falls_are_dated_by_the_first_bad_step():
    (found,) = found_in(steps_of(96, reward__mean=np.where(np.arange(96) < 24, 0.3, 0.05)))
    assert found.name == "reward" and 25 <= found.since <= 40
    steps = np.arange(10.0, 201, 10)
    (found,) = found_in(run(), {"step": steps, "accuracy": np.where(steps < 130, 0.4, 0.1)})
    assert (found.name, found.since) == ("evaluation", 130)


@pytest.mark.parametrize("count", [1, 2, 48])
@pytest.mark.parametrize("rule", [rule for rule in RULES if rule.over == "size"], ids=lambda rule: rule.metric)
def test_what_is_broken_from_the_first_step_on_is_found_at_once(rule, count):
    """A gradient norm of 2.9e9 has no step to be compared with."""
    key, limit = rule.metric, rule.limit
    metrics = steps_of(count, mismatch__d_pi=0.03) | {key: np.full(count, -1.5 * limit)}
    (found,) = found_in(metrics)
    assert (found.name, found.since, found.lasts) == (rule.name, 1, True)
    assert found_in(metrics | {key: metrics[key] / 2}) == []


@pytest.mark.parametrize("afterwards", ["flat", "rising"])
@pytest.mark.parametrize("count", [30, 48, 200])
@pytest.mark.parametrize("noise", [0, 0.05])
def test_a_slow_drift_is_held_against_the_first_steps(count, afterwards, noise):
    """0.011 to 0.036 nats in 30 steps: three times, and no level of 32 steps is low."""
    grown = np.linspace(0.011, 0.036, 30)
    after = np.linspace(0.036, 0.036 if afterwards == "flat" else 0.044, max(0, count - 30))
    d_pi = np.concatenate([grown, after]) * (1 + noise * np.random.default_rng(0).standard_normal(max(count, 30)))
    (found,) = found_in(steps_of(count, mismatch__d_pi=d_pi))
    assert found.name == "drift" and found.since <= 30 and found.lasts
    assert found_in(steps_of(count, mismatch__d_pi=d_pi[::-1].copy())) == []


@pytest.mark.parametrize("written", ["Infinity", "NaN", "-Infinity"])
@pytest.mark.parametrize("suffix", [".jsonl", ".log"])
def test_one_chart_alone_shows_what_is_no_number(tmp_path, written, suffix):
    """As W&B's API writes a history, and as slime prints a step."""
    path, values = tmp_path / f"chart{suffix}", [0.3] * 30 + [written] * 170
    if suffix == ".jsonl":
        lines = [json.dumps({"train/step": step, "train/grad_norm": value}) for step, value in enumerate(values)]
    else:
        lines = [f"model.py:918 - step {s}: {{'train/grad_norm': {float(v)}}}" for s, v in enumerate(values)]
    path.write_text("".join(line + "\n" for line in lines))
    (found,) = symptoms(read_tracked([path]))
    assert (found.name, found.since, found.lasts) == ("overflow", 31, True) and "grad_norm at 170 steps" in found.seen


def test_what_was_not_logged_is_not_taken_for_a_nan(tmp_path):
    path = tmp_path / "table.jsonl"
    rows = [{"train/step": s, "train/grad_norm": 0.3, "train/kl_loss": None, "rollout/step": None} for s in range(40)]
    rows += [{"train/step": float("nan"), "train/grad_norm": float("nan"), "rollout/step": 3, "rollout/raw_reward": 1}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert symptoms(read_tracked([path])) == []
    own = [{"step": 1, "grad_norm": 0.1}, {"step": 2}, {"step": 3, "grad_norm": None}, {"grad_norm": 1.0}]
    assert not_finite(own) == {"grad_norm": [3]} and np.isnan(columns(own)["grad_norm"][1])
    assert [found.heading for found in symptoms(run_data(own, []))] == [
        "overflow, from step 3"
    ]  # one has lost its step


@pytest.mark.parametrize("count", [2, 31, 32])
def test_few_steps_have_no_verdict(count):
    metrics = {name: values[:count] for name, values in run().items()}
    said = verdict(RunData(metrics), [])
    assert said.startswith("No verdict") == (count < 32) and ("nothing unhealthy" in said) == (count >= 32)
    assert f"{count} steps" in said
    assert ("train/train_rollout_logprob_abs_diff" in said) == (count >= 32) and "Not judged" not in said
    broken = RunData(metrics | {"grad_norm": np.full(count, 2.9e9)})
    assert verdict(broken, symptoms(broken)).startswith("Beyond that no verdict") == (count < 32)


def test_a_ratio_that_is_always_1_is_told():
    made = run(mismatch__d_pi=6)
    made["ppo_kl"][:] = made["clip/fraction"][:] = 0
    made["sat/newly_clipped"] = 0 * made.pop("tis_clipfrac")
    first, no_op, last = found_in(made)
    assert (first.name, no_op.name, last.name, last.since) == ("mismatch", "no-op", "blind clip", None)
    assert "--use-rollout-logprobs" in last.advice and "cap of TIS" not in last.seen


def test_every_flag_that_is_named_is_slimes():
    texts = [rule.advice for rule in RULES]
    texts += [symptom.advice for symptom in found_in(run(ppo_kl=1))]
    named = {flag for text in texts for flag in re.findall(r"--[a-z][a-z-]+[a-z]", text)}
    assert named and named <= set(FLAGS)


# ------------------------------------------------------------------------------------------- runs of ours, as they go

PLAN = 96
CONFIG = LabConfig.model_validate({"method": method_switches("sat-gspo"), "pipeline": {"lag": 8, "iterations": PLAN}})
SETTINGS = CONFIG.model_dump(mode="json")
RESPONSES = CONFIG.rollout.prompts_per_iteration * CONFIG.rollout.samples_per_prompt


def advised(rows, planned=None):
    data = RunData(columns(rows), period=CONFIG.pipeline.lag)
    return list(advisories(data, measures(SETTINGS) if planned is None else planned))


def ill_rows(**illness):
    """A run that is ill from step 49 on. illness: value of a metric by its name, `/` written `__`; or a function of the
    healthy value."""
    made = []
    for step in range(1, PLAN + 1):
        row = step_metrics(step) | {"rollout/rejected": 0}
        for name, value in illness.items() if step > PLAN // 2 else ():
            key = name.replace("__", "/")
            row[key] = value(row[key]) if callable(value) else value
        made.append(row)
    return made


ADVISED = {
    "ess": ({"mismatch__ess": 0.497}, ["is 49.7% of the tokens, below 50%", "Try a smaller lag"]),
    "mismatch": (
        {"mismatch__d_pi": lambda healthy: 6 * healthy},
        ["more than 3 times its lowest level", "Try a smaller lag"],
    ),
    "engine": ({"mismatch__implementation": 0.08}, ["the same weights", "more than 6 times", "pipeline.canary: stop"]),
    "gate": ({"sat__gate_rate": 0.001}, ["less than a tenth of the tail's 10.0%", "scope to step"]),
    "lag": ({"lag__max": 11}, ["11 updates old, 8 by the plan"]),
    "rejected": ({"rollout__rejected": RESPONSES // 20}, ["above 1%", "rollout/rejected/REASON"]),
    "entropy": ({"loss__entropy": 0.01}, ["below a tenth of", "entropy_coef"]),
}


@pytest.mark.parametrize("name", ADVISED)
def test_each_illness_is_told_as_it_begins(name):
    illness, told = ADVISED[name]
    assert advised(ill_rows()) == advised([{"step": step} for step in range(100)]) == []
    (advisory,) = advised(ill_rows(**illness))
    assert advisory.name == name and PLAN // 2 < advisory.since <= PLAN // 2 + 16 and advisory.lasts
    for text in told:
        assert text in advisory.text


@pytest.mark.parametrize(
    ("usual", "once", "told"), [(1e-7, 0.08, True), (0.007, 0.08, True), (0.007, 0.035, False), (1e-7, 9e-4, False)]
)
def test_a_wrong_engine_is_told_at_the_one_step_that_measures_it(usual, once, told):
    """usual, once: the implementation part, which every fifth step measures, and that of step 60."""
    rows = [{"step": step} for step in range(1, 70)]
    for row in rows[4::5]:
        row["mismatch/implementation"] = once if row["step"] == 60 else usual
    assert [(one.name, one.since) for one in advised(rows)] == [("engine", 60)] * told


@pytest.mark.parametrize("sat", [True, False])
def test_a_run_without_sat_is_advised_to_try_it_and_one_with_it_is_not(sat):
    rows = [{k: v for k, v in row.items() if sat or k != "sat/gate_rate"} for row in ill_rows(mismatch__d_pi=3.0)]
    (told,) = [one.text for one in advised(rows, {}) if one.name == "mismatch"]
    assert ("SAT" in told) != sat and "nats, more than 3 times" in told and "and above 0.15" in told


@pytest.mark.parametrize(
    ("settings", "planned"),
    [
        ({"pipeline": {"lag": 0}}, {"lag": 1}),
        ({"pipeline": {"lag": 8, "optimizer_steps_per_rollout": 2}}, {"lag": 17}),
        ({"pipeline": {"mode": "streaming", "lag": 1, "max_staleness": 4}}, {"lag": 4}),
        ({"method": method_switches("gspo")}, {"tail": None}),
    ],
)
def test_rules_measure_by_the_plan(settings, planned):
    known = measures(LabConfig.model_validate(settings).model_dump(mode="json"))
    assert {name: known.get(name) for name in planned} == planned


def test_page_and_terminal_say_since_when(tmp_path, monkeypatch):
    folder = RunFolder.create(tmp_path / "run", dump_config(CONFIG))
    folder.metrics.write_text("".join(json.dumps(row) + "\n" for row in ill_rows(mismatch__ess=0.3)))
    (said,) = [text for text in findings(load_run(folder.path)) if text.startswith("Health")]
    assert said.startswith("Health, from step 60, still at the end: the effective sample size is 30.0% of")
    monkeypatch.setattr("sat_slime.report.run.write_report", lambda path: path / "report.html")
    assert report_line(folder.path).splitlines()[0] == said and "\nreport: " in report_line(folder.path)
    rows = [row | {"reward/mean": 0.1, "mismatch/d_pi": 0.3} for row in ill_rows()[48:]]
    folder.metrics.write_text("".join(json.dumps(row) + "\n" for row in [*ill_rows()[:48], *rows]))
    assert report_line(folder.path).startswith("Collapsed: meets the collapse rule since step ")


def test_a_metrics_file_of_ours_is_judged_as_its_run(tmp_path):
    folder = RunFolder.create(tmp_path / "run", dump_config(CONFIG))
    rows = ill_rows(clip__fraction=0.2, sat__gate_rate=0.001)
    folder.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = read_tracked([folder.metrics])
    assert data.period == 8 and [one.name for one in symptoms(data)] == ["gate"]
    folder.config.unlink()
    data = read_tracked([folder.path])
    assert data.period == 8 and symptoms(data) == [] and "in reward/mean, mismatch/d_pi" in verdict(data, [])


# ------------------------------------------------------------------------------------------------------- a collapse


def curves(d_pi, scores, every=10, samples=256.0):
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
        (STORMY, [0.6] * 5 + [0.39] * 5, 60, True),  # beyond 3 errors from 33 samples on
        (STORMY, [0.6] * 5 + [0.41] * 5, 256, False),
        (STORMY, FEW, 64, False),
        (STORMY, FEW, 6400, True),
    ],
)
def test_both_score_and_mismatch_have_to_go(d_pi, scores, samples, met):
    watch = judge(*curves(d_pi, scores, samples=samples), 1)
    assert watch.met is met is bool(watch.sentence)
    assert watch.fell is (met or scores is FALLING)


def test_the_rise_is_told_with_the_floor_that_it_left():
    d_pi = [0.05] * 40 + [0.17] * 40 + [0.001] * 60
    told = judge(*curves(d_pi, [0.2, *[0.6] * 3, *[0.1] * 10]), 1).sentence
    assert "d_pi left its low band (0.1700 nats, after 0.0500 at its lowest)" in told


def test_one_bad_evaluation_is_no_collapse_and_recovery_is_seen():
    once = [0.2, 0.6, 0.7, 0.7, 0.7, 0.7, 0.7, 0.3, 0.7, 0.7]
    assert judge(*curves(STORMY, once), 1).ever is None
    recovered = judge(*curves([0.01] * 40 + [0.05] * 60, [0.2, 0.7, 0.7, 0.7, 0.1, 0.1, 0.1, 0.7, 0.7, 0.7]), 1)
    assert recovered.ever == 50 and not recovered.met


def test_what_is_unknown_is_not_marked():
    metrics, evals = curves(STORMY, FALLING)
    assert not judge({"step": metrics["step"]}, evals, 1).met
    assert not judge(metrics, {}, 1).met and not judge({}, {}, 1).met
    assert judge(metrics, {key: values[:2] for key, values in evals.items()}, 1).known is False


def test_without_evaluations_the_reward_is_the_score():
    metrics, _ = curves([0.01] * 100 + [0.1] * 100, [])
    metrics["reward/mean"] = np.array([0.8] * 100 + [0.2] * 100)
    watch = judge(metrics, {}, 1)
    assert watch.met and "training reward" in watch.sentence


def test_band_is_over_whole_lag_cycles():
    """A sawtooth that no cycle leaves stays in its band, however steep; the first cycle, from lag 0, does not count."""
    sawtooth = np.concatenate([np.zeros(8), np.tile(np.arange(1.0, 9.0), 20)]) / 128
    assert judge(*curves(sawtooth, []), 8).departed is judge(*curves(sawtooth, []), 10**12).departed is None
    risen = np.concatenate([sawtooth, MISMATCH_RISE * np.tile(np.arange(1.0, 9.0), 4) / 128])
    assert judge(*curves(risen, []), 8).departed == len(sawtooth) + 16
