import pytest

from sat_slime.config import LabConfig, SlimeConfig
from sat_slime.config.loader import marked_settings, vary
from sat_slime.config.section import COMPUTES_NOTHING, OWN_TO_A_CELL, among, kept_changes


@pytest.mark.parametrize(
    "model, free, kept",
    [
        (LabConfig, "pipeline.iterations=9", "pipeline.lag=3"),
        (LabConfig, "checkpoint.keep=9", "eval.problems=9"),
        (LabConfig, "rollout.request_timeout_s=9.0", "rollout.temperature=0.9"),
        (SlimeConfig, "pipeline.iterations=9", "pipeline.lag=3"),
        (SlimeConfig, "cluster.gpus_per_node=4", "slime.actor-num-gpus-per-node=2"),
        (SlimeConfig, "slime.rollout-num-gpus-per-engine=1", "slime.rollout-top-k=5"),
        (SlimeConfig, "slime.save-interval=5", "slime.no-save-optim=true"),
    ],
)
def test_settings_that_may_change_on_resume_and_that_may_not(model, free, kept):
    run = model()
    assert kept_changes(run, vary(run, [], [free])) == ""
    assert kept_changes(run, vary(run, [], [free, kept])).startswith(f"{kept.partition('=')[0]} (")


def test_what_may_not_change_here_is_kept_too():
    changed = vary(LabConfig(), [], ["checkpoint.keep=9", "pipeline.iterations=9"])
    assert kept_changes(LabConfig(), changed, also_kept=["checkpoint"]) == "checkpoint.keep (2 -> 9)"


def test_what_a_comparison_does_not_tell():
    assert {"seed", "warmup.seed", "pipeline.lag", "name", "output_dir"} <= marked_settings(OWN_TO_A_CELL)
    told_nowhere = {"logging", "checkpoint", "cluster", "estimate", "pipeline.canary", "slime.save-interval"}
    assert told_nowhere <= marked_settings(COMPUTES_NOTHING)
    assert among("logging.samples_every_n_iterations", {"logging"}) and not among("loggings", {"logging"})
