"""The pages of the studies are what their scripts make of the kept tables, without the package."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

STUDIES = Path(__file__).parents[1] / "studies"
NAMES = ("frontier", "one-setting", "paper-grid")
PUBLISHED = {
    "frontier": (
        "| 8 | GRPO, 0.4 | 68.0 | 0.8 | 66.2 | 54.1 | 60.7 | 0.33 |",
        "| 32 | M2PO, 0.2 | 64.3 | 4.5 | 55.2 | 64.0 | 64.1 | 0.33 |",
        "| GSPO | 64.5 | 59.1 | 54.4 | 53.9 | 54.4 | 59.8 | 61.1 | 62.6 |",
        "| d_pi, SAT-GSPO | 0.0047 | 0.0134 | 0.0221 | 0.0431 | 0.0578 | 0.0963 | 0.1145 | 0.1603 |",
        "| 8 | −3.2 [−4.8, −2.0], a lead | +5.3 [+3.3, +7.3], a lead |",
        "| one radius for lag 1, 8 and 32, after the fact | +0.9 [+0.6, +1.2] |",
    ),
    "one-setting": (
        "| GRPO 0.8 | 71.9 ± 7.0 | 71.4 ± 6.5 | 67.9 ± 4.8 | 66.0 ± 6.1 | 69.3 | 49.5 |",
        "| 0.2 lag^0.6 | +0.0 [+0.0, +0.0] | +1.3 [+0.2, +2.5] | +0.3 [-1.0, +1.6] | -2.5 [-4.5, -0.4] | open |",
        "| SAT-GRPO 1.6: +0.9 [-0.7, +2.6] | 0.227 | 0.227 | no |",
        "| GRPO 0.8 minus GRPO 0.2 | -0.2 [-2.8, +2.5] | +3.0 [+0.7, +5.4] |",
        "| GRPO 0.8 minus GRPO 0.2 | -0.2 [-2.2, +1.9] | +3.0 [-4.1, +10.1] |",
    ),
    "paper-grid": (
        "| GSPO w/ TIS + R3 | 61.9 | 33.6 | 0.0155 | 0.1577 |",
        "| SAT-GSPO w/ R3 − GSPO w/ R3 | 8 | +8.0 [+5.4, +9.8] | 0.027 | 0.234 | −0.0399 |",
    ),
}


@pytest.mark.parametrize("name", NAMES)
def test_the_script_makes_every_row_of_the_page(name, tmp_path):
    script = STUDIES / name / "study.py"
    assert "sat_slime" not in script.read_text()
    printed = subprocess.run(
        [sys.executable, script], cwd=tmp_path, capture_output=True, text=True, encoding="utf-8", check=True
    ).stdout
    page = (STUDIES / name / "README.md").read_text(encoding="utf-8")
    made = [line for line in printed.splitlines() if line.startswith("|")]
    shown = [line for line in page.splitlines() if line.startswith("|")]
    assert len(shown) > 6 and [line for line in (*shown, *PUBLISHED[name]) if line not in made] == []


def test_the_differences_that_one_radius_tells_are_of_its_table():
    folder = STUDIES / "one-radius"
    page = (folder / "plan.md").read_text(encoding="utf-8").split("## On the lab")[1].replace("−", "-")
    told = re.findall(r"([+-]?[0-9.]+)\s+\[([+-][0-9.]+),\s+([+-][0-9.]+)\]", page)
    printed = subprocess.run([sys.executable, folder / "study.py"], capture_output=True, text=True, check=True).stdout
    rows = [f"| {float(mean):+.1f} | [{low}, {high}] |" for mean, low, high in told]
    assert len(rows) == 37 and [row for row in rows if row not in printed] == []
    levels = [f"| 20 | {level} |" for level in re.findall(r"[0-9.]+ ± [0-9.]+", page)]
    assert len(levels) == 24 and [level for level in levels if level not in printed] == []


def test_the_registered_verdicts_of_one_radius_follow_from_its_table(tmp_path):
    """Made-up rows: SAT-GRPO 1.6 is as good as any radius, GRPO 0.2 loses at lag 64, slime's default fails at 8."""
    folder = STUDIES / "one-radius"
    maker = """
import pathlib, resource, sys; sys.path.insert(0, sys.argv[1]); import run
table, rows = pathlib.Path(sys.argv[2]), []
for grid in (grid for stage in run.STAGES for grid in stage):
    for arm, lags in grid.arms.values():
        for lag in lags:
            for seed in run.SEEDS[grid.part]:
                end = 0.7 - 0.2 * (arm == "GRPO 0.2" and lag == 64) - 0.4 * ("over the trainer" in arm and lag == 8)
                for step, accuracy in ((0, 0.2), (128, end + 0.001 * (hash((arm, lag, seed)) % 7))):
                    means = dict.fromkeys(run.MEANS, 0.1 * (1 + seed % 3))
                    rows.append({"part": grid.part, "arm": arm, "lag": lag, "seed": seed, "step": step,
                                 "accuracy": accuracy, "answers": 512, **means})
run.append(table, rows)
size = table.stat().st_size
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 99, -1))  # a disk that is full soon
try: run.append(table, rows)
finally: sys.exit(table.stat().st_size != size)
"""
    table = tmp_path / "runs.csv"
    subprocess.run([sys.executable, "-c", maker, folder, table], check=True, env={"PYTHONHASHSEED": "0"})
    command = [sys.executable, folder / "study.py", table]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "SAT-GRPO 1.6: suits every lag" in printed and "GRPO 0.2: fails" in printed
    assert "| GRPO over the trainer | 8 | 10 of 10 | 0 | fails |" in printed
    assert "| GRPO 0.2 | 8 | 0 of 10 | 0 | holds |" in printed
    part_a, part_b = printed.split("Part B")
    assert part_a.count("| 20 |") > 20 and "with R3 - without, lag 8 | 10 | +" in part_b
