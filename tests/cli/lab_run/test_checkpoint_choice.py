"""Resumes of a run whose checkpoint is damaged: nothing starts, the file is named, and the told command works."""

import json
import shlex
import shutil
from pathlib import Path

import pytest
import yaml
from command_line import TINY, state
from command_line import sat_slime_command as command
from safetensors import safe_open

import sat_slime.lab
from sat_slime.lab import checkpoint
from sat_slime.tasks.running_sums import RunningSums

RUN = Path("runs/tiny")
NEWEST, BEFORE = RUN / "checkpoints" / "iteration-000004", RUN / "checkpoints" / "iteration-000002"


@pytest.fixture(autouse=True)
def begun(runtime):
    """A run of six iterations that was interrupted after five, with checkpoints after two and four."""
    runtime.end, runtime.stop_after = KeyboardInterrupt(), 5
    assert command("launch", TINY).exit_code == 130
    runtime.end, runtime.stop_after = None, 10**9


def told_command(text):
    """The words behind `sat-slime` of the command that an error names."""
    return shlex.split(text.split("to do so: sat-slime ")[1].splitlines()[0])


def files():
    return {path: path.read_bytes() for path in RUN.rglob("*") if path.is_file() and path.name != ".lock"}


def steps():
    return [json.loads(line)["step"] for line in (RUN / "metrics.jsonl").read_text().splitlines()]


def status():
    return state(RUN)["status"]


def flip_a_bit_of_adamw(path=NEWEST):
    """One bit of the last number of exp_avg_sq; the file stays a good safetensors file."""
    file = path / "trainer.safetensors"
    data = bytearray(file.read_bytes())
    header = 8 + int.from_bytes(data[:8], "little")
    begin, end = json.loads(data[8:header])["layer/exp_avg_sq"]["data_offsets"]
    assert end - begin == 256
    data[header + end - 1] ^= 1
    file.write_bytes(data)
    with safe_open(file, framework="np") as opened:
        opened.get_tensor("layer/exp_avg_sq")


def truncate(name, size=-1):
    return lambda: (NEWEST / name).write_bytes((NEWEST / name).read_bytes()[:size])


def cut_in_the_middle():
    """As a copy that broke off leaves it."""
    for name in ("SHA256SUMS", "state.json"):
        (NEWEST / name).unlink()
    truncate("trainer.safetensors", 100)()


DAMAGE = {
    "a bit of AdamW's state": (flip_a_bit_of_adamw, "trainer.safetensors does not match its checksum"),
    "weights cut": (truncate("weights/v000004/model.safetensors"), "weights/v000004/model.safetensors does not match"),
    "cut in the middle": (cut_in_the_middle, "SHA256SUMS is missing"),
    "an empty folder": (lambda: [path.unlink() for path in NEWEST.rglob("*") if path.is_file()], "SHA256SUMS is mis"),
}


@pytest.mark.parametrize(("damage", "fault"), DAMAGE.values(), ids=DAMAGE.keys())
def test_damage_is_found_before_anything_starts_and_the_told_command_goes_on(runtime, damage, fault):
    damage()
    before = files()
    result = command("launch", RUN, "--resume")
    assert result.exit_code == 2 and len(runtime.calls) == 1
    assert files() == before, "nothing is touched"
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"error: {NEWEST} is damaged: ") and any(part in line for part in fault.split("|")), line
    assert "the run can go on from iteration 2, the newest whole checkpoint before it, which costs this: " in line
    assert "iterations 3 to 5 are trained again, and their rows, samples and dumps are dropped" in line
    words = told_command(line)
    assert words == ["launch", str(RUN), "--resume-from", "2"]

    assert command(*words).exit_code == 0
    assert steps() == [1, 2, 3, 4, 5, 6] and status() == "finished"
    assert "iteration-000004.aside" in [path.name for path in NEWEST.parent.iterdir()], "kept, out of the way"
    assert checkpoint.verified(checkpoint.newest(NEWEST.parent)).state.iteration == 6


def test_a_finished_run_stays_finished_and_the_command_keeps_the_settings(runtime):
    command("launch", RUN, "--resume")
    newest = RUN / "checkpoints" / "iteration-000006"
    flip_a_bit_of_adamw(newest)
    before = files()
    longer = ["--set", "pipeline.iterations=9", "--set", "logging.samples_every_n_iterations=3"]
    result = command("launch", RUN, "--resume", *longer)
    assert result.exit_code == 2 and "trainer.safetensors does not match" in result.stderr
    assert files() == before and status() == "finished"
    words = told_command(result.stderr)
    assert words[2:4] == ["--resume-from", "4"] and "pipeline.iterations=9" in words
    assert command(*words).exit_code == 0 and steps() == list(range(1, 10))
    assert yaml.safe_load((RUN / "config.yaml").read_text())["logging"]["samples_every_n_iterations"] == 3


def test_where_no_checkpoint_is_whole_the_beginning_is_left(runtime):
    flip_a_bit_of_adamw(NEWEST)
    flip_a_bit_of_adamw(BEFORE)
    result = command("launch", RUN, "--resume")
    assert "the run can go on from only its start, which costs this: iterations 1 to 5 are" in result.stderr
    words = told_command(result.stderr)
    assert words[-2:] == ["--resume-from", "0"]
    assert command(*words).exit_code == 0
    assert runtime.calls[-1][2] is False and steps() == [1, 2, 3, 4, 5, 6]


def test_the_checkpoint_that_is_asked_for_is_verified_too(runtime):
    flip_a_bit_of_adamw(BEFORE)
    result = command("launch", RUN, "--resume-from", 2)
    assert result.exit_code == 2 and f"{BEFORE} is damaged" in result.stderr
    assert told_command(result.stderr)[-1] == "4", "the newest whole one, here newer"
    missing = command("launch", RUN, "--resume-from", 3)
    assert missing.exit_code == 2 and "has no checkpoint of that iteration, but: 2, 4" in missing.stderr
    assert len(runtime.calls) == 1


@pytest.mark.parametrize("back", [2, 0])
def test_a_start_that_fails_is_gone_on_with_from_the_older_one(runtime, monkeypatch, back):
    """As its last line says; the runtime itself had not come to its checkpoints yet."""

    def fails(*_, **__):
        raise RuntimeError("Ray did not start")

    with monkeypatch.context() as broken:
        broken.setattr(sat_slime.lab, "run", fails)
        result = command("launch", RUN, "--resume-from", back)
    assert result.exit_code == 1 and f"go on with: sat-slime launch {RUN} --resume\n" in result.output
    told = f"a checkpoint that is not gone on from is now {NEWEST}.aside"
    assert told in result.output and f" WARNING {told}\n" in (RUN / "log.txt").read_text()
    assert ("iteration-000002.aside" in result.output) is (back == 0)
    again = command("launch", RUN, "--resume", "--dry-run").stdout
    assert f"goes on     from {'iteration-000002' if back else 'its start'}" in again


@pytest.mark.parametrize("lost", ["SHA256SUMS is missing", "model.safetensors does not match its checksum"])
def test_a_reference_that_is_lost_is_told_before_a_finished_run_is_touched(runtime, lost):
    assert command("launch", RUN, "--resume").exit_code == 0
    if "missing" in lost:
        shutil.rmtree(RUN / "initial")
    else:
        (RUN / "initial" / "model.safetensors").write_text("[]")
    before = files()
    result = command("launch", RUN, "--resume", "--set", "pipeline.iterations=9")
    assert result.exit_code == 2 and files() == before and status() == "finished"
    assert f"runs/tiny/initial is damaged: {lost}; it is the reference model that this run started" in result.stderr
    assert "put the old one back, or start another run (--name X)" in result.stderr


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("seed", 7, "seed (0 -> 7)"),
        ("train.lr", 0.1, "train.lr (0.0005 -> 0.1)"),
        ("method.base", "grpo", "method.base ('gspo' -> 'grpo')"),
    ],
)
def test_settings_that_were_edited_in_the_folder_are_held_against_the_checkpoint(runtime, key, value, named):
    values = yaml.safe_load((RUN / "config.yaml").read_text())
    *section, name = key.split(".")
    (values[section[0]] if section else values)[name] = value
    (RUN / "config.yaml").write_text(yaml.safe_dump(values))
    before = files()
    for options in ([], ["--dry-run"], ["--resume-from", "2"]):
        result = command("launch", RUN, "--resume", *options)
        assert result.exit_code == 2 and named in result.stderr, result.output
    assert files() == before and len(runtime.calls) == 1


def test_another_version_of_this_package_goes_on_where_the_checkpoint_is_named(runtime, monkeypatch):
    monkeypatch.setattr("sat_slime.__version__", "99.0")
    result = command("launch", RUN, "--resume")
    assert result.exit_code == 2 and "and this is 99.0" in result.stderr and "--resume-from 4" in result.stderr
    assert command("launch", RUN, "--resume-from", "4").exit_code == 0


def test_a_task_that_draws_other_prompts_is_not_gone_on_with(runtime, monkeypatch):
    drawn = RunningSums.training_problems
    monkeypatch.setattr(RunningSums, "training_problems", lambda *arguments: drawn(*arguments)[::-1])
    result = command("launch", RUN, "--resume")
    assert result.exit_code == 2 and "the task now makes other prompts" in result.stderr


def test_checkpoints_that_are_gone_are_told_with_what_beginning_again_costs(runtime):
    shutil.rmtree(RUN / "checkpoints")
    before = files()
    for options in ([], ["--dry-run"]):
        result = command("launch", RUN, "--resume", *options)
        assert result.exit_code == 2 and "is its disk mounted?" in result.stderr
        assert "iterations 1 to 5 are trained again" in result.stderr
    assert files() == before
    assert command(*told_command(result.stderr)).exit_code == 0
    assert runtime.calls[-1][2] is False
