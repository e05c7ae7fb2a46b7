"""Clip radii that follow the steps before: on the real slime they are what its rows give, through a resume too."""

import pytest

from sat_slime.objective import named_method
from sat_slime.objective.stabilizers.clips.anneal import Anneal

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("name", ["gspo-target-clip", "grpo-kl-budget", "grpo-anneal"])
def test_the_radii_follow_the_rows_through_a_resume(slime, name):
    options = (
        *("--method", name, "--lag", "2", "--set", "checkpoint.every_n_iterations=2"),
        *("--set", "eval.every_n_iterations=0", "--set", "rollout.prompts_per_iteration=4"),
        *(("--set", "method.anneal.from_lag=1") if name == "grpo-anneal" else ()),
    )
    first = slime.launch(name, *options, "--set", "pipeline.iterations=4")
    assert first.code == 0, first.output
    resumed = slime.resume(name, "--set", "pipeline.iterations=8")
    assert resumed.code == 0, resumed.output
    rows = resumed.rows()
    assert [row["step"] for row in rows] == list(range(1, 9))
    method = named_method(name)
    control = Anneal(from_lag=1.0) if name == "grpo-anneal" else method.radius_control
    high = method.trust_region.eps_high
    state = control.start()
    for row in rows:
        assert row["radius/high"] == pytest.approx(high * state["scale"], rel=1e-5), row["step"]
        if row["lag/max"] > 0:
            state = control.advance(state, row)
    assert len({row["radius/high"] for row in rows}) > 2
