import math

import pytest

from sat_slime.runs.slime_log import read_line, run_metrics

ACTOR = "\x1b[36m(MegatronTrainRayActor pid=1, ip=10.0.0.1)\x1b[0m [2026-08-21 12:00:05] model.py:918 - "


def test_a_step_behind_rays_prefix():
    line = read_line(ACTOR + "step 3: {'train/loss': -1.5e-07, 'train/grad_norm': 0.25, 'train/step': 3}\n")
    assert (line.kind, line.number) == ("step", 3)
    assert line.metrics == {"train/loss": -1.5e-07, "train/grad_norm": 0.25, "train/step": 3}


def test_numbers_that_are_no_python_literals():
    line = read_line("x.py:1 - step 0: {'train/a': nan, 'train/b': -inf, 'train/c': np.float64(0.5), 'train/d': 2}")
    assert math.isnan(line.metrics["train/a"])
    assert (line.metrics["train/b"], line.metrics["train/c"], line.metrics["train/d"]) == (-math.inf, 0.5, 2)


def test_what_is_no_number_is_left_out_and_nothing_is_evaluated():
    line = read_line("x - step 0: {'train/a': __import__('os').getcwd(), 'train/b': 'text', 'train/c': 1.0}")
    assert line.metrics == {"train/c": 1.0}


@pytest.mark.parametrize("kind", ["rollout", "eval", "perf"])
def test_other_metrics(kind):
    line = read_line(f"[2026-08-21 12:00:05] f.py:1 - {kind} 7: {{'{kind}/x': 1}}")
    assert (line.kind, line.number, dict(line.metrics)) == (kind, 7, {f"{kind}/x": 1})


@pytest.mark.parametrize(
    "text",
    ["critic-step 3: {'train/critic-loss': 1.0}", "step 3: done", "this step 3 is: {}", "", "footstep 1: {'a': 1}"],
)
def test_lines_that_are_no_metrics_of_the_actor(text):
    assert read_line(text).kind == "other"


def test_phases_and_trouble():
    assert read_line(ACTOR + "Timer update_weights start").text == "update weights"
    assert read_line("torch.OutOfMemoryError: CUDA out of memory.").kind == "trouble"
    assert read_line("Traceback (most recent call last):").kind == "trouble"
    assert read_line("no errors so far").kind == "other"


def test_times_of_the_lines_differ_by_what_they_say():
    later = ACTOR.replace("12:00:05", "12:01:05") + "Timer train start"
    assert read_line(later).time - read_line(ACTOR + "Timer train start").time == 60
    assert read_line("no time").time is None


def test_metrics_by_the_names_of_a_run_folder():
    metrics = run_metrics(
        {"train/mismatch/d_pi": 0.1, "rollout/raw_reward": 0.5, "train/train_rollout_logprob_abs_diff": 9}
    )
    assert (metrics["mismatch/d_pi"], metrics["reward/mean"]) == (0.1, 0.5)
    assert run_metrics({"train/train_rollout_logprob_abs_diff": 9.0})["mismatch/d_pi"] == 9
