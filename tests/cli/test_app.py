import subprocess
import sys
from pathlib import Path

import pytest
from command_line import TINY, sat_slime_command

from sat_slime.cli import lab_run
from sat_slime.cli.app import GROUPS

ROOT = Path(__file__).parents[2]


def test_version_and_help():
    assert "sat-slime" in sat_slime_command("--version").stdout
    top = sat_slime_command("--help").stdout
    assert all(command in top for command in ("init", "launch", "check", "methods", "report", "--version"))
    assert all(heading in top for heading in GROUPS)


def test_the_help_of_no_command_waits_for_what_it_works_with():
    heavy = ("torch", "numpy", "yaml", "altair", "vl_convert", "sat_slime.config", "sat_slime.objective")
    program = f"""
import sys
import typer
from sat_slime.cli import app

for name in typer.main.get_command(app).commands:
    app([name, "--help"], standalone_mode=False)
print([name for name in {heavy!r} if name in sys.modules])
"""
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout
    assert "--resume" in shown and shown.endswith("[]\n")


@pytest.mark.parametrize(
    "file, setting, meant",
    [("lab/quickstart", "train.lrr=1", "'train.lr'"), ("recipes/qwen3-4b-8gpus", "pipeline.lagg=8", "'pipeline.lag'")],
)
def test_a_typo_is_answered_before_torch_is_imported(file, setting, meant):
    program = f"""
import sys
from sat_slime.cli import main

sys.argv = ["sat-slime", "launch", "configs/{file}.yaml", "--set", "{setting}"]
try:
    main()
except SystemExit as exit:
    print(exit.code, "torch" in sys.modules)
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert said.stdout == "2 False\n" and f"did you mean {meant}?" in said.stderr


def test_a_report_waits_neither_for_torch_nor_for_scipys_statistics():
    program = "import sys, sat_slime.report.run; print({'torch', 'scipy.stats'} & set(sys.modules))"
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert shown.stdout == "set()\n", shown.stderr


def test_check_tells_settings_and_machine_apart(runtime, monkeypatch):
    monkeypatch.setattr(lab_run, "ENGINES", {"json": "json"})
    good = sat_slime_command("check", TINY)
    assert good.exit_code == 0, good.output
    assert "OK    settings" in good.stdout and "OK json version unknown" in " ".join(good.stdout.split())
    bad = sat_slime_command("check", TINY, "--set", "model.experts=0", "--set", "model.max_positions=9")
    assert bad.exit_code == 2 and bad.stdout.count("FAIL  settings") >= 2
    nothing_clips = sat_slime_command("check", TINY, "--set", "method.denominator=trainer", "--set", "pipeline.lag=8")
    assert "WARN  settings        method.denominator is trainer" in nothing_clips.stdout
    monkeypatch.setattr(lab_run, "ENGINES", {"gone": "no_such_module"})
    monkeypatch.setattr(lab_run, "missing_engines", lambda: ["gone"])
    lacking = sat_slime_command("check", TINY)
    assert lacking.exit_code == 1 and "FAIL gone not installed: run" in " ".join(lacking.stdout.split())
