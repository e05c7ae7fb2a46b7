"""What Ctrl-C and SIGTERM do to a run, and when."""

import os
import signal
import time
from types import SimpleNamespace

import pytest

pytest.importorskip("httpx", reason="the lab runtime needs the engines: scripts/setup.sh")

from sat_slime import lab
from sat_slime.config.schema import LabConfig
from sat_slime.lab.loop import batch_order
from sat_slime.lab.loop.interruption import ACKNOWLEDGED, ONE_ACT_S, Interruption, interruptible


@pytest.fixture
def clock(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_in_the_loop_the_first_one_asks_and_the_second_ends(clock, capfd):
    told = []
    with interruptible(told.append) as interruption:
        interruption.looping = True
        interruption.handle(signal.SIGTERM, None)
        clock[0] += ONE_ACT_S
        with pytest.raises(KeyboardInterrupt):
            interruption.handle(signal.SIGTERM, None)
    assert interruption.asked and told == [ACKNOWLEDGED]
    assert capfd.readouterr() == ("", ""), "a live view is on the screen"


def test_two_signals_of_one_act_are_one(clock):
    interruption = Interruption(looping=True)
    for _ in range(3):
        interruption.handle(signal.SIGTERM, None)
    assert interruption.asked


def test_before_the_loop_one_ends_the_run_and_after_it_none_does(clock):
    with pytest.raises(KeyboardInterrupt):
        Interruption().handle(signal.SIGINT, None)
    Interruption(over=True).handle(signal.SIGINT, None)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_before_the_loop_interrupts_and_one_at_the_end_does_not(monkeypatch, tmp_path, number):
    steps = []

    class Run:
        iteration = 0

        def __init__(self, config, folder, log, interruption):
            self.interruption = interruption

        def run(self, resume):
            steps.append("began")
            if len(steps) == 1:
                os.kill(os.getpid(), number)
            self.interruption.over = True
            os.kill(os.getpid(), number)
            steps.append("ran")

    monkeypatch.setattr(batch_order, "BatchPipeline", Run)
    before, log = signal.getsignal(number), SimpleNamespace(message=lambda *_, **__: None)
    with pytest.raises(KeyboardInterrupt):
        lab.run(LabConfig(), tmp_path, log)
    lab.run(LabConfig(), tmp_path, log)
    assert steps == ["began", "began", "ran"]
    assert signal.getsignal(number) is before
