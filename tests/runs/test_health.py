"""Advisories: a healthy run has none, each illness has its own, and each names its threshold and what to try."""

import io
import json

import pytest
from rich.console import Console
from synthetic import step_metrics

from sat_slime.config import LabConfig, dump_config
from sat_slime.config.method_section import method_switches
from sat_slime.report.run import findings
from sat_slime.runs.folder import RunFolder
from sat_slime.runs.health import HealthWatch
from sat_slime.runs.live_view import RunView
from sat_slime.runs.log import RunLog
from sat_slime.runs.reading import load_run

STEPS = 96
CONFIG = LabConfig.model_validate({"method": method_switches("sat-gspo"), "pipeline": {"lag": 8, "iterations": STEPS}})
RESPONSES = CONFIG.rollout.prompts_per_iteration * CONFIG.rollout.samples_per_prompt


def watch():
    return HealthWatch.of(CONFIG.model_dump(mode="json"))


def rows(**illness):
    """A run that is ill from step 49 on. illness: value of a metric by its name, `/` written `__`; or a function of the
    healthy value."""
    made = []
    for step in range(1, STEPS + 1):
        row = step_metrics(step) | {"rollout/rejected": 0, "rollout/restarts": 0}
        for name, value in illness.items() if step > STEPS // 2 else ():
            key = name.replace("__", "/")
            row[key] = value(row[key]) if callable(value) else value
        made.append(row)
    return made


ILLNESSES = {
    "ess": ({"mismatch__ess": 0.3}, ["below 50%", "Try a smaller lag"]),
    "mismatch": (
        {"mismatch__d_pi": lambda healthy: 6 * healthy},
        ["more than 3 times its lowest level", "Try a smaller lag"],
    ),
    "engine": (
        {"mismatch__implementation": 0.08},
        ["the same weights", "more than 6 times", "pipeline.canary: stop"],
    ),
    "gate": ({"sat__gate_rate": 0.001}, ["less than a tenth of the tail's 10%", "scope to step"]),
    "lag": ({"lag__max": 11}, ["11 updates old, 8 by the plan"]),
    "rejected": ({"rollout__rejected": RESPONSES // 20}, ["above 1%", "rollout/rejected/REASON"]),
    "entropy": ({"loss__entropy": 0.01}, ["below a tenth of", "entropy_coef"]),
    "restarts": ({"rollout__restarts": 1}, ["restarted", "the log names what died"]),
}


def test_a_healthy_run_has_no_advisory():
    for log in (rows(), [{"step": step} for step in range(100)]):
        healthy = watch()
        assert [one for row in log for one in healthy.step(row)] == [] and healthy.holding == {}


@pytest.mark.parametrize("name", ILLNESSES)
def test_each_illness_is_told_once_as_it_begins(name):
    illness, told = ILLNESSES[name]
    ill = watch()
    found = [(row["step"], one) for row in rows(**illness) for one in ill.step(row)]
    assert [one.name for _, one in found] == [name] and set(ill.holding) == {name}
    ((step, advisory),) = found
    assert STEPS // 2 < step <= STEPS // 2 + 16
    for text in told:
        assert text in advisory.text


@pytest.mark.parametrize(
    ("usual", "once", "told"), [(1e-7, 0.08, True), (0.007, 0.08, True), (0.007, 0.035, False), (1e-7, 9e-4, False)]
)
def test_a_wrong_engine_is_told_at_the_one_step_that_measures_it(usual, once, told):
    """usual, once: the implementation part, which every fifth step measures, and that of step 60."""
    ill = watch()
    for step in range(1, 70):
        known = {"mismatch/implementation": once if step == 60 else usual} if step % 5 == 0 else {}
        new = ill.step({"step": step, **known})
        assert [advisory.name for advisory in new] == ["engine"] * (told and step == 60)


@pytest.mark.parametrize("tail, advised", [(None, True), (0.1, False)])
def test_a_run_without_sat_is_advised_to_try_it_and_one_with_it_is_not(tail, advised):
    ill = HealthWatch(planned={"tail": tail} if tail else {})
    told = [one.text for row in rows(mismatch__d_pi=3.0) for one in ill.step(row) if one.name == "mismatch"]
    assert (
        told and ("SAT" in told[0]) == advised and "nats, more than 3 times" in told[0] and "and above 0.15" in told[0]
    )


def test_what_passes_is_over_and_may_be_told_again():
    one = watch()
    steps = [*rows(mismatch__ess=0.3), *rows(), *rows(mismatch__ess=0.3)]
    told = [advisory.name for row in steps for advisory in one.step(row)]
    assert told == ["ess", "ess"]


@pytest.mark.parametrize(
    ("settings", "planned"),
    [
        ({"pipeline": {"lag": 0}}, {"lag": 1}),
        ({"pipeline": {"lag": 8, "optimizer_steps_per_rollout": 2}}, {"lag": 16}),
        ({"pipeline": {"mode": "streaming", "lag": 1, "max_staleness": 4}}, {"lag": 4}),
        ({"method": method_switches("gspo")}, {"tail": None}),
    ],
)
def test_rules_measure_by_the_plan(settings, planned):
    known = HealthWatch.of(LabConfig.model_validate(settings).model_dump(mode="json")).planned
    assert {name: known.get(name) for name in planned} == planned


@pytest.fixture
def folder(tmp_path):
    folder = RunFolder.create(tmp_path / "run", dump_config(CONFIG))
    yield folder
    folder.unlock()


def test_the_log_says_it_once_also_over_a_resume(folder):
    told = io.StringIO()
    view = RunView("run", STEPS, Console(file=told, width=300))
    first = RunLog(folder, view, health=watch())
    for row in rows(mismatch__ess=0.3)[:80]:
        first.step(row)
    first.close()
    assert folder.log.read_text().count("WARNING health: the effective sample size") == 1
    resumed = RunLog(folder, view, health=watch())
    resumed.rewind(76)
    for row in rows(mismatch__ess=0.3)[76:]:
        resumed.step(row)
    resumed.close()
    assert folder.log.read_text().count("WARNING health: ") == 1 and told.getvalue().count("warning: health: ") == 1


def test_the_page_says_since_when(folder):
    folder.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows(mismatch__ess=0.3)))
    (said,) = [text for text in findings(load_run(folder.path)) if text.startswith("Health")]
    assert said.startswith("Health, from step 60, still at the end: the effective sample size is 4")
    quiet = CONFIG.model_copy(update={"logging": CONFIG.logging.model_copy(update={"health": False})})
    folder.config.write_text(dump_config(quiet))
    assert not [text for text in findings(load_run(folder.path)) if text.startswith("Health")]
