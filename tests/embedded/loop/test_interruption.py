"""What Ctrl-C and SIGTERM do to a run, and when."""

import os
import signal
import time
from types import SimpleNamespace

import pytest

pytest.importorskip("ray", reason="the embedded runtime needs the engines: scripts/setup.sh")
pytest.importorskip("httpx")

import ray

from sat_slime import embedded
from sat_slime.embedded.cluster import own_ray
from sat_slime.embedded.loop.interruption import ACKNOWLEDGED, ONE_ACT_S, Interruption, interruptible


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
def test_a_signal_while_ray_starts_interrupts_and_one_while_it_ends_does_not(monkeypatch, tmp_path, number):
    """ray.init would set Ray's own handler."""
    steps = []

    def init(**_):
        ray._private.utils.set_sigterm_handler(lambda *_: steps.append("Ray's handler"))
        if "started" not in steps:
            steps.append("started")
            os.kill(os.getpid(), number)

    class Run:
        iteration = 0

        def __init__(self, *_):
            pass

        def run(self, resume):
            steps.append("ran")

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "shutdown", lambda: os.kill(os.getpid(), number) if "ran" in steps else None)
    monkeypatch.setattr(own_ray, "_end_rays_processes", lambda: None)
    monkeypatch.setattr(embedded, "_pipeline_class", lambda config: Run)
    before, log = signal.getsignal(number), SimpleNamespace(message=lambda *_, **__: None)
    with pytest.raises(KeyboardInterrupt):
        embedded.run(None, tmp_path, log)
    embedded.run(None, tmp_path, log)
    assert steps == ["started", "ran"]
    assert signal.getsignal(number) is before
