"""The rules of docs/results/one-setting/plan.md, as scripts/one_setting.py applies them, on rows made by hand."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from sat_slime.config import config_errors, load_config
from sat_slime.config.grid_schema import matches
from sat_slime.config.loader import load_grid
from sat_slime.runs.health import MOST_CLIPPED, RUN_STEPS

SCRIPT = Path(__file__).parents[1] / "scripts/one_setting.py"


def script(name):
    spec = importlib.util.spec_from_file_location(name, SCRIPT.with_stem(name))
    assert spec is not None and spec.loader is not None
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


study, holds = script("one_setting"), script("one_setting_holds")

SEEDS = (0, 1, 2)


def cells(**changed):
    """Accuracy by arm and lag: 60 everywhere, but for what is changed, with the seed's number added to each."""
    table = {arm.name: dict.fromkeys(arm.lags, 60.0) for arm in study.ARMS}
    for name, at_lags in changed.items():
        table[name] |= at_lags
    return {
        (name, lag, seed): study.Run(accuracy + seed, (accuracy,) * 4, 0.0, 0.0, 0.0, 0.0, 0.0)
        for name, at_lags in table.items()
        for lag, accuracy in at_lags.items()
        for seed in SEEDS
    }


def frozen(table):
    arms = [arm for arm in study.ARMS if study.whole_seeds(table, [arm]) == list(SEEDS)]
    return study.freeze(study.means(table, arms, SEEDS), arms)


def test_the_arms_have_a_grid_each_that_runs_their_method():
    for arm in study.ARMS:
        text = (SCRIPT.parents[1] / f"configs/grid/one-setting/{arm.grid}.yaml").read_text()
        inherited = (SCRIPT.parents[1] / "configs/grid/one-setting/eps-0.8.yaml").read_text()
        methods = text if "\nmethods:" in text else inherited
        line = next(line for line in methods.splitlines() if line.startswith("methods:"))
        assert arm.method in line.removeprefix("methods: [").rstrip("]").split(", "), arm


def test_f_has_the_highest_mean_over_lags_and_b_is_the_best_at_each():
    table = cells(**{"GRPO 0.2": {1: 70.0}, "GRPO 0.8": {8: 68.0, 32: 66.0}, "GRPO 1.6": {64: 63.0}})
    rule = frozen(table)
    assert rule.fixed == "GRPO 0.8"  # 63.5 over the lags, where 0.2 has 62.5
    assert rule.best == {1: "GRPO 0.2", 8: "GRPO 0.8", 32: "GRPO 0.8", 64: "GRPO 1.6"}
    assert rule.worst_loss["GRPO 0.8"] == pytest.approx(10.0) and rule.worst_loss["GRPO 0.2"] == pytest.approx(8.0)


def test_a_tie_of_half_a_point_goes_to_the_simpler_setting():
    assert study.first_best({"simple": 60.0, "other": 60.5}) == "simple"
    assert study.first_best({"simple": 60.0, "other": 60.6}) == "other"


def test_each_kind_sends_the_arm_with_the_smallest_worst_loss_and_a_repeat_sends_none():
    table = cells(
        **{
            "GRPO 0.8": dict.fromkeys(study.LAGS, 64.0),
            "0.2 lag^0.6": {8: 62.0, 32: 62.0, 64: 62.0},
            "GRPO 0.2": {1: 62.0},  # which is each radius by lag at lag 1
            "M2PO by lag": dict.fromkeys(study.LAGS, 63.0),
            "GRPO 0.8, again": dict.fromkeys(study.LAGS, 64.0),
        }
    )
    rule = frozen(table)
    assert rule.arms == ("0.2 lag^0.6", "M2PO by lag")
    assert rule.worst_loss["0.2 lag^0.6"] == pytest.approx(2.0)
    assert "anneal" not in rule.worst_loss and "GRPO 0.8, again" not in rule.worst_loss


def test_a_seed_counts_where_all_lags_of_all_arms_have_run():
    table = cells()
    del table["BAPO", 64, 1]
    assert study.whole_seeds(table, study.ARMS) == [0, 2]


@pytest.mark.parametrize(
    ("samples", "verdict"),
    [([1.0, 2.0, 3.0], "held"), ([3.1, 3.4, 3.7], "refuted"), ([2.0, 3.4, 4.0], "open"), ([5.0], "open")],
)
def test_a_prediction_is_refuted_by_more_than_a_standard_error(samples, verdict):
    assert study.judge(1, 8, "", samples, 0.0, 3.0).verdict == verdict


def test_the_first_prediction_is_judged_at_each_lag():
    table = cells(**{"GRPO 0.8": {1: 65.0, 8: 65.0, 32: 64.0, 64: 68.0}})  # means one above, by the seeds
    judged = {item.lag: item.verdict for item in study.predictions(table, SEEDS) if item.number == 1}
    assert judged == {1: "held", 8: "held", 32: "held", 64: "refuted"}


def test_noise_is_that_of_repeats_over_the_root_of_two():
    run = study.Run(60.0, (59.0, 61.0, 59.0, 61.0), 0.0, 0.0, 0.0, 0.0, 0.0)
    again = study.Run(62.0, (61.0, 63.0, 61.0, 63.0), 0.0, 0.0, 0.0, 0.0, 0.0)
    repeat, sampling, pairs = study.noise({("GRPO 0.8", 1, 0): run, ("GRPO 0.8, again", 1, 0): again})
    assert (repeat, pairs) == (pytest.approx(2**0.5), 1)
    assert sampling == pytest.approx((4 / 3 / 4) ** 0.5)  # variance 4/3 of the quarters, of which there are four


def grid(root, name, cell_states):
    folder = root / name
    for method, lag, seed, _, accuracy in cell_states:
        run = folder / f"runs/{method}-lag{lag}-seed{seed}"
        run.mkdir(parents=True)
        rows = [
            {"step": 127, "clip/fraction": 0.1, "lag/mean": lag},
            {"step": 128, "clip/fraction": 0.3, "lag/mean": lag},
        ]
        (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        rows = [{"step": 0, "accuracy": 0.2}, {"step": 128, "accuracy": accuracy, "accuracy_by_run": [accuracy] * 4}]
        (run / "eval.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    states = [
        {"method": method, "lag": lag, "seed": seed, "state": state, "folder": f"runs/{method}-lag{lag}-seed{seed}"}
        for method, lag, seed, state, _ in cell_states
    ]
    (folder / "state.json").write_text(json.dumps({"cells": states}))


def test_grids_and_their_archives_read_the_same(tmp_path):
    grids, kept = tmp_path / "grids", tmp_path / "kept"
    kept.mkdir()
    grid(grids, "eps-0.8", [("grpo", 8, 0, "finished", 0.7), ("sat-grpo", 8, 0, "running", 0.6)])
    subprocess.run(["tar", "-cJf", kept / "eps-0.8.tar.xz", "-C", grids, "eps-0.8"], check=True)
    read = study.read(grids)
    assert read == study.read(kept)
    assert list(read) == [("GRPO 0.8", 8, 0)]
    assert (read["GRPO 0.8", 8, 0].accuracy, read["GRPO 0.8", 8, 0].clipped) == (70.0, pytest.approx(0.2))


def test_what_is_not_whole_is_one_line(tmp_path):
    grid(tmp_path, "eps-0.8", [("grpo", 8, 0, "finished", 0.7)])
    done = subprocess.run([sys.executable, SCRIPT, tmp_path], capture_output=True, text=True)
    assert done.returncode == 1 and "the first comparisons are not whole" in done.stderr
    assert "Traceback" not in done.stderr


def test_what_is_frozen_is_what_the_rule_takes_from_the_kept_calibration():
    table = study.read(study.KEPT / "runs")
    arms = [arm for arm in study.ARMS if study.whole_seeds(table, [arm], SEEDS) == list(SEEDS)]
    rule = study.freeze(study.means(table, arms, SEEDS), arms)
    assert len(arms) == len(study.ARMS)
    assert (rule.fixed, rule.best, rule.arms) == (study.FROZEN.fixed, study.FROZEN.best, study.FROZEN.arms)
    assert {name: round(rule.worst_loss[name], 1) for name in study.FROZEN.worst_loss} == study.FROZEN.worst_loss


@pytest.mark.parametrize(("folder", "of"), [("confirm", study.FIRST_ROUND), ("second", study.SECOND_ROUND)])
def test_the_grids_of_fresh_seeds_run_what_is_frozen_as_the_calibration_did(folder, of):
    wanted = {(arm.grid, arm.method, lag) for arm, lag in study.frozen_cells(of.frozen)}
    found = set()
    for file in sorted((SCRIPT.parents[1] / f"configs/grid/one-setting-{folder}").glob("*.yaml")):
        grid = load_grid(file)
        before = load_grid(file.parents[1] / "one-setting" / file.name)
        assert grid.settings == before.settings and set(grid.methods) <= set(before.methods), file
        assert tuple(grid.seeds) == of.seeds
        found |= {(grid.name, method, lag) for method in grid.methods for lag in grid.lags}
    assert found == wanted


def test_an_interval_is_students_and_of_no_difference_it_is_zero():
    samples = [1.0, 2.5, -0.5, 3.0]
    item = study.difference(samples)
    half = 3.182446 * (sum((x - 1.5) ** 2 for x in samples) / 3 / 4) ** 0.5  # t of 3 degrees at 97.5 %
    assert (item.mean, item.low, item.high) == pytest.approx((1.5, 1.5 - half, 1.5 + half), abs=1e-5)
    assert study.difference([0.0, 0.0]) == study.Difference(0.0, 0.0, 0.0, 1.0)
    assert study.difference([2.0]).high == float("inf")


def test_holms_correction():
    assert study.holm({"a": 0.04, "b": 0.01, "c": 0.03}) == pytest.approx({"b": 0.03, "c": 0.06, "a": 0.06})


FRESH = (5, 6, 7, 8)
ARM, OTHER = study.FROZEN.arms


@pytest.mark.parametrize(
    ("fixed", "arm", "verdict"),
    [
        (0.0, 3.0, f"{ARM}: better, and GRPO 0.8 will do"),
        (0.0, 0.0, "GRPO 0.8: it suits every lag and nothing beats it"),
        (-4.0, 3.0, f"{ARM}: confirmed"),
        (-4.0, -4.0, "nothing is confirmed"),
    ],
)
def test_the_verdict_is_that_of_the_plans_table(fixed, arm, verdict):
    """At lag 8 F and an arm differ from B by these points; elsewhere all are alike."""
    table = {
        (name, lag, seed): study.Run(60.0 + seed + at_lag * (lag == 8), (), 0, 0, 0, 0, 0)
        for name, at_lag in {"GRPO 0.2": 0.0, "GRPO 0.4": 0.0, "GRPO 0.8": fixed, ARM: arm, OTHER: -4.0}.items()
        for lag in study.LAGS
        for seed in FRESH
    }
    assert study.confirmable_seeds(table) == list(FRESH)
    found = study.confirm(table, FRESH)
    assert found.verdict("GRPO 0.8") == verdict
    assert found.suits(OTHER) == "fails"


def test_a_setting_is_open_where_its_interval_has_the_margin_in_it():
    table = {
        (name, lag, seed): study.Run(60.0 + (4.0 * (-1) ** seed if name == ARM else 0.0), (), 0, 0, 0, 0, 0)
        for name in ("GRPO 0.2", "GRPO 0.4", "GRPO 0.8", ARM, OTHER)
        for lag in study.LAGS
        for seed in FRESH
    }
    assert study.confirm(table, FRESH).suits(ARM) == "open"


def test_the_picture_is_drawn(tmp_path):
    table = {
        (arm.name, lag, seed): study.Run(60.0 + seed * lag, (), 0, 0, 0, 0, 0)
        for arm, lag in study.frozen_cells()
        for seed in FRESH
    }
    study.draw(table, FRESH, tmp_path / "picture.svg")
    text = (tmp_path / "picture.svg").read_text()
    assert all(name in text for name in (study.FROZEN.fixed, ARM, OTHER, "minus the best fixed radius"))
    # every colour that is drawn has its counterpart on a dark page, and the card its round corners
    dark = text.partition("prefers-color-scheme: dark")[2].partition("</style>")[0]
    body = text.partition("</style>")[2]
    drawn = set(re.findall(r'(?:fill|stroke)="#\w+"', body)) - {f'{part}="#e69f00"' for part in ("fill", "stroke")}
    assert drawn and all(f"[{colour}]" in dark for colour in drawn)
    assert body.count('rx="8"') == 1 and "white" not in body


@pytest.mark.parametrize(
    "of", [study.FIRST_ROUND, study.SECOND_ROUND, study.BOTH_ROUNDS], ids=["first", "second", "both"]
)
def test_the_page_has_the_tables_that_the_kept_rows_give(of, capsys):
    table = {name: run for folder in of.folders for name, run in study.read(folder).items()}
    assert study.confirmable_seeds(table, of) == list(of.seeds)
    study.print_confirmation(table, of.seeds, of)
    printed = capsys.readouterr().out
    page = (study.KEPT / "README.md").read_text()
    tables = [line for line in printed.splitlines() if line.startswith("|")]
    assert len(tables) == 9 + 3 * len(of.frozen.arms)
    assert [line for line in tables if line not in page] == []
    assert "Verdict: nothing is confirmed" in printed


def test_a_large_clipped_share_at_the_start_means_a_loss_in_all_kept_token_radii():
    """The numbers of docs/choosing.md and of the health advice on a narrow radius."""
    assert study.NARROW == MOST_CLIPPED and study.EARLY == RUN_STEPS
    lost = study.narrow(study.read(study.KEPT / "runs"), SEEDS, study.FROZEN.best)
    above = {cell: round(loss, 1) for cell, (loss, share) in lost.items() if share > study.NARROW}
    assert above == {
        ("GRPO 0.2", 32): 8.0,
        ("GRPO 0.2", 64): 19.4,
        ("GRPO 0.4", 64): 8.8,
        ("KL budget", 32): 1.9,
        ("KL budget", 64): 13.0,
        ("anneal", 64): 6.4,
        ("BAPO", 64): 11.6,
    }
    assert max(loss for loss, share in lost.values() if study.MODERATE < share <= study.NARROW) < 4.0


# ------------------------------------------------------------------------------------------------- where it holds


def test_the_script_runs_the_cells_of_each_condition_and_the_radii_are_those_of_the_rounds_before():
    shell = SCRIPT.with_suffix(".sh")
    said = subprocess.run(
        ["bash", shell, "holds"], capture_output=True, text=True, env=os.environ | {"SAT_SLIME": "echo"}
    )
    found = set()
    for line in said.stdout.splitlines():
        words = line.split()
        grid = load_grid(Path(words[1]))
        options = list(pairwise(words))
        name = next((value for option, value in options if option == "--name"), grid.name)
        only = [value for option, value in options if option == "--only"] or ["*"]
        sets = [value for option, value in options if option == "--set"]
        condition, _, radius = name.rpartition("-")
        cells = {(m, lag) for m in grid.methods for lag in grid.lags if any(matches(one, m, lag) for one in only)}
        found |= {(condition, holds.ARMS[radius, method], lag) for method, lag in cells}
        assert tuple(grid.seeds) == holds.SEEDS and grid.output_dir == "grids/one-setting-holds"
        before = load_grid(SCRIPT.parents[1] / f"configs/grid/one-setting/{SAME[radius]}.yaml")
        assert {key: value for key, value in grid.settings.items() if key != "pipeline"} == {
            key: value for key, value in before.settings.items() if key != "pipeline"
        }
        assert config_errors(load_config(SCRIPT.parents[1] / "configs/embedded/base.yaml", sets)) == []
    wanted = {
        (name, arm, lag) for name in holds.CONDITIONS for arm in holds.ARMS.values() for lag in holds.lags_of(name)
    }
    assert found == wanted - {("lags", holds.GROWS, 0)}


SAME = {"narrow": "power-0.6", "wide": "eps-0.8"}


def held_out_conditions(**grows):
    """Both fixed radii have 60 everywhere, and the radius by lag 62, but for the conditions that are named, by lag."""
    cells = {}
    for name in holds.CONDITIONS:
        for lag in holds.lags_of(name):
            for seed in holds.SEEDS:
                for arm in (holds.NARROW, holds.WIDE):
                    cells[name, arm, lag, seed] = holds.Run(20.0, 60.0 + seed, lag / 2)
                accuracy = grows.get(name, {}).get(lag, 62.0)
                cells[name, holds.GROWS, lag, seed] = holds.Run(20.0, accuracy + seed, lag / 2)
    return cells


EVERYWHERE = {name: dict.fromkeys(holds.lags_of(name), 57.0) for name in holds.CONDITIONS}


@pytest.mark.parametrize(
    ("grows", "verdict"),
    [
        ({}, "holds"),
        ({"fp8": {8: 54.5}}, "holds, but for fp8 at lag 8"),
        ({"fp8": {8: 40.0}}, "open"),  # it leaves the others' interval too wide
        (EVERYWHERE, "fails"),
    ],
)
def test_where_it_holds_is_said_over_conditions(grows, verdict, capsys):
    cells = held_out_conditions(**grows)
    assert holds.whole(cells) == list(holds.CONDITIONS)
    assert holds.verdict(cells, holds.CONDITIONS[1:], holds.GROWS) == verdict
    holds.print_round(cells, holds.CONDITIONS)
    printed = capsys.readouterr().out
    assert (
        f"Verdict on {holds.GROWS}: {verdict}\n" in printed and "| longer | 32 | 16.0 | 20.0 | 96.0 ± 1.0 | " in printed
    )


def test_the_wide_radius_is_held_against_the_narrow_one_and_the_one_by_lag():
    table = held_out_conditions()  # where the radius by lag is 2 points above it everywhere
    assert holds.verdict(table, holds.CONDITIONS[1:], holds.WIDE) == "fails"
    assert holds.verdict(held_out_conditions(**EVERYWHERE), holds.CONDITIONS[1:], holds.WIDE) == "holds"


def test_a_condition_waits_for_all_its_runs_and_the_verdict_for_all_conditions(capsys):
    cells = held_out_conditions()
    del cells["longer", holds.WIDE, 32, 36], cells["lags", holds.GROWS, 0, 35]  # which is GRPO 0.2
    conditions = holds.whole(cells)
    assert set(holds.CONDITIONS) - set(conditions) == {"longer"}
    holds.print_round(cells, conditions)
    assert f"Verdict on {holds.WIDE}: waits for longer\n" in capsys.readouterr().out


def test_the_predictions_are_of_conditions_and_lags_that_run():
    assert all(item.lag in holds.lags_of(item.condition) for item in holds.PREDICTIONS)
    judged = list(holds.predictions(held_out_conditions(), holds.CONDITIONS))
    assert {item.number for item in judged} == set(range(1, 11))
    assert [item.verdict for item in judged if item.number in (1, 8)] == ["held"] * 3 + ["refuted"]


def test_runs_are_told_by_the_name_of_their_grid(tmp_path):
    grid(tmp_path, "half-lr-narrow", [("grpo", 8, 35, "finished", 0.7), ("grpo-lag-power", 8, 35, "finished", 0.6)])
    grid(tmp_path, "half-lr-wide", [("grpo", 8, 35, "finished", 0.5), ("grpo", 32, 36, "running", 0.5)])
    runs = holds.read(tmp_path)
    assert {key[1]: (run.initial, run.accuracy) for key, run in runs.items()} == {
        holds.NARROW: (20.0, 70.0),
        holds.GROWS: (20.0, 60.0),
        holds.WIDE: (20.0, 50.0),
    }


def test_the_page_has_the_table_of_the_conditions_that_have_run(capsys):
    cells = holds.read(study.KEPT / "holds/runs")
    holds.print_round(cells, holds.whole(cells))
    tables = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    page = (study.KEPT / "README.md").read_text()
    assert len(tables) >= 6 and [line for line in tables if line not in page] == []
