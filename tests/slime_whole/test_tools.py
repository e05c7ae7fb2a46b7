"""slime trains a task with a tool: turns of several weights, the tool's tokens between them, routes replayed."""

import json
import subprocess

import pytest
from whole_run import COMMAND, environment

from sat_slime.tasks.calculator import Calculator

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1200)]
TASK = Calculator()


@pytest.fixture(scope="module")
def run(slime, tmp_path_factory):
    made = tmp_path_factory.mktemp("calculator") / "files"
    prepare = [*COMMAND, "prepare", "laptop", "--out", str(made), "--set", "task.name=calculator"]
    subprocess.run(prepare, check=True, env=environment())
    settings = {
        "model.hf_checkpoint": made / "model",
        "model.megatron_checkpoint": made / "model",
        "model.architecture.vocab-size": TASK.vocab_size,
        "data.prompts": made / "prompts.jsonl",
        "eval.prompts.held_out": made / "held_out.jsonl",
        "extra_args.custom-generate-function-path": "sat_slime.plugin.task_generate.generate",
        "pipeline.iterations": 3,
        "logging.samples_every_n_iterations": 1,
        "eval.every_n_iterations": 3,
    }
    options = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    run = slime.launch("calculator", "--method", "sat-gspo-r3", "--lag", "2", *options)
    assert run.code == 0, run.output
    return run


def test_the_answers_have_what_the_tool_wrote_and_are_graded_with_it(run):
    samples = [json.loads(line) for file in sorted(run.folder.glob("samples/*.jsonl")) for line in file.open()]
    called = [sample["response"] for sample in samples if TASK.call in sample["response"]]
    assert len(called) > 0.8 * len(samples)
    for answer in called:
        marks = TASK.written_by_tool(answer)
        assert any(marks) or answer.endswith(TASK.call)


def test_engine_and_trainer_agree_on_the_tokens_after_a_tools_answer(run):
    first, *stale = run.column("mismatch/d_pi")
    assert first < 1e-5
    assert min(stale) > 1e-3
    assert run.column("lag/max") == run.column("lag/mean") == [0, 1, 2]


def test_routes_are_replayed_behind_the_tools_answer(run):
    fresh, stale = (row["routing/agreement"] for row in run.rows()[1:])
    assert 0.9 < stale < fresh < 1
