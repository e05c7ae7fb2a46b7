"""The trainer and the engine of the real slime agree on the same tokens under the same weights."""

import pytest
from whole_run import ROOT

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(1800)]

SMALL = ("--set", "slime.rollout-batch-size=4", "--set", "slime.n-samples-per-prompt=4")
QUIET = ("--set", "slime.eval-interval=0", "--set", "slime.save-interval=0")
FP32 = 1e-5


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
