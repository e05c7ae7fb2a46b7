"""A healthy run has no symptom, each illness has its own from its step on, and each flag is one of slime's."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

import sat_slime
from sat_slime.runs.symptoms import RULES, order, symptoms

STEPS = 200
ILL = 121
"""The first step of an illness."""
FLAGS = json.loads((Path(sat_slime.__file__).parent / "plugin" / "launch" / "slime_flags.json").read_text())["flags"]


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


def test_a_healthy_run_has_no_symptom():
    assert symptoms(run(), {}) == []


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
    (found,) = symptoms(run(**ILLNESSES[name]), {})
    assert found.name == name and found.lasts
    assert ILL <= found.since <= ILL + 16


def test_every_rule_is_tested():
    assert {rule.name for rules in RULES.values() for rule in rules} - {"start"} <= set(ILLNESSES)


def test_a_mismatch_at_the_first_step_is_no_staleness():
    columns = run()
    columns["mismatch/d_pi"] = columns["mismatch/d_pi"] * 8
    (found,) = symptoms(columns, {})
    assert (found.name, found.since) == ("start", 1)


def test_what_passes_is_no_longer_there_at_the_end():
    columns = run()
    columns["grad_norm"][100:120] *= 20
    (found,) = symptoms(columns, {})
    assert (found.name, found.lasts) == ("gradient", False) and 101 <= found.since <= 120


def test_a_ratio_that_is_always_1_is_told():
    columns = run(mismatch__d_pi=6)
    columns["ppo_kl"][:] = columns["clip/fraction"][:] = 0
    del columns["tis_clipfrac"]
    first, last = symptoms(columns, {})
    assert (first.name, last.name, last.since) == ("mismatch", "blind clip", None)
    assert "--use-rollout-logprobs" in last.advice and "cap of TIS" not in last.seen


def test_a_fall_in_the_first_steps_is_seen_and_one_within_noise_is_not():
    rng = np.random.default_rng(1)
    steps = np.arange(1.0, 97)
    (found,) = symptoms({"step": steps, "reward/mean": np.where(steps < 25, 0.3, 0.05)}, {})
    assert found.name == "reward" and 25 <= found.since <= 40
    noisy = 0.05 + 0.15 * (rng.random(96) < 0.2)
    assert symptoms({"step": steps, "reward/mean": noisy}, {}) == []


def test_a_reward_below_0_has_no_third_to_lose():
    steps = np.arange(1.0, 97)
    assert symptoms({"step": steps, "reward/mean": np.where(steps < 49, -0.2, -0.21)}, {}) == []
    assert symptoms({"step": steps}, {"step": steps, "accuracy": np.where(steps < 49, -0.2, -0.5)}) == []


def test_a_fall_of_the_evaluations_is_dated_by_the_first_bad_one():
    steps = np.arange(10.0, 201, 10)
    (found,) = symptoms(run(), {"step": steps, "accuracy": np.where(steps < 130, 0.4, 0.1)})
    assert (found.name, found.since) == ("evaluation", 130)


def test_what_came_before_the_fall_is_said_in_its_order():
    columns = run(reward__mean=0.3)
    columns["mismatch/d_pi"][60:] *= 6
    columns["grad_norm"][90:] *= 10
    columns["loss/kl"][ILL + 10 :] *= 20
    text = order(symptoms(columns, {}))
    before = r"Before the reward fell, at step 1[23]\d, came: mismatch \(step 6\d\), gradient \(step 9\d\)"
    assert re.fullmatch(before + r"; at about the same time: kl \(step 1[34]\d\)\.", text)
    assert "Nothing that is logged moved clearly before" in order(symptoms(run(reward__mean=0.3), {}))
    assert order([]) == ""


def test_too_few_steps_have_no_levels():
    assert symptoms({name: values[ILL : ILL + 15] for name, values in run(grad_norm=10).items()}, {}) == []


def test_every_flag_that_is_named_is_slimes():
    texts = [rule.advice for rules in RULES.values() for rule in rules]
    texts += [symptom.advice for symptom in symptoms(run(ppo_kl=1), {})]
    named = {flag for text in texts for flag in re.findall(r"--[a-z][a-z-]+[a-z]", text)}
    assert named and named <= set(FLAGS)
