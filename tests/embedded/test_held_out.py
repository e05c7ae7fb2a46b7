"""`sat-slime eval` with engines of its own: a run's held-out problems, and AIME 2024 on a model's folder."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from text_model import save_text_model

from sat_slime.config.jsonl import read_rows
from sat_slime.config.schema import EmbeddedConfig
from sat_slime.embedded import checkpoint, held_out
from sat_slime.embedded.checkpoint import DamagedCheckpoint
from sat_slime.embedded.initial_model import model_checksums
from sat_slime.evaluation.scores import Graded, summary

ROOT = Path(__file__).parents[2]
AIME = ROOT.parent / "shared" / "data" / "aime24.jsonl"
needs_engines = pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("ray", "sglang", "megatron", "math_verify")),
    reason="needs the engines and the verifier: scripts/setup.sh",
)
PIPES = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}


def make_weights(folder: Path) -> None:
    folder.mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        (folder / name).write_text("{}")


def save(run: Path, iteration: int, versions: list[int]) -> None:
    initial = model_checksums(run / "initial")
    state = checkpoint.LoopState(iteration, iteration, versions, [1, 1, 1], initial)
    with checkpoint.writing(run / "checkpoints", state) as part:
        (part / "rank-0.safetensors").write_text("")
        for version in versions:
            make_weights(part / "weights" / f"v{version:06d}")


def test_the_newest_weights_of_a_run(tmp_path):
    assert held_out.newest_weights(tmp_path) is None
    make_weights(tmp_path / "initial")
    assert held_out.newest_weights(tmp_path) == held_out.Weights(tmp_path / "initial", 0)
    save(tmp_path, 4, [0, 3])
    save(tmp_path, 10, [6, 9])
    newest = held_out.newest_weights(tmp_path)
    assert (newest.step, newest.folder.name) == (9, "v000009")
    assert held_out.weights_of(tmp_path / "checkpoints" / "iteration-000004").step == 3
    assert held_out.weights_of(tmp_path / "checkpoints" / "iteration-000099") is None


def test_damaged_weights_are_not_evaluated_and_nothing_older_takes_their_place(tmp_path):
    make_weights(tmp_path / "initial")
    for iteration in (4, 10):
        save(tmp_path, iteration, [iteration - 3, iteration])
    saved = tmp_path / "checkpoints" / "iteration-000010"
    (saved / "rank-0.safetensors").write_text("damaged")  # which an evaluation does not read
    assert held_out.newest_weights(tmp_path).step == 10
    (saved / "weights" / "v000010" / "model.safetensors").unlink()
    with pytest.raises(DamagedCheckpoint, match=r"is damaged: weights/v000010/model.safetensors is missing"):
        held_out.newest_weights(tmp_path)
    assert held_out.initial_weights(tmp_path).step == 0
    (tmp_path / "initial" / "model.safetensors").write_text("{ }")
    with pytest.raises(
        DamagedCheckpoint, match=r"initial is damaged: model.safetensors is not what the run started with"
    ):
        held_out.initial_weights(tmp_path)


def test_another_evaluation_of_a_run_asks_the_same_problems():
    config = EmbeddedConfig()
    other = held_out.asked(config, {"samples_per_problem": 16, "k": [8], "temperature": 0.0})
    assert (other.eval.samples_per_problem, other.eval.k, other.eval.problems) == (16, [8], config.eval.problems)
    assert held_out.questions(other) == held_out.questions(config)
    assert len({question.id for question in held_out.questions(config)}) == 64
    with pytest.raises(ValueError, match="k has 9"):
        held_out.asked(config, {"k": [9]})


def sat_slime(*arguments: object, **options) -> subprocess.Popen:
    command = [str(Path(sys.executable).parent / "sat-slime"), *map(str, arguments)]
    return subprocess.Popen(command, text=True, **options)


def output_of(process: subprocess.Popen) -> str:
    output, _ = process.communicate(timeout=500)
    assert process.returncode == 0, output
    return output


@pytest.mark.engine
@pytest.mark.timeout(1200)
@needs_engines
@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("temperature", [1, 0], ids=["sampled", "greedy"])
def test_a_run_evaluated_afterwards_has_the_numbers_that_it_logged(tmp_path, model_cache, temperature):
    settings = ["pipeline.iterations=2", "warmup.steps=150", "eval.problems=16", "eval.samples_per_problem=4"]
    settings += [f"eval.temperature={temperature}", "eval.k=[1, 2, 4]"]
    settings += [f"output_dir={tmp_path}", f"cache_dir={model_cache}"]
    flags = [part for setting in settings for part in ("--set", setting)]
    output_of(sat_slime("launch", ROOT / "configs/embedded/tiny.yaml", "--no-live", "--name", "run", *flags, **PIPES))
    logged = {row["weights_step"]: row for row in read_rows(tmp_path / "run" / "eval.jsonl")}
    for what, step in (("run", 2), ("run/initial", 0)):
        output = output_of(sat_slime("eval", tmp_path / what, **PIPES))
        told = json.loads((tmp_path / "run" / "eval" / f"step-{step:06d}" / "eval.json").read_text())
        assert told["weights_step"] == told["step"] == step and f"weights of optimizer step {step}" in output
        assert told["accuracy"] > 0
        same = [key for key in logged[step] if key not in ("iteration", "time/eval") and not key.startswith("rollout/")]
        assert {key: told[key] for key in same} == {key: logged[step][key] for key in same}


@pytest.mark.engine
@pytest.mark.timeout(1200)
@needs_engines
def test_aime_on_a_server_of_a_models_folder_goes_on_after_a_kill(tmp_path):
    """The tiny model knows nothing, so 0 of 30 is right. The test is of the way of questions and answers."""
    psutil = pytest.importorskip("psutil")
    data = AIME
    if not data.is_file():
        data = tmp_path / "aime24.jsonl"
        rows = ({"id": i, "problem": f"Find the least integer above ${i}.5$.", "answer": f"{i:03d}"} for i in range(30))
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    model, out = save_text_model(tmp_path / "model"), tmp_path / "out"
    arguments = ["eval", model, "--data", data, "--max-tokens", 8, "--concurrency", 4, "--out", out]
    first = sat_slime(*arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 400
    while not (answered := read_rows(out / "samples.jsonl")) and first.poll() is None:
        assert time.monotonic() < deadline, (out / "sglang-0.log").read_text()[-2000:]
        time.sleep(0.02)
    servers = psutil.Process(first.pid).children(recursive=True) if first.poll() is None else []
    first.kill()
    first.wait()
    assert not psutil.wait_procs(servers, timeout=30)[1], "the server ends with the command"
    assert answered

    output = output_of(sat_slime(*arguments, **PIPES))
    rows, told = read_rows(out / "samples.jsonl"), json.loads((out / "eval.json").read_text())
    assert len({row["problem"] for row in rows}) == len(rows) == 30
    assert rows[: len(answered)] == answered, "nothing is asked twice"
    assert (told["accuracy"], told["n_samples"]) == (0.0, 30) and told["length_mean"] <= 8
    assert told["settings"]["model_path"] == str(model) and told["weight_versions"] == ["default"]
    assert told["weights_step"] is None and "are there already" in output
    graded = Graded(*(np.array([[row[key]] for row in rows]) for key in ("reward", "tokens", "truncated")))
    expected = {key: value for key, value in summary(graded, [1]).items() if key != "accuracy_by_problem"}
    assert {key: told[key] for key in expected} == expected
