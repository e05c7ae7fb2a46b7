"""`sat-slime plan`, as it is called."""

from __future__ import annotations

import json

import pytest
from command_line import ROOT, sat_slime_command, settings
from typer.testing import CliRunner

from sat_slime.cli import app
from sat_slime.config import EmbeddedConfig, dump_config

PLAN = """
lengths: {mean: 100, deviation: 80, longest: 500}
prompts_per_iteration: 8
samples_per_prompt: 4
concurrent_requests: 16
engine_tokens_per_second: 500
trainer_tokens_per_second: 300
push_seconds: 1
gpus: 8
engine_gpus: [2, 6]
lags: [0, 2]
bounds: [1]
iterations: 12
"""
LEVELS = ROOT / "docs" / "results" / "frontier" / "tables" / "levels_sweep.csv"


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "plan.yaml"
    path.write_text(PLAN)
    return path


def write_run(folder, lag=1, mode="batch", seconds=2.0, requests=256):
    """A run folder of eight iterations, in each of which eight prompts have four answers of ten tokens."""
    config = EmbeddedConfig().model_dump()
    config["pipeline"] |= {"lag": lag, "iterations": 8, "mode": mode}
    config["rollout"] |= {"prompts_per_iteration": 8, "samples_per_prompt": 4, "max_running_requests": requests}
    (folder / "samples").mkdir(parents=True)
    (folder / "config.yaml").write_text(dump_config(EmbeddedConfig.model_validate(config)))
    (folder / "state.json").write_text(json.dumps({"status": "finished"}))
    times = {"time/step": seconds, "time/wait": 0.9, "time/train": 1.0, "time/sync": 0.1, "time/rollout": 1.8}
    tokens = {"tokens/response_total": 320, "response/length_mean": 10.0, "response/length_max": 10}
    rows = [{"step": step, "iteration": step, "lag/mean": 1.0, **times, **tokens} for step in range(1, 9)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    answers = [{"prompt": f"{number}=", "response": "0123456789"} for number in range(8) for _ in range(4)]
    (folder / "samples" / "1.jsonl").write_text("".join(json.dumps(row) + "\n" for row in answers))
    return folder


def test_a_plan_in_one_command(file, tmp_path):
    result = sat_slime_command("plan", file, "--out", tmp_path / "plan", "--study", LEVELS, "--hours", 2)
    assert result.exit_code == 0, result.output
    for text in (
        "batch, lag 0",
        "streaming, bound 1",
        "2\u00a0+\u00a06",
        "6\u00a0+\u00a02",
        "Fastest: ",
        "Best after 2 h, by the study's",
    ):
        assert text in result.output
    assert {file.name for file in (tmp_path / "plan").rglob("plan.*")} == {"plan.csv", "plan.png", "plan.svg"}
    assert "Splits and lags" in (tmp_path / "plan" / "report.html").read_text()


@pytest.mark.parametrize("requests", [256, 5])
def test_a_run_predicts_itself_and_others(tmp_path, requests):
    """Generation takes 1.8 s, training 1 s, a push 0.1 s: an iteration of lag 1 takes 1.9 s, however few of its 32
    responses an engine decodes at once. Of the six that are measured the last has no batch to wait for."""
    run = write_run(tmp_path / "run", seconds=1.9, requests=requests)
    result = sat_slime_command("plan", run, "--measured", run)
    assert result.exit_code == 0, result.output
    (row,) = [line.split() for line in result.output.splitlines() if line.startswith("run ") and "1.90" in line]
    predicted, measured, lag = (float(row[place]) for place in (1, 2, 5))
    assert measured == 1.9 and predicted == pytest.approx((5 * 1.9 + 1.1) / 6, abs=0.006) and lag == 1.0


def test_tables_are_whole_on_a_terminal_of_80_columns(file, tmp_path):
    run = write_run(tmp_path / "a-run-of-some-name", seconds=1.9)
    words = ["plan", str(file), "--measured", str(run)]
    shown = CliRunner().invoke(app, words, env={"COLUMNS": "80"}).output
    assert "Splits and lags: staleness" in shown and "Predicted and measured: drops" in shown
    tables = shown[: shown.index("Fastest")]
    assert "…" not in tables and max(map(len, tables.splitlines())) <= 80
    rows = [line for line in tables.splitlines() if line.startswith(("batch", "streaming"))]
    assert len(rows) == 2 * 6, "each order in each part, in a line of its own"
    assert "Splits and lags: " not in sat_slime_command("plan", file).output


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["engine_gpus=[8]"], "engine_gpus 8 of 8 GPUs"),
        (["queue_prompts=4"], "a queue of 4 prompts holds no batch of 8"),
        (["request_tokens_per_second=900"], "do not fit 16 concurrent requests"),
        (["gpu=8"], "unknown key 'gpu'"),
        (["lags=[-1]"], "lags"),
        (["nonsense"], "it is KEY=VALUE"),
        (["engine_tokens_per_second=null"], "engine_tokens_per_second is not set, and there is no run"),
        (["run=/nowhere"], "is not a run folder"),
        (["streaming_run=/nowhere"], "is not a run folder"),
    ],
)
def test_bad_input_is_a_line(file, changes, message):
    result = sat_slime_command("plan", file, *settings(*changes))
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())
    assert "Traceback" not in result.output


def test_files_that_are_no_plan(tmp_path, file):
    (tmp_path / "broken.yaml").write_text("lags: [1")
    (tmp_path / "list.yaml").write_text("- 1")
    for name, message in (("broken.yaml", "is no YAML"), ("list.yaml", "it is a section"), ("gone", "cannot be read")):
        result = sat_slime_command("plan", tmp_path / name)
        assert result.exit_code == 2 and message in " ".join(result.output.split())
    result = sat_slime_command("plan", file, "--study", LEVELS, "--method", "nobody")
    assert result.exit_code == 2 and "has no method nobody: it has " in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("lost", "message"),
    [("samples/1.jsonl", "has no samples, from which lengths are taken"), ("metrics.jsonl", "has 0 iterations")],
)
def test_a_run_without_what_is_taken_from_it(tmp_path, lost, message):
    run = write_run(tmp_path / "run")
    (run / lost).unlink()
    result = sat_slime_command("plan", run)
    assert result.exit_code == 2 and message in " ".join(result.output.split())


def test_the_times_of_slimes_driver_come_first(tmp_path):
    """An iteration takes 0.4 + 1.0 + 0.1 s by times.jsonl, whatever metrics.jsonl says."""
    run = write_run(tmp_path / "run", seconds=9.0)
    times = {"time/collect": 0.4, "time/train": 1.0, "time/push": 0.1}
    (run / "times.jsonl").write_text("".join(json.dumps({"iteration": i, **times}) + "\n" for i in range(1, 9)))
    rows = (run / "metrics.jsonl").read_text()
    (run / "metrics.jsonl").write_text(rows.replace('"time/rollout": 1.8, ', ""))  # as in mode streaming
    result = sat_slime_command("plan", write_run(tmp_path / "speeds"), "--measured", run)
    assert result.exit_code == 0, result.output
    assert any("1.50" in line for line in result.output.splitlines() if line.startswith("run "))


def test_a_run_of_mode_streaming_gives_no_speeds(tmp_path):
    result = sat_slime_command("plan", write_run(tmp_path / "run", mode="streaming"))
    assert result.exit_code == 2 and "take the speeds of one of mode batch" in " ".join(result.output.split())


def test_fewer_samples_of_given_lengths_leave_an_engines_speed_as_it_was(tmp_path):
    """A run whose engine decoded 32 responses five at once, in seven waves; a plan of eight, in two."""
    run = write_run(tmp_path / "run", requests=5)
    given = settings("lengths={mean: 10, deviation: 0, longest: 10}", "lags=[0]", "bounds=[]")
    seconds = []
    for samples in (4, 1):
        result = sat_slime_command("plan", run, *given, *settings(f"samples_per_prompt={samples}"))
        assert result.exit_code == 0, result.output
        (line,) = [line.split() for line in result.output.splitlines() if line.startswith("batch")][:1]
        seconds.append(float(line[6]))
    assert seconds[1] / seconds[0] == pytest.approx((0.9 * 2 / 7 + 0.9 / 4 + 0.25 + 0.1) / (1.8 + 1.0 + 0.1), abs=0.01)


def test_what_a_run_of_mode_streaming_takes_beside_is_that_modes(tmp_path):
    """With the same times 2.7 - 2.0 s of an iteration are neither waiting, training nor a push."""
    run, beside = write_run(tmp_path / "run"), write_run(tmp_path / "beside", mode="streaming", seconds=2.7)
    options = settings("bounds=[8]", "lags=[1]", f"streaming_run={beside}")
    rows = {}
    for more in ([], options[-2:]):
        result = sat_slime_command("plan", run, *options[:-2], *more)
        assert result.exit_code == 0, result.output
        lines = [line for line in result.output.splitlines() if line.startswith(("batch", "streaming"))]
        rows[len(more)] = {line.split(",")[0]: line for line in reversed(lines)}
    assert rows[0]["batch"] == rows[2]["batch"] and rows[0]["streaming"] != rows[2]["streaming"]
    assert f"mode streaming measured in {beside}" in " ".join(result.output.split())
    result = sat_slime_command("plan", run, *settings(f"streaming_run={run}"))
    assert result.exit_code == 2 and "is a run of mode batch: name one of mode streaming" in result.output
