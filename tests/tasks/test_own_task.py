"""A task outside the package, the one of docs/extend.md: everything follows from its file."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from sat_slime.config import ConfigError, LabConfig, config_errors, dump_config, load_config
from sat_slime.config.loader import vary
from sat_slime.lab.batch import RolloutBatch, evaluation_requests, sample_rows, training_requests
from sat_slime.lab.initial_model import cached_model
from sat_slime.rollout.types import Response
from sat_slime.tasks.running_sums import RunningSums

ROOT = Path(__file__).parents[2]
TINY = ROOT / "configs" / "lab" / "tiny.yaml"
PATH = "my_tasks.sorting"


@pytest.fixture
def package(tmp_path, monkeypatch):
    """my_tasks.sorting, as the page has it."""
    _stabilizer, code = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "extend.md").read_text(), re.DOTALL)
    folder = tmp_path / "my_tasks"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "sorting.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_tasks"]:
        del sys.modules[name]


def settings(tmp_path, **task):
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump({"extends": str(TINY), "task": task}))
    return file


@pytest.mark.parametrize("path", [PATH, f"{PATH}.Sorting"])
def test_it_is_a_section_like_those_of_ours(package, tmp_path, path):
    config = load_config(settings(tmp_path, name=path, length=5))
    assert (config.task.name, config.task.length) == (path, 5)
    assert config_errors(config) == []
    saved = yaml.safe_load(dump_config(config))
    assert saved["task"] == {"name": path, "length": 5}, "no setting of another task"
    assert LabConfig.model_validate(saved) == config


@pytest.mark.parametrize("sets", [["task.name=running_sums"], ["task.max_digits=7", "task.name=running_sums"]])
def test_its_settings_go_when_another_task_is_named(package, tmp_path, sets):
    file = settings(tmp_path, name=PATH, length=5)
    other = load_config(file, sets).task
    assert other == RunningSums(max_digits=7 if len(sets) == 2 else 8)
    (name, value) = ("task.name", "running_sums")
    assert vary(load_config(file), [("a place", {name: value})]).task == RunningSums()
    back = vary(load_config(file), [("a place", {name: value}), ("another", {name: PATH})]).task
    assert (back.name, back.length) == (PATH, 6)


def test_requests_are_graded_recorded_and_held_out(package, tmp_path):
    config = load_config(settings(tmp_path, name=PATH))
    task = config.task
    problems, requests = training_requests(config, 0)
    assert {request.stop_token_ids for request in requests} == {(task.alphabet.index("$"),)}
    assert task.decode(requests[0].prompt_ids) == problems[0].prompt
    assert not any(map(task.is_held_out, problems))
    assert all(map(task.is_held_out, evaluation_requests(config, 0)[0]))

    texts = [problems[i // 4].label + ("$", "", "a$", "$$")[i % 4] for i in range(len(requests))]
    responses = [
        Response(
            request.request_id, request.prompt_ids, task.encode(text), np.zeros(len(text), np.float32), None, "stop",
            np.zeros(len(text), np.int64),
        )
        for request, text in zip(requests, texts, strict=True)
    ]  # fmt: skip
    batch = RolloutBatch(task, 0, problems, responses).judged()
    assert batch.rewards.tolist() == [[1, 0, 0, 0]] * 4
    assert batch.truncated.tolist() == [[False, True, False, False]] * 4
    assert [row["response"] for row in sample_rows(batch)] == texts


def test_the_cached_model_is_of_the_text_of_its_module(package, tmp_path):
    file = settings(tmp_path, name=PATH)
    config = load_config(file)
    before = cached_model(config)
    assert before == cached_model(load_config(file)) != cached_model(load_config(file, ["task.length=7"]))
    (package / "sorting.py").write_text((package / "sorting.py").read_text() + "\n# edited\n")
    assert cached_model(config) != before


def test_lengths_are_checked(package, tmp_path):
    sets = ["rollout.max_response_tokens=6", "task.length=12"]
    found = "\n".join(config_errors(load_config(settings(tmp_path, name=PATH), sets)))
    assert (
        f"longest answer of {PATH} with all its steps has 13 tokens: raise it to 13, or lower one of task.length 12"
        in found
    )
    few = config_errors(load_config(settings(tmp_path, name=PATH, length=2)))
    assert few[0].startswith("task.length 2 make 64 problems, fewer than the 500 that a run needs") and len(few) == 1


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ({"name": "runing_sums"}, r"task.name: 'runing_sums' is no task: choose .*did you mean 'running_sums'"),
        ({"name": "my_tasks.nowhere"}, r"task.name: my_tasks.nowhere cannot be imported"),
        ({"name": PATH, "length": 1}, r"run.yaml:3: task.length is 1: it must be greater than or equal to 2"),
        ({"name": PATH, "lenght": 4}, r"unknown key 'task.lenght'; did you mean 'task.length'"),
        ({"name": PATH, "max_digits": 4}, r"unknown key 'task.max_digits'"),
        ({"name": "running_sums", "length": 4}, r"unknown key 'task.length'"),
        ({"name": "my_tasks"}, r"task.name: 'my_tasks' is no task"),
        ({"name": "collections.Counter"}, r"task.name: collections.Counter is no task: let it be a subclass"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(package, tmp_path, task, message):
    with pytest.raises(ConfigError, match=message) as caught:
        load_config(settings(tmp_path, **task))
    assert len(caught.value.errors) == 1


@pytest.mark.parametrize(
    ("written", "instead", "message"),
    [
        ("def draw(", "def drew(", "Sorting does not define draw: see docs/extend.md"),
        ("{LETTERS}=$", "{LETTERS}=$=", "Sorting.alphabet is 'abcdefgh=[$]=': give it every character"),
        ("{LETTERS}=$", "{LETTERS}=", "Sorting.eos is '[$]', no character of its alphabet"),
        (" = 6\n", "\n", "Sorting.length has no default"),
        ("class Sorting(Task)", "class Sorting(Problem)", "my_tasks.sorting defines none"),
        ("LETTERS = ", "LETTERS = undefined + ", r"cannot be imported \(NameError: name 'undefined'"),
    ],
)
def test_what_a_class_lacks_is_said(package, tmp_path, written, instead, message):
    code = (package / "sorting.py").read_text()
    assert written in code
    (package / "sorting.py").write_text(code.replace(written, instead, 1))
    with pytest.raises(ConfigError, match=message):
        load_config(settings(tmp_path, name=PATH))


@pytest.mark.engine
@pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("sglang", "megatron")),
    reason="the lab runtime needs the engines: scripts/setup.sh",
)
def test_it_trains_on_the_engines_with_a_family_from_outside(package, tmp_path):
    (package / "family.py").write_text(
        "from sat_slime.models.qwen3 import Qwen3\n\n\nclass Mine(Qwen3):\n    pass\n\n\nFAMILY = Mine()\n"
    )
    file = tmp_path / "run.yaml"
    file.write_text(
        yaml.safe_dump(
            {
                "extends": str(TINY),
                "name": "outside",
                "method": "sat-grpo",
                "pipeline": {"iterations": 2},
                "task": {"name": PATH, "length": 4},
                "model": {"family": "my_tasks.family", "experts": 0},
                "cache_dir": str(tmp_path / "cache"),
            }
        )
    )
    # A folder of the user's is found as with any command: by PYTHONPATH.
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    launch = [str(Path(sys.executable).parent / "sat-slime"), "launch", str(file)]
    done = subprocess.run(launch, cwd=tmp_path, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    run = tmp_path / "runs" / "outside"
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2]
    (samples,) = (run / "samples").iterdir()
    sample = json.loads(samples.read_text().splitlines()[0])
    assert re.fullmatch("[a-h]{4}=", sample["prompt"]), "a problem of that task"
    assert "outside" in (run / "report.html").read_text().lower()
