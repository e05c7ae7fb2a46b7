"""A healthy run has no symptom, each illness has its own from its step on, and each flag is one of slime's."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

import sat_slime
from sat_slime.runs.health import order, symptoms, verdict
from sat_slime.runs.reading import RunData
from sat_slime.runs.rows import columns, not_finite
from sat_slime.runs.rules import RULES
from sat_slime.runs.trackers import read_tracked

STEPS = 200
ILL = 121
"""The first step of an illness."""
FLAGS = json.loads((Path(sat_slime.__file__).parent / "launch" / "slime_flags.json").read_text())["flags"]


def run(**illness):
    """The columns of a run that is ill from ILL on. illness: a factor of a metric's healthy value, `/` written `__`."""
    rng = np.random.default_rng(0)
    steps = np.arange(1.0, STEPS + 1)
    healthy = {
        "mismatch/d_pi": 0.01,
        "clip/fraction": 0.02,
        "ppo_kl": 0.001,
        "loss/kl": 0.02,
        "loss/entropy": 0.6,
        "loss/policy": 0.1,
        "loss/total": 0.1,
        "grad_norm": 0.3,
        "tis_clipfrac": 0.001,
        "truncated_ratio": 0.05,
        "repetition_frac": 0.002,
        "response/length_mean": 900.0,
        "reward/mean": 0.6,
    }
    columns = {name: value * rng.uniform(0.95, 1.05, STEPS) for name, value in healthy.items()}
    for name, factor in illness.items():
        columns[name.replace("__", "/")][steps >= ILL] *= factor
    return {"step": steps, **columns}


def found_in(metrics, evals=None):
    """The symptoms of columns, in which every NaN was written."""
    broken = {key: metrics["step"][~np.isfinite(values)].astype(int).tolist() for key, values in metrics.items()}
    broken = {key: steps for key, steps in broken.items() if steps}
    return symptoms(RunData(metrics, evals or {}, not_finite=broken))


def test_a_healthy_run_has_no_symptom():
    assert found_in(run()) == []
    said = verdict(RunData(run()), [])
    assert "nothing unhealthy" in said and "train/train_rollout_logprob_abs_diff" in said and "Not judged" not in said


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
@pytest.mark.parametrize("rule", [rule for rule in RULES if rule.bound.over == "size"], ids=lambda rule: rule.metric)
def test_what_is_broken_from_the_first_step_on_is_found_at_once(rule, count):
    """A gradient norm of 2.9e9 has no step to be compared with."""
    key, limit = rule.metric, rule.bound.limit
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
@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".log"])
def test_one_chart_alone_shows_what_is_no_number(tmp_path, written, suffix):
    """As W&B exports a chart, as its API writes a history, and as slime prints a step."""
    path = tmp_path / f"chart{suffix}"
    rows = [(step, 0.3 if step < 30 else float(written)) for step in range(200)]
    texts = {
        ".csv": lambda: "train/step,run - train/grad_norm\n" + "".join(f"{s},{v}\n" for s, v in rows),
        ".jsonl": lambda: "".join(
            json.dumps({"train/step": s, "train/grad_norm": v if np.isfinite(v) else written}) + "\n" for s, v in rows
        ),
        ".log": lambda: "".join(f"model.py:918 - step {s}: {{'train/grad_norm': {v}}}\n" for s, v in rows),
    }
    path.write_text(texts[suffix]())
    (found,) = symptoms(read_tracked([path]).data())
    assert (found.name, found.since, found.lasts) == ("overflow", 31, True) and "grad_norm at 170 steps" in found.seen


def test_what_was_not_logged_is_not_taken_for_a_nan(tmp_path):
    path = tmp_path / "table.jsonl"
    rows = [{"train/step": s, "train/grad_norm": 0.3, "train/kl_loss": None, "rollout/step": None} for s in range(40)]
    rows += [{"train/step": float("nan"), "train/grad_norm": float("nan"), "rollout/step": 3, "rollout/raw_reward": 1}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert symptoms(read_tracked([path]).data()) == []
    own = [{"step": 1, "grad_norm": 0.1}, {"step": 2}, {"step": 3, "grad_norm": None}]
    assert not_finite(own) == {"grad_norm": [3]} and np.isnan(columns(own)["grad_norm"][1])


@pytest.mark.parametrize("count", [2, 31, 32])
def test_few_steps_have_no_verdict(count):
    metrics = {name: values[:count] for name, values in run().items()}
    said = verdict(RunData(metrics), [])
    assert said.startswith("No verdict") == (count < 32) and ("nothing unhealthy" in said) == (count >= 32)
    assert f"{count} steps" in said
    broken = RunData(metrics | {"grad_norm": np.full(count, 2.9e9)})
    assert verdict(broken, symptoms(broken)).startswith("Beyond that no verdict") == (count < 32)


def test_a_ratio_that_is_always_1_is_told():
    columns = run(mismatch__d_pi=6)
    columns["ppo_kl"][:] = columns["clip/fraction"][:] = 0
    del columns["tis_clipfrac"]
    first, last = found_in(columns)
    assert (first.name, last.name, last.since) == ("mismatch", "blind clip", None)
    assert "--use-rollout-logprobs" in last.advice and "cap of TIS" not in last.seen


def test_what_came_before_the_fall_is_said_in_its_order():
    columns = run(reward__mean=0.3)
    columns["mismatch/d_pi"][60:] *= 6
    columns["grad_norm"][90:] *= 10
    columns["loss/kl"][ILL + 10 :] *= 20
    text = order(found_in(columns))
    before = r"Before the reward fell, at step 1[23]\d, came: mismatch \(step 6\d\), gradient \(step 9\d\)"
    assert re.fullmatch(before + r"; at about the same time: kl \(step 1[34]\d\)\.", text)
    assert "Nothing that is logged moved clearly before" in order(found_in(run(reward__mean=0.3)))
    assert order([]) == ""


def test_every_flag_that_is_named_is_slimes():
    texts = [rule.advice for rule in RULES]
    texts += [symptom.advice for symptom in found_in(run(ppo_kl=1))]
    named = {flag for text in texts for flag in re.findall(r"--[a-z][a-z-]+[a-z]", text)}
    assert named and named <= set(FLAGS)
