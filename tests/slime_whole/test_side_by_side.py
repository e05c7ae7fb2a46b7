"""Two runs of the real slime that start together on one machine never meet: each has ports of its own."""

import re
import subprocess

import pytest
from whole_run import environment

pytestmark = [pytest.mark.engine, pytest.mark.timeout(2400)]
SHORT = [
    *("--set", "pipeline.iterations=2"),
    *("--set", "slime.eval-interval=0"),
    *("--set", "slime.save-interval=0"),
]
PORTS = re.compile(r"Ports for engine \d+: (\{.*\})")


def ports_of(log):
    """The ports that slime gave a run's engines, of which the last is that of a group with others after it."""
    return {int(port) for line in PORTS.findall(log) for port in re.findall(r"\b\d{5}\b", line)}


def test_two_runs_that_start_together_have_ports_of_their_own(slime):
    names = ("one", "other")
    launches = [
        subprocess.Popen(
            slime.command(name, *SHORT), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment()
        )
        for name in names
    ]
    try:
        told = [launch.communicate()[0].decode() for launch in launches]
    finally:
        for name in names:
            slime.stop(name)
    assert [launch.returncode for launch in launches] == [0, 0], "\n".join(told)
    one, other = (ports_of((slime.runs / name / "log.txt").read_text()) for name in names)
    assert one and other and not one & other
    assert min(one | other) >= 16_000
