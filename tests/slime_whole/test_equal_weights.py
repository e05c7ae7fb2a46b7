"""The trainer and the engine of the real slime agree on the same tokens under the same weights."""

import subprocess

import pytest
from whole_run import COMMAND, ROOT, WholeRun, environment

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(1800)]

SMALL = ("--set", "slime.rollout-batch-size=4", "--set", "slime.n-samples-per-prompt=4")
QUIET = ("--set", "slime.eval-interval=0", "--set", "slime.save-interval=0")
FP32 = 1e-5
MAX_RATIO = 1.5
"""The factor by which d_pi of the two runtimes may differ in bf16: weights and prompts are equal, but not samples."""


@pytest.mark.parametrize("lag", [1, 2, 8])
def test_under_denominator_checkpoint_every_batch_is_scored_by_the_weights_that_generated_it(slime, lag):
    """mu and pi_l are the same weights then, so that their difference is rounding, at every lag."""
    options = ("--method", "grpo-r3", "--lag", str(lag), "--set", "method.denominator=checkpoint")
    run = slime.launch(f"checkpoint-{lag}", *options, "--set", "pipeline.iterations=10", *SMALL, *QUIET)
    assert run.code == 0, run.output
    assert run.column("lag/max") == [0, *(i % lag + 1 for i in range(9))]
    assert max(run.column("mismatch/implementation")) < FP32
    assert all(policy > 1e-3 for policy in run.column("mismatch/policy")[1:])


def test_routes_of_the_token_before_are_refused(slime):
    options = ("--method", "grpo-r3", "--lag", "1", "--set", "pipeline.iterations=2", *SMALL, *QUIET)
    hook = "slime.rollout-sample-hook-path=shifted_routes.shift"  # slime calls this hook and ours
    where = f"cluster.python_path=[{ROOT / 'tests' / 'slime_whole'}]"
    run = slime.launch("shifted", *options, "--set", hook, "--set", where)
    assert run.code == 1
    assert "the replayed experts are off by one token" in run.log


@pytest.fixture(scope="module")
def lab_d_pi(slime):
    """d_pi of the first step, before any update, of the lab runtime with bf16 in trainer and engine, by method."""
    bf16 = ("--set", "rollout.dtype=bfloat16", "--set", "train.dtype=bfloat16", "--set", f"output_dir={slime.runs}")
    d_pi = {}
    for method in ("grpo", "grpo-r3"):
        name = f"lab-bf16-{method}"
        words = ["launch", str(ROOT / "configs" / "lab" / "base.yaml"), "--name", name]
        options = ["--method", method, "--lag", "1", "--set", "pipeline.iterations=1", *bf16]
        done = subprocess.run([*COMMAND, *words, *options], capture_output=True, text=True, env=environment())
        assert done.returncode == 0, done.stdout + done.stderr
        (d_pi[method],) = WholeRun(slime.runs / name, 0, "").column("mismatch/d_pi")
    return d_pi


@pytest.mark.parametrize("method", ["grpo", "grpo-r3"])
def test_in_bf16_they_differ_as_the_lab_runtimes_do(slime, lab_d_pi, method):
    options = ("--method", method, "--lag", "1", "--set", "pipeline.iterations=2", *QUIET)
    run = slime.launch(f"bf16-{method}", *options, "--set", "cluster.cpu_dtype=bfloat16")
    assert run.code == 0, run.output
    first = run.column("mismatch/d_pi")[0]
    print(f"{method}: slime {first:.2e}, lab {lab_d_pi[method]:.2e}")
    assert 1 / MAX_RATIO < first / lab_d_pi[method] < MAX_RATIO
