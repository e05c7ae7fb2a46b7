"""slime's own train_async.py runs with the flags of docs/slime.md and no driver, in versions that have it."""

import json
import subprocess

import pytest
from whole_run import WholeRun, environment

from sat_slime.plugin.launch import cpu_run
from sat_slime.plugin.launch.job_files import write_files
from sat_slime.plugin.launch.local_ray import start_ray, stop_ray
from sat_slime.plugin.launch.ray_jobs import JobServer

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]

LINES = (
    *("--custom-megatron-init-path", "sat_slime.plugin.train_hooks.install"),
    *("--rollout-data-postprocess-path", "sat_slime.plugin.train_hooks.postprocess"),
)
"""The flags of the trainer's hooks, which the driver's command leaves out."""
SHORT = (
    *("--set", "pipeline.iterations=5", "--set", "eval.every_n_iterations=2"),
    *("--set", "rollout.prompts_per_iteration=4", "--set", "rollout.samples_per_prompt=4"),
)


@pytest.fixture(scope="module")
def run(slime):
    script = slime.slime_dir / "train_async.py"
    if not script.exists():
        pytest.skip("this slime has no train_async.py")
    plan = [
        *slime.command("own", "--method", "sat-gspo-r3", "--lag", "2", *SHORT),
        "--dry-run",
        "--skip-checks",
        "--json",
    ]
    told = subprocess.run(plan, capture_output=True, text=True, env=environment(), check=True)
    sent = json.loads(told.stdout)
    python, *_, module = sent["command"][:3]
    assert module == "sat_slime.plugin.driver"
    write_files(sent["files"])
    ray = start_ray(2, 8, cpu_run.OBJECT_STORE_BYTES, cpu_run.RAY_ENVIRONMENT)
    try:
        server = JobServer(ray.address)
        words = [python, str(script), *sent["command"][3:], "--update-weights-interval", "2", *LINES]
        server.submit(words, sent["env"], "own")
        state = server.wait("own", 900)
        log = server.log("own")
    finally:
        stop_ray(ray)
    assert state is not None and state.status == "SUCCEEDED", log[-5000:]
    return WholeRun(slime.runs / "own", 0, log)


def test_lag_and_mismatch_are_those_of_the_driver(run):
    assert run.column("lag/max") == run.column("lag/min") == [0, 1, 2, 1, 2]
    assert run.column("mismatch/d_pi")[0] < 1e-5
    assert all(norm > 0 for norm in run.column("grad_norm"))


def test_the_hooks_are_told_and_evaluate_both_ends(run):
    for hook in ("ref_weights_first", "version_by_step", "check_routed_experts", "evaluate_first", "evaluate_last"):
        assert f"sat_slime: hook {hook} is on" in run.output
    assert [(row["step"], row["weights_step"]) for row in run.rows("eval.jsonl")] == [(0, 0), (2, 2), (4, 4), (5, 5)]
