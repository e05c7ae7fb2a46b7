"""The canary on the whole slime: a sound run passes, and an engine of SGLang that does not hold a push is found."""

from pathlib import Path

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(1800)]

SETTINGS = (
    *("--method", "sat-gspo-r3", "--lag", "1", "--set", "pipeline.iterations=4"),
    *("--set", "slime.rollout-batch-size=4", "--set", "slime.n-samples-per-prompt=4"),
    *("--set", "slime.rollout-num-gpus=2", "--set", "slime.eval-interval=0"),
    *("--set", "slime.save-interval=1", "--set", "pipeline.canary=stop"),
)
"""Two engines, and a checkpoint before each push."""


def faulty(slime, fault, *options):
    """A run whose second engine has a fault from version 2 on."""
    hook = "slime.custom-megatron-init-path=faulty_pushes.install"
    where = f"cluster.python_path=[{Path(__file__).parent}]"
    told = ("--set", hook, "--set", where, "--set", f"cluster.env.FAULTY_PUSHES={fault}")
    return slime.launch(f"canary-{fault}", *SETTINGS, *told, *options)


def test_a_sound_run_passes(slime):
    run = slime.launch("canary-sound", *SETTINGS)
    assert run.code == 0, run.output
    assert run.column("canary/faults") == [0, 0, 0, 0]
    assert all(0 < d < limit for d, limit in zip(run.column("canary/d"), run.column("canary/limit"), strict=True))
    assert all(row["time/canary"] > 0 for row in run.rows("times.jsonl"))


@pytest.mark.parametrize(
    ("fault", "said"),
    [("dropped", "still holds the weights of version 1, and says 2"), ("lies", "says that it holds version 77, not 2")],
)
def test_a_fault_of_the_second_engine_ends_the_run(slime, fault, said):
    run = faulty(slime, fault)
    assert run.code == 1, run.output
    (line,) = [line for line in run.log.splitlines() if "canary: " in line]
    assert "rollout engine 1 (http://" in line and "rollout engine 0" not in line
    assert said in line and "go on with --resume" in line
    assert said in run.output
    assert run.column("step") == [1, 2]
    assert (run.folder / "checkpoints" / "latest_checkpointed_iteration.txt").read_text() == "1"


def test_warn_tells_and_goes_on(slime):
    run = faulty(slime, "silent", "--set", "pipeline.canary=warn")
    assert run.code == 0, run.output
    assert run.column("canary/faults") == [0, 0, 1, 1]
    assert "rollout engine 1" in run.log and "still holds the weights of version 1" in run.log
