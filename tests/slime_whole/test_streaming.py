"""In mode streaming on the real slime the bound on staleness holds for 30 iterations, through kill -9 and a resume."""

import subprocess

import pytest
import torch
from test_faults import processes, rows, wait_for_step
from whole_run import environment

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(3600)]

ITERATIONS, STALENESS = 30, 1
SETTINGS = (
    *("--set", "pipeline.mode=streaming", "--set", f"pipeline.max_staleness={STALENESS}", "--lag", "1"),
    *("--set", f"pipeline.iterations={ITERATIONS}", "--set", "slime.save-interval=5"),
    *("--set", "slime.eval-interval=15"),
)


def test_no_token_exceeds_the_bound_after_a_resume_neither(slime):
    folder = slime.runs / "streaming"
    command = slime.command("streaming", "--method", "sat-gspo-r3", *SETTINGS)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment()
    ) as launch:
        wait_for_step(folder, 13, launch)
        for driver in processes(folder, "sat_slime.plugin.driver"):
            driver.kill()
        output, _ = launch.communicate()
    assert launch.returncode == 1, output
    before = rows(folder / "metrics.jsonl")
    queue = torch.load(folder / "checkpoints" / "rollout" / "queue_9" / "queue.pt", weights_only=True)
    assert queue["waiting"] or queue["prompts"]

    resumed = slime.resume("streaming")
    assert resumed.code == 0, resumed.output
    assert resumed.column("step") == list(range(1, ITERATIONS + 1)), "no row twice and none missing"
    assert max(row["lag/max"] for row in [*before, *resumed.rows()]) == STALENESS
    for row in resumed.rows():
        assert row["lag/mean"] == pytest.approx(row["lag/generation_mean"] + row["lag/queue_mean"])
        assert row["queue/length"] >= 0 and row["rollout/dropped"] >= 0
    evaluations = [(row["step"], row["weights_step"]) for row in resumed.rows("eval.jsonl")]
    assert evaluations == [(0, 0), (15, 15), (30, 30)]
