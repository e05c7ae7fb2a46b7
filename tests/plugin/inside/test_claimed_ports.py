"""Two runs that look for ports at the same time, before either listens, as slime's do."""

import contextlib
import json
import os
import socket
import subprocess
import sys
from importlib.util import find_spec

import pytest

STAND_IN = """
import socket

def is_port_available(port):
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
            return True
        except OSError:
            return False
"""
"""slime's look, for where slime is not."""
RUN = """
import json, sys
from sat_slime.plugin.inside import claimed_ports
if sys.argv[1] == "claims":
    claimed_ports.install()
from slime.utils.http_utils import is_port_available

def free(start, count):
    while not all(is_port_available(start + number) for number in range(count)):
        start += 1
    return start

port = free(15_000, 1)
print(json.dumps([port, free(port + 1, 31)]), flush=True)
sys.stdin.read()
"""
"""An engine's actor, with ports for an engine and its process group."""


@pytest.fixture
def start(tmp_path):
    """Starts an actor, which keeps what it has until its input ends; returns its ports, and the actor."""
    module = tmp_path / "slime" / "utils" / "http_utils.py"
    module.parent.mkdir(parents=True)
    module.write_text(STAND_IN)
    stand_in = [] if find_spec("slime") else [str(tmp_path)]
    paths = os.pathsep.join([*stand_in, *filter(None, [os.environ.get("PYTHONPATH")])])
    with contextlib.ExitStack() as ends:

        def one(how="claims"):
            actor = subprocess.Popen(
                [sys.executable, "-c", RUN, how],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONPATH": paths},
            )
            ends.callback(actor.communicate)
            return json.loads(actor.stdout.readline()), actor

        yield one


def test_two_runs_that_start_together_are_given_other_ports(start):
    (first, group), actor = start()
    (second, other_group), _ = start()
    assert not {first, *range(group, group + 31)} & {second, *range(other_group, other_group + 31)}
    actor.communicate()  # what it had is free for others once it has ended
    assert start()[0][0] == first


def test_a_run_keeps_clear_of_slimes_that_are_not_ours_and_of_ports_in_use(start):
    (theirs, their_group), _ = start("does not claim")
    (first, _), actor = start()
    assert first > their_group + 31 > theirs
    actor.communicate()
    with socket.create_server(("", first)):
        assert start()[0][0] != first
