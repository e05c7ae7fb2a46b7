"""After kill -9 in its middle a run of the real slime ends clearly, and its resume goes on where the checkpoint is."""

import json
import subprocess

import pytest
import torch
from waiting import until
from whole_run import environment

pytest.importorskip("psutil")
import chaos_on_slime
import psutil

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(1800)]

KILLED = {
    "driver": "sat_slime.plugin.driver",
    "trainer": "ray::SatTrainRayActor",
    "engine actor": "ray::SGLangEngine",
    "scheduler": "sglang::scheduler",
}
"""The processes that are killed, each with a word of its command line."""
SETTINGS = (
    *("--set", "pipeline.iterations=7", "--set", "slime.eval-interval=3"),
    *("--set", "slime.save-interval=2", "--set", "slime.rollout-batch-size=4"),
    *("--set", "slime.n-samples-per-prompt=4", "--set", "loss.kl_coef=1e-3"),
)
LAG = 3


def processes(folder, word):
    """Processes of the Ray of this run whose command line has the word."""
    ray = json.loads((folder / "job.json").read_text())["ray"]
    for process in psutil.Process(ray["pid"]).children(recursive=True):
        try:
            if word in " ".join(process.cmdline()):
                yield process
        except psutil.Error:
            continue


def rows(file):
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def wait_for_step(folder, step, launch):
    """Waits until the run has trained that many steps."""
    until(lambda: len(rows(folder / "metrics.jsonl")) >= step, launch, lambda: "the run did not get so far")


def killed(slime, name, step, what, *settings):
    """Starts a run, kills its processes of a kind after that step, and returns its output."""
    folder = slime.runs / name
    command = slime.command(name, "--method", "sat-gspo-r3", *settings)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment()
    ) as launch:
        wait_for_step(folder, step, launch)
        victims = list(processes(folder, KILLED[what]))
        assert victims, f"no {KILLED[what]} among the run's processes"
        for victim in victims:
            victim.kill()
        output, _ = launch.communicate()
    assert launch.returncode == 1, output
    return output


@pytest.mark.parametrize("what", KILLED)
def test_a_killed_run_ends_clearly_and_goes_on_from_its_checkpoint(slime, what):
    name = f"killed-{what.replace(' ', '-')}"
    folder = slime.runs / name
    output = killed(slime, name, 3, what, "--lag", str(LAG), *SETTINGS)
    assert "error: job " in output and "--resume" in output
    assert json.loads((folder / "state.json").read_text())["status"] == "failed"
    prompts_before = prompts(folder)

    resumed = slime.resume(name)
    assert resumed.code == 0, resumed.output
    steps = resumed.column("step")
    assert steps == list(range(1, 8)), "no row twice and none missing"
    saved = int(next(line for line in resumed.log.splitlines() if "load metadata from" in line).split("_")[-1][:-3])
    first = saved + 1
    # The weights with which the resume starts generate its first batch; pushes are due where they were.
    expected = [chaos_on_slime.lag_of(rollout, first if rollout >= first else 0, LAG) for rollout in range(7)]
    assert resumed.column("lag/max") == expected
    # With a KL loss the reference model is loaded last; the engines must not have it (slime issue 1695).
    assert resumed.rows()[first]["mismatch/d_pi"] < 1e-5
    evaluations = [(row["step"], row["weights_step"]) for row in resumed.rows("eval.jsonl")]
    assert evaluations[0] == (0, 0) and evaluations[-1] == (7, 7)
    assert len({step for step, _ in evaluations}) == len(evaluations), "no evaluation twice"
    assert prompts_before is None or prompts(folder)[: len(prompts_before)] == prompts_before


def prompts(folder):
    """The data position at each checkpoint, by rollout; None where there is none."""
    files = sorted(folder.glob("checkpoints/rollout/global_dataset_state_dict_*.pt"))
    states = {int(file.stem.split("_")[-1]): torch.load(file, weights_only=True) for file in files}
    assert all(state["sample_offset"] % 4 == 0 for state in states.values())
    # 4 prompts for each trained batch, though one more was in flight.
    assert all(state["sample_group_index"] == 4 * (rollout + 1) for rollout, state in states.items())
    return [state["sample_group_index"] for _, state in sorted(states.items())] or None


ITERATIONS, STALENESS = 30, 1
STREAMING = (
    *("--set", "pipeline.mode=streaming", "--set", f"pipeline.max_staleness={STALENESS}", "--lag", "1"),
    *(
        "--set",
        f"pipeline.iterations={ITERATIONS}",
        "--set",
        "slime.save-interval=5",
        "--set",
        "slime.eval-interval=15",
    ),
)


@pytest.mark.timeout(3600)
def test_in_mode_streaming_no_token_exceeds_the_bound_after_a_resume_neither(slime):
    folder = slime.runs / "streaming"
    killed(slime, "streaming", 13, "driver", *STREAMING)
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


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", chaos_on_slime.KINDS)
def test_a_run_that_is_disturbed_twice_comes_through_by_itself(slime, tmp_path, kind):
    assert chaos_on_slime.campaign(tmp_path, kind, 2, seed=0, places=slime.settings) == []
