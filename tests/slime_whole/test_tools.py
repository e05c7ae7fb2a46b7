"""slime trains a task with a tool: turns of several weights, the tool's tokens between them, routes replayed."""

import subprocess

import pytest
from whole_run import COMMAND, environment

from sat_slime.report.dumps import load_payload
from sat_slime.tasks.calculator import Calculator

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1200)]
TASK = Calculator()


@pytest.fixture(scope="module")
def rollouts(tmp_path_factory):
    """The folder with slime's own dumps of what was generated."""
    return tmp_path_factory.mktemp("rollouts")


@pytest.fixture(scope="module")
def run(slime, rollouts, tmp_path_factory):
    made = tmp_path_factory.mktemp("calculator") / "files"
    prepare = [*COMMAND, "prepare", "laptop", "--out", str(made), "--set", "task.name=calculator"]
    subprocess.run(prepare, check=True, env=environment())
    settings = {
        "slime.hf-checkpoint": made / "model",
        "slime.ref-load": made / "model",
        "slime.vocab-size": TASK.vocab_size,
        "slime.prompt-data": made / "prompts.jsonl",
        "slime.eval-prompt-data": f"[held_out, {made / 'held_out.jsonl'}]",
        "slime.custom-generate-function-path": "sat_slime.plugin.task_generate.generate",
        "pipeline.iterations": 3,
        "slime.save-debug-rollout-data": rollouts / "{rollout_id}.pt",
        "slime.eval-interval": 3,
    }
    options = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    run = slime.launch("calculator", "--method", "sat-gspo-r3", "--lag", "2", *options)
    assert run.code == 0, run.output
    return run


def test_the_answers_have_what_the_tool_wrote_and_it_is_not_trained(run, rollouts):
    samples = [sample for file in sorted(rollouts.glob("*.pt")) for sample in load_payload(file)["samples"]]
    called = 0
    for sample in samples:
        if max(sample["tokens"]) >= len(TASK.alphabet):
            continue  # decoded it would look like a call
        response = TASK.decode(sample["tokens"][-sample["response_length"] :])
        marks = TASK.written_by_tool(response)
        assert (sample["loss_mask"] or [1] * len(marks)) == [int(not mark) for mark in marks]
        assert sample["reward"] == TASK.grade(sample["label"], response).reward
        called += any(marks)
    assert len(samples) >= 3 * 256 and called > len(samples) / 2


def test_engine_and_trainer_agree_on_the_tokens_after_a_tools_answer(run):
    first, *stale = run.column("mismatch/d_pi")
    assert first < 1e-5
    assert min(stale) > 1e-3
    assert run.column("lag/max") == run.column("lag/mean") == [0, 1, 2]


def test_routes_are_replayed_behind_the_tools_answer(run):
    fresh, *stale = run.column("routing/agreement")
    assert 0.9 < min(stale) <= max(stale) < fresh < 1
