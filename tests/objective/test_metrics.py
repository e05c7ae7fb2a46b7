from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import sat_slime
from sat_slime.objective import MetricAccumulator
from sat_slime.objective.metrics import metric_named, run_metrics, slime_names


def test_metrics_reduce_by_their_name_and_a_micro_batch_without_active_tokens_says_nothing_of_tokens() -> None:
    accumulator = MetricAccumulator()
    assert accumulator.reduce() == {}
    for q, largest, low, high, loss, active in ((0.2, 0.5, 2, 2, 1, 30), (0.6, 0.3, 1, 7, 2, 10), (0, 9, 0, 9, 0.5, 0)):
        metrics = {"sat/q": q, "m2po/largest": largest, "lag/min": low, "lag/max": high}
        accumulator.add({**metrics, "loss/total": torch.tensor(float(loss))}, torch.tensor(active))
    assert accumulator.reduce() == pytest.approx(
        {"loss/total": 3.5, "sat/q": 0.3, "m2po/largest": 0.5, "lag/max": 7.0, "lag/min": 1.0}
    )


def test_differing_names_are_an_error() -> None:
    accumulator = MetricAccumulator()
    accumulator.add({"a": 1.0, "b": 2.0}, 1)
    accumulator.add({"a": 1.0}, 1)
    with pytest.raises(ValueError, match="b not in all of them"):
        accumulator.reduce()


def test_every_metric_that_a_report_or_the_live_view_reads_is_in_the_table() -> None:
    package = Path(sat_slime.__file__).parent
    groups = {name.partition("/")[0] for metric in run_metrics() for name in metric.names if "/" in name}
    key = re.compile(rf'"((?:{"|".join(sorted(groups))})/[a-z0-9_]+)"')
    found = {
        name: path
        for part in ("report", "runs", "grid")
        for path in package.joinpath(part).rglob("*.py")
        for name in key.findall(path.read_text(encoding="utf-8"))
    }
    assert len(found) > 20
    found.pop("rollout/step")  # of slime's own logs
    assert {name: path for name, path in found.items() if metric_named(name) is None} == {}


def test_names_with_a_word_in_capitals_stand_for_any() -> None:
    assert metric_named("rollout/rejected/too long").pattern == "rollout/rejected/REASON"
    assert metric_named("rollout/dropped").pattern == "rollout/{dropped,aborted,dropped_length_mean}"
    assert metric_named("lag/median") is None and metric_named("xlag/mean") is None


def test_slimes_names_are_those_of_one_metric_each() -> None:
    names = slime_names()
    assert names["train/pg_loss"] == "loss/policy" and slime_names("perf/")["perf/step_time"] == "time/step"
    assert len(names) == sum(len(metric.slime) for metric in run_metrics())
