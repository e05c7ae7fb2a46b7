import subprocess
import sys

from command_line import sat_slime_command


def test_version_and_help():
    assert "sat-slime" in sat_slime_command("version").stdout
    top = sat_slime_command("--help").stdout
    assert all(command in top for command in ("launch", "check", "methods", "report", "version"))
    assert "--resume" in sat_slime_command("launch", "--help").stdout


def test_help_waits_for_nothing_that_a_command_needs():
    heavy = ("torch", "numpy", "pydantic", "yaml", "matplotlib", "sat_slime.config", "sat_slime.objective")
    program = f"import sys, sat_slime.cli; print([name for name in {heavy!r} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "[]\n"
