from typing import Annotated

import pytest

from sat_slime.config import LabConfig, SlimeConfig
from sat_slime.config.loader import marked_settings, vary
from sat_slime.config.schema import Section
from sat_slime.config.section import (
    COMPUTES_NOTHING,
    MAY_CHANGE_ON_RESUME,
    OWN_TO_A_CELL,
    among,
    differences,
    kept_changes,
    marked,
)


class Inner(Section):
    """A section."""

    a: Annotated[int, MAY_CHANGE_ON_RESUME] = 1
    """One that may change."""
    b: int = 2
    """One that may not."""


class Outer(Section):
    """Sections with marks and without."""

    bare: Inner = Inner()
    """A section without a mark."""
    whole: Annotated[Inner, MAY_CHANGE_ON_RESUME, COMPUTES_NOTHING] = Inner()
    """A section with marks, which hold for all in it."""


def test_marks_are_found_on_fields_and_on_sections():
    assert marked(Outer, MAY_CHANGE_ON_RESUME) == {"bare.a", "whole"}
    assert marked(Outer, COMPUTES_NOTHING) == {"whole"}
    assert marked(Outer, OWN_TO_A_CELL) == set()
    assert among("whole.b", {"whole"}) and among("whole", {"whole"}) and not among("wholesale", {"whole"})


def test_what_a_resumed_run_has_to_keep():
    old, new = Outer(), Outer(bare=Inner(a=5, b=6), whole=Inner(b=7))
    assert differences(old, new) == [("bare.a", 1, 5), ("bare.b", 2, 6), ("whole.b", 2, 7)]
    assert kept_changes(old, new) == "bare.b (2 -> 6)"
    assert kept_changes(old, new, also_kept=["whole"]) == "bare.b (2 -> 6), whole.b (2 -> 7)"
    assert kept_changes(old, Outer(bare=Inner(a=5))) == ""


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
    assert kept.partition("=")[0] in kept_changes(run, vary(run, [], [kept]))


def test_what_a_comparison_does_not_tell():
    assert {"seed", "warmup.seed", "pipeline.lag", "name", "output_dir"} <= marked_settings(OWN_TO_A_CELL)
    told_nowhere = {
        "logging",
        "checkpoint",
        "cluster",
        "estimate",
        "pipeline.canary",
        "slime.save-interval",
    }
    assert told_nowhere <= marked_settings(COMPUTES_NOTHING)
