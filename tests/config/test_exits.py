import os
import pty
import signal
import sys

from sat_slime.config.exits import how_it_ended, signals_handled


def test_an_end_in_words():
    told = "was killed by SIGKILL", "was killed by signal 40", "ended with exit code 0", "ended with exit code 3"
    assert tuple(map(how_it_ended, (-9, -40, 0, 3))) == told


WRITES_ON = """
import signal, sys, time
from sat_slime.config.exits import signals_handled
heard = []
with signals_handled(lambda number, frame: heard.append(number)):
    print("ready", flush=True)
    while not heard:
        time.sleep(0.01)
    print("still here", flush=True)
    open(sys.argv[1], "w").write(signal.Signals(heard[0]).name)
"""


def test_a_terminal_that_is_closed_is_heard_of_and_ends_nothing_that_is_written(tmp_path):
    child, terminal = pty.fork()
    if child == 0:
        os.execv(sys.executable, [sys.executable, "-c", WRITES_ON, str(tmp_path / "heard")])
    with open(terminal, "rb", buffering=0) as screen:
        assert screen.readline() == b"ready\r\n"  # to its end: a write that is under way as a terminal closes fails
    assert os.waitpid(child, 0)[1] == 0
    assert (tmp_path / "heard").read_text() == "SIGHUP"


def test_a_hangup_that_nohup_has_ignored_stays_ignored():
    previous, calls = signal.signal(signal.SIGHUP, signal.SIG_IGN), []
    try:
        with signals_handled(lambda number, frame: calls.append(number)):
            os.kill(os.getpid(), signal.SIGHUP)
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGHUP, previous)
    assert calls == [signal.SIGTERM]
